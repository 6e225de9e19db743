"""Prompts that are too long; the toy tokenizer makes a token of every character."""

import pytest

from steadyrl.backends.toy import ToyBackend
from steadyrl.core.errors import DataError
from steadyrl.core.protocols import PromptLimit
from steadyrl.core.types import Problem, Sampling
from steadyrl.loop.rewards.combine import score_texts
from steadyrl.loop.rollout.prompts import fit_prompts, fit_splits, limit_of


class Short(ToyBackend):
    """A model of 12 positions."""

    def describe(self):
        return super().describe() | {"context": 12}


def problems(*lengths):
    return [Problem(f"p{length}", "x" * (length - 1) + "?") for length in lengths]


def fitted(given, backend=None, room=4, **limit):
    return fit_prompts(given, backend or Short(), Sampling(max_new_tokens=room), PromptLimit(**limit))


def chat(*texts, system="be kind"):
    roles = ["user", "assistant"] * len(texts)
    turns = [{"role": role, "content": text} for role, text in zip(roles, texts, strict=False)]
    return Problem("chat", "text", {}, ({"role": "system", "content": system}, *turns))


def test_prompts_that_fit_pass_to_the_last_token():
    assert fitted(problems(1, 8)).problems == problems(1, 8)
    assert fitted(problems(9000), ToyBackend()).counts() == {}


def test_the_longest_of_the_prompts_that_do_not_fit_is_named():
    with pytest.raises(DataError, match=r"2 of 3 prompts.*max_new_tokens = 4.*the 12 tokens.*'p11', takes 11"):
        fitted(problems(9, 11, 8))


def test_a_limit_of_the_data_is_told_from_that_of_the_model():
    with pytest.raises(DataError, match=r"2 of 2 prompts take more than task.args.prompt_tokens = 5; .*'p8', takes 8"):
        fitted(problems(6, 8), tokens=5)
    with pytest.raises(DataError, match=r"1 of 2 prompts and sampling.max_new_tokens = 4 go beyond the 12 tokens"):
        fitted(problems(6, 9), tokens=50)


@pytest.mark.parametrize("long", ["refuse", "drop", "cut"])
def test_completions_that_leave_no_room_for_a_prompt_are_told_as_the_cause(long):
    with pytest.raises(DataError, match=r"max_new_tokens = 12 leaves no room for a prompt in the 12 tokens.*lower it"):
        fitted(problems(1, 3), room=12, long=long)


def test_a_limit_that_is_none_is_not_to_be_raised():
    class Unlimited(Dropping):
        prompt_limit = PromptLimit(0, "drop")

    with pytest.raises(DataError, match=r"all 2 held-out prompts are too long; lower sampling\.max_new_tokens = 4, or"):
        fit_splits(Unlimited(), problems(3, 4), problems(90, 80), Short(), Sampling(max_new_tokens=4))


class Dropping:
    prompt_limit = PromptLimit(5, "drop")


@pytest.mark.parametrize(("name", "lengths"), [("training", ((9, 8), (3, 4))), ("held-out", ((3, 4), (9, 8)))])
def test_a_split_that_loses_all_its_prompts_is_refused(name, lengths):
    splits = [problems(*found) for found in lengths]
    with pytest.raises(DataError, match=rf"all 2 {name} prompts are too long; raise task.args.prompt_tokens = 5"):
        fit_splits(Dropping(), *splits, Short(), Sampling(max_new_tokens=4))
    assert fit_splits(Dropping(), problems(3), [], Short(), Sampling(max_new_tokens=4))[1].problems == []


def test_long_prompts_are_dropped_and_counted(caplog):
    found = fitted(problems(3, 9, 8, 10), long="drop")
    assert (found.problems, found.counts()) == (problems(3, 8), {"dropped": 2})
    assert "2 of 4 prompts take more than 8 tokens: 2 are dropped, 0 are cut" in caplog.text


def test_long_prompts_lose_their_beginning_and_keep_their_names():
    given = [Problem("a", "0123456789 why?", {"x": 1}), Problem("b", "short")]
    found = fitted(given, ToyBackend(), tokens=6, long="cut")
    assert list(found.problems) == [Problem("a", "9 why?", {"x": 1}), given[1]]
    assert found.counts() == {"cut": 1}


def test_of_a_conversation_the_longest_text_is_cut_but_never_the_system_message():
    # be kind + 2 + who? + 1 + me + 2 + 0123456789 are 28 characters as plain text
    found = fitted([chat("who?", "me", "0123456789")], ToyBackend(), tokens=22, long="cut")
    (problem,) = found.problems
    assert [message["content"] for message in problem.messages] == ["be kind", "who?", "me", "6789"]
    assert problem.prompt == "user: who?\n\nassistant: me\n\nuser: 6789"


def test_a_prompt_that_no_cut_makes_fit_is_dropped():
    found = fitted([chat("hello", system="very long rules"), Problem("b", "ok")], ToyBackend(), tokens=9, long="cut")
    assert ([problem.id for problem in found.problems], found.counts()) == (["b"], {"dropped": 1})


def test_a_task_without_a_limit_refuses_what_the_model_cannot_hold():
    assert limit_of(object()) == PromptLimit(0, "refuse")


def test_a_run_records_what_was_dropped_and_trains_on_the_rest(toy, tmp_path):
    lines = "".join(f'{{"prompt": "{"a" * n}"}}\n' for n in range(1, 21))
    (tmp_path / "mixed.jsonl").write_text(lines)
    session = toy(
        f"task.args.path={tmp_path / 'mixed.jsonl'}", "task.args.prompt_tokens=15", "task.args.long_prompts=drop",
        "run.epochs=2", "rollout.prompts_per_step=4",
    )  # fmt: skip
    lengths = sorted(len(problem.prompt) for problem in [*session.problems, *session.heldout])
    assert lengths == list(range(1, 16))
    assert sum(counts.get("dropped", 0) for counts in session.long_prompts.values()) == 5
    assert session.config.run.steps == -(-2 * len(session.problems) // 4)
    with pytest.raises(DataError, match=r"all 16 training prompts are too long; raise task.args.prompt_tokens"):
        toy("task.args.prompt_tokens=1", "task.args.long_prompts=drop")


def test_rewards_are_told_the_length_of_a_run_without_the_prompts_that_were_dropped(toy, tmp_path, monkeypatch):
    """TRL's max_steps: three epochs of what is left, two problems a step, one update each."""
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "told_the_length.py").write_text(
        "def told(completions, trainer_state, **kwargs):\n"
        "    return [float(trainer_state.max_steps)] * len(completions)\n"
    )
    (tmp_path / "lengths.jsonl").write_text("".join(f'{{"prompt": "{"b" * n}"}}\n' for n in range(1, 31)))
    session = toy(
        f"task.args.path={tmp_path / 'lengths.jsonl'}", "task.args.prompt_tokens=18", "task.args.long_prompts=drop",
        "run.epochs=3", "rollout.prompts_per_step=2", "update.epochs=1", "update.minibatches=1",
        reward="told_the_length:told",
    )  # fmt: skip
    (rollout,) = score_texts([(session.problems[0], "b")], session.terms)
    assert rollout.reward == -(-3 * len(session.problems) // 2) == session.config.run.steps
