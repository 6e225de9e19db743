"""Remedies as changes of settings, by canonical name, computed from the run."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import numpy as np

from steadyrl.core import config
from steadyrl.core.types import Finding
from steadyrl.doctor.readers.spelling import flat_settings
from steadyrl.doctor.series import Run
from steadyrl.doctor.statistics.readings import (
    KL_OLD_LARGE,
    cut_away,
    entropy_lost_since,
    learns,
    setting,
    update_size,
    updates_per_step,
)

AMPLE_UPDATE = 0.005  # nats per token: the middle of 0.001 to 0.02, what the updates of a healthy run's step come to
LITTLE_UPDATE = 5e-5  # nats per token and step: a twentieth of the least that moves a run
LEAST_CUT, USUAL_CUT, GREATEST_CUT = 2.0, 3.0, 100.0
LASTS = 100  # steps in which a policy should have entropy left
NO_CUT = 1.2  # what the first digit of a rate would not show
LEAST_RAISE, USUAL_RAISE, GREATEST_RAISE = 3.0, 10.0, 100.0
LARGEST_ERROR = 0.2  # of a KL controller: Ziegler et al. clip the relative error to it
DOUBLE_IN = 20.0  # steps in which a coefficient should be able to double
SMALL = ("learning_rate", "value_learning_rate", "kl_coef", "entropy_coef")  # no whole numbers
STILL_CUT = 0.05  # share of the completions that may reach the limit on their length
USUAL_ROOM, GREATEST_ROOM = 2.0, 8.0  # times the limit
LIMIT_STEP = 32  # tokens, of which limits are multiples
AMPLE_BATCH = 16  # completions of a step: the error of their mean is a quarter of their spread
QUARTILE = 0.67  # standard deviations above the mean
MORE_SAMPLES = 8  # completions per prompt where their number is not known, or is 1


@dataclass(frozen=True)
class Times:
    """A change of a setting whose value is not known, as a factor."""

    factor: float


Value = float | int | str | bool | Times


def learning_rate(run: Run) -> float | None:
    """Return the learning rate that the run was set to, or reached; None where neither is known."""
    logged = run.get("learning_rate")
    reached = logged.greatest if logged is not None else 0.0
    return setting(run, "learning_rate") or reached or None


@cache
def defaults(algorithm: str) -> Mapping[str, Any]:
    """Return the default of each of our settings, nested keys joined with dots."""
    return flat_settings(config.defaults(algorithm))


def default(run: Run, name: str) -> float | None:
    """Return the default of a setting by its canonical name; None where the trainer is another, or it is no number."""
    value = defaults(run.algorithm).get(run.keys.get(name, "")) if run.trainer == "steadyrl" else None
    return float(value) if isinstance(value, int | float) else None


def multiple(run: Run, name: str, factor: float) -> Mapping[str, Value]:
    """Return the change of a setting to ``factor`` times what it is; none where that is 0."""
    now = learning_rate(run) if name == "learning_rate" else setting(run, name)
    if not now:
        known_zero = setting(run, name) is not None or run.get(name) is not None  # as 0, which has no multiple
        return {} if known_zero else {name: Times(factor)}
    return {name: float(f"{now * factor:.1g}") if name in SMALL else round(now * factor)}


def more_samples(run: Run) -> Mapping[str, Value]:
    """Draw twice as many completions per prompt."""
    samples = setting(run, "samples_per_prompt")
    return {"samples_per_prompt": 2 * int(samples) if samples and samples > 1 else MORE_SAMPLES}


def larger_batch(run: Run) -> Mapping[str, Value]:
    """Draw 16 completions in a step, or as many as is the default."""
    least = math.ceil(AMPLE_BATCH / (setting(run, "samples_per_prompt") or 1.0))
    return {"prompts_per_step": max(least, round(default(run, "prompts_per_step") or 0.0))}


def movement_cut(run: Run, usual: float = USUAL_CUT) -> float:
    """Return what to divide the movement of a step by that is too large.

    The KL of a step grows with the square of its movement: the root of (KL / 0.005) brings it to 0.005 nats per token.
    A policy that is sure of its answers moves no more: what counts is how it moved before, and how soon it was sure.
    The KL of a step is limited by the entropy that is left, so that a policy without any after few steps shows less
    than its rate would make; the rate that lets it last is that many times lower.

    Args:
        run: The run.
        usual: Without a logged KL, or where it is not large and the run learns nothing: it does not show what is wrong.
    """
    values, onset = _movements(run), entropy_lost_since(run)
    large = values[values > KL_OLD_LARGE]
    began = max(run.span[0], int(setting(run, "value_warmup_steps") or 0))  # before it the value head learns alone
    lasted = 1.0 if onset is None else LASTS / max(onset - began, 1)
    if not len(large) and (not len(values) or learns(run) is not True):
        return max(usual, lasted)
    level = np.median(large if len(large) else values)
    return float(np.clip(max(np.sqrt(level / AMPLE_UPDATE), lasted), LEAST_CUT, GREATEST_CUT))


def _movements(run: Run) -> np.ndarray:
    """Return the KL of each step, nats per token, while the policy had entropy to lose; none where none is logged."""
    size, onset = update_size(run), entropy_lost_since(run)
    return np.zeros(0) if size is None else size.values[size.steps < onset] if onset is not None else size.values


def slower(run: Run) -> Mapping[str, Value]:
    """Lower a learning rate that is too high."""
    return multiple(run, "learning_rate", 1.0 / movement_cut(run))


def rate_above_zero(run: Run) -> Mapping[str, Value]:
    """Set the trainer's default where the learning rate is 0, which has no multiple, and search from there.

    A policy that never moved does not tell how far a rate moves it.
    """
    usual, trained = default(run, "learning_rate"), setting(run, "learning_rate") != 0 or learning_rate(run)
    return {} if trained or not usual else {"learning_rate": usual, **rate_search(run)}


def rate_search(run: Run) -> Mapping[str, Value]:
    """Let the trainer measure the movement of a step and set the rate by it, where it can."""
    return {"autopilot": "act"} if "autopilot" in run.keys else {}


def faster(run: Run) -> Mapping[str, Value]:
    """Raise a learning rate that is too low.

    The KL of a step grows with the square of the rate: the root of (0.005 / KL) brings it to 0.005 nats per token.
    Without a logged KL, or with one update per batch, which is measured before it, 10 times. Beyond 100 times the
    square is a guess, and the trainer has to search on. No rate is too low where gradients are clipped to nothing, or
    where the one that is set never came into force.
    """
    norm, limit, logged = run.get("grad_norm"), setting(run, "max_grad_norm"), run.get("learning_rate")
    if norm is not None and limit and cut_away(norm.values, limit):
        return {}
    if setting(run, "learning_rate") and logged is not None and not logged.values.any():
        return {}  # a rate that is set and never comes into force
    size = None if updates_per_step(run) == 1 else update_size(run)
    level = 0.0 if size is None else size.median
    factor = float(np.sqrt(AMPLE_UPDATE / level)) if level > 0 else USUAL_RAISE
    higher = multiple(run, "learning_rate", min(max(factor, LEAST_RAISE), GREATEST_RAISE))
    return rate_above_zero(run) or {**higher, **(rate_search(run) if factor > GREATEST_RAISE else {})}


def calmer(run: Run) -> Mapping[str, Value]:
    """Change what makes steps too large: fewer passes over each batch, and for the rest a lower learning rate.

    Each pass adds to the movement of a step, so fewer of them are part of the cut. Without a logged KL, one pass and a
    third of the rate.
    """
    passes = setting(run, "epochs")
    if passes is None or passes <= 1:
        return {**slower(run), **({} if passes is not None else {"epochs": 1})}
    cut = movement_cut(run, usual=USUAL_CUT * passes)
    fewer = math.ceil(passes / cut)
    rate_cut = cut * fewer / passes
    return {**(multiple(run, "learning_rate", 1.0 / rate_cut) if rate_cut > NO_CUT else {}), "epochs": fewer}


def fewer_passes(run: Run) -> Mapping[str, Value]:
    """Make so many passes over each batch as its steps allow; one without a logged KL."""
    passes = setting(run, "epochs") or 1.0
    return {"epochs": math.ceil(passes / movement_cut(run, usual=passes))}


def plain_sampling(run: Run) -> Mapping[str, Value]:
    """Make log-probs those of the distribution sampled from."""
    if run.settings.get("logprobs") == "raw" and "logprobs" in run.keys:
        return {"logprobs": "sampled"}
    return {"temperature": 1.0, "top_p": 1.0, "top_k": 0}


def more_room(run: Run) -> Mapping[str, Value]:
    """Raise the limit on the length, or what was seen to reach it where no limit is known.

    If completions end as often per token as below the limit, the share s that reaches it becomes s to the power of
    the factor: ln 0.05 / ln s leaves one in twenty. Without a logged share, twice the limit. The longest completions of
    most rows have the limit's length, or do not show it.
    """
    longest, limit, share = run.get("length_max"), setting(run, "max_new_tokens"), run.get("truncated")
    level = 0.0 if share is None else float(np.clip(share.median, 0.0, 0.99))
    factor = np.clip(np.log(STILL_CUT) / np.log(level), USUAL_ROOM, GREATEST_ROOM) if level > 0 else USUAL_ROOM
    if limit is None and longest is not None and 2 * int((longest.values == longest.greatest).sum()) > len(longest):
        limit = longest.greatest
    return {"max_new_tokens": LIMIT_STEP * math.ceil(limit * factor / LIMIT_STEP) if limit else Times(float(factor))}


def kept_completions(run: Run) -> Mapping[str, Value]:
    """Keep a completion from a reward on that a quarter of them exceeds, if their rewards are about normal."""
    reward, spread = run.get("reward"), run.get("reward_std") or run.get("reward_std_within")
    if reward is None or spread is None:
        return {}
    return {"algorithm.args.reward_threshold": float(reward.median + QUARTILE * spread.median)}


def more_entropy(run: Run) -> Mapping[str, Value]:
    """Hold the entropy up: by sampling at temperature 1, else by a wider upper clip range, with a critic by a bonus."""
    if (setting(run, "temperature") or 1.0) < 1.0:
        return {"temperature": 1.0}
    targets = {"entropy_coef": 0.01, "clip": 0.28} if run.traits.critic else {"clip": 0.28}
    return {name: value for name, value in targets.items() if (setting(run, name) or 0.0) < value}  # some have more


def horizon_batch(run: Run) -> float | None:
    """Return by how much a step of the run counts in its controller's horizon; None where that is not known."""
    return 1.0 if run.settings.get("kl_horizon_unit") == "updates" else setting(run, "batch_size")


