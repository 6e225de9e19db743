"""An environment of a user's own: what the policy reads, what earns, what breaks, and that it can be learned."""

import json
import re
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from steadyrl.backends.toy import CharTokenizer, ToyBackend
from steadyrl.core import config, plugins
from steadyrl.core.errors import ConfigError
from steadyrl.core.types import Group, Problem, Rollout, Sampling, Score
from steadyrl.loop import record
from steadyrl.loop.evaluate import evaluate
from steadyrl.loop.rewards.combine import make_terms, score_groups
from steadyrl.loop.rollout.collect import collect, demonstrate
from steadyrl.loop.rollout.episode import Environment
from steadyrl.loop.rollout.records import rollout_records
from steadyrl.loop.tasks.attempts import attempt
from steadyrl.loop.tasks.check import check_task
from steadyrl.loop.tasks.environment import EnvironmentTask, _tools_of
from steadyrl.loop.train import open_session, train
from steadyrl.maths.advantages import at_turn_ends
from steadyrl.maths.batch import make_batch

SAMPLING = Sampling(max_new_tokens=12)
THREE_TURNS = Rollout(
    problem_id="p",
    prompt_ids=np.array([1]),
    completion_ids=np.array([2, 3, 4, 5, 6, 7]),
    completion_mask=np.array([True, True, False, True, False, True]),
    sampling_logprobs=np.zeros(6, np.float32),
    text="a",
    stop_reason="stop",
    turns=("a", "b", "c"),
    turn_rewards=((2, 0.5), (6, -1.0)),  # behind the last tokens of the first and of the third turn
)


def one(problem, rollout):
    return 1.0


def half(problem, rollout):
    shares = tuple((end, reward / 2) for end, reward in rollout.turn_rewards)
    return Score(sum(share for _, share in shares), turn_rewards=shares)


def task_of(environment="", **args):
    args |= {"environment": f"tests.agents:{environment}"} if environment else {}
    settings = config.resolve({"task": {"name": "environment", "args": args}, "rewards": {"length": 1.0}})
    return plugins.open_task("environment", settings.task.args, 0)


def played_by_expert(task, problems):
    return [group.rollouts[0] for group in demonstrate(ToyBackend(), problems, task, (0,), Environment(task, 20))]


def says(content, **more):
    return {"role": "assistant", "content": content, **more}


def calls(*named):
    return says(
        "",
        tool_calls=[
            {"id": f"c{i}", "type": "function", "function": {"name": name, "arguments": arguments}}
            for i, (name, arguments) in enumerate(named)
        ],
    )


@pytest.mark.parametrize("name", ["Guess", "AsyncGuess"])
def test_an_environment_of_three_methods_is_played_and_its_turns_are_rewarded(name):
    task = task_of(name)
    problems = task.problems("train")[:3]
    rollouts = played_by_expert(task, problems)
    assert [rollout.turns for rollout in rollouts] == [("1",), ("2",), ("3",)]
    assert [rollout.outcome["number"] for rollout in rollouts] == [1, 2, 3]
    assert CharTokenizer().decode(rollouts[0].prompt_ids) == "guess"
    assert [rollout.turn_rewards for rollout in rollouts] == [((2, 1.0),)] * 3  # the number and the end token


def test_the_return_is_the_sum_of_the_turns_rewards_and_each_stands_at_the_turn_s_end():
    task = task_of("Guess", max_turns=3)
    (group,) = collect(ToyBackend(), [Problem("p", "", {"seed": 0})], 4, SAMPLING, (0,), 0, Environment(task, 12))
    (scored,) = score_groups([group], make_terms({"episode_return": 1.0}, task, 1))
    for rollout in scored.rollouts:
        assert rollout.reward == pytest.approx(-0.3)  # three wrong guesses
        ends = np.flatnonzero(np.diff([*rollout.completion_mask.astype(int), 0]) == -1) + 1
        assert rollout.turn_rewards == tuple((end, -0.1) for end in ends)
    kept = rollout_records([scored])[0]
    assert kept["turn_rewards"] == [-0.1, -0.1, -0.1]
    assert "calls" not in kept


