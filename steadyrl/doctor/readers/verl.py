"""What verl writes without a tracker: its file logger's JSON lines and the metrics it prints.

The file logger is opened for writing from the start, so a restart has wiped what came before; and it writes NaN and
infinite numbers alike as null. The console has one line ``step:12 - actor/loss:0.5 - ...`` per step, behind the prefix
and colours of Ray, with numbers as Python shows them.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from steadyrl.doctor.readers.lines import COLOUR, Lines, plain, read_objects
from steadyrl.doctor.readers.printed_config import PrintedConfig
from steadyrl.doctor.readers.rows import Rows
from steadyrl.doctor.readers.spelling import spelled
from steadyrl.doctor.series import RawLog

CONSOLE_LINE = re.compile(rb"(?<![\w/.:-])step:(\d{1,15}) - (?=\S)")


def is_record(row: dict[str, Any]) -> bool:
    """Return whether a row is a line of the file logger."""
    return row.keys() == {"step", "data"} and isinstance(row["data"], dict)


def read_file(path: Path) -> RawLog:
    """Read the JSON lines of verl's file logger."""
    rows = Rows(("step",))

    def add(chunk: list[dict[str, Any]]) -> None:
        # The key that the file logger adds comes last: a metric of that name must not move the step.
        rows.add([{**row["data"], "step": row["step"]} for row in chunk if is_record(row)])

    notes = read_objects(path, add)
    return rows.log(str(path), "verl_file", {}, notes)


def read_console(path: Path) -> RawLog:
    """Read the metrics among what verl printed, and its config, which it prints before them."""
    rows, config = Rows(("step",)), PrintedConfig()
    lines = Lines(path)
    for chunk in lines:
        found = []
        for line in chunk:
            if b"step:" in line and CONSOLE_LINE.search(line) and (row := _row(COLOUR.sub(b"", line))):
                found.append(row)
            else:
                config.add(plain(line))
        rows.add(found)
    return rows.log(str(path), "verl_console", config.settings, lines.notes())


def _row(line: bytes) -> dict[str, Any]:
    start = CONSOLE_LINE.search(line)
    if start is None:
        return {}
    row: dict[str, Any] = {}
    for part in line[start.end() :].decode("utf-8", errors="replace").split(" - "):
        name, _, text = part.rpartition(":")
        # Ray appends "[repeated 2x across cluster]" to lines that several workers print.
        value = spelled(text.partition(" [")[0])
        if name.strip() and value is not None:
            row[name.strip()] = value
    return {**row, "step": int(start[1])} if row else {}
