"""Metrics printed as words: "Iter 3: Train loss 0.1, KL 0.2", "step: 3|act_loss: 0.1", "[step 3] loss=0.1 kl=0.2".

Names and values may stand in turn between the bars of a grid. Records are made in two ways at once: by the steps that
lines name, where lines without one add to the record; and by names, where a record ends when a name comes again. Most
records decide: a few lines with a step among many rows without one are of something else.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any

from steadyrl.doctor.readers.progress import BAR
from steadyrl.doctor.readers.rows import Rows, gaps
from steadyrl.doctor.readers.spelling import LISTED, listed, spelled
from steadyrl.doctor.readers.templates import Templates
from steadyrl.doctor.series import Column, RawLog

MAX_TEXT = 1 << 14  # characters of a line of metrics
MIN_SHARE = 0.2  # of the records that must have a name: others stood in some other text
FEW = 5  # records of which every name is kept
LONG = 0.5  # of the values of the longest metric, from which a metric is the loop's
_NUMBER = r"[-+]?(?:\d[\d,]*(?:\.\d*)?(?:[eE][-+]?\d+)?|\.\d+|nan|inf|NaN|Infinity)"
_VALUE = rf"(?:(?:\w+\.)*(?:float|int|tensor)\w*\({_NUMBER}\)|{_NUMBER}(?: ?%)?)"
_UNIT = r"\)?(?: ?(?:%|[a-zA-Z]{1,3}(?:/[a-z]{1,3})?))?(?=$|[\s,;|)\]\u00b1])"
MAX_NAME = 62  # characters
_NAME = r"[A-Za-z_'\"|][\w ./@()'\"-]{0,60}\|?"
# Signs with a value are rare beside what may begin a name, so that the name is looked for backwards from its sign.
ASSIGNED = re.compile(rf"(?: ?([:=])[ \t]{{0,4}}| (is) )\(?({LISTED}|{_VALUE}){_UNIT}")
NAME = re.compile(rf"{_NAME}$")
WORDED = re.compile(rf"^\W*([A-Za-z][\w ./-]{{0,60}}?) ({_VALUE}){_UNIT}$")
PAIR = rf"([A-Za-z][\w./-]*) ({_VALUE})"
PAIRS = re.compile(rf"^(?:/\d+ )?{PAIR}(?: {PAIR})+$")  # "/256 lr 1e-06 reward 0.89", behind the step
# At the start, or behind what a logger puts before its text.
STEP = re.compile(
    r"^(?:.{0,120}?(?:[|\]]| - |\btrain |\b(?:INFO|SUCCESS) )\s*)?\W*(?:(?:epoch|pass)\W*\d+(?:/\d+)?\W+)?"
    r"(step|iter(?:ation)?|update|ep(?:isode)?)\s*[:#=]?\s*(\d{1,15})\b",
    re.IGNORECASE,
)
# "5: reward: 0.125", "[5/60] reward=0.125"
NUMBERED = re.compile(r"^\s*(?:(\d{1,9}): (?=[a-z_]+: ?-?[\d.])|\[(\d{1,9})/\d{1,9}\] *(?=[A-Za-z_/]+ ?[:=]))")
DRESSED = re.compile(rf"(?:\*\*|[`'\"])({_NUMBER}%?)(?:\*\*|[`'\"])")  # of a number in bold, as code, or quoted
OF_BAR = re.compile(r"([A-Za-z][A-Za-z _-]{0,40}): *\d{1,3}%\|")  # what a progress bar is called
OPEN = re.compile(r"[:=] ?(?:(?:\w+\.)*(?:tensor|array)\()?\[[-+.,eE\d\s]*$")  # a list of numbers without its end
GOES_ON = re.compile(r"\s*[-+.\d][-+.,eE\d\s]*(?:\]|$)")
COUNTER = re.compile(r"step|iter|update|ep", re.IGNORECASE)  # without one of these STEP matches nothing
WORDLESS = re.compile(r"[\x00-@\[-`{-\x7f]*(?:[Ee][-+]\d+[\x00-@\[-`{-\x7f]*)*")  # numbers without any name
# Of loops inside loops the one that makes the most rounds counts the steps: "Iteration 1/1, Step 7/500".
OF_TOTAL = re.compile(
    r"\b(?:step|iter(?:ation)?|update|ep(?:isode)?)\s*[:#]?\s*(\d{1,15})\s*/\s*(\d{1,15})", re.IGNORECASE
)
# The values that W&B prints at the end of a run.
SUMMARY = re.compile(rf"^wandb:\s+([A-Za-z][\w./@-]*)\s+({_NUMBER})$")
# One metric between bars: its name may have several words.
WHOLE = re.compile(rf"^([a-z][\w ./@()-]{{0,60}}?) ?= ?({_VALUE})(?=$|\s)")
OF_EPOCH = re.compile(r"^\W*epoch\W{0,3}(\d{1,9})\s*[:|,-]", re.IGNORECASE)
EPOCH = re.compile(r"\bepoch\W{0,3}(\d{1,9})\b", re.IGNORECASE)
FRAMES = ("│", "|")
STARTING, ELSEWHERE = "\0starting", "\0elsewhere"  # names of the step that a line names
STEP_NAMES = ("step", "global_step", "iteration", "iter")
FEWER = 3  # times as many records by names than by steps, from which the steps are not the rows'
BESIDE = 0.9  # of the steps, whose own lines hold a metric, from which those lines are the rows
METRIC = re.compile(r"loss|reward|score|\bkl\b|entropy|grad|advantage", re.IGNORECASE)


class Words:
    """Takes lines in their order and makes records of them."""

    def __init__(self) -> None:
        self.has_record = False  # whether the lines so far hold a record of metrics
        self.open_list = ""  # the line before with a list of numbers that goes on in the next one
        self._bar_names = set[str]()
        self._by_step, self._by_name = _Records(("step",)), _Records(("epoch",))
        self._templates = Templates(_parse)
        # Lines, by whether they begin with a step, and their names.
        self._line_names = Counter[tuple[bool, tuple[str, ...]]]()

    def add(self, line: str) -> None:
        """Take in a line."""
        if self.open_list and GOES_ON.match(line):
            line = f"{self.open_list} {line.strip()}"
        self.open_list = line if "[" in line and len(line) <= MAX_TEXT and OPEN.search(line) else ""
        if self.open_list or len(line) > MAX_TEXT or not line.strip():
            return
        self._bar_names |= set(OF_BAR.findall(line)) if "%|" in line else set()
        values = self._templates.read(line)
        is_start = STARTING in values
        step = values.pop(STARTING, values.pop(ELSEWHERE, None))
        by_step, by_name = self._by_step, self._by_name
        self._line_names[is_start, tuple(values)] += 1
        if step is not None and step != by_step.record.get("step"):
            by_step.end()
            by_step.record["step"] = step
        if by_step.record and values:  # the first value of a name counts: what follows may be of something else
            by_step.record = {**values, **by_step.record}
        if by_name.record.keys() & values.keys():
            by_name.end()
        by_name.record |= values
        if values and not self.has_record:
            logged = (value for name, value in by_name.record.items() if _is_metric(name))
            # A list gives two metrics, its mean and its spread.
            metrics = sum(2 if isinstance(value, list) and len(value) > 1 else 1 for value in logged)
            self.has_record = metrics > 1 or (metrics > 0 and bool(by_step.record))

    def log(self, path: str, notes: Sequence[str]) -> RawLog:
        """Return the log of all records: of those with a step, unless far more are without."""
        self._by_step.end()
        self._by_name.end()
        lines_with, with_step = Counter[str](), Counter[str]()
        for (begins, names), count in self._line_names.items():
            lines_with.update(dict.fromkeys(names, count))
            with_step.update(dict.fromkeys(filter(_is_metric, names if begins else ()), count))
        has_own_lines = max(with_step.values(), default=0) >= max(FEW, BESIDE * self._by_step.count)
        by_step = self._by_step.metrics > 0 and (has_own_lines or self._by_name.metrics < FEWER * self._by_step.metrics)
        records = self._by_step if by_step else self._by_name
        counts_lines = by_step and has_own_lines
        left_out = self._by_step.metrics if not by_step else 0
        if left_out:
            notes = [*notes, f"lines that name a step among {records.metrics} rows that name none: {left_out}"]
        log = records.rows.log(path, "printed", {}, notes)
        columns = {
            name: column
            for name, column in log.columns.items()
            if name not in self._bar_names
            and (records.count < FEW or METRIC.search(name) or len(column.steps) >= MIN_SHARE * records.count)
            # A name is of so many rows, and not of each completion, by its number, or beside the steps.
            if not counts_lines or min(lines_with[name], with_step[name] or math.inf) < FEWER * records.count
        }
        if not records.rows.step_key:
            return replace(log, columns=_from_loop_start(columns))
        missing = gaps(log.columns)  # also up to the end of the bar of something else
        notes = [note for note in log.notes if note not in missing]
        return replace(log, columns=columns, notes=(*notes, *gaps(columns)))


class _Records:
    """Records of one way to tell where they end: the one that is being filled, and of those that ended a count."""

    def __init__(self, step_keys: tuple[str, ...]):
        self.rows, self.record = Rows(step_keys), dict[str, Any]()
        self.count = self.metrics = 0  # of all, and of those that hold a metric

    def end(self) -> None:
        """Put the record to the rows, if it holds more than its step, and begin another."""
        record, self.record = self.record, {}
        if len(record) > ("step" in record):
            self.count += 1
            self.metrics += any(map(_is_metric, record))
            self.rows.put(record)


def _parse(line: str) -> dict[str, Any]:
    """Return the numbers of a line by their names, and the step that it names at its start or elsewhere."""
    line = DRESSED.sub(r"\1", NUMBERED.sub(r"step \1\2 | ", line.replace(" -- ", " | ")))
    # The bar of a loop inside a step may have the step's number in front of it, and counts something else.
    step_match = STEP.search(line) if "%|" not in line and COUNTER.search(line) else None
    pairs = pairs_in(line, step_match)
    step = next((x for name, x in pairs.items() if name.lower() in STEP_NAMES), None)
    if step_match:
        counters = OF_TOTAL.findall(line) if "/" in line else []
        step = int(max(counters, key=lambda counter: int(counter[1]))[0] if counters else step_match[2])
    elif step is None and "%|" in line and (bar := BAR.search(line)):
        step = int(bar[1])
    values = {name: value for name, value in pairs.items() if name.lower() not in STEP_NAMES}
    return values if step is None else {STARTING if step_match else ELSEWHERE: step, **values}


def _from_loop_start(columns: dict[str, Column]) -> dict[str, Column]:
    """Return numbered columns from the loop's first row on, where its metrics begin; other text stands before it."""
    metrics = [x.steps for name, x in columns.items() if METRIC.search(name)]
    longest = max(map(len, metrics), default=0)
    leading_rows = min((int(steps[0]) for steps in metrics if len(steps) >= LONG * longest), default=1) - 1
    shifted = {name: (x.steps - leading_rows, x.values) for name, x in columns.items() if x.steps[-1] > leading_rows}
    return {name: Column(steps[steps > 0], values[steps > 0]) for name, (steps, values) in shifted.items()}


