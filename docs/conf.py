"""Settings of the documentation site: `make docs` builds it into `docs/_build/html`."""

import sys
from pathlib import Path

from dmb import __version__

sys.path.insert(0, str(Path(__file__).parent / "_ext"))

project, author, release = "dmb", "the authors of dmb", __version__
extensions = ["myst_parser", "sphinx.ext.autodoc", "cells", "checked", "docstrings", "mathml", "pages"]
exclude_patterns = ["_build", "_ext", "conf.py"]
nitpicky = True

# Markdown: the same files are read on GitHub, and their snippets run as tests
myst_enable_extensions = ["dollarmath"]
myst_heading_anchors = 4
myst_fence_as_directive = ["math"]

# docstrings
default_role = "py:obj"  # a link if there is such a name, else code
nitpick_ignore_regex = [("py:.*", ".*")]  # names of other packages, and code that is no name
autodoc_default_options = {"members": True}
autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_typehints_format = "short"
toc_object_entries_show_parents = "hide"
python_maximum_signature_line_length = 100

html_theme = "furo"
html_title = f"dmb {release}"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_math_renderer = "mathml"
html_copy_source = False
html_show_sphinx = html_show_copyright = False
html_show_search_summary = False  # which cannot be fetched from a page that is a file
highlight_language = "text"
