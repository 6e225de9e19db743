"""The KL to the reference: running away from it, and not moving at all."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from steadyrl.doctor.check import Cause, Check, Found, Result, Unknown, Value
from steadyrl.doctor.checks.kl_control import COEF_CONSTANT, coefficient_moves, target_in
from steadyrl.doctor.remedies import calmer, learning_rate, more_samples, times
from steadyrl.doctor.series import Run, Series
from steadyrl.doctor.statistics.measures import setting
from steadyrl.doctor.statistics.readings import (
    direction,
    large_updates,
    learns,
    levels,
    nothing_to_learn,
    number,
    reward_rises,
    update_size,
    within,
)
from steadyrl.doctor.statistics.signals import LASTING, MIN_STEPS, first_lasting, head, tail
from steadyrl.doctor.statistics.units import SEQUENCE, TOKEN, find
from steadyrl.types import Severity

# TRL's FAQ has 0 to 10 nats per sequence as healthy, users' complaints start at 20; long completions have healthily
# more per sequence, tiny models healthily 2 per token: so both have to be exceeded where both are known.
HIGH_SEQUENCE, HIGH_TOKEN = 20.0, 0.3
HIGH_SEQUENCE_ALONE, HIGH_TOKEN_ALONE = 50.0, 1.0  # where the lengths are unknown and only one can be had
TARGET_FACTOR = 3.0  # times the target of a controller that compares in the same unit
LEAST_SEQUENCE = 10.0  # nats: below it no KL is a runaway, whatever the target
RISING = 1.25  # level at the end over that of the second quarter
LOST_TOKEN = 3.0  # nats: the reference gives sampled tokens a twentieth of the policy's probability, on average
AT_START_EXACT = 1e-3  # nats per token where the first step is measured before any update
AT_START_TOKEN = 0.3  # nats per token at the first logged step: no update makes so much
ZERO = 1e-9  # nats; two passes of one model differ by rounding, 1e-7, unless they are one and the same
BF16_RATE = 1e-5  # an update of 1e-6 is rounded away for weights above some 4e-4, which most are
STILL = 1e-9  # gradient norm that counts as none
WILD_NORM = 100.0  # gradient norm: a hundred times where trainers clip
LN_LARGEST_VOCABULARY = 12.6  # ln of 300,000: above every vocabulary in use
AT_START_SEQUENCE = 5.0  # nats per completion at the first step, which has to be 0
NEARER, MUCH_NEARER = 0.9, 0.7  # of the first KL, to which a policy comes that learns from its reference
LOSS_COEF, REWARD_COEF = 0.01, 0.05  # usual coefficients of a penalty in the loss and in the reward
UNMOVED = 1e-8  # nats per token: a KL between successive policies that is rounding


@dataclass(frozen=True)
class _High:
    """Where the KL is high: from which step, in which series, by which limit."""

    since: int
    kl: Series
    limit: str


def _runaway(run: Run) -> Result:
    if all(series.unit == "" for series in run.series["kl_ref"]):
        return Unknown("the KL is logged in a unit that is not known", ("kl_ref (nats/sequence)",))
    impossible = _impossible(run)
    if impossible is not None:
        return impossible
    at_start = _mismatch_at_start(run)
    if at_start is not None:
        return at_start
    high = _high(run)
    if high is None:
        return None
    rising = _rises_late(high.kl)
    cause, because = _runaway_cause(run, high)
    severity = _severity(run, rising)
    if severity == "warning" and cause == "controller_absent" and learns(run):
        severity = "info"  # a policy that learns moves away from its reference: that is what the reward is paid for
    wild = _wild_gradient(run)
    if severity == "info" and wild:
        severity, because = "warning", (*because, wild)
    return Found(
        cause,
        severity,
        high.since,
        f"The KL to the reference is {number(tail(high.kl))} {high.kl.unit} "
        f"{'and rises' if rising else 'and no longer rises'}"
        + ("." if cause == "unknown" else f": {cause.replace('_', ' ')}."),
        (f"{high.kl.source or 'kl_ref'} is {high.limit} from step {high.since} on", *because),
        change=_runaway_change(run, cause),
    )


def _wild_gradient(run: Run) -> str:
    """Return a sentence if gradient norms lie far beyond where they are clipped: the penalty itself drives them."""
    norm = run.get("grad_norm")
    most = 0.0 if norm is None else float(norm.values.max())
    return f"the gradient norm is up to {number(most)} meanwhile" if most > WILD_NORM else ""


def _impossible(run: Run) -> Result:
    """Find a KL per token that no drift of a policy makes: it is above the logarithm of every vocabulary in use."""
    kl = find(run, "kl_ref", TOKEN, "k3", "k2", "abs", "exact", "")
    if kl is None or run.traits.kl_place == "reward" or float(np.median(kl.values)) <= LN_LARGEST_VOCABULARY:
        return None
    return Found(
        "impossible_tokens",
        "critical",
        int(kl.steps[(kl.values > LN_LARGEST_VOCABULARY).argmax()]),
        f"The KL to the reference is {number(float(np.median(kl.values)))} nats per token: the policy gives the tokens "
        "that train next to no probability.",
        (
            f"{kl.source}: {number(float(kl.values[0]))} at first, {number(float(kl.values[-1]))} at the end "
            "(k3 is ref/p less its logarithm)",
        ),
    )


def _high(run: Run) -> _High | None:
    per_sequence, per_token = (find(run, "kl_ref", unit) for unit in (SEQUENCE, TOKEN))
    target = target_in(run)
    if target is not None and per_sequence is not None:
        kl = find(run, "kl_ref", target[1])
        limit = TARGET_FACTOR * target[0]
        since = None if kl is None else first_lasting(kl, kl.values > limit, LASTING)
        if kl is not None and since is not None and tail(kl) > limit and tail(per_sequence) > LEAST_SEQUENCE:
            return _High(since, kl, f"above {TARGET_FACTOR:.0f} times the target of {target[0]:g}")
    if per_sequence is not None and per_token is not None:
        if tail(per_token) <= HIGH_TOKEN:
            return None
        return _above(per_sequence, HIGH_SEQUENCE)
    if per_sequence is not None:
        return _above(per_sequence, HIGH_SEQUENCE_ALONE)
    return None if per_token is None else _above(per_token, HIGH_TOKEN_ALONE)


def _above(kl: Series, limit: float) -> _High | None:
    since = first_lasting(kl, kl.values > limit, LASTING)
    return _High(since, kl, f"above {limit:g} {kl.unit}") if since is not None and tail(kl) > limit else None


def _rises_late(kl: Series) -> bool:
    """Return True if the KL ends clearly above where it stood in the second quarter of the run."""
    if len(kl) < MIN_STEPS:
        return True
    quarter = kl.values[len(kl) // 4 : len(kl) // 2]
    return tail(kl) > RISING * float(np.median(quarter))


def _severity(run: Run, rising: bool) -> Severity:
    per_token, rises = find(run, "kl_ref"), reward_rises(run)
    if rises is False and per_token is not None and tail(per_token) > LOST_TOKEN:
        reward = run.get("reward")
        if rising and reward is not None and direction(reward) < 0:
            return "critical"
        return "warning"
    return "warning" if rising else "info"


def _mismatch_at_start(run: Run) -> Result:
    kl = find(run, "kl_ref")
    # A log that begins later is that of a resumed run, whose policy may be anywhere.
    if kl is None or kl.steps[0] > max(1, run.averaged_over) or len(kl) < LASTING:
        return _sum_at_start(run)
    first = float(kl.values[0])
    gap = run.get("sampler_gap")
    if gap is not None and gap.values[0] > AT_START_EXACT:
        return None  # the policy's own log-probs are off: see sampler_mismatch
    # Measured before the first update: 0, but for rounding.
    exactly = run.trainer == "steadyrl" and kl.steps[0] == 0 and kl.estimator in ("exact", "k3")
    if first < (AT_START_EXACT if exactly else AT_START_TOKEN) or (first < 0.3 * tail(kl) and not exactly):
        return None
    clearly = direction(kl) < 0 and tail(kl) < NEARER * first
    teacher = not exactly and (clearly or tail(kl) < MUCH_NEARER * first)
    return Found(
        "teacher" if teacher else "reference_mismatch",
        "info" if teacher else "warning",
        int(kl.steps[0]),
        "The KL to the reference is large before any update: the reference is not what training started from"
        + (", and the policy comes nearer to it, as to a teacher." if teacher else "."),
        (f"{number(first)} nats/token at step {kl.steps[0]}; {number(tail(kl))} at the end",),
    )


def _sum_at_start(run: Run) -> Result:
    """Find the same in a KL per completion, which PPO's trainers measure before the updates of the first step."""
    kl = run.get("kl_ref", SEQUENCE)
    if kl is None or run.averaged_over > 1 or kl.steps[0] > 1 or find(run, "kl_ref") is not None:
        return None
    first = abs(float(kl.values[0]))
    if first <= AT_START_SEQUENCE or first < 0.3 * abs(tail(kl)):
        return None
    return Found(
        "reference_mismatch",
        "warning",
        int(kl.steps[0]),
        "The KL to the reference is large before any update: the reference is not what training started from.",
        (f"{number(first)} nats per completion at step {kl.steps[0]}; {number(tail(kl))} at the end",),
    )