def horizon(run: Run) -> Mapping[str, Value]:
    """Set the horizon with which the coefficient can double in 20 steps."""
    batch = horizon_batch(run)
    return {"kl_horizon": round(LARGEST_ERROR * batch * DOUBLE_IN / np.log(2.0))} if batch else {}


def with_rate(run: Run, finding: Finding) -> Finding:
    """Return a finding whose new temperature, if it sets one, comes with the learning rate that fits.

    Log-probs of the sampled distribution move as 1 / temperature, and so the KL of a step grows as its inverse square.
    A higher temperature does a part of what a lower rate is meant to do, and may leave steps too small to move.
    """
    key, rate = run.keys.get("learning_rate"), learning_rate(run)
    changes, movements = dict(override.split("=", 1) for override in finding.overrides), _movements(run)
    new, old = changes.get(run.keys.get("temperature", "")), setting(run, "temperature")
    if run.settings.get("logprobs") != "sampled" or not (new and old and key and rate and len(movements)):
        return finding
    advised = float(changes.get(key, rate)) / rate
    level = float(np.median(movements)) * (old / float(new)) ** 2
    if advised != 1.0:  # never beyond what it is now, to the other side
        factor = advised * float(new) / old
        factor = min(factor, 1.0) if advised < 1.0 else max(factor, 1.0)
    elif level and not LITTLE_UPDATE <= level <= KL_OLD_LARGE:
        factor = float(np.clip(np.sqrt(AMPLE_UPDATE / level), 1.0 / GREATEST_CUT, GREATEST_RAISE))
    else:
        return finding
    fitting = {} if factor == 1.0 else {key: f"{rate * factor:.1g}"}
    changes = {name: value for name, value in changes.items() if name != key} | fitting
    remedy = f"{finding.remedy} The temperature changes how far a step moves, and the rate goes with it."
    return replace(finding, remedy=remedy, overrides=tuple(f"{name}={value}" for name, value in changes.items()))


CHANGES: Mapping[str, Callable[[Run], Mapping[str, Value]]] = {
    "slower": slower,
    "calmer": calmer,
    "fewer_passes": fewer_passes,
    "faster": faster,
    "rate_above_zero": rate_above_zero,
    "more_samples": more_samples,
    "larger_batch": larger_batch,
    "plain_sampling": plain_sampling,
    "more_room": more_room,
    "kept_completions": kept_completions,
    "more_entropy": more_entropy,
    "horizon": horizon,
}


def go_back(onset: int | None) -> str:
    """Return where to go on from when a fault began at a step."""
    return f"go back to a checkpoint before step {onset}" if onset else "start again from the beginning"
