"""The gradient's norm: spikes, growth, zero, clipping, and how to log it."""

from __future__ import annotations

import numpy as np

from steadyrl.core.types import Severity
from steadyrl.core.words import percent
from steadyrl.doctor.check import Found, Result, Unknown, check
from steadyrl.doctor.remedies import Value
from steadyrl.doctor.series import Run, Series
from steadyrl.doctor.statistics.levels import measure
from steadyrl.doctor.statistics.readings import coincident_cause, learns, levels, number, rises, setting, signal_lost
from steadyrl.doctor.statistics.signals import BURSTS_FROM, MIN_STEPS, bursts, first_lasting, head, tail

SPIKE_FACTOR = 5.0  # times the usual norm; noise of a factor 1.6 (lognormal, 0.5) reaches it once in a thousand steps
EXPLODED = 10.0  # times the first level
ZERO = 1e-12  # of a norm: below every gradient of a model that learns
ZERO_SHARE = 0.5  # of the steps
FAR_ABOVE = 10.0  # median norm over the limit: nine tenths of the length is cut away
LASTING_ROWS = 5  # without a gradient at the end
SIGNAL_GREW = 3.0  # times as many groups with a signal
NO_SIGNAL_MANY = 0.25  # share of groups without signal
ERRATIC, ERRATIC_ROWS, ERRATIC_TIMES = 100.0, 4, 20.0  # times the limit; rows; times the median
ERRATIC_MANY, ERRATIC_SHARE = 2, 0.02  # so many rows, and that share of them
ABSURD = 1e6  # times the limit: one row of it is enough
SPIKES_WITH = {
    "reward_outlier": ("reward_max", "reward_min"),
    "value_loss": ("loss_value",),
    "large_updates": ("kl_old", "ratio_max", "kl_ref"),
}
USUAL_LIMIT = 1.0  # at which trainers clip where nothing is set
NEARLY_ALL = 0.9  # share of completions cut off that can leave no loss at all
GROUPS_EQUAL = 0.9  # share of groups without signal that explains a gradient of 0
MOSTLY_EQUAL = 0.5  # the same in few rows, which may hold the mean share of several steps and the norm of the last one
OWN_LOOP = "Hugging Face trainers log it as grad_norm; in your own loop, log what clip_grad_norm_ returns"
HUGGING_FACE = "it logs grad_norm, which a notebook's table leaves out: read trainer.state.log_history"
HOW_TO_LOG = {
    "steadyrl": "it logs grad_norm with every step; this log was cut or written by another version",
    "trl-ppo": "its own loop does not log it: call accelerator.clip_grad_norm_ in a subclass's step and log what it "
    "returns",
    "trl-ppo-old": "its loop does not log it: set max_grad_norm, and log what accelerator.clip_grad_norm_ returns",
    "verl": "it logs actor/grad_norm and critic/grad_norm; see that both reach this log",
    "openrlhf": "newer versions log actor_grad_norm; update, or log what the strategy's clipping returns",
}


@check("grad_norm")
def grad_norm(run: Run) -> Result | list[Result]:
    if (norm := run.get("grad_norm")) is None and "grad_norm" in run.series:
        return Unknown("no gradient norm of the log is finite")
    if norm is None:
        hint = HOW_TO_LOG.get(run.trainer, HUGGING_FACE if run.trainer.startswith("trl-") else OWN_LOOP)
        who = f"{run.trainer}: " if hint != OWN_LOOP else ""
        return Unknown(f"the gradient norm is not logged; {who}{hint}", ("grad_norm",))
    if fault := _zero(run, norm) or _erratic(run, norm):
        return fault
    if run.covers(norm) < MIN_STEPS:
        return Unknown(f"too few rows to tell what is usual: {len(norm)}")
    return [_spikes(run, norm), _exploding(run, norm), _clipped(run, norm)]


def _zero(run: Run, norm: Series) -> Result:
    is_zero = norm.values <= ZERO
    if is_zero.mean() <= ZERO_SHARE:
        return None
    share, cut, used = signal_lost(run), run.get("truncated"), run.get("advantage_used")
    place = "the only row" if len(norm) == 1 else f"{percent(is_zero.mean())} of the rows"
    message = f"the gradient is exactly 0 in {place}"
    if share is None:
        return Unknown(f"{message}, and neither the spread of rewards nor of advantages tells why", ("reward_std",))
    equal = float(share[0].values.mean())
    cause, reason = "detached", f"{percent(1 - equal)} of the groups have unequal rewards: the loss misses the weights"
    moved_rows = np.flatnonzero(~is_zero)
    detached = not len(moved_rows) or len(norm) - 1 - moved_rows[-1] >= max(LASTING_ROWS, ZERO_SHARE / 2 * len(norm))
    enough = GROUPS_EQUAL if len(norm) >= LASTING_ROWS else MOSTLY_EQUAL
    if equal > enough or abs(equal - float(is_zero.mean())) < 1 - GROUPS_EQUAL:
        of_some = f"the rewards of {percent(equal)} of the prompts do not differ"
        cause, reason = "no_signal", "the rewards of a prompt do not differ" if equal > GROUPS_EQUAL else of_some
    elif used is not None and not used.values.any():
        cause, reason = "nothing_kept", "rewards differ, and no completion is kept to train on"
    elif cut is not None and float(cut.values.mean()) > NEARLY_ALL:
        cause, reason = "masked", f"{percent(cut.values.mean())} are cut off, and those may be masked out of the loss"
    elif not detached:
        return Unknown(f"{message} and not in the others, so that the loss reaches the weights; nothing tells why")
    severity: Severity = "critical" if is_zero.all() else "warning"
    rows = () if len(norm) == 1 else (f"{int(is_zero.sum())} of {len(norm)} rows have a norm of 0",)
    return Found(cause, severity, int(norm.steps[is_zero.argmax()]), f"{message}: {reason}", rows)


