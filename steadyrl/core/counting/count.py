"""What goes on, and how far it is: whoever begins something long or works on many of a kind says so to a listener.

The listener is no argument. Between a user interface and what counts (a sampler, a judge, an environment) stand all
floors of the package and the protocols that users implement, none of which has anything to do with it. Without a
listener nothing happens, and nothing that is computed may depend on one. A thread that was started by others hears
nothing of the listener, so counts belong into the thread that started them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

# What is counted, how many of them are done, and of how many.
OnCount = Callable[[str, int, int], None]
# What begins, such as "loading the model 'base'"; it ends when something else begins.
OnPhase = Callable[[str], None]
_NOBODY: tuple[OnCount, OnPhase] = (lambda noun, done, total: None), (lambda text: None)
_LISTENER: ContextVar[tuple[OnCount, OnPhase]] = ContextVar("listener", default=_NOBODY)


@contextmanager
def heard_by(on_count: OnCount, on_phase: OnPhase = lambda text: None) -> Iterator[None]:
    """Let somebody hear every count and every phase of what runs inside."""
    token = _LISTENER.set((on_count, on_phase))
    try:
        yield
    finally:
        _LISTENER.reset(token)


def tell(noun: str, done: int, total: int) -> None:
    """Say how many of a kind are done; ``done == total`` ends the count."""
    _LISTENER.get()[0](noun, done, total)


def begin(text: str) -> None:
    """Say what begins that may take more than two seconds."""
    _LISTENER.get()[1](text)


def duration(seconds: float) -> str:
    """Return a time span as a person says it: 12 ms, 4.2 s, 3 min 20 s, 5 h 3 min, 2 d 4 h."""
    if seconds < 10:
        return f"{seconds:.2g} s" if seconds >= 0.1 else f"{1000 * seconds:.2g} ms"
    rounded = round(seconds)
    for name, size, next_name, next_size in (("d", 86400, "h", 3600), ("h", 3600, "min", 60), ("min", 60, "s", 1)):
        if rounded >= size:
            return f"{rounded // size} {name} {rounded % size // next_size} {next_name}"
    return f"{rounded} s"
