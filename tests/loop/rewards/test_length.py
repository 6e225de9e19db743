import pytest

from steadyrl.core.types import Problem
from steadyrl.loop.rewards.combine import Term, score_texts
from steadyrl.loop.rewards.founding import length
from steadyrl.loop.rewards.functions import per_rollout


@pytest.mark.parametrize(
    ("text", "reward"),
    [
        ("", 2.0),  # by the founding formula silence earns the most
        (" \n ", 2.0),
        ("one", 1.9375),
        ("one two  three\nfour", 1.75),
        (" ".join(["word"] * 16), 1.0),
        (" ".join(["word"] * 32), 0.0),
        (" ".join(["word"] * 48), -1.0),
    ],
)
def test_the_founding_length_reward(text, reward):
    (rollout,) = score_texts([(Problem("p", "?"), text)], [Term("length", 1.0, per_rollout("length", length))])
    assert rollout.reward == reward
