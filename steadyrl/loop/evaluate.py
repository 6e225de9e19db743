"""Held-out evaluation: every problem is answered with fixed seeds, sampled and greedy, and by model-free rules."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from steadyrl.core.config import Config
from steadyrl.core.counting.count import tell
from steadyrl.core.errors import DataError
from steadyrl.core.protocols import Backend
from steadyrl.core.stats import paired_difference
from steadyrl.core.types import Decoding, Group, Problem, Rollout, Sampling
from steadyrl.loop.checkpoint import Best, State
from steadyrl.loop.rewards.combine import Term, score_groups, score_texts
from steadyrl.loop.rollout.collect import collect
from steadyrl.loop.rollout.episode import Environment

# This key takes the place of a step, so the evaluation never shares a draw with training, whose steps count from 0.
_EVALUATION_KEY = 2**31


def evaluate(
    backend: Backend,
    problems: Sequence[Problem],
    terms: Sequence[Term],
    metric: str,
    sampling: Sampling,
    seed: int,
    environment: Environment | None = None,
) -> list[dict[str, Any]]:
    """Answer every problem once sampled, as in training, and once greedily.

    Returns:
        One record per problem for ``evaluations/*.jsonl``: problem, prompt, answers by decoding.
    """
    key = (seed, _EVALUATION_KEY)
    decodings = {"sampled": sampling, "greedy": greedy_sampling(sampling)}
    by_decoding = {}
    for number, (name, drawn) in enumerate(decodings.items()):
        tell("held-out evaluations, sampled and greedy", number, len(decodings))
        groups = score_groups(collect(backend, problems, 1, drawn, key, environment=environment), terms)
        by_decoding[name] = _only_rollouts(groups)
    tell("held-out evaluations, sampled and greedy", len(decodings), len(decodings))
    return _records(problems, by_decoding, metric)


def greedy_sampling(sampling: Sampling) -> Sampling:
    """Return the sampling that always takes the most likely token."""
    return replace(sampling, temperature=1.0, top_k=1, top_p=1.0)


def evaluate_rules(
    rules: Mapping[str, Callable[[Problem], str]], problems: Sequence[Problem], terms: Sequence[Term], metric: str
) -> list[dict[str, Any]]:
    """Answer every problem by rules that need no model; records as ``evaluate`` gives them."""
    by_rule = {name: score_texts([(p, rule(p)) for p in problems], terms) for name, rule in rules.items()}
    return _records(problems, by_rule, metric)


def pick_heldout(problems: Sequence[Problem], count: int) -> list[Problem]:
    """Return ``count`` problems spread over all of them (all for 0), always the same ones."""
    if count == 0 or count >= len(problems):
        return list(problems)
    order = np.random.default_rng(0).permutation(len(problems))[:count]
    return [problems[i] for i in sorted(order.tolist())]


def require_heldout(config: Config, problems: Sequence[Problem]) -> None:
    """Refuse a run that would end early by its held-out score and has no problems for one.

    Raises:
        DataError: There are none.
    """
    if config.evaluate.patience and not problems:
        raise DataError(
            f"evaluate.patience is {config.evaluate.patience}, and the task '{config.task.name}' has no held-out "
            "problems to evaluate on; set it to 0, or give the task some"
        )


def require_metric(records: list[dict[str, Any]], metric: str, terms: Sequence[Term]) -> list[dict[str, Any]]:
    """Return an evaluation, but refuse a metric that no reward gives.

    Args:
        records: What ``evaluate`` returned.
        metric: A part of the reward, or "" for the total.
        terms: A reward of the metric's name may be unknown for all answers.

    Raises:
        DataError: There are answers with parts, and none has that one.
    """
    parts = {name for record in records for answer in record["answers"].values() for name in answer["parts"]}
    if metric and parts and metric not in {*parts, *(term.name for term in terms)}:
        raise DataError(
            f"no reward part is called '{metric}', which held-out problems are to be compared by (the task's metric); "
            f"there are: {', '.join(sorted(parts))}"
        )
    return records


def held_out_score(records: Sequence[Mapping[str, Any]], step: int, deploy: Decoding) -> Best | None:
    """Return the mean of the metric over one kind of answers with its interval; None if none could be scored."""
    metrics = [record["answers"][deploy]["metric"] for record in records]
    values = np.array([value for value in metrics if value is not None], np.float64)  # [n]
    if not values.size:
        return None
    if len(values) == 1:
        return Best(step, float(values[0]), None, None, 1)
    change = paired_difference(np.zeros(len(values)), values)
    return Best(step, change.difference, change.low, change.high, len(values))


def follow_best(state: State, records: Sequence[Mapping[str, Any]], deploy: Decoding) -> Best | None:
    """Take an evaluation after ``state.step`` steps into the state, and return its score.

    An evaluation without a single scored answer says nothing of the policy, and nothing changes.
    """
    latest = held_out_score(records, state.step, deploy)
    if latest is None:
        return None
    if state.best is None or latest.score > state.best.score:
        state.best, state.evaluations_since_best = latest, 0
    else:
        state.evaluations_since_best += 1
    return latest


def out_of_patience(patience: int, state: State) -> bool:
    """Say whether so many evaluations in a row were not better than the best; 0 waits forever."""
    return 0 < patience <= state.evaluations_since_best


def said_of_best(state: State, latest: Best | None, patience: int) -> str:
    """Return what a user is told after an evaluation that ``follow_best`` has taken in; "" where nothing changed."""
    if latest is not None and latest == state.best:
        between = "" if latest.low is None else f" [{latest.low:.3f}, {latest.high:.3f}]"
        return f"held-out score {latest.score:.3f}{between} after {state.step} steps, the best so far"
    if state.best is None or not out_of_patience(patience, state):
        return ""
    return (
        f"stopping early after {state.step} steps: {state.evaluations_since_best} evaluations in a row were not better "
        f"than {state.best.score:.3f} after {state.best.step} steps (evaluate.patience)"
    )


def _only_rollouts(groups: Sequence[Group]) -> list[Rollout]:
    return [group.rollouts[0] for group in groups]


def _records(
    problems: Sequence[Problem], by_name: Mapping[str, Sequence[Rollout]], metric: str
) -> list[dict[str, Any]]:
    return [
        {
            "problem": problem.id,
            "prompt": problem.prompt,
            "answers": {name: answer_record(rollouts[i], metric) for name, rollouts in by_name.items()},
        }
        for i, problem in enumerate(problems)
    ]


def answer_record(rollout: Rollout, metric: str) -> dict[str, Any]:
    """Return the record of a scored rollout. Its metric is the total reward if ``metric`` is empty."""
    return {
        "text": rollout.text,
        "reward": rollout.reward,
        "metric": rollout.parts.get(metric) if metric else rollout.reward,
        "parts": dict(rollout.parts),
        "unscored": rollout.unscored,
        "note": rollout.note,
        "truncated": rollout.stop_reason == "length",
    }
