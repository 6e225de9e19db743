import asyncio
import math
import threading
from dataclasses import replace

import numpy as np
import pytest

from steadyrl.core.errors import ConfigError, DataError
from steadyrl.core.types import Group, Problem, Rollout
from steadyrl.loop.rewards.combine import Term, make_terms, require_columns, reward_shares, score_groups
from steadyrl.loop.rewards.functions import per_rollout
from steadyrl.loop.rewards.trl import from_trl


class NoTask:
    """A task without rewards of its own."""

    metric = ""

    def rewards(self):
        return {}


def group(*texts, version=0, **columns):
    rollouts = tuple(
        Rollout(
            problem_id="p",
            prompt_ids=np.zeros(1, np.int32),
            completion_ids=np.arange(len(text), dtype=np.int32),
            completion_mask=np.ones(len(text), bool),
            sampling_logprobs=np.zeros(len(text), np.float32),
            text=text,
            stop_reason="stop",
            policy_version=version,
        )
        for text in texts
    )
    return Group(Problem("p", f"say {len(texts)}", columns), rollouts)


def term(function, name="part", weight=1.0):
    return Term(name, weight, per_rollout(name, function))


def scored(groups, *terms):
    return [rollout for g in score_groups(groups, terms) for rollout in g.rollouts]


def trl(name, function, weight=1.0, max_steps=0):
    return Term(name, weight, from_trl(name, function, max_steps))


# Word for word in the manner of TRL's documentation of custom reward functions.
TRL_MODULE = '''
def reward_func(completions, **kwargs):
    """Reward function that gives higher scores to longer completions."""
    return [float(len(completion)) for completion in completions]


def closeness(prompts, completions, ground_truth, completion_ids, **kwargs):
    assert len(prompts) == len(completions) == len(completion_ids) == len(kwargs["level"])
    return [1.0 if c == truth else 0.0 for c, truth in zip(completions, ground_truth)]


def bare(completions):
    return [None if c == "skip" else len(c) for c in completions]
'''


def test_reward_functions_written_for_trl_run_unchanged(users_module):
    module = users_module("rewards_for_trl", TRL_MODULE)
    weights = {f"{module}:reward_func": 1.0, f"{module}:closeness": 10.0, "rewards_for_trl:bare": 0.0}
    terms = make_terms(weights, NoTask())
    found = scored([group("one", "three", ground_truth="three"), group("skip", level=2)], *terms)
    assert [r.reward for r in found] == [3.0, 15.0, 4.0]
    assert [r.parts for r in found] == [
        {"reward_func": 3.0, "closeness": 0.0, "bare": 3.0},
        {"reward_func": 5.0, "closeness": 1.0, "bare": 5.0},
        {"reward_func": 4.0, "closeness": 0.0},
    ]


def test_trl_functions_get_all_rollouts_of_a_step_at_once_with_their_columns():
    calls = []

    def spy(prompts, completions, answer, completion_ids, trainer_state, log_extra, log_metric, **kwargs):
        calls.append((prompts, completions, answer, completion_ids, kwargs))
        return [0.0] * len(completions)

    scored([group("ab", "c", answer=1), group("d", answer=2, hint="h")], trl("spy", spy))
    assert calls == [
        (["say 2", "say 2", "say 1"], ["ab", "c", "d"], [1, 1, 2], [[0, 1], [0], [0]], {"hint": [None, None, "h"]})
    ]


def test_a_trl_function_is_not_called_for_nothing():
    """A task without known answers has none to check."""
    assert from_trl("never", lambda completions, trainer_state: 1 / 0)([]) == []


def test_a_function_of_trls_environments_is_refused_before_anything_is_paid():
    with pytest.raises(ConfigError, match="the reward 'solved' takes the environments of TRL"):
        from_trl("solved", lambda environments, completions: [0.0])
    from_trl("solved", lambda completions, environments=None: [0.0])


def test_a_column_cannot_take_the_place_of_the_completions():
    given = []
    reward = from_trl("spy", lambda completions, **kwargs: given.append(completions) or [0.0])
    scored([group("right", completions="wrong", prompts="wrong")], Term("spy", 1.0, reward))
    assert given == [["right"]]


def test_a_trl_function_that_returns_too_few_values_is_refused():
    reward = from_trl("short", lambda completions, **kwargs: [1.0, 0.0])
    with pytest.raises(DataError, match="the reward 'short' returned 2 values for 3 completions"):
        scored([group("a", "b", "c")], Term("short", 1.0, reward))


async def _one_number(completions, **kwargs):
    return 0.5


