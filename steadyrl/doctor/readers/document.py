"""One JSON document with the metrics somewhere in it: a list of rows, columns as lists, or the state of a Trainer."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from steadyrl.core.errors import RunError
from steadyrl.core.words import shell_command
from steadyrl.doctor.readers.json_tables import STEPS, course_in, rows_in
from steadyrl.doctor.readers.lines import head, parse_json, text_of
from steadyrl.doctor.readers.parting import METRIC, Runs
from steadyrl.doctor.readers.rows import MAX_RUNS, MIN_ROWS, SUMMARY, Rows
from steadyrl.doctor.readers.spelling import MAX_NESTING, flat_settings, number, with_truths
from steadyrl.doctor.readers.tables import REWARD, chart_in
from steadyrl.doctor.series import RawLog

MAX_BYTES = 256 << 20  # the whole file is parsed at once, at about ten times its size
MAX_INNER = 5_000_000  # lists and objects, of which each takes some hundred bytes
CHECKPOINT = re.compile(r"checkpoint-(\d{1,15})")
MAX_TORN = 100  # objects that begin and do not end
TORN = "the JSON is torn or a part of one: its whole rows are read, settings are not"
STATE, HISTORY = "trainer_state.json", "log_history"  # of Hugging Face's Trainer, which writes one at every checkpoint
# Files of settings, the surest first, and what the file of a log may end with.
SETTINGS = ("training_args.json", "args.json", "hparams.json", "config.json")
LOGS = (".jsonl", ".ndjson", ".csv", ".tsv", ".log", ".txt", ".out", ".md", ".ipynb")
MODEL = frozenset(("architectures", "model_type"))
MAX_SETTINGS = 1 << 20


def newest_state(folder: Path) -> Path | None:
    """Return the state with the most steps in a Trainer's output folder, or None if there is none."""
    numbered = [
        (int(name[1]), path) for path in folder.glob("checkpoint-*") if (name := CHECKPOINT.fullmatch(path.name))
    ]
    states = [path / STATE for _, path in sorted(numbered, reverse=True) if (path / STATE).is_file()]
    final = folder / STATE
    if not final.is_file():
        return states[0] if states else None
    # The one beside the checkpoints is written at the end; a resumed run may have gone on since.
    return max([final, *states[:1]], key=_global_step)


def is_checkpoint(folder: Path) -> bool:
    """Return whether a folder is one of those that ``newest_state`` looks into."""
    return CHECKPOINT.fullmatch(folder.name) is not None and (folder / STATE).is_file()


def _global_step(path: Path) -> float:
    state = parse_json(head(path, MAX_BYTES))
    step = state.get("global_step") if isinstance(state, dict) else None
    return step if isinstance(step, int | float) else -1


def read(path: Path) -> list[RawLog]:
    """Read every run of a document; what stands above the metrics are settings.

    Raises:
        RunError: It is too large, or torn.
    """
    content = head(path, MAX_BYTES + 1)
    if len(content) > MAX_BYTES:
        raise RunError(f"'{path}' is larger than a JSON file of metrics may be ({MAX_BYTES >> 20} MiB): use JSON lines")
    if content.count(b"[") + content.count(b"{") > MAX_INNER:
        raise RunError(f"'{path}' holds more than {MAX_INNER:,} lists and objects; a JSON file of metrics may not")
    parsed = parse_json(content)
    if parsed is None and (whole_rows := _whole_rows(text_of(content))):
        rows = Rows()
        rows.add(whole_rows)
        return [rows.log(str(path), "trainer_state" if HISTORY.encode() in content else "jsonl", {}, [TORN])]
    if not isinstance(parsed, dict | list):
        raise RunError(f"'{path}' is torn, or nested too deeply for JSON; name another log of the run")
    if isinstance(parsed, dict) and HISTORY in parsed and not isinstance(parsed[HISTORY], list):
        raise RunError(f"'{path}' has no list '{HISTORY}'; take the state of an earlier checkpoint")
    tag, chart_of = chart_in(path)
    sections = list(_sections({tag or "value": parsed} if isinstance(parsed, list) or rows_in(parsed) else parsed))
    logs: list[RawLog] = []
    for section in sections:
        kind, settings = "trainer_state" if section.history else "jsonl", {**sections[0].settings, **section.settings}
        runs, notes = _runs(section, sections[0]) if section.rows or section.lists or section.by_step else ({}, [])
        for run, rows in runs.items():
            name = ".".join(filter(None, (section.path, run)))
            logs.append(rows.log(f"{path}#{name}" if name else str(path), kind, settings, notes))
    if not logs and sections[0].settings and HISTORY not in parsed:
        return [RawLog(str(path), "jsonl", {}, sections[0].settings)]
    is_single = len(logs) == 1
    return [replace(log, path=str(path) if is_single else log.path, chart_of=chart_of) for log in logs[:MAX_RUNS]]


def without_rows(path: Path | str) -> str:
    """Say that a file of settings is no log, and what to do with it."""
    return (
        f"'{path}' is a file of settings or results, and no log; give the run directory or the log of the run, and "
        f"settings that the log lacks beside it: `{shell_command('doctor', 'LOG', '--config', path)}`"
    )


