"""The catalogue of metrics: one name, one unit, one definition each; and the numbers of a step.

Units and estimators are in the names: ``kl_ref_k1`` is in nats per token, ``kl_ref_k1_seq`` in nats per sequence.
A bare ``kl`` is never written. Means are over completion tokens, or over scored rollouts where the name has
``_seq`` or starts with ``reward/``.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from steadyrl.types import Batch, Group


@dataclass(frozen=True)
class Metric:
    """One entry of the catalogue.

    Attributes:
        name: As written in metrics.jsonl; ``*`` stands for the name of a reward part or an algorithm's number.
        unit: "nats/token", "nats/sequence", "tokens", "s", "share" (0 to 1), "reward", or "" for a plain number.
        better: Which way is better, "" where neither is.
        meaning: One sentence.
    """

    name: str
    unit: str
    better: Literal["up", "down", ""]
    meaning: str


CATALOGUE: tuple[Metric, ...] = (
    Metric("reward/mean", "reward", "up", "Weighted total of the reward parts, mean over scored rollouts."),
    Metric("reward/std", "reward", "", "Standard deviation of the total over scored rollouts."),
    Metric("reward/std_within", "reward", "", "Root mean variance of the total within groups: what a group can teach."),
    Metric("reward/unscored", "share", "down", "Rollouts without a reward (engine failure, time-out, no verdict)."),
    Metric("reward/*", "reward", "", "A reward part or measurement, unweighted, mean over the rollouts that have it."),
    Metric(
        "reward_share/*", "share", "", "Of a reward part, weighted, in the variance of the total; all of them make 1."
    ),
    Metric("groups/no_signal", "share", "down", "Groups whose rewards are all equal; only with several samples."),
    Metric("groups/best", "reward", "up", "Highest total of each group, mean over groups of several: best of N."),
    Metric(
        "groups/mean_std",
        "reward",
        "",
        "Standard deviation between the means of groups; its square and that of reward/std_within make the variance.",
    ),
    Metric("curriculum/signal", "share", "up", "Groups whose rewards differ, of those with several scored rollouts."),
    Metric(
        "curriculum/difficulty", "", "", "Mean of the column 'difficulty' of the step's problems, where it is a number."
    ),
    Metric(
        "curriculum/entropy",
        "nats",
        "",
        "Entropy of the distribution that the step's problems were drawn from; not for passes in order.",
    ),
    Metric("curriculum/known", "", "", "Problems, or arms, that the curriculum remembers something of."),
    Metric("curriculum/rounds", "", "down", "Rounds of problems that the step took, see rollout.refill."),
    Metric("kl_ref_k1", "nats/token", "", "KL to the reference, estimator k1 = log p - log ref of the sampled tokens."),
    Metric("kl_ref_k1_seq", "nats/sequence", "", "The same, summed over each completion: what a penalty adds up to."),
    Metric("kl_ref_k1_seq_se", "nats/sequence", "", "Standard error of kl_ref_k1_seq over the step's completions."),
    Metric(
        "kl_ref_k3", "nats/token", "", "KL to the reference, estimator k3 = r - 1 - log r, r = ref/p; never negative."
    ),
    Metric("kl_ref_exact", "nats/token", "", "KL to the reference over the whole vocabulary at each position; exact."),
    Metric("kl_ref_exact_seq", "nats/sequence", "", "The same, summed over each completion."),
    Metric(
        "kl_old_k1",
        "nats/token",
        "",
        "KL of the old policy to the updated one over the step's updates, k1; can be negative.",
    ),
    Metric("kl_old_k3", "nats/token", "", "KL to the policy before the step, k3, mean over the step's updates."),
    Metric(
        "kl_step_k3",
        "nats/token",
        "",
        "KL of the policy before the step to that after its last update, k3; measured where the autopilot is on.",
    ),
    Metric("entropy", "nats/token", "", "Exact mean entropy of the distribution sampled from."),
    Metric(
        "entropy_sampled",
        "nats/token",
        "",
        "Mean -log p of the sampled tokens; far from entropy, sampling is warped. Absent where rewards choose rows.",
    ),
    Metric("sampler_gap", "nats/token", "down", "Mean |log p of the sampler - log p of the trainer|; rounding only."),
    Metric(
        "audited",
        "share",
        "",
        "Tokens whose log-probs the trainer computed itself; entropy, sampler_gap and kl_ref_exact are of these.",
    ),
    Metric("clip_fraction", "share", "", "Tokens whose policy ratio was clipped, mean over the step's updates."),
    Metric("clip_fraction_value", "share", "", "Tokens whose value change was clipped."),
    Metric("loss/total", "", "", "What was differentiated, mean over the step's updates."),
    Metric("loss/policy", "", "", "Clipped policy loss."),
    Metric("loss/kl", "nats/token", "", "KL to the reference as it stands in the loss, before its coefficient."),
    Metric(
        "loss/nll", "nats/token", "", "Negative log-likelihood of the texts that are imitated, weighed as they are."
    ),
    Metric("loss/value", "", "down", "Clipped value loss, half the squared error."),
    Metric("value/mean", "reward", "", "Mean prediction of the value head before the update."),
    Metric("value/explained_variance", "", "up", "1 - Var(return - value) / Var(return); None if returns do not vary."),
    Metric("return/mean", "reward", "up", "Mean value target (rewards less the KL penalty, discounted)."),
    Metric("return/std", "reward", "", "Standard deviation of the value targets."),
    Metric("advantage/mean", "reward", "", "Mean advantage before whitening."),
    Metric("advantage/std", "reward", "", "Standard deviation of the advantage before whitening."),
    Metric(
        "advantage/used", "share", "", "Rollouts in the batch whose advantage is not 0: those that move the policy."
    ),
    Metric("grad_norm", "", "", "Global gradient norm before clipping, mean over the step's updates."),
    Metric("grad_clipped", "share", "", "Updates whose gradient was clipped."),
    Metric("learning_rate", "", "", "Adam's learning rate in this step."),
    Metric(
        "epochs", "", "", "Passes over the batch that were made; fewer than set when KL to the old policy stopped them."
    ),
    Metric("updates", "", "", "Optimizer steps made in this step."),
    Metric("data_epoch", "", "", "Problems drawn so far over the training problems that there are."),
    Metric("algorithm/*", "", "", "A number of the algorithm's state, such as the KL coefficient."),
    Metric("autopilot/*", "", "", "A number of the autopilot, such as the scale of the learning rate."),
    Metric("completion/length", "tokens", "", "Mean length of a completion, the end token included."),
    Metric("completion/truncated", "share", "down", "Completions that max_new_tokens ended."),
    Metric("completion/empty", "share", "down", "Completions without any visible text."),
    Metric(
        "completion/repetition", "share", "down", "Word 3-grams that stood in the same completion before, mean over it."
    ),
    Metric("observation/cut", "share", "", "Observations that took more than rollout.observation_tokens; cut there."),
    Metric("tokens/sampled", "tokens", "", "Completion tokens of the step."),
    Metric("tokens/per_second", "tokens/s", "up", "Completion tokens by the step's whole time."),
    Metric("time/rollout", "s", "down", "Sampling completions."),
    Metric("time/reward", "s", "down", "Scoring them."),
    Metric("time/score", "s", "down", "Log-probs, values and reference of the batch."),
    Metric("time/update", "s", "down", "All optimizer steps."),
    Metric("time/step", "s", "down", "The whole step."),
    Metric("judge/verdicts", "", "", "Verdicts wanted since the last line, those of evaluations between included."),
    Metric("judge/cached", "share", "up", "Of them, known from the cache."),
    Metric("judge/failed", "share", "down", "Of those asked for, without a verdict after all tries; left unscored."),
    Metric("judge/repaired", "share", "down", "Of those asked for, malformed at first, and asked for once more."),
    Metric("judge/requests", "", "down", "Requests made for them, further tries included."),
    Metric("judge/latency", "s", "down", "From the first request to the verdict, mean; waits and tries included."),
    Metric("judge/tokens_in", "tokens", "down", "Tokens that the judge read, as its endpoint counts them."),
    Metric("judge/tokens_out", "tokens", "down", "Tokens that the judge wrote."),
    Metric("judge/cost", "", "down", "What they cost at judge.price_in and judge.price_out, in the currency of these."),
    Metric("judge/unmetered", "", "down", "Answers whose tokens the endpoint did not count."),
    Metric("heldout/*", "reward", "up", "A measurement on held-out problems, where the step made one."),
)


def describe(name: str) -> Metric | None:
    """Return the catalogue's entry of a metric name, or None for a name it does not know."""
    exact = {metric.name: metric for metric in CATALOGUE}
    return exact.get(name) or exact.get(f"{name.partition('/')[0]}/*")