def _runaway_cause(run: Run, high: _High) -> tuple[str, tuple[str, ...]]:
    large = large_updates(run, high.since + max(5, (int(high.kl.steps[-1]) - int(high.kl.steps[0])) // 10))
    if large:
        return "learning_rate", large
    moves = coefficient_moves(run)
    fixed = setting(run, "kl_coef")
    if moves is None and fixed is None:
        return "unknown", ("the coefficient of the penalty is not logged",)
    if moves is None or moves.constant:
        value = fixed if moves is None else moves.last
        if value == 0:
            return "no_penalty", ("the coefficient of the KL penalty is 0",)
        if moves is None and run.settings.get("kl_adaptive"):
            return "unknown", ("the adaptive coefficient is not logged",)
        return "controller_absent", (f"the coefficient stays at {value:g} (relative change below {COEF_CONSTANT:g})",)
    if moves.doubling > moves.remaining:
        return "controller_slow", (moves.sentence,)
    return "unknown", (moves.sentence,)


def _runaway_change(run: Run, cause: str) -> Mapping[str, Value]:
    known = run.get("kl_coef")
    value = setting(run, "kl_coef") if known is None else float(known.values[-1])
    if cause == "learning_rate":
        return calmer(run)
    if cause == "controller_slow":
        return {"kl_horizon": 6} if run.settings.get("kl_horizon_unit") != "samples" else {}
    if cause in ("controller_absent", "unknown") and value:
        return {"kl_coef": float(f"{2 * value:.1g}")}
    return {"kl_coef": LOSS_COEF if run.traits.grouped else REWARD_COEF} if cause == "no_penalty" else {}


_ROOTS = ("kl_unit_clash", "kl_controller", "kl_penalty_off", "learning_rate_too_high", "entropy_explosion",
          "negative_kl", "sampler_mismatch", "reward_jump")  # fmt: skip
kl_runaway = Check(
    name="kl_runaway", topic="KL",
    title="The policy runs away from its reference.",
    symptom="The KL to the reference is high and still rising, or high from the very first step. High is judged in a "
    "known unit only: above 20 nats per sequence and 0.3 nats per token (short completions of small models have "
    "healthily 2 per token, long ones healthily 50 per sequence), above 1 nat per token where lengths are not "
    "known, or above 3 times the target of a controller that compares in the same unit. A KL that is high and no "
    "longer rises is told as information, unless gradient norms above 100 go with it: in a penalty by k3 they grow "
    "with the ratio of reference to policy.",
    healthy="The KL to the reference rises while the policy learns, and levels off.",
    causes=(
        Cause("impossible_tokens", "it is above ln V per token: no drift makes that of the tokens that the policy "
              "itself draws",
              "Sample from the policy that trains: a grammar, a mask of tokens or a stop rule in sampling that the "
              "trainer does not know draws what the policy would not; or the trainer's weights are not the "
              "sampler's.", measured="published log of TRL"),
        Cause("reference_mismatch", "it is large at the first step, before any update, and stays: the reference is "
              "another model or has another tokenizer, template or adapter",
              "Load policy and reference from the same weights, with the same tokenizer, chat template and "
              "adapter; the KL of the first step has to be 0.", measured="reference_other, reference_dropout; "
              "published log of TRL"),
        Cause("teacher", "it is large at the first step and falls: the policy comes nearer to its reference, as to "
              "a teacher; worth knowing only",
              "Nothing, if the reference was meant to be another model.", measured="published log of verl"),
        Cause("learning_rate", "one step's updates move the policy far too (KL to the old policy, clip fraction)",
              "Lower the learning rate, make one or two epochs, stop them at a limit of KL to the old policy, and "
              "go back to a checkpoint before the rise.", follows=("learning_rate_too_high",),
              moves=("learning_rate", "epochs"), measured="lr_x100, epochs_8"),
        Cause("no_penalty", "the coefficient of the penalty is 0",
              "Set a coefficient for the KL penalty (0.05 in the reward, 0.01 in the loss), or watch held-out "
              "rewards closely.", follows=("kl_penalty_off", "reward_jump")),
        Cause("controller_absent", "the coefficient stays what it was while the KL is many times its target, or "
              "rises",
              "Raise the coefficient, or let it adapt to a target in the unit of the KL that it compares.",
              follows=_ROOTS, moves=("kl_coef", "learning_rate")),
        Cause("controller_slow", "the coefficient rises, but needs more steps to double than the run has",
              "Shorten the controller's horizon, so that the coefficient can double within 20 steps.",
              follows=("kl_controller", "kl_unit_clash", "learning_rate_too_high", "entropy_explosion"),
              moves=("kl_coef", "learning_rate")),
        Cause("unknown", "none of these can be told",
              "Log the KL of one step's updates, the clip fraction and the penalty's coefficient: they tell a "
              "learning rate that is too high from a penalty that is too weak. Meanwhile lower the learning rate or "
              "raise the coefficient.", follows=_ROOTS, moves=("kl_coef", "learning_rate"),
              measured="published log of TRL"),
    ),
    find=_runaway, needs=("kl_ref",),
    source="TRL's deleted training FAQ (0 to 10 nats per sequence); TRL 0.11 ppo_config.py (target 6); Ziegler et "
    "al. (arXiv 1909.08593; controller); OpenRLHF ppo_trainer.py (fixed controller only); N Implementation Details "
    "of RLHF (with equal policies the first KL is exactly 0)",
)  # fmt: skip


def _zero(run: Run) -> Result:
    kl = find(run, "kl_ref") or run.get("kl_ref")
    assert kl is not None, "needs says so"
    zero = np.abs(kl.values) <= ZERO
    zero[:1] = False
    since = first_lasting(kl, zero, LASTING)
    if since is None:
        return None
    after = np.flatnonzero(~zero & (kl.steps > since))
    until = int(kl.steps[after[0] - 1]) if len(after) else int(kl.steps[-1])
    cause, because = _zero_cause(run, since, until)
    stuck = not len(after) and until - since >= MIN_STEPS
    worthless = cause in ("no_update", "skipped_updates", "bf16_rounding", "no_advantage")
    return Found(
        cause,
        "critical" if stuck and worthless else ("warning" if not len(after) and cause != "not_measured" else "info"),
        since,
        f"The KL to the reference is exactly 0 at steps {since} to {until}: {cause.replace('_', ' ')}.",
        because or ("neither learning rate, gradient norm nor rewards tell why",),
    )


def _zero_cause(run: Run, since: int, until: int) -> tuple[str, tuple[str, ...]]:
    def there(quantity: str) -> Series | None:
        series = run.get(quantity)
        part = None if series is None else within(series, since, until)
        return part if part is not None and len(part) else None

    rate, made, gradient = there("learning_rate"), there("updates"), there("grad_norm")
    if (rate is not None and not rate.values.any()) or (learning_rate(run) is None and "learning_rate" in run.settings):
        return "no_update", ("the learning rate is 0",)
    if made is not None and not made.values.any():
        return "no_update", ("no optimizer step was made",)
    lost = [
        s for s in run.series.get("grad_norm", ()) if len(s) and not np.isfinite(within(s, since, until).values).any()
    ]
    if lost:
        return "skipped_updates", ("the gradient norm is not finite in these steps",)
    idle = nothing_to_learn(run)
    if idle and (gradient is None or np.median(gradient.values) <= STILL):
        return "no_advantage", (idle,)
    if gradient is not None and np.median(gradient.values) <= STILL:
        return "no_update", ("the gradient norm is 0",)
    moves = _moves(run, since, until)
    if moves:
        return "same_object", moves
    small = learning_rate(run)
    if run.settings.get("dtype") == "bfloat16" and small is not None and small <= BF16_RATE and gradient is not None:
        text = f"weights are bfloat16, the learning rate is {small:g}, and the gradient norm {number(head(gradient))}"
        return "bf16_rounding", (text, "neither KL to the old policy nor entropy moves")
    if gradient is None and moving_elsewhere(run):
        return "not_measured", (moving_elsewhere(run),)
    return "unknown", ()


def moving_elsewhere(run: Run) -> str:
    """Return a sentence if the reward rises all the same, so that the policy moves; else ""."""
    return "the reward rises meanwhile, so that the policy does move" if learns(run) else ""


def _moves(run: Run, since: int, until: int) -> tuple[str, ...]:
    """Return what shows that the policy changes all the same, a sentence each."""
    found = []
    size, clipped, entropy = update_size(run), run.get("clip_fraction"), find(run, "entropy")
    for name, series, floor in (("KL of one step's updates", size, UNMOVED), ("clip fraction", clipped, 0.0)):
        part = None if series is None else within(series, since, until)
        if part is not None and len(part) and np.median(part.values) > floor:
            found.append(f"{name} is {number(float(np.median(part.values)))}")
    if entropy is not None:
        part = within(entropy, since, until)
        if direction(part) != 0:
            found.append(levels("the entropy", part, "nats/token"))
    return tuple(found)


kl_zero = Check(
    name="kl_zero", topic="KL",
    title="The KL to the reference is exactly 0 although training goes on.",
    symptom="At the first step policy and reference are equal and a KL of 0 is right. Five or more later steps at "
    "exactly 0 mean that the policy is not moving, or that it is compared with itself.",
    healthy="The KL to the reference is 0 at the first step and above 0 afterwards.",
    causes=(
        Cause("no_update", "the learning rate is 0 in these steps, no optimizer step was made, or the gradient is 0",
              "Set a learning rate above 0, end the warm-up, and see that optimizer steps are made.",
              follows=("grad_norm",), measured="no_update"),
        Cause("skipped_updates", "gradient norms are not finite, so that the optimizer (a float16 scaler) skips "
              "its steps",
              "Train in bfloat16 or float32 instead of float16, and look for the first non-finite loss.",
              follows=("non_finite",), measured="overflow_gradient"),
        Cause("no_advantage", "all rewards of a group are equal, advantages are 0 and so are the gradients",
              "Use prompts whose completions differ in reward (easier or harder ones), larger groups, or a finer "
              "reward.", change=more_samples, follows=("reward_constant", "no_signal_groups")),
        Cause("same_object", "gradients are there and the policy moves (KL to the old policy, clip fraction, "
              "entropy), but the reference moves along: it is the policy itself, or an adapter is switched off in "
              "both passes",
              "Keep a frozen copy of the starting weights as reference, or switch the adapter off only for it."),
        Cause("bf16_rounding", "gradients are there, nothing moves, the weights are bfloat16 and the learning rate "
              "is so small that each update is rounded away",
              "Keep the trained weights in float32 (or float32 masters in the optimizer), or raise the learning "
              "rate to where updates survive rounding.", change=times("learning_rate", 10.0)),
        Cause("not_measured", "the reward rises: the policy moves, and the number is a place-holder",
              "Measure the KL, or take it out of the log."),
        Cause("unknown", "none of these can be told",
              "Log gradient norm, learning rate and the share of groups with equal rewards."),
    ),
    find=_zero, needs=("kl_ref",),
    source="trl#3857 (frac_reward_zero_std 1, grad_norm 0), trl#4040 (with beta 0 the KL is absent, not 0); that "
    "bfloat16 rounds updates of 1e-6 away for weights above 2.6e-4 to 5.1e-4 is arithmetic",
)  # fmt: skip