def settings_beside(path: Path) -> dict[str, dict[str, Any]]:
    """Return the settings in files of usual names beside a log, by the file's name; none where several logs are there.

    The config of a model is none of the training's.
    """
    if sum(sibling.suffix in LOGS for sibling in path.parent.iterdir()) > 1:
        return {}
    files = [path.with_name(name) for name in SETTINGS if path.with_name(name).is_file() and path.name != name]
    read_files = {file.name: parse_json(head(file, MAX_SETTINGS)) for file in files}
    return {
        name: flat_settings(parsed)
        for name, parsed in read_files.items()
        if isinstance(parsed, dict)
        and MODEL.isdisjoint(parsed)
        and not any(isinstance(v, list) and v for v in parsed.values())
    }


def _whole_rows(text: str) -> list[dict[str, Any]]:
    """Return the objects with a number that a torn JSON text, or a part of one, holds as a whole."""
    rows, start, failures, decoder = list[dict[str, Any]](), text.find("{"), 0, json.JSONDecoder()
    while start >= 0 and failures < MAX_TORN:
        try:
            row, end = decoder.raw_decode(text, start)
        except (ValueError, RecursionError):
            failures, end = failures + 1, start + 1
        else:
            rows += [row] if SUMMARY not in row and any(number(value) is not None for value in row.values()) else []
        start = text.find("{", end)
    return rows


@dataclass
class _Section:
    """A dict of the document: what it holds beside further dicts."""

    path: str
    settings: dict[str, Any] = field(default_factory=dict)
    rows: list[dict[str, Any]] = field(default_factory=list)  # the longest list of rows; lists alike are runs
    history: bool = False  # whether they are a Trainer's
    lists: dict[str, list[Any]] = field(default_factory=dict)  # lists of numbers
    by_step: dict[str, dict[int, Any]] = field(default_factory=dict)  # metrics whose values stand at their steps


def _sections(data: Mapping[str, Any], path: str = "", depth: int = 0) -> Iterator[_Section]:
    section, nested, tables = _Section(path), list[tuple[str, Mapping[str, Any]]](), dict[str, list[dict[str, Any]]]()
    for key, value in data.items():
        if rows := rows_in(value):
            if course := course_in(rows):
                section.by_step[key] = course
            else:
                tables[key] = rows
        elif isinstance(value, list) and _numbers(numbers := with_truths(key, value)):
            section.lists[key] = list(numbers)
        elif isinstance(value, dict) and value:
            nested.append((key, value))
            section.settings |= {k: v for k, v in flat_settings({key: value}).items() if not isinstance(v, list)}
        elif isinstance(value, str | int | float) or value is None:
            section.settings[key] = value
    longest_list = max(map(len, section.lists.values()), default=0)
    for key, value in list(nested):
        # Further columns, such as the parts of the reward; or those of one metric, as its mean, which name none.
        is_one_metric = METRIC.search(key) is not None and not any(map(METRIC.search, value))
        if all(_numbers(items, longest_list) for items in value.values()) and (longest_list or is_one_metric):
            section.lists |= {f"{key}/{name}": items for name, items in value.items()}
            nested.remove((key, value))
    prefix = f"{path}." if path else ""
    # Supervised training, or an evaluation, may have more rows than what follows it.
    longest = max(tables.values(), key=lambda rows: (any(map(REWARD.search, rows[0])), len(rows)), default=[])
    runs = {key: rows for key, rows in tables.items() if rows[0].keys() == longest[0].keys()}
    section.history = HISTORY in tables
    section.rows = longest if len(runs) == 1 else []
    yield section
    for key, rows in runs.items() if len(runs) > 1 else ():
        yield _Section(f"{prefix}{key}", rows=rows)
    for key, value in nested if depth < MAX_NESTING else ():
        yield from _sections(value, f"{prefix}{key}", depth + 1)


def _numbers(value: Any, count: int = 0) -> bool:
    """Return whether a value is a list of numbers, at least one, and of so many where a count is given."""
    counted = isinstance(value, list) and len(value) > 0 and count in (0, len(value))
    return counted and all(number(item) is not None for item in value)


def _runs(section: _Section, root: _Section) -> tuple[dict[str, Rows], list[str]]:
    """Return the runs of the rows, or of the lists of numbers that are as long as the longest one; and notes."""
    if section.rows:
        runs = Runs()
        for row in section.rows:
            if SUMMARY not in row:
                runs.put(row)
        return runs.rows(), []
    rows = Rows()
    length = max(map(len, section.lists.values()), default=0)
    steps = {key: values for key, values in root.lists.items() if key in STEPS and len(values) <= length}
    least = length - (length > MIN_ROWS)  # a run that stops within a step has written some of its metrics
    lists = {key: values for key, values in (steps | section.lists).items() if len(values) >= least}
    step = next((key for key in STEPS if key in lists or key in section.by_step), STEPS[0])
    rows.add([{key: values[i] for key, values in lists.items() if i < len(values)} for i in range(length)])
    at_step: dict[int, dict[str, Any]] = {}
    for key, course in section.by_step.items():
        for step_value, value in course.items():
            at_step.setdefault(step_value, {step: step_value})[key] = value
    rows.add(list(at_step.values()))
    short = [key for key, values in section.lists.items() if key not in lists and len(values) >= MIN_ROWS]
    note = f"lists left out, for they are shorter than others, and of unknown steps: {', '.join(short)}"
    return {"": rows}, [note] if short else []