@pytest.mark.parametrize(
    ("weight", "reward", "by_turn"),
    # Turns: 0.5, nothing and -1; the episode: 1. The reward is weight * 0.5 + 3 * 1, and its rest is of the last turn.
    [(2.0, 4.0, [1.0, 0.0, 3.0]), (0.0, 3.0, [0.0, 0.0, 3.0]), (-1.0, 2.5, [-0.5, 0.0, 3.0])],
)
def test_the_rewards_of_turns_have_the_weight_of_the_return(weight, reward, by_turn):
    episode = replace(THREE_TURNS, outcome={"reward": 1.0})
    terms = make_terms({"episode_return": weight, "tests.loop.tasks.test_environment:one": 3.0}, task_of("Guess"), 1)
    (scored,) = score_groups([Group(Problem("p", ""), (episode,))], terms)
    batch = make_batch([scored], 0)
    mask = batch.completion_mask
    assert batch.rewards.tolist() == [reward]
    paid = at_turn_ends(batch.rewards, batch.turn_rewards, mask)[0]
    assert paid[[2, 4, 6]].tolist() == by_turn and paid.sum() == reward
    assert scored.rollouts[0].turn_rewards == episode.turn_rewards  # as the environment gave them


def test_a_reward_of_ones_own_pays_turns_by_the_shares_that_it_returns():
    """Half of what the turns earned, at the weight 4: the first turn earned 4 * 0.25 of 4 * -0.25."""
    terms = make_terms({"tests.loop.tasks.test_environment:half": 4.0}, task_of("Guess"), 1)
    (scored,) = score_groups([Group(Problem("p", ""), (THREE_TURNS,))], terms)
    assert (scored.rollouts[0].reward, scored.rollouts[0].turn_shares) == (-1.0, ((2, 1.0), (6, -2.0)))


def test_what_the_episode_earned_counts_where_turns_ran_out():
    task = task_of("Endless", max_turns=3)
    (group,) = collect(ToyBackend(), [Problem("p", "", {"seed": 0})], 2, SAMPLING, (0,), 0, Environment(task, 12))
    (scored,) = score_groups([group], make_terms({"episode_return": 1.0}, task, 1))
    assert [rollout.reward for rollout in scored.rollouts] == [1.75, 1.75]


def test_a_record_says_which_turns_were_rewarded():
    (kept,) = rollout_records([Group(Problem("p", ""), (THREE_TURNS,))])
    assert kept["turn_rewards"] == [0.5, None, -1.0]


def test_a_method_is_a_tool_of_its_own_episode_and_reset_may_take_a_seed():
    task = task_of("Safe", environment_args={"presses": 3})
    assert [tool["function"]["name"] for tool in task.tools] == ["press", "look"]
    assert list(task.tools[0]["function"]["parameters"]["properties"]) == ["times"]
    (rollout,) = played_by_expert(task, task.problems("train")[:1])
    assert rollout.turns == ("press(1)",) * 3
    assert [call.result for turn in rollout.calls for call in turn] == ["pressed 1", "pressed 2", "pressed 3"]
    assert rollout.seen == ("you open safes.\nopen it", "pressed 1", "pressed 2")
    assert task.episode(Problem("p", ""), 7)._environment.pressed == 0


def test_a_seed_that_reset_takes_by_name_alone_is_given():
    task = task_of("Seeded")
    (group,) = collect(ToyBackend(), [Problem("p", "", {"seed": 0})], 2, SAMPLING, (6,), 0, Environment(task, 12))
    assert all(re.fullmatch(r"seed \d+", rollout.seen[0]) for rollout in group.rollouts)


def test_an_evaluation_records_whole_episodes_and_not_their_last_turns_alone():
    task = task_of("Guess", max_turns=2)
    settings = config.resolve(
        {
            "task": {"name": "environment", "args": {"environment": "tests.agents:Guess"}},
            "rewards": {"episode_return": 1.0},
            "sampling": {"max_new_tokens": 2},
        }
    )
    terms = make_terms(settings.rewards, task, 1)
    (line,) = evaluate(ToyBackend(), [Problem("p", "", {"seed": 0})], terms, settings, "", Environment(task, 12))
    for answer in line["answers"].values():
        assert answer["seen"][:2] == ["guess", "no"] and len(answer["turns"]) == 2
        assert "\n".join(answer["turns"]) == answer["text"]
        assert answer["reward"] == pytest.approx(sum(filter(None, answer["turn_rewards"])))
        assert answer["outcome"] == {"number": 1}


