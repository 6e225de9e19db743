"""Refuses an argument of another kind than the annotation of a public function names, in one place for all of them."""

from __future__ import annotations

import inspect
import reprlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache, partial, wraps
from numbers import Integral, Real
from os import PathLike
from pathlib import Path
from types import UnionType
from typing import Any, TypeVar, Union, get_args, get_origin, get_type_hints

import numpy as np

from steadyrl.core.errors import ConfigError
from steadyrl.core.words import counted

Checked = TypeVar("Checked", bound=Callable[..., Any])
# What a value of an annotation may be, where that is not the annotation itself, and what it is called.
_KINDS: dict[Any, tuple[Any, str]] = {
    str: (str, "a text"),
    bool: (bool | np.bool_, "True or False"),
    int: (Integral, "a whole number"),
    float: (Real, "a number"),
    type(None): (type(None), "None"),
    **dict.fromkeys((Path, PathLike), (PathLike, "a path")),
    Mapping: (Mapping, "a dict"),
    **dict.fromkeys((Sequence, tuple), (Sequence, "a list")),
    Iterable: (Iterable, "rows"),
}


def checked(function: Checked) -> Checked:
    """Let a function, or the constructor and the methods of a class, refuse arguments of other types than they name.

    Empty texts are no paths: a path of nothing would be the current folder.
    """
    if isinstance(function, type):
        for name, member in list(vars(function).items()):
            if inspect.isfunction(member) and (name == "__init__" or not name.startswith("_")):
                setattr(function, name, checked(member))
        return function
    names = tuple(inspect.signature(function).parameters)
    # Not before the first call: an annotation may name a module that is still being imported here.
    kinds_by_name = cache(lambda: {name: _kinds(hint) for name, hint in get_type_hints(function).items()})

    @wraps(function)
    def checked_call(*arguments: Any, **keywords: Any) -> Any:
        # Of a missing argument, or one too many, Python speaks better.
        for name, value in (*zip(names, arguments, strict=False), *keywords.items()):
            kinds = kinds_by_name().get(name, (object,))
            is_empty_path = isinstance(value, str) and not value and {Path, PathLike}.intersection(kinds)
            # The exact type comes first, since it settles nearly every call: isinstance of an abstract class is slow.
            if (type(value) in kinds or any(_is_of_kind(value, kind) for kind in kinds)) and not is_empty_path:
                continue
            *words, last = dict.fromkeys(_kind_name(kind) for kind in kinds)
            expected = f"{', '.join(words)} or {last}" if words else last
            got = f"{' '.join(reprlib.repr(value).split())} ({type(value).__name__})"
            documented_name = f"{function.__module__}.{function.__qualname__.removesuffix('.__init__')}"
            raise ConfigError(f"{name}: got {got}; expected {expected}; in Python help('{documented_name}') says more")
        return function(*arguments, **keywords)

    return checked_call  # type: ignore[return-value]  # it is called as the function is


def gives_no_value(function: Any) -> bool:
    """Return whether a call gives a generator or a coroutine in the place of a value."""
    return inspect.isgeneratorfunction(function) or inspect.iscoroutinefunction(function)


def takes(function: Any, count: int) -> bool:
    """Return whether something can be called with so many arguments in their order."""
    try:
        inspect.signature(function).bind(*[None] * count)
    except TypeError:  # too few or too many, or nothing to call
        return False
    except ValueError:  # of some functions in C the parameters are not known; a partial's arguments may not fit
        return callable(function) and not isinstance(function, partial)
    return True


def _kinds(hint: Any) -> tuple[Any, ...]:
    """Return the types that an annotation names; of a function with its arguments."""
    if get_origin(hint) in (Union, UnionType):
        return tuple(kind for part in get_args(hint) for kind in _kinds(part))
    if hint is Any or get_origin(hint) is Callable:
        return (object if hint is Any else hint,)
    return (get_origin(hint) or hint,)


def _is_of_kind(value: object, kind: Any) -> bool:
    if get_origin(kind) is Callable:
        return callable(value) and not gives_no_value(value) and takes(value, len(get_args(kind)[0]))
    # To Python True is a number, and a text a list of its letters.
    passes_for = {int: bool, float: bool, Sequence: str, tuple: str}.get(kind, ())
    return isinstance(value, _KINDS.get(kind, (kind,))[0]) and not isinstance(value, passes_for)


def _kind_name(kind: Any) -> str:
    if get_origin(kind) is Callable:
        return f"a function of {counted(len(get_args(kind)[0]), 'argument')}"
    return _KINDS[kind][1] if kind in _KINDS else f"a {kind.__name__}"
