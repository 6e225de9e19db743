"""The site: the pages of this repository as they are, with a navigation. `make docs` builds it; a warning is an error.

The source folder is the root of the repository, so that every relative link means the same on the site as in the
repository: a linked page becomes a page, and any other linked file is offered for download.
"""

from sphinx.application import Sphinx

project = "steadyrl"
author = copyright = "the authors of steadyrl"
extensions = ["myst_parser"]
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

# The pages below a page, by section. A page that is named nowhere is a warning; a star names a whole folder.
NAVIGATION = {
    root_doc: {
        "Start": ["docs/start", "docs/results", "docs/batch", "docs/base-model"],
        "Training": [
            "docs/algorithms/ppo",
            "docs/algorithms/*",
            "examples/plugins/**",
            "docs/curriculum",
            "docs/models",
            "docs/from-trl",
            "docs/performance",
            "docs/vllm",
            "docs/gpu",
            "docs/scaling",
            "docs/off-policy",
            "docs/backends/*",
            "docs/export",
        ],
        "Tasks & rewards": [
            "docs/environments",
            "docs/tasks/*",
            "examples/**search-start/README",
            "docs/rewards/*",
            "docs/sandbox",
        ],
        "Staying steady": [
            "docs/preflight",
            "docs/doctor/README",
            "docs/autopilot",
            "docs/evaluation",
            "docs/compare",
            "docs/studies",
            "docs/studies/*/report",
            "docs/tune",
            "docs/forecast",
        ],
        "Watching": ["docs/web", "docs/trackers"],
        "Reference": ["docs/config", "docs/metrics", "docs/security"],
        "Project": [
            "docs/architecture",
            "docs/dependencies",
            "docs/log",
            "docs/log/*",
            "CONTRIBUTING",
            "CHANGELOG",
            "bench/results/*",
        ],
    },
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
