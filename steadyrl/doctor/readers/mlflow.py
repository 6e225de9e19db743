"""MLflow's file store: mlruns/<experiment>/<run>/metrics/<name>, a line for each value."""

from __future__ import annotations

import math
import os
import sys
from pathlib import Path

from steadyrl.doctor.readers.lines import lines, text_of
from steadyrl.doctor.readers.rows import POINT, Rows
from steadyrl.doctor.readers.spelling import spelled, typed
from steadyrl.doctor.series import RawLog

MAX_PARAM = 1 << 16


def is_run_folder(folder: Path) -> bool:
    """Return whether a folder is a run of the file store."""
    return (folder / "meta.yaml").is_file() and (folder / "metrics").is_dir()


def read(folder: Path) -> RawLog:
    """Read a run of the file store; a metric "a/b" is the file b in the folder a."""
    rows, notes, broken = Rows((POINT,)), list[str](), 0
    for name, path in _files(folder / "metrics"):
        for line in (line for chunk in lines(path, notes) for line in chunk):
            fields = [spelled(word) for word in text_of(line).split()[:3]]  # time, value, step
            if len(fields) == 3 and fields[1] is not None and fields[2] is not None:
                rows.put({POINT: fields[2], name: finite_or_not(fields[1])})
            else:
                broken += bool(fields)
    if broken:
        notes.append(f"lines of metrics left out, for they are torn: {broken}")
    params = {name: path for name, path in _files(folder / "params") if path.stat().st_size <= MAX_PARAM}
    settings = {name: typed(text_of(path.read_bytes())) for name, path in params.items()}
    return rows.log(str(folder), "mlflow", settings, notes)


def finite_or_not(value: float) -> float:
    """Return infinity for the largest float, which MLflow writes in its place."""
    return math.copysign(math.inf, value) if abs(value) == sys.float_info.max else value


def _files(root: Path) -> list[tuple[str, Path]]:
    paths = [Path(folder) / name for folder, _, names in os.walk(root) for name in names]
    return sorted((path.relative_to(root).as_posix(), path) for path in paths if path.is_file())
