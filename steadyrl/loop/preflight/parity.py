"""Do sampler, trainer and reference agree before the first update, and is what was sampled what is scored?

A gap is explained by measuring again under one changed condition at a time (the same rows once more, each row alone,
another temperature), not by its looks.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

import numpy as np

from steadyrl.core.types import Batch, Rollout, Sampling, TokenScores
from steadyrl.doctor.check import Found, Passed, Result, Unknown
from steadyrl.doctor.remedies import Value
from steadyrl.loop.preflight.trial import Trial, check, rows_of, score
from steadyrl.loop.rollout.collect import collect
from steadyrl.loop.train import Session
from steadyrl.maths.batch import take_rows

# (mean, greatest) |difference| of two log-probs of one token, in nats: rounding stays below these.
TOLERANCES = {"fp32": (1e-4, 1e-3), "bf16": (3e-2, 0.5)}
STANDARD_ERRORS = 4.0
_PEAKED = 0.3  # nats: below this entropy a few tokens show less variance than there is
_ALONE = 8  # rows measured one at a time
_ROUNDING = 0.05  # nats: a mean gap beyond it is no rounding, unless it builds up along the text
_BUILDS_UP = 1.5  # the gap of tokens with much before them over that of the others
_CONSTANT = 0.1  # spread of an offset over its size
_WIDEST, _FINEST = 8.0, 1.01  # factors of the temperature, where a fitting one is looked for, and how finely
_SOLVED = 0.1  # share of a gap that is left where a condition explains it

NOT_FINITE = "some log-probs are not finite"
DELIBERATE = (
    "log-probs leave out the temperature or truncation that tokens are drawn with: a deliberate mismatch, for studies"
)


@check("sampler_parity")
def sampler_parity(trial: Trial) -> Result:
    sampling = trial.session.sampling
    if _deliberate(sampling):
        return Found("raw_logprobs", message=f"sampling.logprobs is 'raw'; {DELIBERATE}")
    gap = _gap(trial.batch, trial.scores.logprobs)
    message = _gap_message("log-probs of sampler and trainer", gap)
    return _explained(message, gap, _within(trial.session, gap), lambda: _explain(trial, gap))


def _explained(message: str, gap: np.ndarray, agrees: bool, explain: Callable[[], Found]) -> Result:
    if agrees:
        return Passed(message)
    if not np.isfinite(gap).all():
        return Found("not_finite", message=f"{message}; {NOT_FINITE}")
    finding = explain()
    return replace(finding, message=f"{message}; {finding.message}")


@check("sampled_entropy")
def sampled_entropy(trial: Trial) -> Result:
    if trial.scores.entropy is None:
        return Unknown("the backend's score gives no entropy")
    mask = trial.batch.completion_mask
    surprise, entropy = -trial.batch.sampling_logprobs[mask].astype(np.float64), trial.scores.entropy[mask]
    difference, error = _surprise_gap(surprise, entropy)
    message = (
        f"mean sampled -log p {surprise.mean():.4f}, exact entropy {entropy.mean():.4f} nats/token: "
        f"{difference:+.4f}, standard error {error:.4f}, {mask.sum()} tokens"
    )
    if abs(difference) <= max(STANDARD_ERRORS * error, _tolerance(trial.session)[0]):
        return Passed(message)
    if not np.isfinite(difference):
        return Found("not_finite", message=f"{message}; {NOT_FINITE}")
    if _deliberate(trial.session.sampling):
        return Found("raw_logprobs", message=f"{message}; {DELIBERATE}")
    message += f"; {_distribution_message(trial, difference)}"
    return Found("warp", message=message, change=_unwarped(trial.session.sampling))


@check("reference_parity")
def reference_parity(trial: Trial) -> Result:
    ref, exact = trial.scores.ref_logprobs, trial.scores.kl_ref_exact
    if "ref_logprobs" not in trial.session.algorithm.needs:
        return Unknown("the algorithm uses no reference")
    if ref is None:
        return Unknown("the backend's score gives no log-probs of the reference")
    mask = trial.batch.completion_mask
    gap = (trial.scores.logprobs - ref)[mask]
    message = _gap_message("log-probs of policy and reference", gap)
    allowed = _tolerance(trial.session)[1]
    kl_differs = False
    if exact is not None:
        message += f"; exact KL at most {np.abs(exact[mask]).max():.2g} nats/token"
        kl_differs = not bool(np.abs(exact[mask]).max() <= allowed)
    agrees = _within(trial.session, gap) and not kl_differs
    return _explained(message, gap, agrees, lambda: _explain_reference(trial))


def _explain(trial: Trial, gap: np.ndarray) -> Found:
    for explanation_of in (_noise, _warp, _padding):
        explained = explanation_of(trial, gap)
        if explained is not None:
            return explained
    if gap.std() <= _CONSTANT * abs(gap.mean()):
        return Found(
            "warp",
            message=f"it is a constant offset of {gap.mean():+.4f} +- {gap.std():.1g} nats, which no temperature "
            "explains: one side scales its log-probs or normalises them over other tokens",
        )
    growth = _growth(trial.batch, gap)
    if growth > _BUILDS_UP or np.abs(gap).mean() <= _ROUNDING:
        return Found(
            "precision",
            message="it is the same at every scoring and no padding changes it; on the half of tokens with more before "
            f"them it is {growth:.1f} times that of the others: rounding, in one of the two passes",
        )
    return Found(
        "weights",
        message="it is the same at every scoring, and neither padding, temperature nor length explains it: the sampler "
        "holds other weights than the trainer, or reads another prompt",
    )


def _noise(trial: Trial, gap: np.ndarray) -> Found | None:
    second_gap = _gap(trial.batch, score(trial.session, trial.batch).logprobs)
    if not _within(trial.session, second_gap - gap):
        change = f"the trainer's log-probs change between two scorings by up to {_max_gap(second_gap - gap):.2g} nats"
        return Found("dropout", message=change)
    problems = [group.problem for group in trial.groups[:_ALONE]]
    session, key = trial.session, (trial.session.config.run.seed, 0)
    first, second = (collect(session.backend, problems, 1, session.sampling, key) for _ in range(2))
    shift = np.concatenate([_where_alike(a.rollouts[0], b.rollouts[0]) for a, b in zip(first, second, strict=True)])
    if _within(trial.session, shift):
        return None
    return Found(
        "dropout",
        message=f"drawn again by equal seeds, the same tokens' log-probs change by up to {_max_gap(shift):.2g} nats",
    )


def _where_alike(first: Rollout, second: Rollout) -> np.ndarray:
    """Return the change of the sampler's log-probs up to the first token that differs."""
    length = min(len(first.completion_ids), len(second.completion_ids))
    equal_prefix = np.logical_and.accumulate(first.completion_ids[:length] == second.completion_ids[:length])
    change: np.ndarray = (first.sampling_logprobs[:length] - second.sampling_logprobs[:length])[equal_prefix]
    return change


