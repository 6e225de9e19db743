"""Runs asynchronous reward functions: one event loop in a thread of its own, for as long as the process lives.

One loop, since what such a function keeps (an HTTP client, a lock) belongs to the loop that it was first used in. A
thread of its own, since a notebook already runs a loop in the main one.
"""

from __future__ import annotations

import asyncio
import atexit
import functools
import inspect
import threading
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

from steadyrl.loop.rewards.attempts import too_long

_GRACE_S = 2.0  # for coroutines to end after they were cancelled


def is_async(function: Callable[..., Any]) -> bool:
    """Return whether calling a function, or an object, gives a coroutine."""
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(type(function).__call__)


def wait_for(coroutines: Sequence[Coroutine[Any, Any, Any]], timeout_s: float = 0.0) -> list[Any]:
    """Run coroutines at the same time; return for each, in order, what it returned or the exception it raised.

    Each may take ``timeout_s`` seconds; 0 is no limit.

    Raises:
        KeyboardInterrupt: One of them raised it, or it came while they ran; what still runs is cancelled then.
    """

    async def limited(coroutine: Coroutine[Any, Any, Any]) -> Any:
        limit = asyncio.timeout(timeout_s or None)
        try:
            async with limit:
                return await coroutine
        except TimeoutError as error:
            if limit.expired():
                raise too_long(timeout_s) from error
            raise

    async def together() -> list[Any]:
        return await asyncio.gather(*map(limited, coroutines), return_exceptions=True)

    running = asyncio.run_coroutine_threadsafe(together(), _loop())
    try:
        outcomes = running.result(timeout_s + _GRACE_S if timeout_s else None)
    except TimeoutError:  # one works without ever waiting, or does not let itself be cancelled
        _loop.cache_clear()  # the loop and its thread are left to it
        outcomes = [too_long(timeout_s)] * len(coroutines)
    except BaseException:  # an interrupt, above all: nobody waits for them any more
        running.cancel()
        raise
    for value in outcomes:
        if isinstance(value, KeyboardInterrupt):
            raise value
    return outcomes


@functools.cache
def _loop() -> asyncio.AbstractEventLoop:
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=_run, args=(loop,), name="asynchronous rewards", daemon=True)
    thread.start()
    atexit.register(_close, loop, thread)
    return loop


def _run(loop: asyncio.AbstractEventLoop) -> None:
    """Run a loop until it is stopped, whatever a task raises."""
    while True:
        try:
            loop.run_forever()
        except (SystemExit, KeyboardInterrupt):  # these end run_forever; whoever waits for the task gets them
            continue
        return


def _close(loop: asyncio.AbstractEventLoop, thread: threading.Thread) -> None:
    loop.call_soon_threadsafe(loop.stop)
    thread.join(_GRACE_S)
    if not thread.is_alive():  # a coroutine that never waits holds its thread, which must not hold the process
        loop.close()
