"""Runs on disk, small: one gzip file each, and a line of labels for every run. Standard library only.

The first line of a run of ours holds the settings and what run.json says, the others are those of metrics.jsonl with
five digits and without times: those of a machine with other work to do say nothing of a run. ``unpack`` makes a run
directory of it again. Logs of other trainers are kept as these wrote them.
"""

from __future__ import annotations

import gzip
import json
import math
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

DATA = Path(__file__).parent / "data"
LABELS = "labels.jsonl"
DIGITS = 5  # of what was computed in float32
TIMES = ("time", "tokens/per_second")
SPELLED = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}

Record = dict[str, Any]


def write_run(path: Path, head: Mapping[str, Any], records: Iterable[Mapping[str, Any]]) -> None:
    """Write a run; equal contents give equal bytes.

    Args:
        path: Of the gzip file.
        head: "resolved" (all settings) and "run" (as in run.json).
        records: The lines of metrics.jsonl.
    """
    kept = [{k: _short(v) for k, v in record.items() if not k.startswith(TIMES)} for record in records]
    lines = [json.dumps(head), *(json.dumps(record, allow_nan=False) for record in kept)]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(gzip.compress("".join(line + "\n" for line in lines).encode(), mtime=0))


def read_run(path: Path) -> tuple[Record, list[Record]]:
    """Return head and records of a stored run of ours, non-finite numbers as such."""
    head, *lines = _lines(path)
    return json.loads(head), [{k: _number(v) for k, v in json.loads(line).items()} for line in lines]


def read_metrics(path: Path) -> list[Record]:
    """Return the records of any stored run, one for every step."""
    if path.name.endswith(".json.gz"):
        history = json.loads(gzip.decompress(path.read_bytes()))["log_history"]
        return [record for record in history if "loss" in record]  # the last one sums the run up
    lines = _lines(path)
    return read_run(path)[1] if "resolved" in json.loads(lines[0]) else [json.loads(line) for line in lines]


def stored(folder: Path, label: Mapping[str, Any]) -> Path:
    """Return the file of a labelled run."""
    return folder / label.get("file", f"{label['run']}.jsonl.gz")


def unpack(path: Path, folder: Path, steps: int | None = None) -> Path:
    """Write a stored run as its trainer did.

    Args:
        path: Of the gzip file.
        folder: Where to; made if needed.
        steps: The first so many steps only; None takes all.

    Returns:
        What the doctor is given: a run directory of ours, or another trainer's log file.
    """
    folder.mkdir(parents=True, exist_ok=True)
    if path.name.endswith(".json.gz"):
        state = json.loads(gzip.decompress(path.read_bytes()))
        state["log_history"] = read_metrics(path)[:steps]
        return _written(folder / "trainer_state.json", json.dumps(state))
    first, *lines = _lines(path)
    head = json.loads(first)
    if "resolved" not in head:
        return _written(folder / "log.jsonl", "\n".join([first, *lines][:steps]) + "\n")
    for name in ("resolved", "run"):
        _written(folder / f"{name}.json", json.dumps(head[name], indent=2))
    return _written(folder / "metrics.jsonl", "".join(line + "\n" for line in lines[:steps])).parent


def read_labels(folder: Path = DATA) -> list[Record]:
    """Return the labels of all stored runs, by name."""
    lines = (folder / LABELS).read_text(encoding="utf-8").splitlines()
    return sorted(map(json.loads, lines), key=lambda label: label["run"])


def write_labels(labels: Iterable[Mapping[str, Any]], folder: Path = DATA) -> None:
    """Write the labels of all stored runs, a line each, by name."""
    ordered = sorted(labels, key=lambda label: label["run"])
    (folder / LABELS).write_text("".join(json.dumps(label) + "\n" for label in ordered), encoding="utf-8")


def _lines(path: Path) -> list[str]:
    return gzip.decompress(path.read_bytes()).decode().splitlines()


def _written(path: Path, text: str) -> Path:
    path.write_text(text, encoding="utf-8")
    return path


def _short(value: Any) -> Any:
    if not isinstance(value, float):
        return value
    if not math.isfinite(value):
        return "NaN" if math.isnan(value) else ("Infinity" if value > 0 else "-Infinity")
    return float(f"{value:.{DIGITS}g}")


def _number(value: Any) -> Any:
    return SPELLED.get(value, value) if isinstance(value, str) else value