def _erratic(run: Run, norm: Series) -> Result:
    """Find norms so far beyond the limit that no noise of a stable run makes them, in a log of any length."""
    limit = max(setting(run, "max_grad_norm") or USUAL_LIMIT, USUAL_LIMIT)
    usual, greatest = norm.median, norm.greatest
    if len(norm) < ERRATIC_ROWS:
        if greatest <= ABSURD * limit:
            return None
        message = f"the gradient norm is {number(greatest)}: no update of a sound run has such a gradient"
        return Found("exploding", "critical", int(norm.steps[norm.values.argmax()]), message, (levels("it", norm),))
    far = norm.values > ERRATIC * limit
    if far.sum() < max(ERRATIC_MANY if len(norm) > BURSTS_FROM else 1, ERRATIC_SHARE * len(norm)):
        return None
    # A norm that is always so large, and of a run that learns, is that of a loss that is summed and not averaged.
    if greatest < ERRATIC_TIMES * usual and (usual < ERRATIC * limit or learns(run)):
        return None
    cause, reason = coincident_cause(run, norm.steps[far], SPIKES_WITH)
    reason = reason if len(norm) > BURSTS_FROM else f"the median of the {len(norm)} rows is {number(usual)}"
    return Found(
        cause if len(norm) > BURSTS_FROM else "exploding",
        "warning",
        int(norm.steps[far.argmax()]),
        f"the gradient norm is above {ERRATIC * limit:g} in {int(far.sum())} of {len(norm)} rows, up to "
        f"{number(greatest)}: {reason}",
        (f"median norm {number(usual)}; trainers clip at {limit:g}",),
    )


def _spikes(run: Run, norm: Series) -> Result:
    far, idle = bursts(norm, SPIKE_FACTOR), signal_lost(run)
    if idle is not None:  # steps without any signal have a gradient near 0, and lower what is usual
        taught = norm.select(~np.isin(norm.steps, idle[0].steps[idle[0].values >= 1.0]))
        far = far[np.isin(norm.steps[far], taught.steps[bursts(taught, SPIKE_FACTOR)])]
    if not len(far):
        return None
    cause, reason = coincident_cause(run, norm.steps[far], SPIKES_WITH)
    top = far[np.argmax(norm.values[far])]
    first, highest = norm.steps[far[0]], float(norm.values[top])
    # Spikes far below where norms are clipped move the weights no further than others.
    small = highest <= FAR_ABOVE * (setting(run, "max_grad_norm") or USUAL_LIMIT)
    harmless = (idle is not None and float(idle[0].values.mean()) > NO_SIGNAL_MANY) or learns(run)
    return Found(
        cause,
        "info" if cause == "unknown" and small and harmless else "warning",
        int(first),
        f"the gradient norm spikes from step {first} on, up to {number(highest)}: {reason}",
        (
            f"{len(far)} steps above {SPIKE_FACTOR:g} times the level before them; the median is "
            f"{number(norm.median)}, the greatest is at step {norm.steps[top]}",
        ),
    )


def _exploding(run: Run, norm: Series) -> Result:
    blocks, start = measure(norm), head(norm)
    if blocks is None or not blocks.rose or start <= 0 or tail(norm) < EXPLODED * start:
        return None
    share = signal_lost(run)
    if share is not None and 1 - tail(share[0]) > SIGNAL_GREW * (1 - head(share[0])) and tail(norm) <= USUAL_LIMIT:
        return None  # more groups teach something, and that is the gradient
    onset = first_lasting(norm, norm.values > EXPLODED * start)
    change: dict[str, Value] | None = {} if rises(run) else None  # what learns calls for no smaller steps
    message = "the gradient norm grew tenfold or more"
    return Found("exploding", "warning", onset, message, (levels("it", norm),), change=change)


def _clipped(run: Run, norm: Series) -> Result:
    """Find a limit that sets the size of the steps; with Adam, which takes out any constant scale, it does not."""
    limit, optimizer = setting(run, "max_grad_norm"), str(run.settings.get("optimizer", ""))
    typical = tail(norm, 0.5)
    if not limit or "sgd" not in optimizer.lower() or typical <= FAR_ABOVE * limit:
        return None
    message = f"the median norm {number(typical)} is far above the limit {number(limit)}, so that with {optimizer} the"
    message += " limit sets the size of the steps, not the learning rate"
    return Found("always_clipped", "warning", None, message, change={"max_grad_norm": float(f"{typical:.2g}")})
