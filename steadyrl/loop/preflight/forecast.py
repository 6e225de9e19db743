"""What a whole run will take: time, memory and disk, from what a few rollouts and updates took."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from steadyrl.backends.settings import MICRO_BATCH_TOKENS
from steadyrl.backends.torch.device_memory import Memory
from steadyrl.core.counting.count import duration
from steadyrl.core.words import counted
from steadyrl.doctor.check import Check, Found, Passed, Result, Unknown
from steadyrl.loop.preflight.trial import Timed, Trial, check
from steadyrl.loop.preflight.trial_updates import TrialUpdates
from steadyrl.loop.train import Session

_GIB = 2.0**30
_MOMENT_BYTES = 8  # of Adam per trained parameter, float32; of a backend that does not say what it holds


@dataclass(frozen=True)
class Measured:
    """What a forecast is made from: the rollouts and the updates, with times, and the memory before and after them."""

    trial: Trial
    updates: TrialUpdates
    before: Memory
    """What was in use before the trial."""
    now: Memory
    """What is in use after the updates."""


def affine(few: Timed, many: Timed, rows: float, calls: float) -> float:
    """Return the seconds of so many rows in so many calls, by a cost per call and one per row, from two calls."""
    if many.rows <= few.rows:
        return many.seconds / many.rows * rows
    # Noise may make the larger call the quicker one, or its rows alone dearer than the whole call: neither can be.
    per_row = min(max(many.seconds - few.seconds, 0.0) / (many.rows - few.rows), many.seconds / many.rows)
    return calls * (many.seconds - per_row * many.rows) + per_row * rows


@check("time")
def run_time(measured: Measured) -> Result:
    trial, session, config = measured.trial, measured.trial.session, measured.trial.session.config
    if measured.updates.updates is None:
        return Unknown("no update could be timed")
    rows = session.config.rollout.rollouts
    per_reward = trial.reward.seconds / trial.reward.rows
    updates = config.update.epochs * config.update.minibatches
    seconds_by_phase = {
        "sampling": _sampling_seconds(trial, rows),
        "rewards": per_reward * rows,
        "scoring": trial.scoring.seconds / trial.scoring.rows * rows,
        "updates": affine(*measured.updates.updates, rows=config.update.epochs * rows, calls=updates),
    }
    step = sum(seconds_by_phase.values())
    # Every held-out problem is sampled ``evaluate.samples`` times, and answered once greedily.
    sizes = [len(s.problems) * n for s in session.heldout_sets for n in (config.evaluate.samples, 1)]
    per_evaluation = sum(_sampling_seconds(trial, count) + per_reward * count for count in sizes)
    # Before training, during it, and after the last step.
    during = -(-config.run.steps // config.evaluate.every) if config.evaluate.every else 1
    evaluations = (1 + during) if session.heldout_sets else 0
    breakdown = ", ".join(f"{name} {duration(seconds)}" for name, seconds in seconds_by_phase.items())
    message = f"about {duration(config.run.steps * step + evaluations * per_evaluation)}: "
    message += f"{counted(config.run.steps, 'step')} of {duration(step)} ({breakdown})"
    if evaluations:
        message += f" and {counted(evaluations, 'evaluation')} of {duration(per_evaluation)}"
    return Passed(f"{message}; measured on {counted(trial.reward.rows, 'rollout')}; a step has {rows}")


def _sampling_seconds(trial: Trial, rows: int) -> float:
    calls = -(-rows // _limit(trial.session, "generate_rows", rows))
    return affine(*trial.sampling, rows=rows, calls=calls)


def _limit(session: Session, name: str, default: int) -> int:
    """Return what the backend computes at once at most: ``default``, where it has no such setting."""
    setting: int | None = getattr(session.config.backend.args, name, default)
    limit: Any = session.backend.describe().get(name, MICRO_BATCH_TOKENS) if setting is None else setting
    return int(limit)


@check("memory")
def memory(measured: Measured) -> Result:
    # What the trial added, Adam's moments apart, grows with its rollouts at most.
    trial, now = measured.trial, measured.now
    sizes = _held_sizes(trial.session.backend.describe())
    moments = sizes.get("optimizer", 0.0)
    rows, lengths = trial.session.config.rollout.rollouts, trial.batch.lengths
    # Rows are computed in parts of bounded size.
    tokens = _limit(trial.session, "micro_batch_tokens", rows * int(lengths.max()))
    at_once = min(rows, tokens / max(1.0, float(lengths.mean())))
    sampled_rows = min(rows, _limit(trial.session, "generate_rows", rows))
    growth = max(1.0, at_once / trial.scoring.rows, sampled_rows / trial.sampling[1].rows)
    max_peak = now.peak + (growth - 1) * max(0, now.peak - measured.before.peak - moments)
    message = f"peak so far {_size(now.peak)}, at most {_size(max_peak)} in a full step"
    message += f"; the {now.place} has {_size(now.total)}"
    if len(sizes) > 1:
        breakdown = ", ".join(f"{name} {_size(size)}" for name, size in sizes.items())
        message += f"; from step to step it holds {breakdown}"
    if max_peak <= now.total:
        return Passed(message)
    halved = {
        f"backend.args.{name}": max(1, _limit(trial.session, name, 1) // 2)
        for name in ("micro_batch_tokens", "generate_rows")
        if hasattr(trial.session.config.backend.args, name)
    }
    return Found("memory", "warning", message=f"{message}: a full step may not fit", change=halved)


def _held_sizes(described: Mapping[str, object]) -> dict[str, float]:
    """Return the bytes that a backend holds from step to step, by what they hold; Adam's moments where it is silent."""
    memory = described.get("memory")
    if isinstance(memory, Mapping):
        return dict(memory)
    trained = described.get("trained", described.get("parameters", 0))
    return {"optimizer": trained * _MOMENT_BYTES} if isinstance(trained, int) else {}


@check("disk")
def disk(measured: Measured) -> Result:
    config, saved_bytes = measured.trial.session.config, measured.updates.saved_bytes
    if saved_bytes is None:
        return Unknown("no checkpoint could be made")
    folder = Path(config.run.folder).absolute()
    while not folder.exists():
        folder = folder.parent
    if not os.access(folder, os.W_OK):
        return Found("not_writable", message=f"'{folder}' cannot be written")
    free = shutil.disk_usage(folder).free
    # A new checkpoint is complete before the oldest goes; the best by held-out score is kept beside the newest.
    count = 1 + min(config.run.keep_checkpoints, -(-config.run.steps // config.run.checkpoint_every))
    count += bool(config.evaluate.every)
    needed = count * saved_bytes
    message = f"a checkpoint takes {_size(saved_bytes)}, {count} at a time {_size(needed)}"
    message += f"; {_size(free)} are free in {folder}"
    if needed <= free:
        return Passed(message)
    return Found("disk", message=message, change={"run.keep_checkpoints": 1})


COSTS: Sequence[Check[Measured]] = (run_time, memory, disk)


def _size(count: float) -> str:
    return f"{count / _GIB:.2f} GiB" if count >= _GIB / 10 else f"{count / 2**20:.1f} MiB"