def test_tools_may_depend_on_the_arguments_of_the_class():
    task = task_of("Shelf")
    assert [tool["function"]["name"] for tool in task.tools] == ["take", "look"]
    for _ in range(2):  # a method acts on its own episode, not on one object for all
        episode = task.episode(Problem("p", ""), 0)
        assert episode.step(calls(("take", {}))).calls[0].result == "1"
    assert task_of("Shelf", environment_args={"open": False}).tools == []


def test_an_episode_s_calls_and_results_are_on_its_rollout():
    task = task_of("Safe")
    episode = task.episode(Problem("p", ""), 7)
    assert [message["role"] for message in episode.open()] == ["system", "user"]
    assert episode._environment.seed == 7
    first = episode.step(calls(("press", {}), ("look", {"word": "safe"})))
    assert [(m["role"], m["content"]) for m in first.observation] == [
        ("tool", "pressed 1"),
        ("tool", "safe is a word"),
    ]
    assert (first.reward, first.done) == (0.25, False)
    last = episode.step(calls(("press", {"times": 5})))
    assert (last.observation, last.done) == ("", True)
    assert [(call.name, call.result) for call in last.calls] == [("press", "pressed 6")]
    assert episode.close() == {}


def test_a_tool_that_is_a_schema_is_answered_by_the_environment():
    episode = task_of("Adder").episode(Problem("p", "1 + 2?"), 0)
    assert episode.open() == [{"role": "user", "content": "1 + 2?"}]
    turn = episode.step(calls(("add", {"a": 1, "b": 2}), ("add", {"a": 3, "b": 4})))
    assert [(m["role"], m["content"], m["tool_call_id"]) for m in turn.observation] == [
        ("tool", "3", "c0"),
        ("tool", "7", "c1"),
    ]
    assert [call.result for call in turn.calls] == ["3", "7"]
    assert episode.step(says("done")).done


def test_an_environment_answers_the_calls_that_are_allowed_and_reads_why_others_are_not():
    episode = task_of("Adder", max_calls=3).episode(Problem("p", "1 + 2?"), 0)
    one = ("add", {"a": 1, "b": 2})
    turn = episode.step(calls(("sub", {}), one))
    assert [(m["content"], m["tool_call_id"]) for m in turn.observation] == [
        ("error: there is no tool 'sub'; there are add", "c0"),
        ("3", "c1"),
    ]
    turn = episode.step(calls(one, one))
    assert [(call.result, call.end) for call in turn.calls] == [
        ("error: no calls are left: 3 are allowed", "budget"),
        ("3", "ok"),
    ]
    assert episode._environment.invalid == [("add", "no calls are left: 3 are allowed")]


def test_with_tools_alone_an_episode_is_over_at_the_first_turn_without_a_call():
    task = task_of(tools=["tests.agents:look"])
    episode = task.episode(Problem("p", "a word?"), 0)
    assert episode.open() == [{"role": "user", "content": "a word?"}]
    assert not episode.step(calls(("look", {"word": "red"}))).done
    assert not episode.step(says("", invalid_tool_calls=[{"text": "{", "error": "no JSON"}])).done
    last = episode.step(says("red is one"))
    assert last.done and last.reward is None
    assert task.rewards() == {}


def test_problems_come_from_a_file_as_those_of_prompts_do(tmp_path):
    (tmp_path / "p.jsonl").write_text("".join(json.dumps({"prompt": f"p{i}", "gold": str(i)}) + "\n" for i in range(9)))
    task = task_of("Guess", path=str(tmp_path / "p.jsonl"), heldout_share=0.3)
    problems = [*task.problems("train"), *task.problems("heldout")]
    assert sorted(problem.prompt for problem in problems) == [f"p{i}" for i in range(9)]
    assert {task.gold(problem) for problem in problems} == {str(i) for i in range(9)}