def _warp(trial: Trial, gap: np.ndarray) -> Found | None:
    """Measure without temperature and truncation: do these explain the gap?"""
    session, sampling, batch = trial.session, trial.session.sampling, trial.batch
    plain_sampling = _unwarped(sampling)
    trainer, sampler = trial.scores.logprobs, batch.sampling_logprobs
    if plain_sampling:
        plain = score(session, batch, replace(sampling, logprobs="raw")).logprobs
        if _within(session, (plain - trainer)[batch.completion_mask]):
            message = (
                "the trainer's log-probs are the same with and without temperature and truncation: it ignores them"
            )
            return Found("warp", message=message, change=plain_sampling)
        conditions = {
            "temperature": (batch, replace(sampling, temperature=1.0)),
            "truncation": (replace(batch, kept=None), sampling),
            "temperature and truncation": (batch, replace(sampling, logprobs="raw")),
        }
        for name, (rows, variant) in conditions.items():
            if _within(session, (score(session, rows, variant).logprobs - sampler)[batch.completion_mask]):
                return Found(
                    "warp",
                    message=f"measured without the {name} the trainer agrees with the sampler: the sampler reports "
                    f"log-probs from before the {name}",
                    change=plain_sampling,
                )
    fitting, miss = _fit_temperature(session, lambda scores: float(np.abs(_gap(batch, scores.logprobs)).mean()), batch)
    if miss > _SOLVED * np.abs(gap).mean():
        return None
    return Found(
        "warp",
        message=f"at temperature {fitting:.2f} in place of {sampling.temperature:g} trainer and sampler agree",
        change={"sampling.temperature": f"{fitting:.2f}"},
    )


