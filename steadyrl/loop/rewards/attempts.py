"""Calls of a user's reward: how long one may take, and what is called again."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from steadyrl.core.errors import exception_line
from steadyrl.core.sections import FunctionSettings

log = logging.getLogger(__name__)

NO_LIMITS = FunctionSettings()
_FIRST_WAIT_S, _LONGEST_WAIT_S = 1.0, 60.0
Item = TypeVar("Item")


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
    returned: list[Any] = []
    raised: list[BaseException] = []

    def work() -> None:
        try:
            returned.append(function(*args))
        except BaseException as error:  # raised again by the thread that waits
            raised.append(error)

    thread = threading.Thread(target=work, name="reward", daemon=True)
    thread.start()
    thread.join(timeout_s)
    if raised:
        raise raised[0]
    if not returned:
        raise too_long(timeout_s)
    return returned[0]


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
