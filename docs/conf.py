"""The site: the pages of this repository as they are, with a navigation. `make docs` builds it; a warning is an error.

The source folder is the root of the repository, so that every relative link means the same on the site as in the
repository: a linked page becomes a page, and any other linked file is offered for download.
"""

from sphinx.application import Sphinx

project = "steadyrl"
author = copyright = "the authors of steadyrl"
extensions = ["myst_parser"]
root_doc = "README"
include_patterns = ["*.md", "docs/**.md", "bench/**.md"]
exclude_patterns = [".*", "**/.*", "build", "dist", "runs"]
myst_heading_anchors = 4
highlight_language = "none"
templates_path = ["_templates"]
html_theme = "furo"
html_title = "steadyrl"
html_additional_pages = {"index": "to_readme.html"}
html_copy_source = False

# A page that no section names is a warning. A star stands for all pages of a folder.
NAVIGATION = {
    "Start": ["docs/start", "docs/batch", "docs/base-model"],
    "Training": ["docs/algorithms/ppo", "docs/algorithms/*", "docs/curriculum", "docs/performance", "docs/vllm"],
    "Tasks & rewards": ["docs/tasks/*", "docs/rewards/*", "docs/sandbox"],
    "Staying steady": ["docs/preflight", "docs/doctor/README", "docs/doctor/*", "docs/autopilot", "docs/compare"],
    "Reference": ["docs/config", "docs/metrics", "docs/security"],
    "Project": ["docs/architecture", "docs/dependencies", "docs/log", "CONTRIBUTING", "CHANGELOG", "bench/results/*"],
}


def add_navigation(app: Sphinx, page: str, content: list[str]) -> None:
    """Put the navigation behind the README, where the repository's readers do not see it."""
    if page == root_doc:
        for section, pages in NAVIGATION.items():
            lines = [f"```{{toctree}}\n:hidden:\n:glob:\n:maxdepth: 1\n:caption: {section}\n", *pages, "```"]
            content[0] += "\n" + "\n".join(lines) + "\n"


def setup(app: Sphinx) -> None:
    """Sphinx calls this before it reads the pages."""
    app.connect("source-read", add_navigation)
