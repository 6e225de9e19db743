"""The catalogue of metrics (each has one name, one unit and one definition) and the metrics of a step.

Units and estimators are in the names: ``kl_ref_k1`` is in nats per token, ``kl_ref_k1_seq`` in nats per sequence.
No metric is called just ``kl``. Means are over completion tokens, or over scored rollouts if the name contains
``_seq`` or starts with ``reward/``. Only ``loss/`` follows the mean of the loss itself (GRPO's ``mean``), so that the
parts, times their coefficients, add up to ``loss/total``. Clip fractions and KLs of an update are means over tokens.
"""

from __future__ import annotations

import math
import time
import tomllib
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np

from steadyrl.core.errors import ConfigError
from steadyrl.core.types import Batch, CallEnd, Group, Rollout, TokenScores


@dataclass(frozen=True)
class Metric:
    """One entry of the catalogue."""

    name: str
    """The name in metrics.jsonl. ``*`` stands for the name of a reward part or of an algorithm's number."""
    unit: str
    """"nats/token", "nats/sequence", "tokens", "s", "share" (0 to 1), "reward", or "" for a plain number."""
    better: Literal["up", "down", ""]
    """The direction in which the metric improves, or "" if there is none."""
    meaning: str
    """A short description."""
    heading: str = ""
    """The name on the display of a run in progress, or "" if the display does not show the metric."""


CATALOGUE: tuple[Metric, ...] = tuple(
    Metric(name, **{"unit": "", "better": "", **entry})
    for name, entry in tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8")).items()
)


def answer_means(records: Sequence[Mapping[str, Any]], answer: str) -> dict[str, float]:
    """Return the means of the reward and of every part over the answers of one name ("sampled", a rule's, ...).

    Each mean is over the answers that have the number.
    """
    values_by_name: dict[str, list[float]] = {}
    for record in records:
        scores = record["answers"].get(answer, {})
        for name, value in {**scores.get("parts", {}), "reward": scores.get("reward")}.items():
            if isinstance(value, int | float):
                values_by_name.setdefault(name, []).append(value)
    return {name: float(np.mean(values)) for name, values in values_by_name.items()}


def finite_number(value: Any) -> float | None:
    """Return a finite number, or None for anything else, such as an integer that no float holds."""
    if not isinstance(value, int | float):
        return None
    try:
        return float(value) if math.isfinite(value) else None
    except OverflowError:
        return None


def series(metrics: Sequence[Mapping[str, Any]], name: str) -> np.ndarray:
    """Return a metric over the steps, [S] float64; NaN if it is missing, null or not finite."""
    values = [finite_number(record.get(name)) for record in metrics]
    return np.array([math.nan if value is None else value for value in values], np.float64)


def finite_mean(values: Iterable[float]) -> float | None:
    """Return the mean of the finite ones among some values; None where there is none."""
    finite = [value for value in values if math.isfinite(value)]
    return float(np.mean(finite)) if finite else None


def describe(name: str) -> Metric | None:
    """Return the catalogue's entry for a metric name, or None if the catalogue does not have it."""
    exact = {metric.name: metric for metric in CATALOGUE}
    return exact.get(name) or exact.get(f"{name.partition('/')[0]}/*")


class StepMetrics:
    """The metrics of a step, filled stage by stage; each name belongs to the stage that sets it first."""

    def __init__(self) -> None:
        self.values: dict[str, Any] = {}
        self._stages: dict[str, str] = {}

    def add(self, stage: str, values: Mapping[str, Any]) -> None:
        """Add what a stage measured.

        Raises:
            ConfigError: Another stage has set one of the names, so that one of the two numbers would be lost.
        """
        for name in values:
            if name in self._stages:
                raise ConfigError(
                    f"the metric '{name}' is measured by {self._stages[name]} and again by {stage}; rename what your "
                    "own algorithm, reward, curriculum or backend returns under that name"
                )
            self._stages[name] = stage
        self.values.update(values)


def summarise(groups: Sequence[Group], batch: Batch, fresh: bool) -> dict[str, float | None]:
    """Return the metrics of a step's rollouts.

    Args:
        groups: All rollouts of the step, including the unscored ones.
        batch: The batch that trained, with ``old`` scores, advantages and returns.
        fresh: Whether the policy before the step drew the rollouts.
    """
    measured = batch_metrics(batch)
    scored = sum(len(group.rewards) for group in groups)
    if not fresh or len(batch.lengths) < scored:
        # Rollouts of an older policy, or selected by reward, are a biased sample: their mean -log p does not estimate
        # the entropy.
        measured.pop("entropy_sampled", None)
    return {**reward_metrics(groups), **difficulty(groups), **measured}