def summarise(groups: Sequence[Group], batch: Batch, updates: Mapping[str, float]) -> dict[str, float | None]:
    """Return the metrics of a step.

    Args:
        groups: All rollouts of the step, the unscored among them.
        batch: What trained, with ``old`` scores, advantages and returns.
        updates: Means over the step's updates (losses, gradient norm, ...).
    """
    measured = batch_metrics(batch)
    if len(batch.lengths) < sum(rollout.reward is not None for group in groups for rollout in group.rollouts):
        # What was chosen by its reward is no fair sample: -log p of it is not the entropy, whoever drew it.
        measured.pop("entropy_sampled", None)
    return {**reward_metrics(groups), **difficulty(groups), **measured, **updates}


def reward_metrics(groups: Sequence[Group]) -> dict[str, float | None]:
    """Return reward/* and completion/* and groups/*."""
    rollouts = [rollout for group in groups for rollout in group.rollouts]
    rewards = np.array([r.reward for r in rollouts if r.reward is not None])
    lengths = [int(r.completion_mask.sum()) for r in rollouts]
    found: dict[str, float | None] = {
        "reward/mean": float(rewards.mean()) if rewards.size else None,
        "reward/std": float(rewards.std()) if rewards.size else None,
        "reward/unscored": 1 - rewards.size / len(rollouts),
        "completion/length": float(np.mean(lengths)),
        "completion/truncated": float(np.mean([r.stop_reason == "length" for r in rollouts])),
        "completion/empty": float(np.mean([not r.text.strip() for r in rollouts])),
        "completion/repetition": float(np.mean([repetition(r.text) for r in rollouts])),
        "tokens/sampled": float(sum(lengths)),
    }
    for part in sorted({name for r in rollouts for name in r.parts}):
        found[f"reward/{part}"] = float(np.mean([r.parts[part] for r in rollouts if part in r.parts]))
    if observed := sum(r.observations for r in rollouts):
        found["observation/cut"] = sum(r.observations_cut for r in rollouts) / observed
    several = [[r.reward for r in g.rollouts if r.reward is not None] for g in groups]
    several = [rewards for rewards in several if len(rewards) > 1]
    if several:
        found["reward/std_within"] = math.sqrt(float(np.mean([np.var(rewards) for rewards in several])))
        found["groups/mean_std"] = float(np.std([np.mean(rewards) for rewards in several]))
        found["groups/best"] = float(np.mean([max(rewards) for rewards in several]))
        signal = float(np.mean([max(rewards) != min(rewards) for rewards in several]))
        found |= {"groups/no_signal": 1.0 - signal, "curriculum/signal": signal}
    return found