def _padding(trial: Trial, gap: np.ndarray) -> Found | None:
    """Measure and draw some rows alone, where nothing is padded."""
    session, batch, mask = trial.session, trial.batch, trial.batch.completion_mask
    per_row = np.zeros(mask.shape)  # [B, T]
    per_row[mask] = np.abs(gap)
    worst = np.argsort(-per_row.sum(axis=1) / mask.sum(axis=1), kind="stable")[:_ALONE]
    gaps, shifts = [], []
    for row in worst:
        lone_row = take_rows(batch, np.array([row]))
        logprobs = score(session, lone_row).logprobs
        gaps.append(_gap(lone_row, logprobs))
        shifts.append((logprobs - trial.scores.logprobs[row : row + 1, : logprobs.shape[1]])[lone_row.completion_mask])
    padded = np.concatenate([per_row[row][mask[row]] for row in worst])
    if not _within(session, np.concatenate(shifts)):
        return Found(
            "padding",
            message=f"scored alone, the {len(worst)} worst rows are {np.abs(np.concatenate(gaps)).mean():.2g} nats "
            f"from the sampler, scored among others {padded.mean():.2g}: padding or positions in the trainer",
            change=_one_at_a_time(session, "micro_batch_tokens"),
        )
    problems = [trial.measured[trial.batch.groups[row]].problem for row in worst]
    new_gaps = []
    for number, problem in enumerate(problems):
        row_alone = rows_of(session, collect(session.backend, [problem], 1, session.sampling, (number,)))
        new_gaps.append(_gap(row_alone, score(session, row_alone).logprobs))
    if _within(session, np.concatenate(new_gaps)):
        return Found(
            "padding",
            message=f"drawn alone, completions of the {len(worst)} worst prompts are scored alike by both "
            f"(at most {_max_gap(np.concatenate(new_gaps)):.2g} nats apart): padding or positions in the sampler",
            change=_one_at_a_time(session, "generate_rows"),
        )
    return None


def _one_at_a_time(session: Session, setting: str) -> Mapping[str, Value]:
    """Return the setting that lets the backend compute one row at a time, where it has it."""
    return {f"backend.args.{setting}": 1} if hasattr(session.config.backend.args, setting) else {}


def _growth(batch: Batch, gap: np.ndarray) -> float:
    """Return the mean |gap| of tokens with much before them over that of the others, one half each."""
    positions = np.nonzero(batch.completion_mask)[1]  # [N]
    early = positions <= np.median(positions)
    if early.all():
        return 1.0
    return float(np.abs(gap[~early]).mean() / max(np.abs(gap[early]).mean(), np.finfo(float).tiny))


def _distribution_message(trial: Trial, difference: float) -> str:
    session, mask = trial.session, trial.batch.completion_mask

    def miss(scores: TokenScores) -> float:
        assert scores.entropy is not None, "there was an entropy at the temperature that is set"
        return abs(_surprise_gap(-scores.logprobs[mask], scores.entropy[mask])[0])

    fitting, least_miss = _fit_temperature(session, miss, trial.batch)
    side = "sharper" if difference < 0 else "flatter"
    message = f"the tokens come from a {side} distribution than the one that is scored"
    if least_miss > _SOLVED * abs(difference):
        return message
    return f"{message}: they fit temperature {fitting:.2f}, the setting is {session.sampling.temperature:g}"


