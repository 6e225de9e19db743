"""The policy's entropy: collapsing, exploding, or no entropy per token at all."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from steadyrl.core.types import Severity
from steadyrl.core.words import percent
from steadyrl.doctor.check import Found, Result, Unknown, check
from steadyrl.doctor.checks.kl_penalty import resting
from steadyrl.doctor.checks.sampler import sampling_gap
from steadyrl.doctor.series import Run, Series
from steadyrl.doctor.statistics import readings
from steadyrl.doctor.statistics.levels import measure
from steadyrl.doctor.statistics.readings import number
from steadyrl.doctor.statistics.signals import LASTING, first_lasting, head, tail
from steadyrl.doctor.statistics.units import TOKEN, find, together

# Relative to the first healthy block: absolute limits contradict one another (1.0 in one tool, 0.2 a working target
# elsewhere). A healthy run was seen at 0.28 while its reward rose by 60 %.
FALLEN, COLLAPSED = 0.3, 0.1
RISEN, RISEN_BY = 2.5, 0.5  # times the start, and nats per token
OPENING = 3  # steps
STAYS = 0.2  # of the start: a policy that has learned has lost more
NO_END = 0.8  # share of completions that are cut off
NEAR_UNIFORM = 0.8  # of ln V
SMALL_VOCABULARY = 1000  # a toy that starts uniform is in order, a language model that does is not
PER_TOKEN = (0.01, 6.0)  # nats: what a language model's entropy per token may be


@check("entropy_collapse")
def entropy_collapse(run: Run) -> Result:
    if (entropy := _of_any_unit(run, FALLEN)) is None:
        return Unknown("the entropy is not known per token", ("entropy (exact)", "length"))
    if not entropy.values.any():
        return Unknown("the entropy is 0 in every row: it was not measured", ("entropy (exact)",))
    start, end = readings.highest_start(entropy), tail(entropy)
    if start <= 0 or end > FALLEN * start:
        return None
    onset = first_lasting(entropy, entropy.values < 0.5 * start, LASTING)
    cause, because = _collapse_cause(run, onset)
    lost = end < COLLAPSED * start and readings.learns(run) is False
    return Found(
        cause,
        "info" if cause == "learned" else "critical" if lost else "warning",
        onset,
        f"the entropy fell to {percent(end / start)} of its start",
        (readings.levels("the entropy", entropy, entropy.unit), *because),
    )


def _of_any_unit(run: Run, bound: float) -> Series | None:
    """Return the entropy per token, or in a unit that is not known if the length does not explain its course; or None.

    Args:
        run: What was read.
        bound: The entropy as a multiple of its start, from which its course is a finding.
    """
    logged, length = run.needed("entropy"), run.get("length")
    if (per_token := find(run, "entropy")) is not None or logged.unit != "":
        return per_token
    sign = 1 if bound > 1 else -1
    if length is None or readings.direction(length) != sign:
        return logged
    entropy, length = together(logged, length)
    mean = replace(entropy, values=entropy.values / np.maximum(length.values, 1.0))  # if it is a sum over tokens
    return logged if sign * (tail(mean) - bound * head(mean)) > 0 else None


def _collapse_cause(run: Run, onset: int | None) -> tuple[str, tuple[str, ...]]:
    reward, heldout_rose = run.get("reward"), readings.heldout_rises(run)
    evidence = (readings.levels("the reward", reward),) if reward is not None else ()
    if readings.learns(run):
        if heldout_rose is False:
            return "exploitation", (*evidence, "held-out measurements did not rise")
        elsewhere = "held-out measurements rose too" if heldout_rose else "there is no held-out measurement"
        return "learned", (*evidence, elsewhere)
    if large := readings.large_updates(run, onset):
        return "learning_rate", (*large, *evidence)
    if run.traits.distils:
        return "distilled", (readings.levels("the KL to the teacher", run.needed("kl_teacher")),)
    if idle := readings.nothing_to_learn(run):
        return "constant_reward", (idle,)
    course = None if reward is None else measure(reward)
    if course is not None and onset is not None:
        best, top = float(course.means.max()), int(course.steps[course.means.argmax()])
        if top > onset and best - course.first > course.least:  # a later fall is another check's
            return "learned", (*evidence, f"the reward rose on to {number(best)} at step {top}")
    bonus = _bonus(run)
    return "unknown", (*(() if bonus is None else (f"the entropy bonus is {bonus:g}",)), *evidence)


def _bonus(run: Run) -> float | None:
    """Return the coefficient of the entropy bonus, None where it is not known."""
    logged = run.get("entropy_coef")
    return readings.setting(run, "entropy_coef") if logged is None else logged.median


@check("entropy_explosion")
def entropy_explosion(run: Run) -> Result:
    if (entropy := _of_any_unit(run, RISEN)) is None:
        return Unknown("the entropy is not known per token", ("entropy (exact)", "length"))
    # Of the first steps only: an explosion can be over within the first tenth of a run.
    start, end = head(entropy, 0.03, OPENING), tail(entropy)
    vocabulary, cut = readings.setting(run, "vocabulary"), run.get("truncated")
    blind = vocabulary is not None and end > NEAR_UNIFORM * float(np.log(vocabulary)) >= start
    if not blind and (end <= RISEN * start or end - start <= RISEN_BY):
        return None
    onset = first_lasting(entropy, entropy.values > (start + end) / 2, LASTING)
    cause, because = _explosion_cause(run, onset)
    # Blind tokens and texts without an end are lost language, whatever the reward does.
    speechless = blind or (cut is not None and tail(cut) > NO_END >= head(cut))
    severity: Severity = "warning" if speechless or not readings.learns(run) else "info"
    return Found(
        cause,
        "critical" if blind and readings.learns(run) is False else severity,
        onset,
        f"the entropy rose from {number(start)} to {number(end)} {entropy.unit}".rstrip()
        + (f" of {number(float(np.log(vocabulary)))} at most" if vocabulary else ""),
        (readings.levels("the entropy", entropy, entropy.unit), *because),
    )


def _explosion_cause(run: Run, onset: int | None) -> tuple[str, tuple[str, ...]]:
    gap, reward = sampling_gap(run), run.get("reward")
    if gap is not None and gap.sure and gap.gap < 0:
        return "warped_sampling", (gap.sentence,)
    if large := readings.large_updates(run, onset):
        return "learning_rate", large
    if bonus := _bonus(run):
        return "entropy_coef", (f"the entropy bonus is {bonus:g}",)
    return "unknown", () if reward is None else (readings.levels("the reward", reward),)


@check("entropy_held")
def entropy_held(run: Run) -> Result:
    entropy, length, coef = find(run, "entropy", TOKEN), run.get("length"), run.get("entropy_coef")
    bonus = readings.setting(run, "entropy_coef") if coef is None else tail(coef)
    spread = 1.0 if run.settings.get("whitened") or run.traits.grouped else None
    if spread is None and (advantages := run.get("advantage_std")) is not None:
        spread = tail(advantages)
    if entropy is None or length is None or bonus is None or spread is None:
        needed = {"the entropy per token": entropy, "the length": length, "the entropy bonus": bonus}
        return Unknown(readings.untold({**needed, "the spread of the advantages": spread}))
    start, end = head(entropy, 0.0, OPENING), tail(entropy)
    if bonus <= 0.0 or start <= 0.0 or readings.solved(run) or readings.nothing_to_learn(run):
        return None
    allowed = float(resting(spread, bonus)) / tail(length)
    if allowed > STAYS * start or not (1.0 - STAYS) * start <= end <= RISEN * start:
        return None
    return Found(
        "bonus",
        "info" if readings.learns(run) else "warning",
        None,
        f"the entropy bonus of {bonus:g} keeps the entropy where it began, beside advantages of spread {spread:g}",
        (
            readings.levels("the entropy", entropy, entropy.unit),
            f"advantages and bonus balance {number(allowed)} nats/token below the highest entropy",
            readings.levels("the reward", run.needed("reward")),
        ),
    )


@check("entropy_is_a_sum")
def entropy_is_a_sum(run: Run) -> Result:
    logged = (s.finite() for s in run.series["entropy"] if s.unit in (TOKEN, ""))
    if (entropy := next((series for series in logged if len(series) >= OPENING), None)) is None:
        return None
    vocabulary, length = readings.setting(run, "vocabulary"), run.get("length")
    max_entropy = float(np.log(vocabulary)) if vocabulary else readings.LN_LARGEST_VOCABULARY
    level, start = entropy.median, head(entropy)
    near = vocabulary is not None and vocabulary >= SMALL_VOCABULARY and start > NEAR_UNIFORM * max_entropy
    if level <= max_entropy and not near:
        return None
    per_token = None if length is None else level / max(length.median, 1.0)
    # In a log that says neither unit nor length, what no entropy per token can be is one of another unit.
    plausible = entropy.unit == "" if per_token is None else PER_TOKEN[0] <= per_token <= PER_TOKEN[1]
    is_sum = level > max_entropy and plausible
    course = f"{entropy.source or 'entropy'} starts at {number(start)}, its median is {number(level)}; ln V is"
    mean_evidence = () if per_token is None else (f"divided by the mean length it is {number(per_token)}",)
    return Found(
        "sequence_sum" if is_sum else "unknown",
        "info" if is_sum else "warning",
        int(entropy.steps[0]),
        "what is logged as entropy is no entropy per token, or tokens are drawn almost blindly",
        (f"{course} {number(max_entropy)} at most", *mean_evidence),
    )
