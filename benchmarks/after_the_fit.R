# What R says after the fit: Rscript after_the_fit.R FOLDER
# FOLDER has calls.txt, lines "problem<TAB>name<TAB>expression", and PROBLEM.csv and PROBLEM-new.csv,
# which the expressions find as `data` and `new`. An expression may use those that were evaluated
# before it. Writes answers.csv: problem, name, and the numbers of each.
arguments <- commandArgs(trailingOnly = TRUE)
options(warn = -1)
suppressMessages({
  library(lme4)
  library(glmmTMB)
})
folder <- arguments[1]
calls <- read.delim(file.path(folder, "calls.txt"), header = FALSE, quote = "",
                    col.names = c("problem", "name", "expression"))
answers <- file(file.path(folder, "answers.csv"), "w")
for (problem in unique(calls$problem)) {
  known <- new.env()
  for (part in c("", "-new")) {
    file <- file.path(folder, paste0(problem, part, ".csv"))
    assign(if (part == "") "data" else "new", read.csv(file, stringsAsFactors = TRUE), known)
  }
  for (i in which(calls$problem == problem)) {
    value <- tryCatch(eval(parse(text = calls$expression[i]), known), error = function(e) NA_real_)
    assign(calls$name[i], value, known)
    if (is.numeric(value)) {
      numbers <- format(as.vector(value), digits = 15, trim = TRUE)
      writeLines(paste(c(problem, calls$name[i], numbers), collapse = ","), answers)
    }
  }
}
close(answers)
