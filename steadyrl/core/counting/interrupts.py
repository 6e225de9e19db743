"""Signals that ask a process to end: Ctrl-C, a notebook's stop button, a scheduler's request, a closed terminal.

A signal comes at any instruction. What must not be cut in two waits for its end (``deferred``); what may wait for
others without end, such as a user's reward, does not keep a signal waiting (``at_once``).
"""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

# Windows has no SIGHUP.
SIGNALS = (signal.SIGINT, signal.SIGTERM, *(() if sys.platform == "win32" else (signal.SIGHUP,)))
_AT_ONCE: ContextVar[bool] = ContextVar("at_once", default=False)


@contextmanager
def at_once() -> Iterator[None]:
    """Let the first signal end what is inside, also where signals otherwise wait for the end of a step."""
    token = _AT_ONCE.set(True)
    try:
        yield
    finally:
        _AT_ONCE.reset(token)


def is_at_once() -> bool:
    """Return whether a signal ends at once what runs now; for handlers of signals."""
    return _AT_ONCE.get()


@contextmanager
def ending_signals() -> Iterator[None]:
    """Let a scheduler's request and a closed terminal end what is inside as Ctrl-C does: by a KeyboardInterrupt.

    Without a handler the system would end the process with nothing saved. Handlers of the user's own stay.
    """
    with handling_signals(_interrupt, only=(signal.SIG_DFL,)):
        yield


@contextmanager
def deferred() -> Iterator[None]:
    """Let what is inside end before an interrupt is raised; a second signal does not wait.

    Handlers that raise nothing by themselves stay in charge.
    """
    pending: list[int] = []

    def note(number: int, frame: object) -> None:
        if pending or is_at_once():
            raise KeyboardInterrupt
        pending.append(number)

    with handling_signals(note, only=(signal.default_int_handler, _interrupt)):
        yield
    if pending:
        _interrupt(pending[0], None)


def _interrupt(number: int, frame: object) -> None:
    """Raise an interrupt; one that was no Ctrl-C names its signal, for it asks the process to end."""
    raise KeyboardInterrupt(*(() if number == signal.SIGINT else (signal.Signals(number).name,)))


@contextmanager
def handling_signals(handler: Callable[[int, Any], None], only: tuple[object, ...] = ()) -> Iterator[None]:
    """Answer signals by a handler, or those alone whose present one is among ``only``; Python lets no thread do so."""
    in_main = threading.current_thread() is threading.main_thread()
    current = {number: signal.getsignal(number) for number in SIGNALS if in_main}
    replaced = {number: old_handler for number, old_handler in current.items() if not only or old_handler in only}
    for number in replaced:
        signal.signal(number, handler)
    try:
        yield
    finally:
        for number, old_handler in replaced.items():
            signal.signal(number, old_handler)
