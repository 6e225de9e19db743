"""The reasoning of an answer is hidden from the rewards for which that is asked."""

from dataclasses import replace

import pytest

from steadyrl.core import config
from steadyrl.loop.rewards.combine import make_terms
from steadyrl.loop.rewards.functions import answer_of
from tests.loop.rewards.test_trl import NoTask, group, scored

MODULE = """
def contents(completions, **kwargs):
    return [float(len(c)) for c in completions]


def thinks(problem, rollout):
    return float("<think>" in rollout.text)
"""


@pytest.mark.parametrize(
    ("text", "stop_reason", "answer"),
    [
        ("<think>two and two</think> four", "stop", "four"),
        ("two and two</think>\n\nfour", "stop", "four"),  # the prompt ended with <think>
        ("<think>a</think> b </think> c", "length", "c"),
        ("<think>two and two", "stop", ""),
        ("two and two", "length", ""),
        ("four", "stop", "four"),
        ("<think></think>", "stop", ""),
        ("so</think>\n<answer>\n4\n</answer>\n", "stop", "<answer>\n4\n</answer>\n"),
        (" four\n", "stop", " four\n"),
    ],
)
def test_the_answer_stands_behind_the_last_mark(text, stop_reason, answer):
    (rollout,) = group(text).rollouts
    assert answer_of(replace(rollout, stop_reason=stop_reason), "</think>") == answer


def test_other_marks_have_other_beginnings():
    (rollout,) = group("[THINK]so[/THINK]yes").rollouts
    assert answer_of(rollout, "[/THINK]") == "yes"
    assert answer_of(replace(rollout, text="[THINK]so"), "[/THINK]") == ""


def test_one_reward_sees_the_answer_and_another_the_whole_text(users_module):
    module = users_module("sees_answers", MODULE)
    rewards = {f"{module}:contents": {"answer_after": "</think>"}, f"{module}:thinks": 10.0}
    terms = make_terms(config.resolve({"rewards": rewards}).rewards, NoTask())
    found = scored([group("<think>so</think>four", "no")], *terms)
    assert [r.reward for r in found] == [14.0, 2.0]
    assert found[0].text == "<think>so</think>four"  # the record keeps the whole


def test_a_tasks_own_reward_may_see_the_answer_alone():
    class OneReward(NoTask):
        def rewards(self):
            return {"shout": lambda problem, rollout: float(rollout.text.isupper())}

    terms = make_terms({"shout": config.RewardSettings(answer_after="</think>")}, OneReward())
    assert [r.reward for r in scored([group("<think>so</think>YES", "no")], *terms)] == [1.0, 0.0]
