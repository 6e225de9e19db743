"""Counts, shares, commands and names in sentences."""

import difflib
import shlex
from collections.abc import Iterable


def counted(count: int, noun: str) -> str:
    """Return a count with its noun, as in "1 problem" and "2 problems"."""
    return f"{count} {noun}{'s' * (count != 1)}"


def shell_command(*words: object) -> str:
    """Return a command of steadyrl as a shell reads it, whatever is in its paths."""
    return shlex.join(["steadyrl", *map(str, words)])


def percent(share: float) -> str:
    """Return a share in whole percent, or with the first digit that tells it from 0% and 100%, as in "99.6%"."""
    if 0.0 < share <= 0.005:
        return f"{100.0 * share:.1g}%"
    return f"{100.0 - float(f'{100.0 * (1.0 - share):.1g}'):.12g}%" if 0.995 <= share < 1.0 else f"{share:.0%}"


def did_you_mean(name: str, names: Iterable[str], otherwise: str, count: int = 1) -> str:
    """Return a question that names what an unknown name may be meant to be, or another text where none is like it."""
    close = difflib.get_close_matches(name, names, n=count)
    return f"did you mean {' or '.join(map(repr, close))}?" if close else otherwise
