"""One JSON document with the metrics somewhere in it: a list of rows, columns as lists, or the state of a Trainer."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from steadyrl.doctor.readers.lines import parse_json, whole
from steadyrl.doctor.readers.rows import SUMMARY, Rows
from steadyrl.doctor.readers.spelling import MAX_NESTING, flat_settings, number
from steadyrl.doctor.series import RawLog
from steadyrl.errors import RunError

MAX_BYTES = 256 << 20  # the whole file is parsed at once, at about ten times its size
MAX_RUNS = 1000
HISTORY = "log_history"  # of trainer_state.json
STEPS = ("step", "steps", "global_step", "iteration", "iterations", "epoch", "epochs")


@dataclass
class _Part:
    """A dict of the document: what it holds beside further dicts."""

    path: str
    settings: dict[str, Any] = field(default_factory=dict)
    rows: dict[str, list[dict[str, Any]]] = field(default_factory=dict)  # lists of rows
    lists: dict[str, list[Any]] = field(default_factory=dict)  # lists of numbers
    by_step: dict[str, dict[str, Any]] = field(default_factory=dict)  # {"10": 0.5, "20": 0.7}


def read(path: Path) -> list[RawLog]:
    """Read every run of a document; what stands above the metrics are settings.

    Raises:
        RunError: It is too large, or torn.
    """
    content = whole(path, MAX_BYTES)
    if content is None:
        raise RunError(
            f"'{path}' is larger than a JSON file of metrics may be ({MAX_BYTES >> 20} MiB) or torn: use JSON lines"
        )
    found = parse_json(content)
    if not isinstance(found, dict | list):
        raise RunError(f"'{path}' is torn, or nested too deeply for JSON; name another log of the run")
    if isinstance(found, dict) and HISTORY in found and not isinstance(found[HISTORY], list):
        raise RunError(f"'{path}' has no list '{HISTORY}'; take the state of an earlier checkpoint")
    parts = list(_parts(found if isinstance(found, dict) else {"": found}))
    held = [part for part in parts if part.rows or part.lists]
    shared = parts[0].settings if parts else {}
    return [_log(path, part, shared, len(held) > 1) for part in held[:MAX_RUNS]]


def _parts(data: Mapping[str, Any], path: str = "", depth: int = 0) -> Iterator[_Part]:
    part, inner = _Part(path), list[tuple[str, Mapping[str, Any]]]()
    for key, value in data.items():
        if isinstance(value, list) and value:
            _take_list(part, key, value)
        elif isinstance(value, dict) and value:
            if _is_by_step(value):
                part.by_step[key] = value
            else:
                inner.append((key, value))
                part.settings |= {k: v for k, v in flat_settings({key: value}).items() if not isinstance(v, list)}
        elif isinstance(value, str | int | float) or value is None:
            part.settings[key] = value
    yield part
    for key, value in inner if depth < MAX_NESTING else ():
        yield from _parts(value, f"{path}.{key}" if path else key, depth + 1)


def _take_list(part: _Part, key: str, value: list[Any]) -> None:
    rows = [row for row in value if isinstance(row, dict)]
    if 2 * len(rows) > len(value):
        part.rows[key] = rows
    elif all(number(item) is not None for item in value):
        part.lists[key] = value


def _is_by_step(value: Mapping[str, Any]) -> bool:
    return all(key.isdecimal() and number(item) is not None for key, item in value.items())


def _log(path: Path, part: _Part, shared: Mapping[str, Any], several: bool) -> RawLog:
    """Return the log of the longest list of rows, or of the lists of numbers that are as long as the longest one."""
    rows = Rows()
    kept: list[dict[str, Any]] = []
    if part.rows:
        kept = max(part.rows.values(), key=len)
        rows.add([row for row in kept if SUMMARY not in row])
    else:
        length = max(map(len, part.lists.values()))
        columns = {key: values for key, values in part.lists.items() if len(values) == length}
        step = next((key for key in STEPS if key in columns), None)
        rows.add([dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)])
        for key, values in part.by_step.items():
            rows.add([{step or STEPS[0]: int(at), key: value} for at, value in values.items()])
    name = f"{path}#{part.path}" if several and part.path else str(path)
    format = "trainer_state" if HISTORY in part.rows else "jsonl"
    return rows.log(name, format, {**shared, **part.settings})
