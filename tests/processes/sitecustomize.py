"""Python reads this at its start where this folder is in PYTHONPATH: what the commands that tests run go without.

STEADYRL_TESTS_WITHOUT names it: "browser", with which they see no Chromium, and "pictures", with which they draw none.
A report's pictures take most of the time of a command that trains for a few steps, and so does the import of
matplotlib, in whose place these commands get modules of empty classes.
"""

import importlib.abc
import importlib.machinery
import importlib.util
import os
import sys
import types

VARIABLE = "STEADYRL_TESTS_WITHOUT"
NOTHING = '<svg xmlns="http://www.w3.org/2000/svg"></svg>'


def find_no_browser(find, replace=setattr):
    """Let the module that looks for Chromium look for nothing."""
    replace(find, "PROGRAMS", ())


def draw_nothing(plots, replace=setattr):
    """Let the module that draws reports' pictures make empty ones."""
    replace(plots, "as_svg", lambda figure: NOTHING)
    replace(plots, "svg", lambda *_, **__: NOTHING)
    replace(plots, "panel_figure", lambda *_: None)
    replace(plots, "combined", lambda figures: plots.Rendered(NOTHING, b"", (NOTHING,) * len(figures)))


# What a test goes without that has no marker of this name: the module that gives it, and the change of that module.
CHANGES = {
    "browser": ("steadyrl.environments.browse.browser.find", find_no_browser),
    "pictures": ("steadyrl.show.report.pictures.plots", draw_nothing),
}


class Changed(importlib.abc.MetaPathFinder):
    """Lets modules be imported changed."""

    def __init__(self, changes):
        self._changes = changes

    def find_spec(self, name, path=None, target=None):
        """Return where the module is, or None for all that stay as they are."""
        if (change := self._changes.pop(name, None)) is None:
            return None
        spec = importlib.util.find_spec(name)
        run = spec.loader.exec_module
        spec.loader.exec_module = lambda module: (run(module), change(module))
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
    without = os.environ.get(VARIABLE, "").split()
    sys.meta_path.insert(0, Changed(dict(CHANGES[name] for name in without)))
    if "pictures" in without:
        sys.meta_path.insert(0, WithoutMatplotlib())
