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

from steadyrl.rundir import write_text

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


def write(records: dict[str, Record], page: Path, keep: bool) -> str:
    """Write the page and the JSON file beside it; return the page.

    Args:
        records: By part.
        page: The Markdown file.
        keep: Whether records of other parts stay.
    """
    file = page.with_suffix(".json")
    found = json.loads(file.read_text(encoding="utf-8")) if keep and file.is_file() else {}
    found |= {name: asdict(record) for name, record in records.items()}
    write_text(file, json.dumps(found, indent=1) + "\n")
    text = _page({name: Record(**record) for name, record in found.items()})
    write_text(page, text)
    return text


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
