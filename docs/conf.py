"""The documentation site: `make docs` builds it into docs/_build/html, and runs every example."""

from __future__ import annotations

import hashlib
import os
import sys
from importlib.metadata import version as version_of
from pathlib import Path

DOCS = Path(__file__).resolve().parent
ROOT = DOCS.parent
sys.path.insert(0, str(DOCS / "_ext"))

project = "jalax"
author = "The jalax developers"
copyright = "the jalax developers, Apache-2.0"
release = version = version_of("jalax")

extensions = [
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx.ext.viewcode",
    "myst_nb",
    "sphinx_copybutton",
    "cards",
    "docstrings",
    "mathematics",
    "repository",
]
# .md and .ipynb come from myst_nb; a gallery script is a notebook in jupytext's percent format.
source_suffix = {".md": "myst-nb", ".py": "myst-nb"}
exclude_patterns = ["_build", "_ext", "conf.py", "screenshots.py"]

# Examples -----------------------------------------------------------------------------------------

os.environ["MATPLOTLIBRC"] = str(DOCS / "matplotlibrc")
os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ["TQDM_DISABLE"] = "1"  # a reader would see the bar's last line only


def library_hash() -> str:
    """Of every file that decides what an example prints, apart from the example itself."""
    files = [*sorted((ROOT / "src").rglob("*.py")), ROOT / "constraints.txt"]
    return hashlib.sha256(b"".join(file.read_bytes() for file in files)).hexdigest()[:12]


nb_custom_formats = {".py": ["jupytext.reads", {"fmt": "py:percent"}]}
nb_execution_mode = "cache"
nb_execution_cache_path = str(DOCS / "_build" / "executed" / library_hash())
nb_execution_timeout = 600
nb_execution_raise_on_error = True
nb_output_stderr = "warn"  # shown, and an error of the strict build: examples do not warn
nb_merge_streams = True
myst_enable_extensions = ["dollarmath"]
myst_heading_anchors = 3

# API reference ------------------------------------------------------------------------------------

autodoc_member_order = "bysource"
autodoc_typehints = "none"  # the docstrings say it in words
autodoc_preserve_defaults = True
napoleon_use_ivar = True
napoleon_attr_annotations = False
nitpicky = True  # a name in a docstring must be in this reference
nitpick_ignore_regex = [("py:class", ".*")]  # types of attributes: ndarray, Float[Array, "G N"]
python_maximum_signature_line_length = 88
add_module_names = False
copybutton_prompt_text = r">>> |\.\.\. |\$ "
copybutton_prompt_is_regexp = True

# Looks --------------------------------------------------------------------------------------------

html_theme = "furo"
html_title = "jalax"
html_static_path = ["_static"]
html_favicon = "_static/favicon.svg"
html_css_files = ["site.css"]
html_js_files = ["site.js"]
html_copy_source = False
html_show_sourcelink = False
html_theme_options = {
    "light_css_variables": {
        "color-brand-primary": "#0b5c7a",
        "color-brand-content": "#0b5c7a",
    },
    "dark_css_variables": {
        "color-brand-primary": "#6fc3df",
        "color-brand-content": "#6fc3df",
    },
}