def reward_metrics(groups: Sequence[Group]) -> dict[str, float | None]:
    """Return reward/* and completion/* and groups/*."""
    rollouts = [rollout for group in groups for rollout in group.rollouts]
    rewards = np.array([reward for group in groups for reward in group.rewards])
    lengths = [r.length for r in rollouts]
    metrics: dict[str, float | None] = {
        "reward/mean": float(rewards.mean()) if rewards.size else None,
        "reward/std": float(rewards.std()) if rewards.size else None,
        "reward/min": float(rewards.min()) if rewards.size else None,
        "reward/max": float(rewards.max()) if rewards.size else None,
        "reward/unscored": 1 - rewards.size / len(rollouts),
        "completion/length": float(np.mean(lengths)),
        "completion/truncated": float(np.mean([r.stop_reason == "length" for r in rollouts])),
        "completion/empty": float(np.mean([not r.text.strip() for r in rollouts])),
        "completion/repetition": float(np.mean([repetition(r.text) for r in rollouts])),
        "tokens/sampled": float(sum(lengths)),
    }
    for part in sorted({name for r in rollouts for name in r.parts}):
        metrics[f"reward/{part}"] = float(np.mean([r.parts[part] for r in rollouts if part in r.parts]))
    if observed := sum(r.observations for r in rollouts):
        metrics["observation/cut"] = sum(r.observations_cut for r in rollouts) / observed
    metrics |= tool_metrics(rollouts)
    if scored_counts := [len(group.rewards) for group in groups if len(group.rollouts) > 1]:
        metrics["groups/uncompared"] = float(np.mean([scored < 2 for scored in scored_counts]))
    if rewards_by_group := [group.rewards for group in groups if len(group.rewards) > 1]:
        metrics["reward/std_within"] = math.sqrt(float(np.mean([np.var(rewards) for rewards in rewards_by_group])))
        metrics["groups/mean_std"] = float(np.std([np.mean(rewards) for rewards in rewards_by_group]))
        metrics["groups/best"] = float(np.mean([max(rewards) for rewards in rewards_by_group]))
        signal = float(np.mean([max(rewards) != min(rewards) for rewards in rewards_by_group]))
        metrics |= {"groups/no_signal": 1.0 - signal, "curriculum/signal": signal}
    return metrics


def tool_metrics(rollouts: Sequence[Rollout]) -> dict[str, float]:
    """Return tools/* and time/tool, or nothing where there are no tools."""
    if not any(rollout.calls for rollout in rollouts):
        return {}
    calls = [call for rollout in rollouts for turn in rollout.calls for call in turn]
    if not calls:
        return {"tools/calls": 0.0}
    ends = Counter(call.end for call in calls)
    shares = {f"tools/{end}": ends[end] / len(calls) for end in get_args(CallEnd)}
    seconds = [call.seconds for call in calls if call.end in ("ok", "raised", "timeout")]
    times = {"time/tool": float(np.mean(seconds))} if seconds else {}
    return {"tools/calls": len(calls) / len(rollouts), **shares, **times}


def difficulty(groups: Sequence[Group]) -> dict[str, float]:
    """Return the mean difficulty of the problems whose difficulty is a number, or nothing if there are none."""
    difficulties = [group.problem.columns.get("difficulty") for group in groups]
    numbers = [float(x) for x in difficulties if isinstance(x, int | float) and not isinstance(x, bool)]
    return {"curriculum/difficulty": float(np.mean(numbers))} if numbers else {}


def repetition(text: str) -> float:
    """Return the share of a text's word 3-grams that occurred earlier in it, or 0 if it has fewer than two 3-grams."""
    words = text.split()
    grams = list(zip(words, words[1:], words[2:], strict=False))
    return 1.0 - len(set(grams)) / len(grams) if len(grams) > 1 else 0.0


def batch_metrics(batch: Batch) -> dict[str, float | None]:
    """Return the measurements on the batch before the update: KL, entropy, values, returns, advantages."""
    mask, old = batch.completion_mask, batch.old
    if not mask.any():
        return {}
    metrics = {} if old is None else _score_metrics(batch, old)
    raw = batch.measured.get("advantages_raw")
    if raw is not None:
        metrics["advantage/mean"] = float(raw[mask].mean())
        metrics["advantage/std"] = float(raw[mask].std())
    if batch.advantages is not None:
        metrics["advantage/used"] = float(
            np.mean((np.where(batch.trained_mask, batch.advantages, 0.0) != 0).any(axis=1))
        )
    return metrics