def pairs_in(line: str, step_match: re.Match[str] | None = None) -> dict[str, Any]:
    """Return the numbers of a line by their names, of which the first counts; ``step_match`` is its step."""
    pairs: dict[str, Any] = {}
    cells = [cell.strip() for cell in line.replace("│", "|").strip()[1:-1].split("|")] if line[:1] in FRAMES else []
    for name, text in zip(cells[::2], cells[1::2], strict=False):
        if spelled(name) is None:
            pairs.setdefault(name, spelled(text))
    if summary := SUMMARY.match(line):
        pairs.setdefault(summary[1], spelled(summary[2]))
    for segment in OF_EPOCH.sub("", line).split("|") if "=" in line and "|" in line else ():
        if metric := WHOLE.search(segment.strip()):
            pairs.setdefault(metric[1], spelled(metric[2]))
    names = tuple(pairs)
    assigned = ":" in line or "=" in line or (" is " in line and METRIC.search(line) is not None)
    for name, sign, value in _assigned(line) if assigned else ():
        number = listed(value) if "[" in value else spelled(value.replace(",", ""))
        # "SKIP rewards=[0,0]" and "took 3 s  rewards: [0,0]" have words before the name.
        name = name if sign == ":" and "[" not in value else name.split()[-1]
        if number is not None and not any(longer.endswith(f" {name}") for longer in names):
            pairs.setdefault(_clean(name), number)
    epoch = EPOCH.search(line[: step_match.end()]) if step_match else OF_EPOCH.search(line)
    if epoch:
        pairs["epoch"] = int(epoch[1])
    for segment in re.split(r"[,|;]", line[step_match.end() :]) if step_match else ():
        text = segment.strip()
        word_pairs = re.findall(PAIR, text) if PAIRS.match(text) else WORDED.findall(text)
        for name, value in word_pairs:
            pairs.setdefault(_clean(name), spelled(value.replace(",", "")))
    return {name: value for name, value in pairs.items() if name and value is not None}


def _assigned(line: str) -> Iterator[tuple[str, str, str]]:
    end = 0
    for sign in ASSIGNED.finditer(line):
        if name := NAME.search(line, max(end, sign.start() - MAX_NAME), sign.start()):
            yield name[0], sign[1] or sign[2], sign[3]
            end = sign.end()


@lru_cache(1 << 12)  # every row has the names of the one before
def _is_metric(name: str) -> bool:
    return METRIC.search(name) is not None


def _clean(name: str) -> str:
    return name.rpartition(" - ")[2].strip(" '\"|-(").strip()  # loggers put time and level before a name