@pytest.mark.parametrize(
    "function",
    [
        lambda completions, **kwargs: 0.5,
        lambda completions, **kwargs: np.float64(0.5),
        lambda completions, **kwargs: np.array(0.5),
        lambda completions, **kwargs: None,
        lambda completions, **kwargs: "123",
        lambda completions, **kwargs: {"a": 1, "b": 2, "c": 3},
        lambda completions, **kwargs: {1.0, 2.0, 3.0},
        _one_number,
    ],
)
def test_a_trl_function_that_returns_no_list_is_refused_as_one_that_returns_one_value(function):
    with pytest.raises(DataError, match="the reward 'one' returned 1 value for 3 completions; expected a list"):
        scored([group("a", "b", "c")], trl("one", function))


NEEDS = """
def needs(completions, answer, level=1, *, hint, trainer_state, log_extra, **kwargs): return [1.0 for _ in completions]
class Scorer:
    def __call__(self, prompts, completions, completion_ids, log_metric, answer): return [1.0 for _ in completions]
scorer = Scorer()
def for_verl(data_source, solution_str, ground_truth): return 1.0
def for_verl_without(solution_str, ground_truth=None): return 1.0
def plain(problem, rollout): return 1.0
"""


@pytest.mark.parametrize(
    ("name", "columns"),
    [
        ("needs", {"answer", "hint"}),
        ("scorer", {"answer"}),
        ("for_verl", {"reward_model"}),
        ("for_verl_without", set()),
        ("plain", set()),
    ],
)
def test_a_reward_says_which_columns_it_cannot_be_called_without(users_module, name, columns):
    (made,) = make_terms({f"{users_module('rewards_that_need', NEEDS)}:{name}": 1.0}, NoTask())
    assert made.columns == columns


def test_a_reward_whose_column_no_problem_has_is_refused_with_the_columns_that_there_are():
    needs = Term("needs", 1.0, lambda pairs: [], columns=frozenset({"answer", "level"}))
    problems = [Problem("1", "?", {"Answer": "4", "level": 1}), Problem("2", "?", {"gold": "5"})]
    with pytest.raises(ConfigError) as caught:
        require_columns([needs], "train", problems)
    refusal = "the reward 'needs' takes answer, and no problem of the split 'train' has such a column"
    assert str(caught.value).startswith(f"{refusal}; beside the prompt there are: Answer, gold, level. Rename")
    require_columns([needs], "train", [*problems, Problem("3", "?", {"answer": "6"})])
    require_columns([needs], "heldout", [])


@pytest.mark.parametrize("column", ["completions", "prompts", "completion_ids", "trainer_state", "log_metric"])
def test_a_column_that_an_argument_of_trl_would_hide_is_refused(users_module, column):
    """TRL itself ends with a TypeError for the first two, and hides the others without a word."""
    named = ", ".join(sorted({"completions", column}))
    text = f"def every(completions, **columns): ...\ndef by_name({named}): ...\n"
    text += "def other(completions, level): ...\ndef text(completion, **columns): ...\n"
    module = users_module(f"hides_{column}", text)
    problems = [Problem("1", "?", {"level": 3, column: "of the data"})]
    for name in ["every", "by_name", *(["other"] if column == "completions" else [])]:
        terms = make_terms({f"{module}:{name}": 1.0}, NoTask())
        with pytest.raises(ConfigError, match=f"the reward '{name}' gets its own {column}, .* the split 'train'"):
            require_columns(terms, "train", problems)
        require_columns(terms, "train", [Problem("1", "?", {"level": 3, "completion": "x"})])
    for name in ["text", *([] if column == "completions" else ["other"])]:
        require_columns(make_terms({f"{module}:{name}": 1.0}, NoTask()), "train", problems)


def test_a_trl_function_that_raises_leaves_all_unscored_with_the_reason(caplog):
    reward = from_trl("fails", lambda completions, missing, **kwargs: [1.0])
    found = scored([group("a", "b")], term(lambda p, r: 1), Term("fails", 0.0, reward))
    assert [r.reward for r in found] == [1.0, 1.0]
    found = scored([group("a", "b")], Term("fails", 1.0, reward))
    assert [r.reward for r in found] == [None, None]
    assert "fails raised TypeError: " in found[0].unscored
    assert "missing 1 required positional argument: 'missing'" in found[0].unscored


def test_a_trl_function_may_leave_some_unscored_and_nan_is_unscored_too():
    reward = from_trl("some", lambda completions, **kwargs: [None, math.nan, 2])
    found = scored([group("a", "b", "c")], Term("some", 1.0, reward))
    assert [(r.reward, r.unscored) for r in found] == [
        (None, "some returned None"),
        (None, "some returned nan"),
        (2.0, None),
    ]


