"""The site: the pages of this repository as they are, with a navigation. `make docs` builds it; a warning is an error.

The source folder is the root of the repository, so that every relative link means the same on the site as in the
repository: a linked page becomes a page, and any other linked file is offered for download.
"""

import sys
from pathlib import Path

from sphinx.application import Sphinx

sys.path.insert(0, str(Path(__file__).parent.parent))

project = "steadyrl"
author = copyright = "the authors of steadyrl"
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
# Of the docstrings: no PyTorch is needed, and types of other packages are no links.
autodoc_mock_imports = ["torch", "transformers"]
autodoc_preserve_defaults = True
autodoc_typehints_format = "short"
python_use_unqualified_type_names = True
maximum_signature_line_length = 90
napoleon_use_ivar = True
default_role = "code"  # of single backticks in docstrings
nitpick_ignore_regex = [("py:.*", ".*")]
root_doc = "README"
include_patterns = ["*.md", "docs/**.md", "bench/**.md", "examples/**.md"]
exclude_patterns = [".*", "**/.*", "build", "dist", "runs"]
myst_heading_anchors = 4
highlight_language = "none"
templates_path = ["_templates"]
html_theme = "furo"
html_title = "steadyrl"
html_additional_pages = {"index": "to_readme.html"}
html_copy_source = False
html_static_path = ["_static"]
html_css_files = ["steadyrl.css"]

# The pages below a page, by section, as seen from the page. A page that is named nowhere is a warning; a star names a
# whole folder.
NAVIGATION = {
    root_doc: {
        "Start": ["docs/start", "docs/results", "docs/base-model", "docs/models"],
        "Coming from": ["docs/from-trl", "docs/from-verl", "docs/from-unsloth", "docs/doctor-only"],
        "Train": [
            "docs/algorithms/ppo",
            "docs/algorithms/*",
            "docs/rewards/*",
            "docs/preflight",
            "docs/preflight-checks",
            "docs/tune",
            "docs/autopilot",
            "docs/early-stopping",
            "docs/curriculum",
            "docs/export",
            "docs/tasks/*",
            "docs/task-checks",
            "examples/**search-start/README",
        ],
        "Diagnose": ["docs/doctor/README", "docs/web", "docs/trackers"],
        "Judge and compare": [
            "docs/evaluation",
            "docs/compare",
            "docs/studies",
            "docs/founding",
            "docs/forecast",
        ],
        "Scale": [
            "docs/gpu",
            "docs/scaling",
            "docs/vllm",
            "docs/off-policy",
            "docs/performance",
            "docs/backends/*",
        ],
        "Extend": [
            "docs/environments",
            "examples/agents/README",
            "examples/plugins/**",
            "docs/batch",
            "docs/sandbox",
            "docs/architecture",
            "CONTRIBUTING",
        ],
        "Reference": ["docs/commands", "docs/api", "docs/config", "docs/metrics", "docs/security"],
        "Project": ["docs/dependencies", "CHANGELOG", "docs/log"],
    },
    "docs/results": {"": ["/bench/results/*"]},
    "docs/studies": {"": ["studies/*/report"]},
    "docs/log": {"": ["log/*"]},
    "docs/doctor/README": {"": ["statistics", "quantities", "names", "*"]},
}


def add_navigation(app: Sphinx, page: str, content: list[str]) -> None:
    """Put the navigation behind a page, where the readers of the repository do not see it."""
    for section, pages in NAVIGATION.get(page, {}).items():
        options = [":hidden:", ":glob:", ":maxdepth: 1", *([f":caption: {section}"] if section else [])]
        lines = ["```{toctree}", *options, "", *pages, "```"]
        content[0] += "\n\n" + "\n".join(lines) + "\n"


def setup(app: Sphinx) -> None:
    """Sphinx calls this before it reads the pages."""
    app.connect("source-read", add_navigation)
