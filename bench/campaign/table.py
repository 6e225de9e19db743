"""The result of a campaign: what was promised, how often it was tried and broken, and how that was run.

The JSON file holds a record for each part, so that parts can be run one after the other. The Markdown page is made of
it.
"""

from __future__ import annotations

import json
import os
import platform
import shlex
import sys
from dataclasses import asdict, dataclass, field
from datetime import date
from pathlib import Path

from steadyrl.core.rundir import write_text

SHOWN = 40  # failures that the page lists


@dataclass
class Record:
    """What one part has given.

    Attributes:
        rows: Promise, trials and failures, a row of the table each.
        seen: What was seen where a promise was broken.
        minutes: How long it took.
        how: The command, the day, Python, and the user.
    """

    rows: list[tuple[str, int, int]] = field(default_factory=list)
    seen: list[str] = field(default_factory=list)
    minutes: float = 0.0
    how: str = field(default_factory=lambda: _how())


def write(records: dict[str, Record], page: Path, earlier: list[Path]) -> str:
    """Write the page and the JSON file beside it; return the page.

    Args:
        records: By part.
        page: The Markdown file.
        earlier: JSON files of earlier calls, whose trials count as well.
    """
    found: dict[str, Record] = {}
    pieces = [json.loads(file.read_text(encoding="utf-8")) for file in earlier]
    pieces.append({name: asdict(record) for name, record in records.items()})
    for piece in pieces:
        for name, record in piece.items():
            found[name] = _added(found[name], Record(**record)) if name in found else Record(**record)
    write_text(
        page.with_suffix(".json"), json.dumps({name: asdict(one) for name, one in found.items()}, indent=1) + "\n"
    )
    text = _page(found)
    write_text(page, text)
    return text


def _added(one: Record, other: Record) -> Record:
    """Return the sum of two records of a part."""
    sums: dict[str, tuple[int, int]] = {}
    for promise, trials, failures in [*one.rows, *other.rows]:
        before = sums.get(promise, (0, 0))
        sums[promise] = before[0] + trials, before[1] + failures
    rows = [(promise, *counts) for promise, counts in sums.items()]
    return Record(rows, one.seen + other.seen, one.minutes + other.minutes, f"{one.how}; {other.how}")


def _how() -> str:
    user = "root" if os.getuid() == 0 else "an ordinary user"
    command = " ".join(["python", "bench/campaign/run.py", *map(shlex.quote, sys.argv[1:])])
    return f"`{command}`, {date.today().isoformat()}, Python {platform.python_version()}, as {user}"


def _page(records: dict[str, Record]) -> str:
    release = ".".join(platform.release().split(".")[:2])
    rows = [row for record in records.values() for row in record.rows]
    seen = [text for record in records.values() for text in record.seen]
    lines = [
        "# Campaign",
        "",
        "| promise | trials | failures |",
        "|---|---|---|",
        *(f"| {promise} | {trials} | {failures} |" for promise, trials, failures in rows),
        "",
        f"Machine: {platform.system()} {release}, {platform.machine()}, {os.cpu_count()} cores.",
        "",
        "| part | minutes | how |",
        "|---|---|---|",
        *(f"| {name} | {record.minutes:.1f} | {record.how} |" for name, record in records.items()),
    ]
    if seen:
        lines += ["", "## Failures", "", *(f"- `{text[:400].replace('`', chr(39))}`" for text in seen[:SHOWN])]
    return "\n".join(lines) + "\n"
