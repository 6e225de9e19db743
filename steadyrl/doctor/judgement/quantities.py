"""What a judgement rests on: some twenty quantities that mean the same of every trainer's log.

Each is higher the more it speaks for a fault.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

import numpy as np

from steadyrl.doctor.series import Run, Series
from steadyrl.doctor.statistics.levels import kendall_z
from steadyrl.doctor.statistics.readings import at_top, is_penalty, reward_spread, setting
from steadyrl.doctor.statistics.units import find

BLOCKS = 10
SMALLEST = 1e-9
MOST_NOISE = 100.0  # times the noise between rows that a change may be: rounded rewards may hide their noise
LEAST_KL = 1e-6  # nats a token: what lies below is as good as 0
LOWER_IS_BETTER = re.compile("perplexity|ppl|loss|error|violation|toxic")  # of held-out measurements
OFTEN = 0.25  # of the rows with the second most frequent reward
IDLE = 0.8  # of the rows, in which a reward's part is 0


def quantities(run: Run) -> dict[str, float]:
    """Return the quantities that a run's log holds, by their names in families.toml; logarithms are decimal."""
    groups = (_reward, _signal, _ending, _kl, _updates, _entropy, _measurements)
    values = {name: value for group in groups for name, value in group(run).items()}
    values["few_rows"] = -_log(max(map(len, run.logged), default=0))
    return {name: float(value) for name, value in values.items() if np.isfinite(value)}


def _reward(run: Run) -> Mapping[str, float]:
    """Return how the reward goes: its change is in units of the noise from row to row, and of block means."""
    reward = run.get("reward")
    if reward is None or at_top(reward):  # where it rests: nothing of its course is a fault
        return {}
    x, n = reward.values, len(reward)
    *_, second, commonest = 0, *np.sort(np.unique(np.round(x, 9), return_counts=True)[1])
    values = {"reward_zero": float(np.mean(np.abs(x) < SMALLEST))}
    if second <= OFTEN * n:  # single rewards of a few values come again by themselves
        values["reward_repeated"] = (commonest - 1) / n
    if n < 3:
        return values
    blocks = np.array([block.mean() for block in np.array_split(x, min(BLOCKS, n))])
    values["reward_disordered"] = -kendall_z(blocks)
    if n == 3 and np.ptp(x):  # the noise of one row to the next takes more
        return values
    noise = float(np.std(np.diff(x))) / np.sqrt(2.0)
    gain, lost = _last(reward) - _first(reward), float(blocks.max() - blocks[-1])
    noise = max(noise, float(np.ptp(x)) / MOST_NOISE, SMALLEST)
    return values | {
        "reward_not_rising": -gain / noise if np.ptp(x) else 0.0,
        "reward_below_best": lost / (noise / np.sqrt(n / len(blocks))) if np.ptp(x) else 0.0,
    }


def _signal(run: Run) -> Mapping[str, float]:
    spread, norm, share = reward_spread(run), run.get("grad_norm"), run.get("no_signal")
    alike = [] if share is None else [_last(share)]
    spreads = [series for series in (spread, run.get("advantage_std")) if series is not None]
    alike += [float(np.mean(series.values <= SMALLEST)) for series in spreads]
    values = {"no_signal": max(alike) * (1.0 - _learned(run))} if alike else {}
    return values | ({} if norm is None else {"gradient_zero": float(np.mean(norm.values <= SMALLEST))})


def _ending(run: Run) -> Mapping[str, float]:
    values: dict[str, float] = {}
    if (cut := run.get("truncated")) is not None:
        values |= {"cut_off": _last(cut), "cut_off_more": _last(cut) - _first(cut)}
    if (length := run.get("length")) is not None:
        top = length.values == length.greatest
        values["length_repeated"] = (top.sum() - 1) / len(length)
        longest, limit = run.get("length_max"), setting(run, "max_new_tokens")
        if limit is None and longest is not None and len(longest) > 2:
            greatest = longest.greatest
            limit = greatest if (longest.values == greatest).mean() > 0.5 else None
        values |= {"length_at_limit": _last(length) / limit} if limit else {}
    return values


def _kl(run: Run) -> Mapping[str, float]:
    """Return how far the policy is from its reference; a KL whose unit is not known counts as one per token."""
    unknown = (series.finite() for series in run.series.get("kl_ref", ()) if not series.unit)
    if not (kl := find(run, "kl_ref") or next(unknown, None)):
        return {}
    x, usual = kl.values, max(kl.median, LEAST_KL)
    greatest = _log(max(float(x.max()), LEAST_KL))
    end = max(float(np.median(x[-_third(kl) :])), LEAST_KL)
    below = max(-float(x.mean()), 0.0) / max(float(np.abs(x).mean()), SMALLEST)
    return {"kl_end": _log(end), "kl_most": greatest, "kl_spike": greatest - _log(usual), "kl_negative": below}


def _updates(run: Run) -> Mapping[str, float]:
    norm, loss, size = run.get("grad_norm"), run.get("loss"), run.get("kl_old")
    values = {} if loss is None else {"loss_most": _log(float(np.abs(loss.values).max()))}
    values |= {} if size is None else {"update_most": _log(float(np.abs(size.values).max()))}
    if norm is None:
        return values
    usual = norm.median
    values |= {"gradient_spike": _log(norm.greatest) - _log(usual)} if usual > 0 else {}
    return values | {"gradient_growth": _growth(norm)}


def _entropy(run: Run) -> Mapping[str, float]:
    entropy = run.get("entropy")
    if entropy is None:
        return {}
    growth = _growth(entropy)
    return {"entropy_most": _log(entropy.greatest), "entropy_growth": growth, "entropy_loss": -growth}


def _measurements(run: Run) -> Mapping[str, float]:
    reward_parts = [part.values for name, part in run.with_prefix("reward_part/").items() if not is_penalty(name, part)]
    changes = [
        (part.first - part.last) if LOWER_IS_BETTER.search(name) else (part.last - part.first)
        for name, part in run.with_prefix("heldout/").items()
        if len(part) > 1
    ]
    values = {"heldout_fall": float(np.mean(np.array(changes) < 0.0))} if changes else {}
    if len(reward_parts) < 2:
        return values
    idle = [np.mean(np.abs(part) < SMALLEST) > IDLE for part in reward_parts]
    fixed = [np.ptp(part) <= SMALLEST for part in reward_parts]
    return values | {"parts_at_zero": float(np.mean(idle)), "parts_fixed": float(np.mean(fixed))}


def _learned(run: Run) -> float:
    """Return how much of the way up a reward that rises has gone, 0 to 1: groups may be alike because all are right."""
    reward = run.get("reward")
    if reward is not None and at_top(reward):
        return _last(reward) / reward.greatest
    if reward is None or len(reward) < 3 or _last(reward) <= _first(reward):
        return 0.0
    return (_last(reward) - reward.least) / float(np.ptp(reward.values))


def _third(series: Series) -> int:
    return max(len(series) // 3, 1)


def _first(series: Series) -> float:
    return float(series.values[: _third(series)].mean())


def _last(series: Series) -> float:
    return float(series.values[-_third(series) :].mean())


def _growth(series: Series) -> float:
    """Return the logarithm of the last third over the first; NaN where there is none, or where either is 0."""
    first, last = _first(series), _last(series)
    return _log(last) - _log(first) if len(series) > 1 and min(first, last) > SMALLEST else np.nan


def _log(x: float) -> float:
    return float(np.log10(max(x, SMALLEST)))
