"""Our own run directory: metrics.jsonl with its attempts, and every setting from resolved.json."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from steadyrl.doctor.readers.completions import JsonTexts, step_files
from steadyrl.doctor.readers.lines import objects
from steadyrl.doctor.readers.rows import Rows
from steadyrl.doctor.readers.spelling import flat_settings
from steadyrl.doctor.series import RawLog
from steadyrl.errors import RunError
from steadyrl.rundir import RunDir, read_lines

MAX_ATTEMPT = 2**20
_ENDS = ("before", "after")  # evaluations


def is_record(row: dict[str, Any]) -> bool:
    """Return whether a row is a line of our metrics.jsonl."""
    return type(row.get("step")) is int and type(row.get("attempt")) is int


def is_run_folder(folder: Path) -> bool:
    """Return whether a folder is a run directory, be it one that has no metrics yet."""
    run = RunDir(folder)
    marks = [run.info_file.is_file(), run.resolved_file.is_file()]
    return all(marks) or (any(marks) and (run.metrics_file.is_file() or run.checkpoint_folder(0).parent.is_dir()))


def files(folder: Path) -> set[Path]:
    """Return the files of a run directory that are no log beside its own."""
    run = RunDir(folder)
    of_steps = {run.metrics_file, run.findings_file, run.actions_file, run.curriculum_file}
    return of_steps | {run.info_file, run.resolved_file}


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
    return replace(log, completions=JsonTexts(step_files(run.rollouts_file(0).parent)), gains=_gains(run))


def _gains(run: RunDir) -> dict[str, np.ndarray]:
    """Return what held-out problems gained from before to after training, [n] by way of decoding; see ``RawLog``."""
    before, after = (
        {str(line.get("problem")): line for line in read_lines(run.evaluation_file(name))} for name in _ENDS
    )
    gains = {}
    for decoding in ("sampled", "greedy"):
        pairs = [(_reward(before[name], decoding), _reward(after[name], decoding)) for name in before if name in after]
        differences = np.array([end - start for start, end in pairs if start is not None and end is not None])
        if len(differences):
            gains[decoding] = differences
    return gains


def _reward(line: dict[str, Any], decoding: str) -> float | None:
    """Return the finite reward of an answer, None where it has none."""
    answers = line.get("answers")
    answer = answers.get(decoding) if isinstance(answers, dict) else None
    reward = answer.get("reward") if isinstance(answer, dict) else None
    return float(reward) if isinstance(reward, int | float) and math.isfinite(reward) else None