def test_a_function_of_keywords_alone_is_called_as_trl_calls_it(users_module):
    text = "def half(**kwargs):\n    return [len(c) / 2 for c in kwargs['completions']]\n"
    terms = make_terms({f"{users_module('keywords_only', text)}:half": 1.0}, NoTask())
    assert [r.reward for r in scored([group("ab", "abcd")], *terms)] == [1.0, 2.0]


ASYNC_MODULE = """
import asyncio

kept = []


async def slow(completions, **kwargs):
    # What is made in one call is used in the next, as an HTTP client is.
    if not kept:
        kept.append(asyncio.get_running_loop().create_future())
        kept[0].set_result(10.0)
    await asyncio.sleep(0)
    return [await kept[0] + len(c) for c in completions]


class Client:
    async def __call__(self, completions, **kwargs):
        return [1.0 for _ in completions]


client = Client()


async def of_one(problem, rollout):
    if not rollout.text:
        raise ValueError("nothing to ask about")
    return float(len(rollout.text))
"""


def test_asynchronous_functions_run_step_after_step_in_one_loop(users_module):
    module = users_module("asynchronous", ASYNC_MODULE)
    weights = {f"{module}:slow": 1.0, f"{module}:client": 100.0, f"{module}:of_one": 0.5}
    terms = make_terms(weights, NoTask())
    assert [r.reward for r in scored([group("ab", "")], *terms)] == [113.0, None]
    assert [r.reward for r in scored([group("abcd")], *terms)] == [116.0]


def test_an_asynchronous_function_may_raise(users_module):
    module = users_module("asynchronous_failing", ASYNC_MODULE)
    (found,) = scored([group("")], *make_terms({f"{module}:of_one": 1.0}, NoTask()))
    assert found.unscored.startswith("of_one raised ValueError: nothing to ask about (asynchronous_failing.py, line ")

    async def fails(completions):
        raise OSError("no network")

    (found,) = scored([group("a")], trl("fails", fails))
    assert found.unscored.startswith("fails raised OSError: no network (test_trl.py, line ")


def outcome(reward):
    """Return the scored rollouts, or what is raised; from a thread of its own, so that a test ends if it hangs."""
    found = []

    def noted():
        try:
            found.append(scored([group("a", "b")], reward))
        except BaseException as error:
            found.append(error)

    thread = threading.Thread(target=noted, daemon=True)
    thread.start()
    thread.join(30)
    return found[0] if found else "it hangs"


def raising(error):
    """Return rewards of every form that raise: of all rollouts or of one, asynchronous or not."""

    async def of_all(completions):
        raise error

    async def of_one(problem, rollout):
        raise error

    async def in_a_task(completions):
        await asyncio.create_task(of_all(completions))

    def at_once(completions):
        raise error

    def one_at_once(problem, rollout):
        raise error

    trls = [trl("reward", function) for function in (of_all, in_a_task, at_once)]
    return [*trls, term(of_one, "reward"), term(one_at_once, "reward")]


@pytest.mark.parametrize(
    ("error", "line"), [(SystemExit(3), "SystemExit: 3"), (asyncio.CancelledError(), "CancelledError")]
)
def test_a_function_that_exits_or_is_cancelled_leaves_all_unscored(error, line):
    reason = f"reward raised {line}"
    for reward in raising(error):
        assert [r.unscored.partition(" (test_trl.py, line ")[0] for r in outcome(reward)] == [reason] * 2


def test_an_interrupt_in_a_function_ends_the_run():
    for reward in raising(KeyboardInterrupt()):
        assert isinstance(outcome(reward), KeyboardInterrupt)


def test_asynchronous_functions_of_one_rollout_run_at_the_same_time():
    barrier = asyncio.Barrier(3)

    async def waits_for_all(problem, rollout):
        await asyncio.wait_for(barrier.wait(), 10)
        return 1.0

    assert [r.reward for r in scored([group("a", "b", "c")], term(waits_for_all))] == [1.0] * 3


def test_an_asynchronous_function_runs_where_a_loop_runs_already():
    async def constant(completions, **kwargs):
        return [float(threading.current_thread() is not threading.main_thread())]

    async def notebook():
        return [r.reward for r in scored([group("a")], trl("constant", constant))]

    assert asyncio.run(notebook()) == [1.0]