def _score_metrics(batch: Batch, old: TokenScores) -> dict[str, float | None]:
    mask = batch.completion_mask
    assert old.entropy is not None, "score measures the entropy always"
    metrics: dict[str, float | None] = {
        "entropy": float(old.entropy[mask].mean()),
        "entropy_sampled": float(-old.logprobs[mask].mean()),
    }
    gap = np.abs(batch.sampling_logprobs - old.logprobs)[mask]
    if not np.isnan(gap).any():  # demonstrations have no sampling log-probs
        metrics["sampler_gap"] = float(gap.mean())
    if old.ref_logprobs is not None:
        log_ratio = np.where(mask, old.logprobs - old.ref_logprobs, 0.0)
        per_sequence = log_ratio.sum(axis=1)
        metrics["kl_ref_k1"] = float(log_ratio[mask].mean())
        metrics["kl_ref_k1_seq"] = float(per_sequence.mean())
        if len(per_sequence) > 1:
            metrics["kl_ref_k1_seq_se"] = float(per_sequence.std(ddof=1) / math.sqrt(len(per_sequence)))
        # expm1 keeps the digits of small ratios, of which exp(-x) - 1 would lose most.
        metrics["kl_ref_k3"] = float((np.expm1(-log_ratio) + log_ratio)[mask].mean())
    for name, divergence in (("kl_ref_exact", old.kl_ref_exact), ("kl_ref_full", old.kl_ref_full)):
        if divergence is not None:
            metrics[name] = float(divergence[mask].mean())
            metrics[f"{name}_seq"] = float(np.where(mask, divergence, 0.0).sum(axis=1).mean())
    if old.values is not None and batch.returns is not None:
        metrics["value/mean"] = float(old.values[mask].mean())
        metrics["value/error"] = float(((old.values - batch.returns)[mask] ** 2).mean())
        metrics["value/explained_variance"] = explained_variance(old.values[mask], batch.returns[mask])
        metrics["return/mean"] = float(batch.returns[mask].mean())
        metrics["return/std"] = float(batch.returns[mask].std())
    if "kept" in batch.measured:
        metrics["loss/reward_nll"] = reward_times_surprise(batch, old.logprobs)
    return metrics


def reward_times_surprise(batch: Batch, logprobs: np.ndarray) -> float | None:
    """Return the mean of reward times surprise over the rollouts in ``measured["kept"]``, or None if there are none.

        L = mean over kept rollouts i of r_i * (1 / T_i) * sum over t of -log p(t)

    Without a baseline and a clip this is the loss of a policy gradient. It rises with the rewards and falls with the
    entropy, so its level says little about how well training goes.

    Args:
        batch: With "kept" [B, T], not 0 at the completion tokens of the kept rollouts.
        logprobs: [B, T], nats, of the policy before the update.
    """
    mask = batch.completion_mask
    trained = (np.where(mask, batch.measured["kept"], 0.0) != 0).any(axis=1)  # [B]
    if not trained.any():
        return None
    surprise = -np.where(mask, logprobs, 0.0).sum(axis=1) / np.maximum(mask.sum(axis=1), 1)  # [B]
    return float((batch.rewards * surprise)[trained].mean())


def explained_variance(values: np.ndarray, returns: np.ndarray) -> float | None:
    """Return 1 - Var(return - value) / Var(return), or None if the returns do not vary.

    The residual's mean does not count, so this metric does not show a constant offset of the values. Compare
    ``value/mean`` with ``return/mean`` to see one.
    """
    variance = float(np.var(returns))
    if variance < 1e-12:
        return None
    return 1.0 - float(np.var(returns - values)) / variance


class Clock:
    """Seconds spent between laps."""

    def __init__(self) -> None:
        self._times: dict[str, float] = {}
        self._last = time.perf_counter()

    def lap(self, name: str) -> None:
        """Book the time since the last lap under a name; laps of one name add up."""
        now = time.perf_counter()
        self._times[f"time/{name}"] = self._times.get(f"time/{name}", 0.0) + now - self._last
        self._last = now

    def total(self) -> float:
        """Return the seconds of all laps."""
        return sum(self._times.values())

    def times(self) -> dict[str, float]:
        """Return time/<lap> and time/step."""
        return {**self._times, "time/step": self.total()}


def repeatable(record: Mapping[str, Any]) -> dict[str, Any]:
    """Return a line of metrics without clocks, memory and resumes: what two runs of one seed have in common."""
    return {
        name: value
        for name, value in record.items()
        if name not in ("time", "attempt", "tokens/per_second") and not name.startswith(("time/", "memory/"))
    }