def _explain_reference(trial: Trial) -> Found:
    session, mask = trial.session, trial.batch.completion_mask
    first, second = trial.scores, score(session, trial.batch)
    assert first.ref_logprobs is not None and second.ref_logprobs is not None, "asked for, and given once"
    pairs = ((first.ref_logprobs, second.ref_logprobs), (first.logprobs, second.logprobs))
    changed = np.concatenate([(earlier - later)[mask] for earlier, later in pairs])
    if not _within(session, changed):
        return Found("dropout", message=f"log-probs change between two scorings by up to {_max_gap(changed):.2g} nats")
    plain_sampling = _unwarped(session.sampling)
    if plain_sampling:
        plain = score(session, trial.batch, replace(session.sampling, logprobs="raw")).logprobs
        if _within(session, (plain - first.ref_logprobs)[mask]):
            message = "the reference has the policy's log-probs of temperature 1 without truncation"
            return Found("warp", message=message, change=plain_sampling)
    return Found(
        "weights",
        message="the difference is the same at every scoring: the reference is another model than the policy starts "
        "from",
    )


def _fit_temperature(session: Session, miss: Callable[[TokenScores], float], batch: Batch) -> tuple[float, float]:
    """Return the temperature at which the trainer's scores miss least, and by how much."""
    best, width, least_difference = session.sampling.temperature, _WIDEST, float("inf")
    while width > _FINEST:
        for temperature in best * np.geomspace(1 / width, width, 5):
            sampling = replace(session.sampling, temperature=float(temperature))
            difference = miss(score(session, batch, sampling))
            if difference < least_difference:
                best, least_difference = float(temperature), difference
        width **= 0.5  # around the best so far, at half of the width in log space
    return best, least_difference


def _surprise_gap(surprise: np.ndarray, entropy: np.ndarray) -> tuple[float, float]:
    """Return mean (surprise - entropy), and its standard error.

    The differences are martingale increments, so that their squares add up. Where entropy is small, the few tokens
    seen may all be the likeliest and show no variance: -log p then varies by at least its own mean.
    """
    difference = surprise - entropy
    peaked = entropy < _PEAKED
    variance = np.sum(difference[~peaked] ** 2) + max(np.sum(difference[peaked] ** 2), np.sum(entropy[peaked]))
    return float(difference.mean()), float(np.sqrt(variance)) / len(difference)


def _gap(batch: Batch, logprobs: np.ndarray) -> np.ndarray:
    """Return trainer less sampler [N], completion tokens in row-major order."""
    gap: np.ndarray = (logprobs - batch.sampling_logprobs)[batch.completion_mask]
    return gap


def _tolerance(session: Session) -> tuple[float, float]:
    return TOLERANCES.get(str(session.backend.describe().get("precision")), TOLERANCES["fp32"])


def _within(session: Session, gap: np.ndarray) -> bool:
    mean, max_gap = _tolerance(session)
    return not gap.size or bool(np.abs(gap).mean() <= mean and _max_gap(gap) <= max_gap)


def _max_gap(gap: np.ndarray) -> float:
    return float(np.abs(gap).max())


def _gap_message(subject: str, gap: np.ndarray) -> str:
    return f"{subject}: mean |difference| {np.abs(gap).mean():.2g}, at most {_max_gap(gap):.2g} nats, {len(gap)} tokens"


def _unwarped(sampling: Sampling) -> Mapping[str, Value]:
    """Return the settings that undo temperature and truncation; none where there is neither."""
    plain: Mapping[str, Value] = {"temperature": 1.0, "top_p": 1.0, "top_k": 0}
    return {f"sampling.{name}": value for name, value in plain.items() if getattr(sampling, name) != value}


def _deliberate(sampling: Sampling) -> bool:
    """Return whether log-probs leave out, as the config says, what tokens are drawn with."""
    return sampling.logprobs == "raw" and bool(_unwarped(sampling))
