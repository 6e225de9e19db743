"""Calls of a user's functions: how long one may take, what is called again, and a loop for asynchronous ones.

Those run in one event loop in a thread of its own, for as long as the process lives. One loop, since what such a
function keeps (an HTTP client, a lock) belongs to the loop that it was first used in. A thread of its own, since a
notebook already runs a loop in the main one.
"""

from __future__ import annotations

import asyncio
import atexit
import functools
import inspect
import logging
import threading
import time
from collections.abc import Callable, Coroutine, Sequence
from concurrent.futures import Future
from typing import Any, TypeVar

from steadyrl.core.errors import exception_line
from steadyrl.core.sections import FunctionSettings

log = logging.getLogger(__name__)

NO_LIMITS = FunctionSettings()
_FIRST_WAIT_S, _LONGEST_WAIT_S = 1.0, 60.0
Item = TypeVar("Item")
_GRACE_S = 2.0  # for coroutines to end after they were cancelled


def too_long(timeout_s: float) -> TimeoutError:
    """Return the error of a call that took longer than its setting allows."""
    return TimeoutError(f"it took more than timeout_s = {timeout_s:g} seconds")


def within(timeout_s: float, function: Callable[..., Any], *args: Any) -> Any:
    """Call a function, and return what it returns; without a limit in the calling thread.

    A thread cannot be ended: one that takes too long goes on beside the run, and ends with the process at the latest.

    Raises:
        TimeoutError: It took longer.
        BaseException: Whatever it raised.
    """
    if not timeout_s:
        return function(*args)
    future: Future[Any] = Future()

    def work() -> None:
        try:
            future.set_result(function(*args))
        except BaseException as error:  # raised again by the thread that waits
            future.set_exception(error)

    threading.Thread(target=work, name="reward", daemon=True).start()
    try:
        return future.result(timeout_s)
    except TimeoutError as error:
        if future.done():  # the function's own
            raise
        raise too_long(timeout_s) from error


def repeated(name: str, call: Callable[[Sequence[Item]], list[Any]], items: Sequence[Item], retries: int) -> list[Any]:
    """Call for many items, and again for those that gave an exception, with longer and longer waits between."""
    values = call(items)
    for retry in range(retries):
        failed = [i for i, value in enumerate(values) if isinstance(value, BaseException)]
        if not failed:
            break
        wait_s = min(_FIRST_WAIT_S * 2**retry, _LONGEST_WAIT_S)
        log.warning(
            "%s failed for %d of %d rollouts and is called again in %g s; the first: %s",
            name, len(failed), len(items), wait_s, exception_line(values[failed[0]]),
        )  # fmt: skip
        time.sleep(wait_s)
        for i, value in zip(failed, call([items[i] for i in failed]), strict=True):
            values[i] = value
    return values


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
        results = running.result(timeout_s + _GRACE_S if timeout_s else None)
    except TimeoutError:  # one works without ever waiting, or does not let itself be cancelled
        _loop.cache_clear()  # the loop and its thread are left to it
        results = [too_long(timeout_s)] * len(coroutines)
    except BaseException:  # an interrupt, above all: nobody waits for them any more
        running.cancel()
        raise
    for value in results:
        if isinstance(value, KeyboardInterrupt):
            raise value
    return results


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
