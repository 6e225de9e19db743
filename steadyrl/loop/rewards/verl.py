"""Reward functions written for verl: ``compute_score(data_source, solution_str, ground_truth, extra_info)``.

The columns are those of verl's parquet files: ``data_source``, ``reward_model`` with the entry ``ground_truth``, and
``extra_info``.
"""

from __future__ import annotations

import numbers
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from steadyrl.core.errors import DataError
from steadyrl.core.types import Problem, Rollout, Score
from steadyrl.loop.rewards.functions import AnyRewardFn, of_rollout


def from_verl(name: str, function: Callable[..., Any]) -> AnyRewardFn:
    """Return a verl function as a reward of one rollout.

    Of a dict the entry "score" counts; other numbers are logged as parts, and everything else in the note.
    """
    return of_rollout(function, _arguments, partial(_scored, name))


def _arguments(problem: Problem, rollout: Rollout) -> dict[str, Any]:
    graded = problem.columns.get("reward_model")
    if not isinstance(graded, Mapping) or "ground_truth" not in graded:
        raise DataError(
            f"the problem '{problem.id}' has no column 'reward_model' with a 'ground_truth', which a reward written "
            "for verl is given; add it to the data"
        )
    return {
        "data_source": problem.columns.get("data_source"),
        "solution_str": rollout.text,
        "ground_truth": graded["ground_truth"],
        "extra_info": problem.columns.get("extra_info"),
    }


def _scored(name: str, value: Any) -> Any:
    if not isinstance(value, Mapping):
        return value
    if "score" not in value:
        raise DataError(f"the reward '{name}' returned the parts {', '.join(map(str, value))}; expected a 'score'")
    logged = {key: item for key, item in value.items() if key != "score"}
    components = {key: float(item) for key, item in logged.items() if isinstance(item, numbers.Real)}
    note = ", ".join(f"{key}: {item}" for key, item in logged.items() if key not in components)
    return Score(None if value["score"] is None else float(value["score"]), components, note=note)
