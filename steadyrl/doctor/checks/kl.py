"""The KL to the reference: running away from it, and not moving at all."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np

from steadyrl.core.types import Severity
from steadyrl.doctor.check import Found, Result, Unknown, check
from steadyrl.doctor.checks.kl_control import coefficient_moves, target_in
from steadyrl.doctor.remedies import learning_rate
from steadyrl.doctor.series import Run, Series
from steadyrl.doctor.statistics import readings
from steadyrl.doctor.statistics.readings import number
from steadyrl.doctor.statistics.signals import LASTING, MIN_STEPS, first_lasting, head, tail
from steadyrl.doctor.statistics.units import SEQUENCE, TOKEN, find, together

# TRL's FAQ has 0 to 10 nats per sequence as healthy, users' complaints start at 20; long completions have healthily
# more per sequence, tiny models healthily 2 per token: so both have to be exceeded where both are known.
HIGH_SEQUENCE, HIGH_TOKEN = 20.0, 0.3
HIGH_SEQUENCE_ALONE, HIGH_TOKEN_ALONE = 50.0, 1.0  # where the lengths are unknown and only one can be had
TARGET_FACTOR = 3.0  # times the target of a controller that compares in the same unit
LEAST_SEQUENCE = 10.0  # nats: below it no KL is a runaway, whatever the target
RISING = 1.25  # level at the end over that of the second quarter
LOST_TOKEN = 3.0  # nats: the reference gives sampled tokens a twentieth of the policy's probability, on average
AT_START_EXACT = 1e-3  # nats per token where the first step is measured before any update
AT_START = {TOKEN: 0.3, SEQUENCE: 5.0}  # nats at the first logged step: no update makes so much
KEPT = 0.3  # of the KL at the end, from which on that of the first step is no beginning of it
HIDDEN_TOKEN, HIDDEN_TIMES = 1.0, 10.0  # nats above the first step's, and times the KL that training sees
ZERO = 1e-9  # nats; two passes of one model differ by rounding, 1e-7, unless they are one and the same
BF16_RATE = 1e-5  # an update of 1e-6 is rounded away for weights above some 4e-4, which most are
STILL = 1e-9  # gradient norm that counts as none
WILD_NORM = 100.0  # gradient norm: a hundred times where trainers clip
GONE = 0.1  # of the first KL: what is left of a mismatch is more
NEARER, MUCH_NEARER = 0.9, 0.7  # of the first KL, to which a policy comes that learns from its reference
LOSS_COEF, REWARD_COEF = 0.01, 0.05  # usual coefficients of a penalty in the loss and in the reward
DISTILLED = re.compile(r"teacher|distil", re.IGNORECASE)
WEAK = 0.005  # coefficient of a penalty in the loss, whose pull is that share of an advantage of 1
PRINTED, ALIKE, MOSTLY = 1e-4, 0.1, 0.9  # of the loss: rounding, what is alike, and in how many of the rows
BROKEN, BROKEN_TIMES = 100.0, 100.0  # nats, and times the usual KL: a spike in whatever unit
SPIKES = 2  # rows of an impossible KL: one may be a broken line
UNSLOTH = {"completion_length", "completions/mean_length"}  # TRL itself logs one of the two
OPENING, GREW = 3, 10.0  # rows; times the KL of those
UNMOVED = 1e-8  # nats per token: a KL between successive policies that is rounding


@check("kl_runaway")
def kl_runaway(run: Run) -> Result:
    if all(series.unit == "" for series in run.series["kl_ref"]):
        return _in_any_unit(run) or Unknown("the KL is logged in a unit that is not known", ("kl_ref (nats/sequence)",))
    if fault := _impossible(run) or _at_start(run) or _hidden(run):
        return fault
    if (high := _high(run)) is None:
        return None
    onset, kl, limit = high
    per_token, reward, learned = find(run, "kl_ref"), run.get("reward"), readings.learns(run)
    lost = per_token is not None and tail(per_token) > LOST_TOKEN and learned is False
    falls = reward is not None and readings.direction(reward) < 0
    # Longer answers have a larger sum: a policy that runs away does so per token.
    rising = _rises_late(kl) and (per_token is None or _rises_late(per_token))
    cause, because = _runaway_cause(run, onset, kl)
    # A policy that learns moves away from its reference: that is what the reward is paid for.
    harms = lost or (rising and not (cause == "weak_penalty" and learned))
    norm = run.get("grad_norm")
    if norm is not None and norm.greatest > WILD_NORM:
        harms, because = True, (*because, f"the gradient norm is up to {number(norm.greatest)} meanwhile")
    change, remedy, logged_coef = None, "", run.get("kl_coef")
    if cause in ("weak_penalty", "unknown"):
        coef = readings.setting(run, "kl_coef") if logged_coef is None else logged_coef.last
        usual = LOSS_COEF if run.traits.grouped else REWARD_COEF
        change = {} if coef is None else {"kl_coef": float(f"{2 * coef:.1g}") if coef else usual}
        if cause == "weak_penalty" and coef is not None:
            remedy = f"Raise the coefficient from {coef:g} to {change['kl_coef']:g}, or let it adapt to a target in "
            remedy += "the unit of the KL that it compares."
    return Found(
        cause,
        "critical" if lost and rising and falls else "warning" if harms else "info",
        onset,
        f"the KL to the reference is {number(tail(kl))} {kl.unit} and {'rises' if rising else 'no longer rises'}",
        (f"{kl.source or 'kl_ref'} is {limit} from step {onset} on", *because),
        remedy=remedy,
        change=change,
    )


def _in_any_unit(run: Run) -> Result:
    """Find a KL of unknown unit with spikes, or one that grew tenfold, to what is high even as a sum, for no gain."""
    kl = run.needed("kl_ref")
    beyond = kl.values > max(HIGH_SEQUENCE, BROKEN_TIMES * kl.median)
    if run.covers(kl) >= MIN_STEPS and beyond.any():
        message = f"the KL to the reference is {number(kl.median)} in most rows, up to {number(kl.greatest)} in "
        message += f"{int(beyond.sum())} of {len(kl)}: tokens that the policy all but excludes"
        return Found("spikes", "warning", int(kl.steps[beyond.argmax()]), message, (readings.levels(kl.source, kl),))
    last, start = kl.last, head(kl, least=OPENING)
    if readings.learns(run):
        if tail(kl) <= HIGH_SEQUENCE or kl.first > HIGH_SEQUENCE / GREW:
            return None
        message = f"the KL to the reference came to {number(tail(kl))} in a unit that is not known, which is high for a"
        return Found("unit_unknown", "info", None, f"{message} whole completion, while the reward rises")
    if last > BROKEN and last > BROKEN_TIMES * max(kl.first, 0.0):  # two rows are enough for so much
        start = kl.first
    else:
        logarithms = replace(kl, values=np.log(np.maximum(kl.values, ZERO)))
        if last <= max(HIGH_SEQUENCE, GREW * start) or readings.direction(logarithms) <= 0:
            return None
    cause, because = _runaway_cause(run, int(kl.steps[0]), kl)
    paid = "the reward gained nothing by it" if run.get("reward") else "no reward is logged that could pay for it"
    message = f"the KL to the reference grew from {number(start)} to {number(last)} and {paid}"
    evidence = "its unit is not known; so much is high for a whole completion, and impossible for a token"
    onset = int(kl.steps[np.argmax(kl.values > HIGH_SEQUENCE)])
    return Found(cause, "warning", onset, message, (evidence, *because))


def _impossible(run: Run) -> Result:
    """Find a KL per token that no drift of a policy makes: it is above the logarithm of every vocabulary in use."""
    kl = find(run, "kl_ref", TOKEN, "k3", "k2", "abs", "exact", "")
    if kl is None or run.traits.kl_place == "reward":
        return None
    beyond = kl.values > readings.LN_LARGEST_VOCABULARY
    onset, evidence = int(kl.steps[beyond.argmax()]), (readings.levels(kl.source, kl),)
    if beyond.mean() > 0.5:
        message = f"the KL is {number(kl.median)} nats per token in the median row, up to {number(kl.greatest)}: "
        message += "the policy hardly draws what trains"
        return Found("impossible_tokens", "critical", onset, message, evidence)
    # In single rows it shows tokens that one of the two models all but excludes. What rises to the end is a runaway of
    # another kind.
    enough = SPIKES if run.averaged_over == 1 else 1  # a row that averages several steps stands for as many
    if beyond.sum() < enough or tail(kl) > readings.LN_LARGEST_VOCABULARY / 4:
        return None
    message = f"the KL to the reference is above every possible entropy in {int(beyond.sum())} of {len(kl)} rows, up "
    message += f"to {number(kl.greatest)} nats per token: tokens that the policy all but excludes"
    if not apart_at_start(run, kl):
        return Found("spikes", "warning", onset, message, evidence)
    first = f"{kl.source} is {number(kl.first)} at step {kl.steps[0]}, before any update: no learning rate makes that"
    remedy = "See in what policy and reference differ before any update: precision, dropout, an adapter, another model."
    return Found("spikes", "warning", onset, message, (first, *evidence), remedy, {})


def apart_at_start(run: Run, kl: Series) -> bool:
    """Return whether a KL per token is there before any update, so that it tells nothing of the updates' size."""
    return kl.steps[0] <= 1 == run.averaged_over and kl.unit == TOKEN and kl.first >= AT_START[TOKEN]


