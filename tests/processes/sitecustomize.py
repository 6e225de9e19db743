"""Python reads this at its start where this folder is in PYTHONPATH: the commands that tests run draw no pictures.

A report's pictures take most of the time of a command that trains for a few steps.
"""

import importlib.abc
import importlib.util
import sys

PLOTS = "steadyrl.show.report.pictures.plots"
NOTHING = '<svg xmlns="http://www.w3.org/2000/svg"></svg>'


def draw_nothing(plots, replace=setattr):
    """Let the module that draws reports' pictures make empty ones."""
    replace(plots, "as_svg", lambda figure: NOTHING)
    replace(plots, "svg", lambda *_, **__: NOTHING)
    replace(plots, "single", lambda *_: None)
    replace(plots, "together", lambda figures: plots.Drawn(NOTHING, b"", (NOTHING,) * len(figures)))


class Undrawn(importlib.abc.MetaPathFinder):
    """Lets that module be imported so."""

    def find_spec(self, name, path=None, target=None):
        """Return where the module is, or None for all others."""
        if name != PLOTS:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        run = spec.loader.exec_module
        spec.loader.exec_module = lambda module: (run(module), draw_nothing(module))
        return spec


if __name__ == "sitecustomize":
    sys.meta_path.insert(0, Undrawn())