def test_trl_functions_learn_how_far_the_training_is():
    def progress(completions, trainer_state, **kwargs):
        return [trainer_state.global_step / trainer_state.max_steps for _ in completions]

    groups = [group("a", version=4), group("b", version=4)]
    assert [r.reward for r in scored(groups, trl("progress", progress, max_steps=16))] == [0.25, 0.25]


def test_what_a_trl_function_logs_becomes_parts_and_notes():
    def logs(completions, log_extra, log_metric, **kwargs):
        log_extra("parsed", [c.upper() for c in completions])
        log_metric("accuracy", np.float32(0.5))
        log_metric("unknown", math.nan)
        return [1.0 for _ in completions]

    found = scored([group("a", "b")], trl("logs", logs))
    assert [r.note for r in found] == ["parsed: A", "parsed: B"]
    assert [r.parts for r in found] == [{"logs": 1.0, "accuracy": 0.5}, {"logs": 1.0}], "a number of the call, once"


def test_a_trl_function_cannot_log_under_the_name_of_a_statistic_or_too_few_values():
    with pytest.raises(DataError, match="returned a part called 'mean', a statistic's name"):
        scored([group("a")], trl("logs", lambda completions, log_metric: log_metric("mean", 1.0) or [1.0]))
    with pytest.raises(DataError, match=r"the reward 'logs' logged as 'x' 1 value for 2 completions"):
        scored([group("a", "b")], trl("logs", lambda completions, log_extra: log_extra("x", [1]) or [1.0, 1.0]))


def test_what_a_trl_function_logs_may_be_a_generator_but_not_nothing():
    def logs(completions, log_extra, **kwargs):
        log_extra("parsed", None if "" in completions else (c.upper() for c in completions))
        return [1.0 for _ in completions]

    assert [r.note for r in scored([group("a", "b")], trl("logs", logs))] == ["parsed: A", "parsed: B"]
    (found,) = scored([group("")], trl("logs", logs))
    assert found.unscored == "logs raised TypeError: log_extra('parsed', None): expected a value for each completion"


def test_a_completion_that_is_none_of_a_functions_business_is_rewarded_by_the_others():
    """TRL's documentation has two tasks in one data set: each function returns None for the other's."""
    math_reward = trl("math", lambda completions, task, **kwargs: [2.0 if t == "math" else None for t in task])
    code_reward = trl("code", lambda completions, task, **kwargs: [3.0 if t == "code" else None for t in task], 0.5)
    brevity = trl("brevity", lambda completions, **kwargs: [0.25 for _ in completions])
    groups = [group("a", task="math"), group("b", task="code"), group("c", task="poetry")]
    assert [r.reward for r in scored(groups, math_reward, code_reward, brevity)] == [2.25, 1.75, 0.25]
    found = scored(groups, math_reward, code_reward)
    assert [r.reward for r in found] == [2.0, 1.5, None]
    assert found[2].unscored == "math returned None; code returned None"
    assert found[0].parts == {"math": 2.0}


def test_a_part_that_raised_leaves_a_rollout_unscored_whatever_else_does_not_apply():
    none = trl("none", lambda completions, **kwargs: [None])
    (found,) = scored([group("x")], none, term(lambda p, r: float(r.text), "number"))
    assert found.reward is None
    assert found.unscored.startswith("number raised ValueError")


def test_shares_of_rewards_that_apply_to_some_problems_alone_sum_to_one():
    one = trl("one", lambda completions, **kwargs: [1.0, None, 3.0])
    other = trl("other", lambda completions, **kwargs: [None, 2.0, 1.0])
    groups = score_groups([group("a", "b", "c")], [one, other])
    # Totals 1, 2, 4; centred parts -1/3, -4/3, 5/3 and -1, 1, 0 with centred totals -4/3, -1/3, 5/3.
    shares = reward_shares(groups, [one, other])
    assert shares == pytest.approx({"reward_share/one": 11 / 14, "reward_share/other": 3 / 14})


def test_conversations_come_to_trl_functions_as_lists_of_messages():
    """In the manner of TRL's GRPO quickstart: a completion is a list of one message."""
    given = []

    def unique_letters(completions, prompts, **kwargs):
        given.append(prompts)
        return [float(len(set(completion[0]["content"]))) for completion in completions]

    messages = ({"role": "system", "content": "be brief"}, {"role": "user", "content": "hello"})
    chat = group("abca", "aa")
    chat = replace(chat, problem=replace(chat.problem, messages=messages))
    assert [r.reward for r in scored([chat], trl("unique_letters", unique_letters))] == [3.0, 1.0]
    assert given == [[list(messages), list(messages)]]
