import pytest

from steadyrl.core.types import Problem
from steadyrl.loop.rewards.combine import Term, score_texts
from steadyrl.loop.rewards.founding import boolean_format
from steadyrl.loop.rewards.functions import per_rollout

# 0.3 for an operator, 0.5 for the pattern, 0.2 for more than 5 and under 30 words
CASES = {
    "": 0.0,
    "cat": 0.0,
    "cat AND dog": 0.3,
    "rock and roll": 0.3,  # letter case is ignored
    "cat ANDdog": 0.0,
    "AND dog": 0.0,  # an operator stands between spaces
    "cat\nOR\ndog": 0.0,
    "android corner": 0.0,
    "(cat) AND (dog)": 0.8,
    "( cat ) or ( dog )": 1.0,  # seven words
    "(cat dog) AND (fox)": 0.8,  # four words
    "(cat OR dog) AND (fox OR hen)": 1.0,
    "(cat) NOT (dog)": 0.0,
    " AND cat": 0.0,  # the space before the text is a tokenizer's
    "cat OR ": 0.0,
    "(cat)AND(dog)": 0.0,  # the founding pattern asks for spaces
    "() AND ()": 0.3,
    "(cat)  OR\t(dog)": 0.5,  # white space of any kind in the pattern, plain spaces around the operator
    "one two three four five": 0.0,
    "one two three four five six": 0.2,
    " ".join(["w"] * 29): 0.2,
    " ".join(["w"] * 30): 0.0,
    "(a) AND (b) " + " ".join(["w"] * 27): 0.8,  # 30 words
}


@pytest.mark.parametrize(("text", "reward"), CASES.items())
def test_the_founding_format_reward(text, reward):
    terms = [Term("boolean_format", 1.0, per_rollout("boolean_format", boolean_format))]
    (rollout,) = score_texts([(Problem("p", "?"), text)], terms)
    assert rollout.reward == pytest.approx(reward)
