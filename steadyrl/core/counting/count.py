"""How far something long is: whoever works on many of a kind says how many are done, and a user interface may listen.

The listener is no argument. Between the user interface and what counts (a sampler, a judge, an environment) stand all
floors of the package and the protocols that users implement, none of which has anything to do with it. Without a
listener nothing happens, and nothing that is computed may depend on one. A thread that was started by others hears
nothing of the listener, so counts belong into the thread that started them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

# What is counted, how many of them are done, and of how many.
Listener = Callable[[str, int, int], None]
_LISTENER: ContextVar[Listener | None] = ContextVar("listener", default=None)


@contextmanager
def heard_by(listener: Listener) -> Iterator[None]:
    """Let somebody hear every count of what runs inside."""
    before = _LISTENER.set(listener)
    try:
        yield
    finally:
        _LISTENER.reset(before)


def tell(what: str, done: int, total: int) -> None:
    """Say how many of a kind are done; ``done == total`` ends the count."""
    listener = _LISTENER.get()
    if listener is not None:
        listener(what, done, total)
