"""Python reads this at its start where this folder is in PYTHONPATH: the commands that tests run draw no pictures.

A report's pictures take most of the time of a command that trains for a few steps, and so does the import of
matplotlib, in whose place these commands get modules of empty classes.
"""

import importlib.abc
import importlib.machinery
import importlib.util
import sys
import types

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


class Empty:
    """What stands for a class or a function of matplotlib: it takes all arguments, does nothing and can be entered."""

    def __init__(self, *args, **kwargs):
        pass

    def __enter__(self):
        return self

    def __exit__(self, *error):
        return None


class EmptyModule(types.ModuleType):
    """A module whose every name is an ``Empty``."""

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return type(name, (Empty,), {})


class WithoutMatplotlib(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds empty modules for matplotlib and all its modules."""

    def find_spec(self, name, path=None, target=None):
        """Return where the module is, or None for all others."""
        if name.partition(".")[0] != "matplotlib":
            return None
        return importlib.machinery.ModuleSpec(name, self, is_package=True)

    def create_module(self, spec):
        """Return an empty module."""
        return EmptyModule(spec.name)

    def exec_module(self, module):
        """Leave it empty."""


if __name__ == "sitecustomize":
    sys.meta_path[:0] = [Undrawn(), WithoutMatplotlib()]
