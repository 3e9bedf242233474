"""Configuration of the site. Its source folder is the root of the project, so that links are those of GitHub: `make docs`."""

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from gmmae import __version__  # noqa: E402 after the path

project, author, version = "gmmae", "the authors of gmmae", __version__
html_title = f"gmmae {version}"

extensions = ["myst_nb", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "docs.reference_pages"]
root_doc = "docs/index"
include_patterns = ["*.md", "docs/*.md", "docs/*/*.md", "docs/notebooks/*.ipynb"]
exclude_patterns = [".*", "runs", "results", "gmmae", "tests", "experiments", "benchmarks", "configs", "docs/_build"]

# Headings have the anchors of GitHub. Notebooks show the outputs that they were committed with.
myst_heading_anchors = 4
myst_enable_extensions = ["dollarmath", "html_image"]
nb_execution_mode = "off"
nb_merge_streams = True

# Quotes and ellipses are set; the two hyphens of an option stay.
smartquotes_action = "qe"

# Names in docstrings stand between single backticks.
default_role = "code"
autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_typehints_format = "short"
napoleon_use_rtype = False
napoleon_use_ivar = True
napoleon_attr_annotations = False

html_theme = "furo"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_extra_path = ["_redirect"]
html_show_sourcelink = False
html_show_copyright = False