def _hidden(run: Run) -> Result:
    """Find a KL that truncated sampling hides: only the reference's whole vocabulary shows it."""
    full, kl = run.get("kl_ref_full", TOKEN), run.get("kl_ref", TOKEN, "exact")
    if full is None or kl is None or len(full) != len(kl):
        return None
    hidden, times = full.values - full.first > HIDDEN_TOKEN, full.values / np.maximum(kl.values, ZERO)
    if (onset := first_lasting(full, hidden & (times > HIDDEN_TIMES), LASTING)) is None or not hidden[-1]:
        return None
    lead = f"kl_ref_full is {number(tail(full))} nats per token, kl_ref {number(tail(kl))}"
    message = f"{lead}: the KL sees nothing of it"
    severity: Severity = "info" if readings.solved(run) else "warning"
    return Found("truncation", severity, onset, message, (readings.levels("kl_ref_full", full),))


def _high(run: Run) -> tuple[int, Series, str] | None:
    """Return from which step the KL is high, in which series, and by which limit; None where it is not."""
    per_sequence, per_token = (find(run, "kl_ref", unit) for unit in (SEQUENCE, TOKEN))
    target = target_in(run)
    if target is not None and per_sequence is not None and tail(per_sequence) > LEAST_SEQUENCE:
        kl = find(run, "kl_ref", target[1])
        high = None if kl is None else _above(kl, TARGET_FACTOR * target[0])
        if high is not None:
            return *high[:2], f"above {TARGET_FACTOR:.0f} times the target of {target[0]:g}"
    if per_sequence is not None and per_token is not None:
        return None if tail(per_token) <= HIGH_TOKEN else _above(per_sequence, HIGH_SEQUENCE)
    if per_sequence is not None:
        return _above(per_sequence, HIGH_SEQUENCE_ALONE)
    return None if per_token is None else _above(per_token, HIGH_TOKEN_ALONE)