@pytest.mark.parametrize(
    ("environment", "why"),
    [
        ("ReturnsTwo", "TypeError: step returned ('no', 1.0); expected three: observation, reward, done"),
        ("EndsWithAWord", "TypeError: step returned 'false' as to whether the episode is over; expected a bool"),
        ("RewardsNothing", "TypeError: step returned the reward nan; expected a finite number, or None"),
        ("RewardsWords", "TypeError: step returned the reward 'much'; expected a finite number, or None"),
        ("OpensWithANumber", "TypeError: reset returned 3; expected a text, messages, or None"),
        ("ClosesWithWords", "TypeError: close returned the reward 'much'; expected a finite number, or None"),
        ("ClosesWithANumber", "TypeError: close returned 7 (int); expected a dict, which may be empty"),
        ("Breaks", "ValueError: what? (agents.py, line 153)"),
    ],
)
def test_an_environment_that_breaks_costs_its_own_rollout(environment, why):
    task = task_of(environment)
    problems = [Problem("p", "", {"seed": 0})]
    (group,) = collect(ToyBackend(), problems, 2, SAMPLING, (0,), 0, Environment(task, 12))
    checked = attempt(task, problems[0], lambda episode, turn: "5")
    assert {rollout.unscored.rpartition(" raised ")[2] for rollout in (*group.rollouts, checked)} == {why}


@pytest.mark.parametrize(
    ("args", "why"),
    [
        ({}, "has neither an environment nor tools"),
        ({"environment": "tests.agents:WithoutReset"}, "has no method reset(problem)"),
        ({"environment": "tests.agents:ResetOfNothing"}, "its method reset cannot be called with problem alone"),
        ({"environment": "tests.agents:SeededStep"}, "its method step cannot be called with message alone"),
        ({"environment": "tests.agents:NeedsASetting"}, "cannot be made with task.args.environment_args = {}"),
        ({"environment": "tests.agents:ADD"}, "expected a class with the methods"),
        ({"environment": "tests.agents:Absent"}, "has no 'Absent'"),
        ({"environment": "Guess"}, "no environment is called 'Guess'"),
        ({"tools": ["tests.agents:look", "tests.agents:look"]}, "2 tools called 'look'"),
        ({"tools": ["tests.agents:Guess"]}, "'tests.agents:Guess' of task.args.tools is <class"),
    ],
)  # fmt: skip
def test_what_cannot_be_played_is_refused_before_anything_runs(args, why):
    with pytest.raises(ConfigError) as refused:
        settings = config.resolve({"task": {"name": "environment", "args": args}, "rewards": {"length": 1.0}})
        plugins.open_task("environment", settings.task.args, 0)
    assert why in str(refused.value) and "\n" not in str(refused.value)


def test_a_wrong_tool_of_an_environment_is_named_by_its_place():
    settings = EnvironmentTask.Settings(environment="tests.agents:Guess")
    environment = SimpleNamespace(tools=[{"name": "a", "description": "b", "parameters": {}}, 7.5])
    with pytest.raises(ConfigError, match=r"the environment's attribute tools\[1\] is 7.5; expected a function"):
        _tools_of(environment, settings)


def test_the_code_of_environment_and_tools_is_the_user_s_own():
    settings = config.resolve(
        {
            "task": {
                "name": "environment",
                "args": {"environment": "tests.agents:Guess", "tools": ["tests.talk_task:TalkTask"]},
            },
            "rewards": {"length": 1.0},
        }
    )
    assert sorted(plugins.own_code(settings.task.args.import_paths())) == ["tests.agents", "tests.talk_task"]


def checked(environment="", rewards=None, **args):
    args |= {"environment": f"tests.agents:{environment}"} if environment else {}
    settings = {
        "task": {"name": "environment", "args": {"train_count": 6, "heldout_count": 6, **args}},
        "rewards": rewards or {"episode_return": 1.0},
    }
    return {check.check: check for check in check_task(config.resolve(settings))}


