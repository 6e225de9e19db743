"""Metrics printed as words: "Iter 3: Train loss 0.1, KL 0.2", "step: 3|act_loss: 0.1", "[step 3] loss=0.1 kl=0.2".

Names and values may stand in turn between the bars of a grid. A line that names a step begins a record; lines without
one add to it. Where no line names a step, a record ends where a name comes again.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from steadyrl.doctor.readers.rows import Rows
from steadyrl.doctor.readers.spelling import spelled
from steadyrl.doctor.series import RawLog

MAX_TEXT = 1 << 14  # characters of a line of metrics
MIN_SHARE = 0.2  # of the records that must have a name: others stood in some other text
FEW = 5  # records of which every name is kept
_NUMBER = r"[-+]?(?:\d[\d,]*\.?\d*(?:[eE][-+]?\d+)?|\.\d+|nan|inf|NaN|Infinity)"
_VALUE = rf"(?:(?:\w+\.)*(?:float|int|tensor)\w*\({_NUMBER}\)|{_NUMBER})"
_UNIT = r"(?: ?(?:%|[a-zA-Z]{1,3}(?:/[a-z]{1,3})?))?(?=$|[\s,;|)\]])"
_NAME = r"[A-Za-z_'\"|][\w ./@()'\"-]{0,60}?\|?"
ASSIGNED = re.compile(rf"({_NAME}) ?([:=]) ?(\[[^\[\]]{{0,200}}\]|{_VALUE}){_UNIT}")
WORDED = re.compile(rf"^\W*([A-Za-z][\w ./-]{{0,60}}?) ({_VALUE}){_UNIT}$")
# At the start, or behind what a logger puts before its text.
STEP = re.compile(
    r"^(?:.{0,120}?(?:[|\]]| - |\btrain |\b(?:INFO|SUCCESS) )\s*)?\W*(?:epoch\W*\d+\W+)?"
    r"(step|iter(?:ation)?|update|episode)\s*[:#]?\s*(\d{1,15})\b",
    re.IGNORECASE,
)
EPOCH = re.compile(r"\bepoch\W{0,3}(\d{1,9})\b", re.IGNORECASE)
FRAMES = ("│", "|")
STEP_NAMES = ("step", "global_step", "iteration", "iter")
METRIC = re.compile(r"loss|reward|\bkl\b|entropy|grad|advantage", re.IGNORECASE)


class Words:
    """Takes lines in their order and makes records of them.

    Attributes:
        sure: Whether the lines so far hold a record of metrics for sure.
    """

    def __init__(self) -> None:
        self.sure = False
        self._rows = {True: Rows(("step",)), False: Rows(())}  # with a step, and without
        self._counts = {True: 0, False: 0}
        self._record: dict[str, Any] = {}

    def add(self, line: str) -> None:
        """Take in a line."""
        if len(line) > MAX_TEXT:
            return
        begins = STEP.search(line)
        pairs = _pairs(line, begins)
        step = int(begins[2]) if begins else next((x for name, x in pairs.items() if name.lower() in STEP_NAMES), None)
        stepped = step is not None or "step" in self._record
        if step is not None:
            pairs = {"step": step} | {name: value for name, value in pairs.items() if name.lower() not in STEP_NAMES}
        if step != self._record.get("step") if step is not None else not stepped and self._record.keys() & pairs.keys():
            self._end()
        # Of a record with a step the first value of a name counts: what follows may be of something else.
        self._record = {**pairs, **self._record} if stepped else {**self._record, **pairs}
        if pairs and not self.sure:
            metrics = sum(METRIC.search(name) is not None for name in self._record)
            self.sure = metrics > 1 or (metrics > 0 and stepped)

    def log(self, path: str, notes: Sequence[str]) -> RawLog:
        """Return the log of all records: of those with a step, where there are any."""
        self._end()
        stepped = self._counts[True] > 0
        log, count = self._rows[stepped].log(path, "printed", {}, notes), self._counts[stepped]
        often = {
            name: column
            for name, column in log.columns.items()
            if count < FEW or METRIC.search(name) or len(column.steps) >= MIN_SHARE * count
        }
        return replace(log, columns=often)

    def _end(self) -> None:
        record, self._record = self._record, {}
        if record.keys() - {"step"}:
            self._counts["step" in record] += 1
            self._rows["step" in record].put(record)


def _pairs(line: str, begins: re.Match[str] | None) -> dict[str, Any]:
    """Return the numbers of a line by their names; the first of a name counts."""
    found: dict[str, Any] = {}
    cells = [cell.strip() for cell in line.replace("│", "|").strip()[1:-1].split("|")] if line[:1] in FRAMES else []
    for name, text in zip(cells[::2], cells[1::2], strict=False):
        if spelled(name) is None:
            found.setdefault(name, spelled(text))
    for name, sign, value in ASSIGNED.findall(line) if ":" in line or "=" in line else ():
        name = name if sign == ":" else name.split()[-1]  # "SKIP rewards=[0,0]" has a word before the name
        number = _list(value) if value[0] == "[" else spelled(value.replace(",", ""))
        if number is not None:
            found.setdefault(_clean(name), number)
    if begins and (epoch := EPOCH.search(line[: begins.end()])):
        found["epoch"] = int(epoch[1])
    for part in re.split(r"[,|;]", line[begins.end() :]) if begins else ():
        if worded := WORDED.search(part.strip()):
            found.setdefault(_clean(worded[1]), spelled(worded[2].replace(",", "")))
    return {name: value for name, value in found.items() if name and value is not None}


def _list(text: str) -> list[float] | None:
    numbers = [spelled(part) for part in text[1:-1].split(",")]
    return None if None in numbers else numbers  # type: ignore[return-value]


def _clean(name: str) -> str:
    return name.strip(" '\"|-").strip()