def _above(kl: Series, limit: float) -> tuple[int, Series, str] | None:
    onset = first_lasting(kl, kl.values > limit, LASTING)
    return (onset, kl, f"above {limit:g} {kl.unit}") if onset is not None and tail(kl) > limit else None


def _rises_late(kl: Series) -> bool:
    """Return True if the KL ends clearly above where it stood in the second quarter, or above its start in few rows."""
    quarter = kl.values[len(kl) // 4 : len(kl) // 2]
    return tail(kl) > (head(kl) if len(kl) < MIN_STEPS else RISING * float(np.median(quarter)))


def _at_start(run: Run) -> Result:
    """Find a KL that is there before any update: per token, or as the sum that PPO's trainers log of the first step."""
    kl = find(run, "kl_ref") or run.get("kl_ref", SEQUENCE)
    # A log that begins later is that of a resumed run, whose policy may be anywhere.
    if kl is None or kl.steps[0] > max(1, run.averaged_over):
        return None
    if run.averaged_over > 1 or (kl.unit == TOKEN and len(kl) < LASTING):
        return None  # of a row that averages several steps all but the first are after updates
    if (gap := run.get("sampler_gap")) is not None and gap.first > AT_START_EXACT:
        return None  # the policy's own log-probs are off: see sampler_mismatch
    # Measured before the first update: 0, but for rounding.
    exactly = run.trainer == "steadyrl" and kl.steps[0] == 0 and kl.estimator in ("exact", "k3")
    first, last = abs(kl.first), abs(tail(kl))
    if first < (AT_START_EXACT if exactly else AT_START[kl.unit]) or (first < KEPT * last and not exactly):
        return None
    if not exactly and last < GONE * first:
        return None  # another reference stays another one
    nearer = last < MUCH_NEARER * first or (last < NEARER * first and readings.direction(kl) < 0)
    # Where the log speaks of a teacher or of distillation the reference is another model on purpose.
    named = (series.source for series in run.logged)
    words = (*run.unknown, *run.settings, *run.keys.values(), *named)
    teacher = not exactly and nearer and any(map(DISTILLED.search, words))
    # Another reference does no harm while the reward rises and the policy keeps its distance from it. Returns less the
    # penalty, all that some logs have of the reward, rise only with it.
    weak = None if exactly else _weak_penalty(run, kl)
    rises = readings.learns(run) is True or any(map(readings.leans, run.series.get("return_mean", ())))
    harmless = teacher or weak is not None or (not exactly and last > MUCH_NEARER * first and rises)
    return Found(
        "teacher" if teacher else "reference_mismatch",
        "info" if harmless else "warning",
        int(kl.steps[0]),
        "the KL to the reference is large before any update: the reference is not what training started from"
        + (", and the policy comes nearer to it, as to a teacher" if teacher else ""),
        (
            f"{number(first)} {kl.unit} at step {kl.steps[0]}; {number(last)} at the end",
            *(() if weak is None else (f"the penalty is {number(weak)} times the KL, and hardly pulls",)),
        ),
    )


def _weak_penalty(run: Run, kl: Series) -> float | None:
    """Return the coefficient of the penalty where it is next to nothing; else None.

    Where it is neither logged nor set, it can be the loss over the KL: the policy's part of a loss is 0 where
    advantages are centred and the ratio is 1.
    """
    logged = run.get("kl_coef")
    stated = logged.greatest if logged is not None else readings.setting(run, "kl_coef")
    if stated is not None:
        return stated if 0 < stated <= WEAK else None
    loss = run.get("loss") if run.traits.kl_place == "loss" else None
    if loss is None:
        return None
    loss, kl = together(loss, kl)
    if len(kl) < LASTING or not kl.values.any():
        return None
    coefficient = float(loss.values @ kl.values / (kl.values @ kl.values))
    off = np.abs(loss.values - coefficient * kl.values) - np.maximum(PRINTED, ALIKE * np.abs(loss.values))
    return coefficient if 0 < coefficient <= WEAK and (off <= 0).mean() >= MOSTLY else None


def _runaway_cause(run: Run, onset: int, kl: Series) -> tuple[str, tuple[str, ...]]:
    tenth = int(kl.steps[-1] - kl.steps[0]) // 10
    if large := readings.large_updates(run, onset + max(LASTING, tenth)):
        return "learning_rate", large
    moves, fixed = coefficient_moves(run), readings.setting(run, "kl_coef")
    if moves is not None:
        slow = "controller_slow" if moves.doubling > moves.remaining else "unknown"
        return "weak_penalty" if moves.constant else slow, (moves.sentence,)
    if fixed is None or run.settings.get("kl_adaptive"):
        return "unknown", ("the coefficient of the penalty is not logged",)
    return "weak_penalty", (f"the coefficient of the penalty is {fixed:g}",)


@check("kl_zero")
def kl_zero(run: Run) -> Result:
    kl = find(run, "kl_ref") or run.needed("kl_ref")
    zero, entropy = np.abs(kl.values) <= ZERO, find(run, "entropy")
    if zero.all() and readings.setting(run, "kl_coef") == 0.0:
        return None  # no penalty is computed
    zero[:1] = False
    if entropy is not None:  # where every token was certain, of the one token that truncation leaves the KL is 0
        zero &= ~np.isin(kl.steps, entropy.steps[np.abs(entropy.values) <= ZERO])
    if (start := first_lasting(kl, zero, LASTING)) is None:
        return None
    after = np.flatnonzero(~zero & (kl.steps > start))
    end = int(kl.steps[after[0] - 1]) if len(after) else int(kl.steps[-1])
    cause, because = _zero_cause(run, start, end)
    stuck = not len(after) and end - start >= MIN_STEPS and cause in ("no_update", "bf16_rounding", "no_advantage")
    harmless = len(after) or (run.get("grad_norm") is None and readings.learns(run))
    if doubt := _unmeasured(run, kl, cause):
        harmless, because = True, (*because, doubt)
    return Found(
        cause,
        "critical" if stuck else "info" if harmless else "warning",
        start,
        f"the KL to the reference is exactly 0 at steps {start} to {end}",
        because or ("neither learning rate, gradient norm nor rewards tell why",),
    )


def _unmeasured(run: Run, kl: Series, cause: str) -> str:
    """Return why a KL of 0 may be no measurement at all; "" where it is one."""
    if cause not in ("unknown", "not_compared"):
        return ""
    if run.traits.kl_place == "none":
        return "the settings switch the KL penalty off, so that none need be measured"
    moves = cause == "not_compared"
    paid = readings.setting(run, "kl_coef") or run.settings.get("kl_place")
    if not kl.values.any() and not (paid if moves else run.get("grad_norm")):
        return "it is 0 in every row, so that it may not have been measured"
    if moves:
        return ""
    of_unsloth = {series.source for series in run.logged} >= UNSLOTH
    return "Unsloth logs a KL of 0 where beta is 0, and none is computed" if of_unsloth else ""


def _zero_cause(run: Run, start: int, end: int) -> tuple[str, tuple[str, ...]]:
    def during(series: Series | None) -> Series | None:
        rows = None if series is None else readings.within(series, start, end)
        return rows or None  # a series without rows counts as none

    rate, updates, gradient = (during(run.get(name)) for name in ("learning_rate", "updates", "grad_norm"))
    if (rate is not None and not rate.values.any()) or (learning_rate(run) is None and "learning_rate" in run.settings):
        return "no_update", ("the learning rate is 0",)
    if updates is not None and not updates.values.any():
        return "no_update", ("no optimizer step was made",)
    logged = during(next(iter(run.series.get("grad_norm", ())), None))
    if logged is not None and not np.isfinite(logged.values).any():
        return "no_update", ("the gradient norm is not finite in these steps, so that the optimizer skips them",)
    still, spread = gradient is not None and gradient.median <= STILL, during(readings.reward_spread(run))
    # Some steps had something to teach, and the policy would have moved in them.
    taught = spread is not None and int((spread.values > readings.LITTLE_SPREAD).sum()) >= LASTING
    if (idle := readings.nothing_to_learn(run)) and (still or (gradient is None and not taught)):
        return "no_advantage", (idle,)
    if still:
        return "no_update", ("the gradient norm is 0",)
    movements = (readings.update_size(run), run.get("clip_fraction"), find(run, "entropy"))
    size, clipped, entropy = map(during, movements)
    moves = [
        f"the {name} is {number(part.median)}"
        for name, part, floor in (("KL of one step's updates", size, UNMOVED), ("clip fraction", clipped, 0.0))
        if part is not None and part.median > floor
    ]
    if entropy is not None and readings.direction(entropy) != 0:
        moves.append(readings.levels("the entropy", entropy, "nats/token"))
    if gradient is None and readings.learns(run):
        moves.append("the reward rises meanwhile")
    if moves:
        return "not_compared", tuple(moves)
    rate_set = learning_rate(run)
    small = rate_set is not None and rate_set <= BF16_RATE
    if run.settings.get("dtype") == "bfloat16" and small and gradient is not None:
        norm = number(head(gradient))
        text = f"weights are bfloat16, the learning rate is {rate_set:g}, and the gradient norm {norm}"
        return "bf16_rounding", (text, "neither KL to the old policy nor entropy moves")
    return "unknown", ()
