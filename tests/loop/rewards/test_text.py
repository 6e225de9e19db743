"""A function of a completion's text and of columns by their names is a reward like any other."""

import pytest

from steadyrl.core.errors import ConfigError
from steadyrl.core.types import Problem
from steadyrl.loop.rewards.combine import make_terms, require_columns, text_rollout
from steadyrl.loop.rewards.functions import from_text

PROBLEM = Problem("1", "two and two", {"answer": "4", "level": 3})


@pytest.mark.parametrize(
    ("function", "value"),
    [
        (lambda completion: len(completion), 3),
        (lambda completion, answer: float(answer in completion), 1.0),
        (lambda prompt, completion: f"{prompt}={completion}", "two and two=a 4"),
        (lambda completion, missing=7: missing, 7),
        (lambda completion, level, **columns: (level, columns["answer"], "level" in columns), (3, "4", False)),
        (lambda *, completion: completion, "a 4"),
    ],
)
def test_parameters_are_filled_by_their_names(function, value):
    assert from_text(function)(PROBLEM, text_rollout(PROBLEM, "a 4")) == value


@pytest.mark.parametrize(
    ("function", "columns"),
    [
        ("def reward(completion, answer, prompt, level=1, *, name, **columns): return 0.0", {"answer", "name"}),
        ("def reward(prompts, completions): return [0.0]", set()),
        ("def reward(solution_str): return 0.0", set()),
        ("def reward(problem, rollout): return 0.0", set()),
    ],
)
def test_columns_without_a_default_are_needed_by_functions_of_a_completion_alone(users_module, function, columns):
    (term,) = make_terms({f"{users_module('of_texts', function)}:reward": 1.0}, NoTask())
    assert term.columns == columns


def test_a_missing_column_is_refused_before_anything_is_sampled(users_module):
    module = users_module("of_texts", "def near(completion, solution):\n    return 1.0\n")
    terms = make_terms({f"{module}:near": 1.0}, NoTask())
    with pytest.raises(ConfigError, match=r"takes solution, .*; beside the prompt there are: answer, level"):
        require_columns(terms, "train", [PROBLEM])


class NoTask:
    name, metric = "none", ""

    def rewards(self):
        return {}
