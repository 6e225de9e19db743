"""Our own run directory: metrics.jsonl with its attempts, and every setting from resolved.json."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from steadyrl.core.errors import RunError
from steadyrl.core.rundir import RunDir, read_lines
from steadyrl.core.types import DECODINGS
from steadyrl.doctor.readers.completions import JsonTexts, step_files
from steadyrl.doctor.readers.lines import objects
from steadyrl.doctor.readers.rows import Rows
from steadyrl.doctor.readers.spelling import flat_settings
from steadyrl.doctor.series import RawLog

MAX_ATTEMPT = 2**20


def is_record(row: dict[str, Any]) -> bool:
    """Return whether a row is a line of our metrics.jsonl."""
    return type(row.get("step")) is int and type(row.get("attempt")) is int


def is_run_folder(folder: Path) -> bool:
    """Return whether a folder is a run directory, be it one that has no metrics yet."""
    run = RunDir(folder)
    marks = [run.info_file.is_file(), run.resolved_file.is_file()]
    return any(marks) and (all(marks) or run.metrics_file.is_file() or run.checkpoint_folder(0).parent.is_dir())


def files(folder: Path) -> set[Path]:
    """Return the files of a run directory that are no log beside its own."""
    run = RunDir(folder)
    by_step = {run.metrics_file, run.findings_file, run.actions_file, run.curriculum_file}
    return by_step | {run.info_file, run.resolved_file}


def read(folder: Path) -> RawLog:
    """Read a run directory: of each step the highest attempt, as ``RunDir.metrics`` does, without its list of records.

    A null means "unknown" here and is left out; a number that is not finite is written as a word.

    Raises:
        RunError: It has no metrics yet.
    """
    run = RunDir(folder)
    if not run.metrics_file.is_file() or not run.metrics_file.stat().st_size:
        raise RunError(
            f"the run '{folder}' has no metrics yet; wait for its first step, or see in {run.info_file.name} and in "
            "what it printed why it ended before"
        )
    rows, notes, attempts = Rows(("step",), null=None), list[str](), set[int]()
    for chunk in objects(run.metrics_file, notes):
        records = list(filter(is_record, chunk))
        # A broken line may hold an integer of any size.
        ranks = [min(max(row.pop("attempt"), 0), MAX_ATTEMPT) for row in records]
        attempts.update(ranks)
        rows.add(records, ranks)
    if len(attempts) > 1:
        notes.append(f"resumptions of the run: {len(attempts) - 1}")
    settings: dict[str, Any] = {}
    try:
        settings = flat_settings(run.resolved())
    except (RunError, RecursionError) as error:
        notes.append(f"the settings are unknown: {error}")
    log = rows.log(str(folder), "steadyrl", settings, notes)
    gains = {decoding: after - before for decoding, (before, after) in _held_out(run, "reward").items()}
    completions = JsonTexts(step_files(run.rollouts_file(0).parent))
    return replace(log, completions=completions, gains=gains, scores=_held_out(run, "metric"))


def _held_out(run: RunDir, measured: str) -> dict[str, np.ndarray]:
    """Return a number of the held-out problems before and after training, [2, n] by way of decoding."""
    evaluations = (read_lines(run.evaluation_file(name)) for name in ("before", "after"))
    before, after = ({str(line.get("problem")): line for line in lines} for lines in evaluations)
    pairs: dict[str, np.ndarray] = {}
    for decoding in DECODINGS:
        shared = [name for name in before if name in after]
        numbers = [[_number(lines[name], decoding, measured) for lines in (before, after)] for name in shared]
        scored = [pair for pair in numbers if None not in pair]
        if scored:
            pairs[decoding] = np.array(scored, np.float64).T
    return pairs


def _number(line: dict[str, Any], decoding: str, measured: str) -> float | None:
    answers = line.get("answers")
    answer = answers.get(decoding) if isinstance(answers, dict) else None
    value = answer.get(measured) if isinstance(answer, dict) else None
    return float(value) if isinstance(value, int | float) and math.isfinite(value) else None
