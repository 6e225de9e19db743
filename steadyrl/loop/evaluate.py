"""Held-out evaluation: every problem is answered with fixed seeds, sampled and greedy, and by model-free rules."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from steadyrl.core import plugins
from steadyrl.core.config import Config, reward_weights, validate
from steadyrl.core.counting.count import tell
from steadyrl.core.errors import ConfigError, DataError, SteadyError
from steadyrl.core.metrics import answer_means
from steadyrl.core.protocols import Backend
from steadyrl.core.stats import paired_difference, pass_rates
from steadyrl.core.types import Decoding, Problem, Rollout, Sampling
from steadyrl.core.words import counted
from steadyrl.loop.checkpoint import Best, State
from steadyrl.loop.rewards.combine import Term, make_terms, planned_updates, require_columns, score_groups, score_texts
from steadyrl.loop.rollout.collect import collect
from steadyrl.loop.rollout.episode import Environment
from steadyrl.loop.rollout.records import episode_record

# This key takes the place of a step, so the evaluation never shares a draw with training, whose steps count from 0.
_EVALUATION_KEY = 2**31


@dataclass(frozen=True)
class HeldoutSet:
    """Problems that are not trained on."""

    name: str
    """Of ``evaluate.sets``; "" for the task's own split."""
    problems: Sequence[Problem]
    """At least one."""
    terms: Sequence[Term]
    """What scores their answers."""


def open_sets(config: Config) -> list[HeldoutSet]:
    """Read the sets of ``evaluate.sets``, each by the task, as it reads the file of ``task.args.heldout``.

    Raises:
        SteadyError: The task cannot read such files, or one of them cannot be read.
    """
    sets, args = [], config.task.args
    for name, path in config.evaluate.sets.items():
        setting = f"evaluate.sets.{name} = '{path}'"
        if "heldout" not in type(args).model_fields:
            raise ConfigError(
                f"{setting}: the task '{config.task.name}' has no setting task.args.heldout, by which it would read "
                "another set; remove evaluate.sets, or take a task that reads files"
            )
        try:
            task_args = validate(type(args), {**args.model_dump(), "heldout": path}, "task.args")
            task = plugins.open_task(config.task.name, task_args, config.run.seed)
            problems = plugins.problems_of(task, "heldout")
            plugins.require_ids(task, problems)
            terms = make_terms(config.rewards, task, planned_updates(config))
            require_columns(terms, name, problems)
        except SteadyError as error:
            raise type(error)(f"{setting}: {error}") from error
        if not problems:
            raise DataError(f"{setting}: there is no problem in it; expected one or more")
        sets.append(HeldoutSet(name, pick_heldout(problems, config.evaluate.problems), terms))
    return sets


def evaluate(
    backend: Backend,
    problems: Sequence[Problem],
    terms: Sequence[Term],
    config: Config,
    metric: str,
    environment: Environment | None = None,
) -> list[dict[str, Any]]:
    """Answer every problem ``evaluate.samples`` times sampled, and once greedily.

    Args:
        backend: Holds the policy.
        problems: A set of held-out problems.
        terms: What scores their answers.
        config: Determines how many answers are sampled, and how.
        metric: A part of the reward, or "" for the total.
        environment: Where problems answer back; None for problems of one turn.

    Returns:
        One record per problem for ``evaluations/*.jsonl``: problem, prompt, answers by decoding.
    """
    sampling, samples = evaluation_sampling(config), config.evaluate.samples
    key = (config.run.seed, _EVALUATION_KEY)
    decodings = {"sampled": sampling, "greedy": greedy_sampling(sampling)}
    by_decoding = {}
    for i, (name, decoding) in enumerate(decodings.items()):
        tell("held-out evaluations, sampled and greedy", i, len(decodings))
        count = samples if name == "sampled" else 1
        groups = score_groups(collect(backend, problems, count, decoding, key, environment=environment), terms)
        by_decoding[name] = [group.rollouts for group in groups]
    tell("held-out evaluations, sampled and greedy", len(decodings), len(decodings))
    return _records(problems, by_decoding, metric, solved_from(config, metric))


def evaluation_sampling(config: Config) -> Sampling:
    """Return how evaluations sample: as training, but for a temperature and a top-p of their own."""
    overrides = config.evaluate.model_dump(include={"temperature", "top_p"}, exclude_none=True)
    return Sampling(**config.sampling.model_dump() | overrides)


def solved_from(config: Config, metric: str) -> float:
    """Return the value from which on an answer is solved: ``evaluate.solved``, or the maximum.

    The maximum is that of a reward between 0 and 1, or of the weighted total of such rewards.
    """
    if config.evaluate.solved is not None:
        return config.evaluate.solved
    return 1.0 if metric else sum(max(0.0, weight) for weight in reward_weights(config).values())


