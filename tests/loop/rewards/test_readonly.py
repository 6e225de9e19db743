"""Rewards read problems and rollouts that all others read too: what one of them changes stays its own."""

import asyncio
import copy
import json
import pickle
from dataclasses import asdict, replace
from datetime import date

import numpy as np
import pytest

from steadyrl.core.metrics import Clock
from steadyrl.core.types import Group, Problem, ReadOnly, Rollout, plain_copy
from steadyrl.loop.checkpoint import State
from steadyrl.loop.rewards.combine import Term, score_groups
from steadyrl.loop.rewards.functions import per_rollout
from steadyrl.loop.rewards.trl import from_trl
from steadyrl.loop.rewards.verl import from_verl
from steadyrl.loop.train import gather

MESSAGES = ({"role": "user", "content": "17 + 25?"},)


def columns():
    """Return a row with a container of every kind, at several depths."""
    return {
        "tests": [1, [2, 3], {"input": [4]}],
        "extra_info": {"index": 7, "turns": [{"answer": "x"}]},
        "reward_model": {"ground_truth": ["42"]},
        "when": (date(2026, 1, 2), [5]),
        "tags": {"sum"},
        "image": bytearray(b"abc"),
        "ids": np.arange(3),
        "data_source": "gsm8k",
    }


def group(samples=2):
    rollout = Rollout(
        problem_id="p",
        prompt_ids=np.arange(2, dtype=np.int32),
        completion_ids=np.arange(4, dtype=np.int32),
        completion_mask=np.ones(4, bool),
        sampling_logprobs=np.full(4, -1.0, np.float32),
        text="fine",
        stop_reason="stop",
        kept_ids=tuple(np.arange(4, dtype=np.int32) for _ in range(4)),
        outcome={"steps": [1, 2]},
    )
    return Group(Problem("p", "17 + 25?", columns(), MESSAGES), (rollout,) * samples)


def empty(value):
    """Remove everything from everything that a value holds; return how much there was."""
    if isinstance(value, np.ndarray):
        with pytest.raises(ValueError, match="read-only"):
            value[:] = 0
        return len(value)
    if isinstance(value, dict):
        count = sum(empty(item) for item in value.values())
        value.clear()
        return 1 + count
    if isinstance(value, list | tuple):
        count = sum(empty(item) for item in value)
        value.clear() if isinstance(value, list) else None
        return 1 + count
    if isinstance(value, set | bytearray):
        count = len(value)
        value.clear()
        return count
    return 1


def native(problem, rollout):
    return float(sum(empty(value) for value in problem.columns.values()) + empty(rollout.outcome.get("steps")))


async def asynchronous(problem, rollout):
    await asyncio.sleep(0)
    return native(problem, rollout)


def for_trl(prompts, completions, completion_ids, **row):
    empties = [empty(prompts), empty(completions), empty(completion_ids)]
    return [float(sum(empties) + sum(empty(values[i]) for values in row.values() if isinstance(values, list)))
            for i in range(2)]  # fmt: skip


def for_verl(data_source, solution_str, ground_truth, extra_info):
    return float(empty(ground_truth) + empty(extra_info))


@pytest.mark.parametrize(
    "reward",
    [
        per_rollout("r", native),
        per_rollout("r", asynchronous),
        from_trl("r", for_trl),
        per_rollout("r", from_verl("r", for_verl)),
    ],
    ids=["native", "asynchronous", "trl", "verl"],
)
def test_a_reward_that_empties_its_row_leaves_the_data_as_they_were(reward):
    groups = [group()]
    first, again = (score_groups(groups, [Term("r", 1.0, reward), Term("s", 1.0, reward)]) for _ in range(2))
    assert all(one.unscored is None for one in first[0].rollouts)
    assert first[0].rollouts[0].parts["r"] == first[0].rollouts[1].parts["r"] > 1  # each sample met a whole row
    assert [one.parts["r"] for one in first[0].rollouts] == [one.parts["s"] for one in first[0].rollouts]
    assert [one.reward for one in first[0].rollouts] == [one.reward for one in again[0].rollouts]
    problem, rows = groups[0].problem, columns()
    assert np.array_equal(problem.columns["ids"], rows.pop("ids"))
    assert {name: problem.columns[name] for name in rows} == rows
    assert problem.messages == MESSAGES and groups[0].rollouts[0].outcome == {"steps": [1, 2]}


