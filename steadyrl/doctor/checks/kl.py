"""The KL to the reference: running away from it, and not moving at all."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from steadyrl.doctor.check import Unclear, check
from steadyrl.doctor.checks.kl_control import COEF_CONSTANT, coefficient_moves, target_in
from steadyrl.doctor.checks.measures import setting
from steadyrl.doctor.checks.readings import (
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
from steadyrl.doctor.checks.remedies import calmer, learning_rate, scaled_learning_rate
from steadyrl.doctor.checks.units import SEQUENCE, TOKEN, find
from steadyrl.doctor.series import Run, Series
from steadyrl.doctor.signals import MIN_STEPS, first_lasting, head, tail
from steadyrl.types import Finding

# TRL's FAQ has 0 to 10 nats per sequence as healthy, users' complaints start at 20; long completions have healthily
# more per sequence, tiny models healthily 2 per token: so both have to be exceeded where both are known.
HIGH_SEQUENCE, HIGH_TOKEN = 20.0, 0.3
HIGH_SEQUENCE_ALONE, HIGH_TOKEN_ALONE = 50.0, 1.0  # where the lengths are unknown and only one can be had
TARGET_FACTOR = 3.0  # times the target of a controller that compares in the same unit
LEAST_SEQUENCE = 10.0  # nats: below it no KL is a runaway, whatever the target
RISING = 1.25  # level at the end over that of the second quarter
LASTING = 5
LOST_TOKEN = 3.0  # nats: the reference gives sampled tokens a twentieth of the policy's probability, on average
AT_START_EXACT = 1e-3  # nats per token where the first step is measured before any update
AT_START_TOKEN = 0.3  # nats per token at the first logged step: no update makes so much
ESTIMATORS = ("exact", "k1", "k3", "k2", "abs", "")
ZERO = 1e-9  # nats; two passes of one model differ by rounding, 1e-7, unless they are one and the same
ZERO_LASTING = 5  # steps after the first, at which 0 is right
BF16_RATE = 1e-5  # an update of 1e-6 is rounded away for weights above some 4e-4, which most are
STILL = 1e-9  # gradient norm that counts as none
UNMOVED = 1e-8  # nats per token: a KL between successive policies that is rounding


@dataclass(frozen=True)
class _High:
    """Where the KL is high: from which step, in which series, by which limit."""

    since: int
    kl: Series
    limit: str


@check(needs=("kl_ref",))
def kl_runaway(run: Run) -> Finding | Unclear | None:
    """The policy runs away from its reference.

    Symptom:
        The KL to the reference is high and still rising, or high from the very first step. High is judged in a known
        unit only: above 20 nats per sequence and 0.3 nats per token (short completions of small models have healthily 2
        per token, long ones healthily 50 per sequence), or above 3 times the target of a controller that compares in
        the same unit. A KL that is high and no longer rises is told as information.

    Causes and what tells them apart:
        - "reference_mismatch": it is large at the first step, before any update: the reference is another model or has
          another tokenizer, template or adapter.
        - "learning_rate": one step's updates move the policy far too (KL to the old policy, clip fraction).
        - "no_penalty": the coefficient of the penalty is 0.
        - "controller_absent": the coefficient stays what it was while the KL is many times its target, or rises.
        - "controller_slow": the coefficient rises, but needs more steps to double than the run has.
        - "unknown": none of these can be told.

    Remedy:
        Learning rate: a third of it, fewer epochs, stop the epochs at a limit of KL. Penalty: a coefficient above 0, or
        an adaptive one with a short horizon. Go back to a checkpoint before the rise.

    Source:
        TRL's deleted training FAQ (0 to 10 nats per sequence), TRL 0.11 ``ppo_config.py`` (target 6, early stop at 1.5
        target_kl), Ziegler et al. (arXiv 1909.08593; controller), OpenRLHF ``ppo_trainer.py`` (fixed controller only).
    """
    if all(series.unit == "" for series in run.series["kl_ref"]):
        return Unclear("kl_runaway", "the KL is logged in a unit that is not known", ("kl_ref (nats/sequence)",))
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
    return Finding(
        check="kl_runaway",
        severity=severity,
        since_step=high.since,
        cause=cause,
        message=f"The KL to the reference is {number(tail(high.kl))} {high.kl.unit} "
        f"{'and rises' if rising else 'and no longer rises'}: {cause.replace('_', ' ')}.",
        evidence=(f"{high.kl.source or 'kl_ref'} is {high.limit} from step {high.since} on", *because),
        remedy=_RUNAWAY_REMEDIES[cause],
        overrides=_runaway_overrides(run, cause),
        source="TRL's training FAQ: 0 to 10 nats per sequence; TRL 0.11: target 6",
        follows={"learning_rate": "learning_rate_too_high", "controller_slow": "kl_controller"}.get(cause, ""),
    )


def _high(run: Run) -> _High | None:
    per_sequence, per_token = (find(run, "kl_ref", unit, ESTIMATORS) for unit in (SEQUENCE, TOKEN))
    target = target_in(run)
    if target is not None and per_sequence is not None:
        kl = find(run, "kl_ref", target[1], ESTIMATORS)
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


def _severity(run: Run, rising: bool) -> Literal["critical", "warning", "info"]:
    per_token, rises = find(run, "kl_ref", TOKEN, ESTIMATORS), reward_rises(run)
    if rises is False and per_token is not None and tail(per_token) > LOST_TOKEN:
        reward = run.get("reward")
        if rising and reward is not None and direction(reward) < 0:
            return "critical"
        return "warning"
    return "warning" if rising else "info"


def _mismatch_at_start(run: Run) -> Finding | None:
    kl = find(run, "kl_ref", TOKEN, ("exact", "k3", "k1", "k2", "abs", ""))
    # A log that begins later is that of a resumed run, whose policy may be anywhere.
    if kl is None or kl.steps[0] > 1 or len(kl) < LASTING:
        return None
    first = float(kl.values[0])
    gap = run.get("sampler_gap")
    if gap is not None and gap.values[0] > AT_START_EXACT:
        return None  # the policy's own log-probs are off: see sampler_mismatch
    # Measured before the first update: 0, but for rounding.
    exactly = run.trainer == "steadyrl" and kl.steps[0] == 0 and kl.estimator in ("exact", "k3")
    if first < (AT_START_EXACT if exactly else AT_START_TOKEN) or (first < 0.3 * tail(kl) and not exactly):
        return None
    return Finding(
        check="kl_runaway",
        severity="warning",
        since_step=int(kl.steps[0]),
        cause="reference_mismatch",
        message="The KL to the reference is large before any update: the reference is not what training started from.",
        evidence=(f"{number(first)} nats/token at step {kl.steps[0]}; {number(tail(kl))} at the end",),
        remedy="Load policy and reference from the same weights, with the same tokenizer, chat template and adapter; "
        "the KL of the first step has to be 0.",
        source="N Implementation Details of RLHF: with equal policies the first KL is exactly 0",
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


_RUNAWAY_REMEDIES = {
    "learning_rate": "Lower the learning rate, make one or two epochs, stop them at a limit of KL to the "
    "old policy, and go back to a checkpoint before the rise.",
    "no_penalty": "Set a coefficient for the KL penalty (PPO: 0.05, GRPO: 0.01), or watch held-out rewards closely.",
    "controller_absent": "Raise the coefficient, or let it adapt to a target in the unit of the KL that it compares.",
    "controller_slow": "Shorten the controller's horizon, so that the coefficient can double within 20 steps.",
    "unknown": "Log the KL of one step's updates, the clip fraction and the penalty's coefficient: they tell a "
    "learning rate that is too high from a penalty that is too weak. Meanwhile raise the coefficient.",
}


def _runaway_overrides(run: Run, cause: str) -> tuple[str, ...]:
    if cause == "learning_rate":
        return calmer(run)
    if cause == "no_penalty":
        return (f"algorithm.args.kl_coef={0.01 if run.algorithm == 'grpo' else 0.05}",)
    if cause == "controller_slow":
        return ("algorithm.args.kl_horizon=6",)
    if cause == "controller_absent" and run.algorithm == "ppo":
        return ("algorithm.args.kl_control=adaptive", "algorithm.args.kl_target=6.0", "algorithm.args.kl_horizon=6")
    known = run.get("kl_coef")
    value = setting(run, "kl_coef") if known is None else float(known.values[-1])
    return (f"algorithm.args.kl_coef={2 * value:.1g}",) if value else ()


@check(needs=("kl_ref",))
def kl_zero(run: Run) -> Finding | None:
    """The KL to the reference is exactly 0 although training goes on.

    Symptom:
        At the first step policy and reference are equal and a KL of 0 is right. Five or more later steps at exactly 0
        mean that the policy is not moving, or that it is compared with itself.

    Causes and what tells them apart:
        - "no_update": the learning rate is 0 in these steps, or no optimizer step was made.
        - "skipped_updates": gradient norms are not finite, so that the optimizer (a float16 scaler) skips its steps.
        - "no_advantage": all rewards of a group are equal, advantages are 0 and so are the gradients.
        - "same_object": gradients are there and the policy moves (KL to the old policy, clip fraction, entropy), but
          the reference moves along: it is the policy itself, or an adapter is switched off in both passes.
        - "bf16_rounding": gradients are there, nothing moves, the weights are bfloat16 and the learning rate is so
          small that each update is rounded away.
        - "unknown": none of these can be told.

    Remedy:
        A learning rate above 0; prompts whose answers differ in reward; a frozen copy as reference; weights in float32
        (or float32 masters) or a higher learning rate.

    Source:
        trl#3857 (frac_reward_zero_std 1, grad_norm 0), trl#4040 (with beta 0 the KL is absent, not 0). That bfloat16
        rounds updates of 1e-6 away for weights above 2.6e-4 to 5.1e-4 is arithmetic.
    """
    kl = find(run, "kl_ref", TOKEN, ESTIMATORS) or run.get("kl_ref")
    assert kl is not None, "needs says so"
    zero = np.abs(kl.values) <= ZERO
    zero[:1] = False
    since = first_lasting(kl, zero, ZERO_LASTING)
    if since is None:
        return None
    after = np.flatnonzero(~zero & (kl.steps > since))
    until = int(kl.steps[after[0] - 1]) if len(after) else int(kl.steps[-1])
    cause, because = _zero_cause(run, since, until)
    stuck = not len(after) and until - since >= MIN_STEPS
    worthless = cause in ("no_update", "skipped_updates", "bf16_rounding", "no_advantage")
    return Finding(
        check="kl_zero",
        severity="critical" if stuck and worthless else ("warning" if not len(after) else "info"),
        since_step=since,
        cause=cause,
        message=f"The KL to the reference is exactly 0 at steps {since} to {until}: {cause.replace('_', ' ')}.",
        evidence=because or ("neither learning rate, gradient norm nor rewards tell why",),
        remedy=_ZERO_REMEDIES[cause],
        overrides=_zero_overrides(run, cause),
        source="trl#3857 (all advantages 0); trl#4040 (KL absent with beta 0)",
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
    return "unknown", ()


def _moves(run: Run, since: int, until: int) -> tuple[str, ...]:
    """Return what shows that the policy changes all the same, a sentence each."""
    found = []
    size, clipped, entropy = update_size(run), run.get("clip_fraction"), find(run, "entropy", TOKEN, ("exact", ""))
    for name, series, floor in (("KL of one step's updates", size, UNMOVED), ("clip fraction", clipped, 0.0)):
        part = None if series is None else within(series, since, until)
        if part is not None and len(part) and np.median(part.values) > floor:
            found.append(f"{name} is {number(float(np.median(part.values)))}")
    if entropy is not None:
        part = within(entropy, since, until)
        if direction(part) != 0:
            found.append(levels("the entropy", part, "nats/token"))
    return tuple(found)


_ZERO_REMEDIES = {
    "no_update": "Set a learning rate above 0, end the warm-up, and see that optimizer steps are made.",
    "skipped_updates": "Train in bfloat16 or float32 instead of float16, and look for the first non-finite loss.",
    "no_advantage": "Use prompts whose completions differ in reward (easier or harder ones), larger groups, or a finer "
    "reward.",
    "same_object": "Keep a frozen copy of the starting weights as reference, or switch the adapter off only for it.",
    "bf16_rounding": "Keep the trained weights in float32 (or float32 masters in the optimizer), or raise the learning "
    "rate to where updates survive rounding.",
    "unknown": "Log gradient norm, learning rate and the share of groups with equal rewards.",
}


def _zero_overrides(run: Run, cause: str) -> tuple[str, ...]:
    if cause == "no_update" and "learning_rate" in run.settings and not run.settings["learning_rate"]:
        return ("update.learning_rate=0.0001",)
    if cause == "no_advantage":
        return ("rollout.samples_per_prompt=8",)
    return scaled_learning_rate(run, 10.0) if cause == "bf16_rounding" else ()