def greedy_sampling(sampling: Sampling) -> Sampling:
    """Return the sampling that always takes the most likely token."""
    # Of one token every temperature makes the same, and 0 would divide by nothing.
    return replace(sampling, temperature=1.0, top_k=1, top_p=1.0)


def evaluate_rules(
    rules: Mapping[str, Callable[[Problem], str]], problems: Sequence[Problem], terms: Sequence[Term], metric: str
) -> list[dict[str, Any]]:
    """Answer every problem by rules that need no model; records as ``evaluate`` gives them."""
    by_rule = {
        name: [(rollout,) for rollout in score_texts([(p, rule(p)) for p in problems], terms)]
        for name, rule in rules.items()
    }
    return _records(problems, by_rule, metric)


def pick_heldout(problems: Sequence[Problem], count: int) -> list[Problem]:
    """Return ``count`` problems spread over all of them (all for 0), always the same ones."""
    if count == 0 or count >= len(problems):
        return list(problems)
    order = np.random.default_rng(0).permutation(len(problems))[:count]
    return [problems[i] for i in sorted(order.tolist())]


def require_metric(records: list[dict[str, Any]], metric: str, terms: Sequence[Term]) -> list[dict[str, Any]]:
    """Return an evaluation, but refuse a metric that no reward gives.

    A reward of the metric's name may be unknown for all answers.

    Raises:
        DataError: There are answers with parts, and none has that one.
    """
    components = {name for record in records for answer in record["answers"].values() for name in answer["parts"]}
    if metric and components and metric not in {*components, *(term.name for term in terms)}:
        raise DataError(
            f"no reward part is called '{metric}', which held-out problems are to be compared by (the task's metric); "
            f"there are: {', '.join(sorted(components))}"
        )
    return records


def heldout_metrics(records: Sequence[Mapping[str, Any]], deploy: Decoding, name: str) -> dict[str, float]:
    """Return the means of an evaluation as metrics: of the answers that count, and pass@k of those that are sampled."""
    sampled = answer_means(records, "sampled")
    numbers = {metric: value for metric, value in sampled.items() if metric.startswith("pass@")}
    numbers |= answer_means(records, deploy)
    prefix = f"heldout/{name}/" if name else "heldout/"
    return {f"{prefix}{metric}": value for metric, value in numbers.items()}


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


def best_message(state: State, latest: Best | None, patience: int) -> str:
    """Return what a user is told after an evaluation that ``follow_best`` has taken in; "" where nothing changed."""
    if latest is not None and latest == state.best:
        between = "" if latest.low is None else f" [{latest.low:.3f}, {latest.high:.3f}]"
        return f"held-out score {latest.score:.3f}{between} after {counted(state.step, 'step')}, the best so far"
    if state.best is None or not out_of_patience(patience, state):
        return ""
    return (
        f"stopping early after {counted(state.step, 'step')}: "
        f"{counted(state.evaluations_since_best, 'evaluation')} in a row without a better score than "
        f"{state.best.score:.3f} after {counted(state.best.step, 'step')} (evaluate.patience)"
    )


def _records(
    problems: Sequence[Problem], by_name: Mapping[str, Sequence[Sequence[Rollout]]], metric: str, solved: float = 1.0
) -> list[dict[str, Any]]:
    return [
        {
            "problem": problem.id,
            "prompt": problem.prompt,
            "answers": {name: _answers_record(answers[i], metric, solved) for name, answers in by_name.items()},
        }
        for i, problem in enumerate(problems)
    ]


def _answers_record(rollouts: Sequence[Rollout], metric: str, solved: float) -> dict[str, Any]:
    """Return the record of the answers to a problem: of several the first one's text, and means over those scored."""
    samples = [answer_record(rollout, metric) for rollout in rollouts]
    if len(samples) == 1:
        return samples[0]
    measured = {name: [s[name] for s in samples if s[name] is not None] for name in ("reward", "metric")}
    by_name = {name: [s["parts"][name] for s in samples if name in s["parts"]] for s in samples for name in s["parts"]}
    note = f"the first of {len(samples)} answers; the numbers are means over them"
    return {
        **samples[0],
        **{name: float(np.mean(values)) if values else None for name, values in measured.items()},
        "parts": {name: float(np.mean(values)) for name, values in by_name.items()}
        | pass_rates(measured["metric"], solved, len(samples)),
        "unscored": None if measured["reward"] else samples[0]["unscored"],
        "note": "; ".join(filter(None, (note, samples[0]["note"]))),
        "samples": samples,
    }


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
        **(episode_record(rollout) if rollout.turns else {}),
    }
