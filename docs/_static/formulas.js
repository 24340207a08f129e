// Sphinx writes the LaTeX of each formula into an element of class "math".
document.addEventListener("DOMContentLoaded", () => {
  for (const element of document.querySelectorAll(".math")) {
    const displayMode = element.tagName === "DIV";
    katex.render(element.textContent, element, { displayMode, throwOnError: false });
  }
});