def difficulty(groups: Sequence[Group]) -> dict[str, float]:
    """Return the mean difficulty of the problems that say theirs in numbers; nothing where none does."""
    told = [group.problem.columns.get("difficulty") for group in groups]
    numbers = [float(x) for x in told if isinstance(x, int | float) and not isinstance(x, bool)]
    return {"curriculum/difficulty": float(np.mean(numbers))} if numbers else {}


def repetition(text: str) -> float:
    """Return the share of a text's word 3-grams that stood in it before; 0 for fewer than two of them."""
    words = text.split()
    grams = list(zip(words, words[1:], words[2:], strict=False))
    return 1.0 - len(set(grams)) / len(grams) if len(grams) > 1 else 0.0


def batch_metrics(batch: Batch) -> dict[str, float | None]:
    """Return what was measured on the batch before the update: KL, entropy, values, returns, advantages."""
    mask, old = batch.completion_mask, batch.old
    if old is None or not mask.any():
        return {}
    assert old.entropy is not None, "score measures the entropy always"
    audited = mask if old.audited is None else mask & old.audited[:, None]
    found: dict[str, float | None] = {
        "entropy": float(old.entropy[audited].mean()),
        "entropy_sampled": float(-old.logprobs[audited].mean()),
    }
    gap = np.abs(batch.sampling_logprobs - old.logprobs)[audited]
    if not np.isnan(gap).any():  # demonstrations were drawn by no sampler
        found |= {"sampler_gap": float(gap.mean()), "audited": float(audited.sum() / mask.sum())}
    if old.ref_logprobs is not None:
        log_ratio = np.where(mask, old.logprobs - old.ref_logprobs, 0.0)
        per_sequence = log_ratio.sum(axis=1)
        found["kl_ref_k1"] = float(log_ratio[mask].mean())
        found["kl_ref_k1_seq"] = float(per_sequence.mean())
        if len(per_sequence) > 1:
            found["kl_ref_k1_seq_se"] = float(per_sequence.std(ddof=1) / math.sqrt(len(per_sequence)))
        found["kl_ref_k3"] = float((np.expm1(-log_ratio) + log_ratio)[mask].mean())
    if old.kl_ref_exact is not None:
        rows = slice(None) if old.audited is None else old.audited
        found["kl_ref_exact"] = float(old.kl_ref_exact[audited].mean())
        found["kl_ref_exact_seq"] = float(np.where(mask, old.kl_ref_exact, 0.0)[rows].sum(axis=1).mean())
    if old.values is not None and batch.returns is not None:
        found["value/mean"] = float(old.values[mask].mean())
        found["value/explained_variance"] = explained_variance(old.values[mask], batch.returns[mask])
        found["return/mean"] = float(batch.returns[mask].mean())
        found["return/std"] = float(batch.returns[mask].std())
    raw = batch.measured.get("advantages_raw")
    if raw is not None:
        found["advantage/mean"] = float(raw[mask].mean())
        found["advantage/std"] = float(raw[mask].std())
    if batch.advantages is not None:
        found["advantage/used"] = float(np.mean((np.where(mask, batch.advantages, 0.0) != 0).any(axis=1)))
    return found


def explained_variance(values: np.ndarray, returns: np.ndarray) -> float | None:
    """Return 1 - Var(return - value) / Var(return), or None if the returns do not vary.

    The residual's own mean is taken out; a constant offset of the values is therefore not seen here but in
    ``value/mean`` against ``return/mean``.
    """
    variance = float(np.var(returns))
    if variance < 1e-12:
        return None
    return 1.0 - float(np.var(returns - values)) / variance