def test_check_plays_a_sound_environment_and_shows_three_episodes():
    checks = checked("Guess")
    assert [name for name, check in checks.items() if check.state == "found"] == []
    # A wrong guess costs 0.1, and there are eight turns.
    assert checks["gold answer"].message == "mean reward 1.000, expected more than the -0.800 of an empty answer"
    assert checks["scripted policy"].message == "12 episodes of 1.0 turns on average, mean reward 1.000"
    assert checks["scripted policy"].evidence[:3] == (
        "episode 1, train-0: reward 1.0",
        "    reads: guess",
        "    says:  1   [reward 1]",
    )
    assert sum(line.startswith("episode") for line in checks["scripted policy"].evidence) == 3


@pytest.mark.parametrize(("weight", "mean"), [(0.001, 0.001), (-0.1, -0.1)])
def test_check_asks_an_expert_for_more_than_an_empty_answer_on_any_scale(weight, mean):
    """At a weight below 0 the expert earns -0.1 and the empty answer -0.1 * 8 * -0.1 = 0.08, which is more."""
    check = checked("Guess", {"episode_return": weight})["gold answer"]
    assert f"mean reward {mean:.3f}, expected more than the {-0.8 * weight:.3f}" in check.message
    assert check.state == ("ok" if weight > 0 else "found")


def test_check_finds_an_expert_who_solves_nothing():
    check = checked("LostGuess")["gold answer"]
    assert (check.state, check.message) == (
        "found",
        "mean reward -0.800, expected more than the -0.800 of an empty answer",
    )


def test_check_counts_the_calls_that_fail():
    checks = checked(tools=["tests.agents:look", "tests.agents:broken"], rewards={"length": 1.0})
    assert checks["scripted policy"].message.endswith(
        "24 calls: 12 ok, 12 raised; the first: broken: error: OSError: no such library"
    )
    assert checks["scripted policy"].state == "ok"  # it may raise, but not always
    checks = checked(tools=["tests.agents:broken"], rewards={"length": 1.0})
    assert checks["scripted policy"].state == "found"


def test_check_finds_an_expert_whose_calls_all_fail_but_does_not_ask_for_a_reward_near_1():
    checks = checked("Shelf")
    assert checks["gold answer"].message == "mean reward 0.300, expected more than the 0.000 of an empty answer"
    assert {checks[name].state for name in ("gold answer", "scripted policy")} == {"ok"}
    checks = checked("Shelf", environment_args={"open": False})
    assert "the first: take: error: there is no tool 'take'; there are none" in checks["scripted policy"].message
    assert checks["scripted policy"].state == "found"


def test_check_finds_an_environment_that_pays_for_every_turn_and_one_that_breaks():
    checks = checked("PaysForEachTurn")
    assert checks["looping policy"].state == checks["empty answer"].state == "found"
    assert "mean reward 8.000 for the same turn again and again" in checks["looping policy"].message
    checks = checked("Breaks")
    assert {"scripted policy", "looping policy", "hostile calls"} <= {
        n for n, c in checks.items() if c.state == "found"
    }
    assert "12 left unscored, the first: " in checks["scripted policy"].message


def test_a_policy_learns_to_call_a_tool(tmp_path):
    settings = config.resolve(
        {
            "run": {"steps": 25, "folder": str(tmp_path), "checkpoint_every": 25},
            "backend": {"name": "toy"},
            "task": {"name": "environment", "args": {"environment": "tests.agents:Caller", "workers": 1}},
            "rewards": {"episode_return": 1.0},
            "sampling": {"max_new_tokens": 3},
            "rollout": {"prompts_per_step": 16, "samples_per_prompt": 8},
            "algorithm": {"name": "grpo"},
            "update": {"learning_rate": 0.4},
        }
    )
    session = open_session(settings)
    run = record.begin(settings, "")
    record.add_model(run, session)
    assert train(session, run) == "finished"
    record.close(run, "finished", settings)
    lines = [json.loads(line) for line in (run.path / "metrics.jsonl").read_text().splitlines()]
    assert lines[0]["tools/calls"] * lines[0].get("tools/ok", 0.0) < 0.02
    assert lines[-1]["tools/calls"] * lines[-1]["tools/ok"] > 0.9
