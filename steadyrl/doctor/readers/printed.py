"""Metrics among what a trainer prints: as Python dicts or JSON, as "name: value" in one line or in several, as a table.

Of these the surest that a file holds is read: what looks like a metric in ordinary text is often none.
"""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from steadyrl.doctor.readers import loose, table
from steadyrl.doctor.readers.completions import PrintedTables
from steadyrl.doctor.readers.lines import Lines, plain
from steadyrl.doctor.readers.printed_config import PrintedConfig
from steadyrl.doctor.readers.progress import Bars, renumbered
from steadyrl.doctor.readers.rows import NUMBERED, SUMMARY, Rows
from steadyrl.doctor.series import RawLog

MAX_TEXT = 1 << 16  # parsing takes hundreds of times the memory of the text
MAX_BRACKETS = 100
OPENING = re.compile(r"\{ *[\"']")
# Numbers that Python shows in a form that is no literal.
BARE = re.compile(r"(?<=: )(-?(?:nan|inf)\b|(?:\w+\.)*(?:float|int|bfloat|double|tensor|array)\w*\([^()]*\))")
# What a dict of metrics has at least one of; token ids and counts of devices are printed as dicts, too.
METRIC = re.compile(
    r"(^|[/_ ])(loss|rewards?|kl|entropy|grad_norm|accuracy|score|learning_rate|advantages?)($|[/_ ])", re.I
)


def read(path: Path) -> RawLog:
    """Read the metrics that a console log holds, with the settings and completions printed beside them."""
    config, bars, rows = PrintedConfig(), Bars(), Rows()
    other = loose.Records()
    lines = Lines(path)
    counted = 0
    for chunk in lines:
        held = [plain(line) for line in chunk]
        found = list(_rows(held, bars, config))
        counted += len(found)
        rows.add(found)
        if not counted:
            for line in held:
                other.add(line)
    notes = lines.notes()
    if not counted:
        log = table.find(path, notes) or other.log(str(path), notes)
    else:
        log = _placed(rows, bars, config, str(path), notes)
    settings = {**({"max_steps": bars.planned} if bars.planned else {}), **config.settings}
    return replace(log, settings=settings, completions=PrintedTables(path))


def holds_metrics(path: Path) -> bool:
    """Return whether a text file holds something that ``read`` finds; verl's own lines have a reader of their own."""
    other = loose.Records()
    for chunk in Lines(path):
        for line in chunk:
            if (b"{" in line and is_metrics(parse(plain(line)))) or other.add(plain(line)):
                return True
    return table.find(path, []) is not None


def parse(line: str) -> dict[str, Any]:
    """Return the dict that a line holds, Python's or JSON's; empty if it holds none."""
    opening = OPENING.search(line) if "{" in line else None
    held = line[opening.start() : line.rfind("}") + 1] if opening else ""
    # Metrics have no backslashes; Python would warn of some of them while parsing.
    if not held or len(held) > MAX_TEXT or "\\" in held or held.count("[") > MAX_BRACKETS:
        return {}
    for read_text, text in ((json.loads, held), (ast.literal_eval, held), (ast.literal_eval, _quoted(held))):
        try:
            row = read_text(text)
        except (ValueError, SyntaxError, TypeError, RecursionError, MemoryError):  # text that only looks like a dict
            continue
        return {str(key): value for key, value in row.items()} if isinstance(row, dict) else {}
    return {}


def is_metrics(row: dict[str, Any]) -> bool:
    """Return whether a dict is a row of metrics and no summary of the run."""
    return SUMMARY not in row and any(METRIC.search(key) for key in row)


def _quoted(text: str) -> str:
    return BARE.sub(r"'\1'", text)


def _rows(lines: list[str], bars: Bars, config: PrintedConfig) -> Iterator[dict[str, Any]]:
    """Yield the rows of some lines; bars and settings are taken in on the way."""
    for line in lines:
        if "%|" in line:
            bars.see(line)
        row = parse(line)
        if is_metrics(row):
            bars.row()
            yield row
        else:
            config.add(line)


def _placed(rows: Rows, bars: Bars, config: PrintedConfig, path: str, notes: list[str]) -> RawLog:
    """Return the log of rows, each at the step that it names, or that the bar beside it shows."""
    planned = config.settings.get("max_steps")
    steps = bars.steps(planned if type(planned) is int else 0, config.complete) if rows.step_key is None else None
    log = rows.log(path, "printed", {}, notes)
    if steps is None:
        return log
    columns = {name: renumbered(column, steps) for name, column in log.columns.items()}
    return replace(log, columns=columns, notes=tuple(note for note in log.notes if note != NUMBERED))