@pytest.mark.parametrize(
    "change",
    [
        lambda p, r: p.columns.update(tests=[]),
        lambda p, r: p.columns.pop("tests"),
        lambda p, r: p.columns.clear(),
        lambda p, r: p.columns.setdefault("more", 1),
        lambda p, r: p.columns.__setitem__("tests", []),
        lambda p, r: p.columns.__delitem__("tests"),
        lambda p, r: p.messages[0].update(content="other"),
        lambda p, r: r.outcome.clear(),
        lambda p, r: r.parts.update(more=1.0),
        lambda p, r: np.copyto(r.completion_ids, 3),
        lambda p, r: np.copyto(r.completion_mask, False),
        lambda p, r: np.copyto(r.sampling_logprobs, -9.0),
        lambda p, r: np.copyto(r.prompt_ids, 0),
        lambda p, r: np.copyto(r.kept_ids[3], 0),
    ],
)
def test_what_cannot_be_copied_away_refuses_to_be_changed_and_the_reason_is_said(change):
    groups = [group()]
    before = asdict(groups[0])
    (scored,) = score_groups(groups, [Term("r", 1.0, per_rollout("r", change))])
    assert all("r raised TypeError: the data of problems and rollouts cannot be changed" in one.unscored
               or "r raised ValueError: assignment destination is read-only" in one.unscored
               for one in scored.rollouts)  # fmt: skip
    assert repr(asdict(groups[0])) == repr(before)


def test_a_row_is_still_a_dict_for_whoever_reads_it():
    row = ReadOnly({"a": [1, {"b": 2}], "c": "text"})
    plain = {"a": [1, {"b": 2}], "c": "text"}
    assert row == plain and isinstance(row, dict) and json.loads(json.dumps(row)) == plain
    assert row.get("no", 3) == 3 and ("a" in row, len(row), list(row)) == (True, 2, ["a", "c"])
    for whole in (dict(row), {**row}, row.copy(), row | {}, {} | row, dict(row.items())):
        assert type(whole) is dict and whole == plain
        whole["a"][1]["b"] = whole["d"] = 9
        assert row == plain
    for another in (pickle.loads(pickle.dumps(row)), copy.deepcopy(row), copy.copy(row)):
        assert another == plain and type(another) is ReadOnly


def test_copies_share_no_container_and_objects_of_other_classes_are_the_same():
    class Index:
        pass

    index, nested = Index(), [[1], {"a": (2, [3])}, {4}]
    found = plain_copy([nested, index])
    assert found == [nested, index] and found[1] is index
    found[0][0].append(0), found[0][1]["a"][1].append(0), found[0][2].add(0)
    assert nested == [[1], {"a": (2, [3])}, {4}]


def test_a_replaced_rollout_is_as_unwritable_as_the_first():
    rollout = group().rollouts[0]
    other = replace(rollout, completion_ids=np.zeros(3, np.int32), parts={"a": 1.0})
    assert not other.completion_ids.flags.writeable and not other.completion_mask.flags.writeable
    with pytest.raises(TypeError, match="cannot be changed"):
        other.parts["a"] = 2.0


def test_the_array_that_a_rollout_is_made_of_stays_as_it_is_for_its_maker():
    ids = np.zeros(4, np.int32)
    replace(group().rollouts[0], completion_ids=ids)
    ids[0] = 1  # a buffer that a sampler goes on writing


def test_a_step_trains_on_the_same_tokens_and_rewards_whatever_a_reward_tries(toy, tmp_path, users_module):
    users_module(
        "tries",
        "def left(completions, tests, completion_ids, **kw):\n"
        "    [ids.clear() for ids in completion_ids]\n"
        "    return [float(len(t)) for t in tests if t.pop(0)]\n",
    )
    data = tmp_path / "rows.jsonl"
    data.write_text("".join(json.dumps({"prompt": f"q{i}", "tests": [1, 2, 3]}) + "\n" for i in range(6)))
    session = toy(f"task.args.path={data}", reward="tries:left")
    state = State()
    for _ in range(3):
        groups, _, _ = gather(session, state, Clock())
        assert {rollout.reward for one in groups for rollout in one.rollouts} == {2.0}
        assert all(len(rollout.completion_ids) for one in groups for rollout in one.rollouts)
        state.step += 1
