"""How long a call of a user's reward may take, and what is called again."""

import asyncio
import threading
import time

import pytest

from steadyrl.core.config import resolve
from steadyrl.core.errors import ConfigError
from steadyrl.core.sections import FunctionSettings
from steadyrl.loop.rewards.combine import Term, make_terms
from steadyrl.loop.rewards.functions import per_rollout
from steadyrl.loop.rewards.trl import from_trl
from tests.loop.rewards.test_combine import group, scored


@pytest.fixture(autouse=True)
def waits(monkeypatch):
    """Keep the waits between calls in a list instead of waiting; a sleep of a reward stays one."""
    made = []
    monkeypatch.setattr("steadyrl.loop.rewards.calls.time.sleep", lambda seconds: made.append(seconds))
    return made


HOLD = threading.Event()  # never set: what waits for it hangs


def hanging(text):
    return HOLD.wait(60) if text == "hangs" else 1.0


def one(problem, rollout):
    return hanging(rollout.text)


def all_at_once(completions, **kwargs):
    return [hanging(text) for text in completions]


async def one_awaits(problem, rollout):
    await asyncio.sleep(60 if rollout.text == "hangs" else 0)
    return 1.0


async def all_await(completions, **kwargs):
    return [await one_awaits(None, type("Answer", (), {"text": text})) for text in completions]


async def one_never_waits(problem, rollout):
    return hanging(rollout.text)


async def one_refuses_to_end(problem, rollout):
    try:
        return await one_awaits(problem, rollout)
    except asyncio.CancelledError:
        await asyncio.sleep(4)


def rewarded(function, *texts, **settings):
    """Score texts with a function of one rollout or, by its arguments, of all."""
    lift = from_trl if "completions" in function.__code__.co_varnames else per_rollout
    chosen = FunctionSettings(**settings)
    reward = lift("f", function, settings=chosen)
    return scored([group(*texts)], Term("f", 1.0, reward))


@pytest.mark.parametrize("function", [one, one_awaits])
def test_of_a_function_of_one_rollout_the_slow_ones_alone_are_unscored(function):
    found = rewarded(function, "fast", "hangs", "fast", timeout_s=0.1)
    assert [rollout.reward for rollout in found] == [1.0, None, 1.0]
    assert found[1].unscored == "f raised TimeoutError: it took more than timeout_s = 0.1 seconds"


@pytest.mark.parametrize("function", [all_at_once, all_await, one_never_waits, one_refuses_to_end])
def test_where_one_call_holds_all_others_all_are_unscored(function):
    """The next step is scored all the same."""
    began = time.monotonic()
    found = rewarded(function, "fast", "hangs", timeout_s=0.1)
    assert [rollout.reward for rollout in found] in ([None, None], [1.0, None])
    assert time.monotonic() - began < 20
    assert [rollout.reward for rollout in rewarded(function, "fast", timeout_s=5.0)] == [1.0]


def failing(times):
    """Return functions of one rollout and of all that raise at their first calls, and a list of their calls."""
    calls = []

    def of_one(problem, rollout):
        calls.append(rollout.text)
        if rollout.text == "b" and calls.count("b") <= times:
            raise ConnectionError("gone")
        return 2.0

    def of_all(completions, log_extra, **kwargs):
        calls.append(tuple(completions))
        log_extra("call", [len(calls)] * len(completions))
        if len(calls) <= times:
            raise ConnectionError("gone")
        return [2.0] * len(completions)

    return of_one, of_all, calls


def test_only_what_failed_is_called_again_after_longer_and_longer_waits(waits):
    of_one, _, calls = failing(2)
    assert [r.reward for r in rewarded(of_one, "a", "b", "c", retries=3)] == [2.0, 2.0, 2.0]
    assert (calls, waits) == (["a", "b", "c", "b", "b"], [1.0, 2.0])


def test_a_function_of_all_rollouts_is_called_again_as_a_whole_and_its_last_call_is_logged(waits):
    _, of_all, calls = failing(1)
    found = rewarded(of_all, "a", "b", retries=1)
    assert [(r.reward, r.note) for r in found] == [(2.0, "call: 2")] * 2
    assert (calls, waits) == ([("a", "b")] * 2, [1.0])


def test_after_the_last_retry_a_rollout_is_unscored_and_says_why(waits):
    of_one, of_all, calls = failing(9)
    assert [r.reward for r in rewarded(of_one, "a", "b", retries=2)] == [2.0, None]
    assert calls == ["a", "b", "b", "b"]
    (reason,) = {r.unscored for r in rewarded(of_all, "a", "b", retries=2)}
    assert reason.startswith("f raised ConnectionError: gone (test_attempts.py, line ")


def test_what_returned_none_is_not_called_again(waits):
    calls = []
    assert rewarded(lambda problem, rollout: calls.append(1), "a", retries=5)[0].reward is None
    assert (len(calls), waits) == (1, [])


def test_without_a_limit_a_function_runs_in_the_thread_of_the_loop():
    """Timers of its own, such as math-verify's, work in the main thread only."""
    seen = []
    rewarded(lambda problem, rollout: seen.append(threading.current_thread()), "a")
    rewarded(lambda problem, rollout: seen.append(threading.current_thread()), "a", timeout_s=5.0)
    assert seen[0] is threading.current_thread() is not seen[1]


def test_an_interrupt_in_a_limited_function_ends_the_run():
    def interrupted(problem, rollout):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        rewarded(interrupted, "a", timeout_s=5.0, retries=3)


def test_limits_are_settings_of_a_function_and_of_a_tasks_own_reward(users_module):
    users_module("limited", "def f(problem, rollout):\n    raise OSError('down')\n")
    entry = {"weight": 2.0, "timeout_s": 0.5, "retries": 1}
    config = resolve({"task": {"name": "math"}, "rewards": {"limited:f": entry, "correct": {"timeout_s": 9.0}}})
    assert (config.rewards["limited:f"].timeout_s, config.rewards["correct"].timeout_s) == (0.5, 9.0)
    for wrong in ({"timeout_s": -1.0}, {"retries": 21}, {"retries": 0.5}):
        with pytest.raises(ConfigError, match=next(iter(wrong))):
            resolve({"task": {"name": "math"}, "rewards": {"limited:f": wrong}})
    with pytest.raises(ConfigError, match=r"cut_off\.timeout_s: unknown setting"):
        resolve({"task": {"name": "math"}, "rewards": {"cut_off": {"timeout_s": 1.0}, "correct": 1.0}})


def test_the_settings_reach_the_function(users_module, waits):
    class NoTask:
        metric = ""

        def rewards(self):
            return {}

    users_module("limited", "def f(problem, rollout):\n    raise OSError('down')\n")
    terms = make_terms({"limited:f": FunctionSettings(retries=2)}, NoTask())
    scored([group("a")], *terms)
    assert waits == [1.0, 2.0]
