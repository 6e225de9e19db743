import numpy as np
import pytest

from steadyrl.core.types import Problem
from steadyrl.loop.rewards.combine import make_terms, score_texts
from tests.loop.rewards.test_trl import NoTask

# In the form of verl's custom reward functions.
MODULE = """
import numpy as np


def compute_score(data_source, solution_str, ground_truth, extra_info=None):
    return {"score": float(solution_str == ground_truth), "acc": np.float32(0.5), "pred": solution_str}


def exact(solution_str, ground_truth, **kwargs):
    return float(solution_str == ground_truth and kwargs["extra_info"]["split"] == "train")


async def asked(data_source, solution_str, ground_truth, extra_info=None):
    return len(data_source)


def no_score(solution_str, ground_truth):
    return {"acc": 1.0}
"""
COLUMNS = {
    "data_source": "openai/gsm8k",
    "reward_model": {"style": "rule", "ground_truth": "72"},
    "extra_info": {"split": "train", "index": 0},
}


@pytest.fixture
def one(users_module):
    """Return a function that scores an answer by one function of the module."""
    module = users_module("rewards_for_verl", MODULE)

    def score(name, text, columns=COLUMNS):
        (found,) = score_texts([(Problem("p", "?", columns), text)], make_terms({f"{module}:{name}": 1.0}, NoTask()))
        return found

    return score


def test_reward_functions_written_for_verl_run_unchanged(one):
    assert [one("exact", text).reward for text in ("72", "7")] == [1.0, 0.0]
    assert one("asked", "72").reward == len("openai/gsm8k")


def test_of_a_dict_the_score_counts_and_the_rest_is_logged(one):
    right, wrong = one("compute_score", "72"), one("compute_score", "71")
    assert (right.reward, right.parts) == (1.0, {"compute_score": 1.0, "acc": np.float32(0.5)})
    assert (wrong.reward, wrong.note) == (0.0, "pred: 71")


def test_a_problem_without_a_ground_truth_and_a_dict_without_a_score_are_unscored_with_the_reason(one):
    assert "the problem 'p' has no column 'reward_model' with a 'ground_truth'" in one("exact", "72", {}).unscored
    assert "'no_score' returned the parts acc; expected a 'score'" in one("no_score", "72").unscored
