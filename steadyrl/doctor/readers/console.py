"""Metrics among what a trainer prints: verl's lines, Python dicts or JSON, "name: value" in words, tables.

Of these the surest that a file holds is read: what looks like a metric in ordinary text is often none. verl prints a
line ``step:12 - actor/loss:0.5 - ...`` for each step, behind the prefix and colours of Ray.
"""

from __future__ import annotations

import ast
import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

from steadyrl.doctor.readers import tables
from steadyrl.doctor.readers.completions import PrintedTables
from steadyrl.doctor.readers.lines import lines, plain, source
from steadyrl.doctor.readers.parting import RunTracker
from steadyrl.doctor.readers.printed_config import PrintedConfig
from steadyrl.doctor.readers.progress import Bars
from steadyrl.doctor.readers.rows import STEP_KEYS, SUMMARY, Rows
from steadyrl.doctor.readers.source import settings_in
from steadyrl.doctor.readers.spelling import english, spelled
from steadyrl.doctor.readers.words import METRIC as METRIC_WORD
from steadyrl.doctor.readers.words import WORDLESS, Words, pairs_in
from steadyrl.doctor.series import FROM_SOURCE, NUMBERED, Column, RawLog

MAX_TEXT = 1 << 16  # parsing takes hundreds of times the memory of the text
MAX_BRACKETS = 100
FEWER = 3  # times as many warnings as rewards, from which the warnings are the rows
RULE = re.compile(r"\s*\|(?:[ :]*-{2,}[ :]*\|)+[ :]*-+[\s:|]*")  # below the header of a table
SCORE = re.compile(r"(?:accuracy|reward|score|pass@\d+)\W*$", re.IGNORECASE)
FEW_DICTS = 5  # which may be of something else than the rows
MAX_PREFIX, MAX_BEFORE = 100, 1000  # characters before a dict, of its step and of metrics beside it
VERL = re.compile(r"(?<![\w/.:-])step:(\d{1,15}) - (?=\S)")
# What loggers put before a dict; rows of slime are of a rollout or of a step.
NAMED = re.compile(r"\b(?:step|rollout|iter(?:ation)?|update)\s*[:#]?\s*(\d{1,15})(?:/\d+)?\W{0,8}$", re.IGNORECASE)
WRAPPED = re.compile(r"(?:^|\S) - [\w/@.-]*/[\w/@.-]+:[-\d.ni]|^[\w/@.-]*:?[-\d.]+\s*$")
TOKENS = "num_tokens"  # which TRL counts from the start of a run, and prints where it prints no step
HEADING, HEADING_KEY = re.compile(r"[A-Za-z]{2}"), " heading"  # no key of a dict begins with a space
OPENING = re.compile(r"\{ *[\"']")
# Numbers that Python shows in a form that is no literal.
BARE = re.compile(r"(?<=: )(-?(?:nan|inf)\b|(?:\w+\.)*(?:float|int|bfloat|double|tensor|array)\w*\([^()]*\))")
# What a dict of metrics has at least one of; token ids and counts of devices are printed as dicts, too.
METRIC = re.compile(
    r"(^|[/_ ])(loss|rewards?|kl|entropy|grad_norm|accuracy|score|learning_rate|advantages?|truncated)($|[/_ ])", re.I
)


# What TRL's PPO before 0.12 warns of, in place of metrics where nothing else is logged.
WARNED = re.compile(
    r"KL divergence is starting to become negative: (?P<kl>-?\d[\d.e+-]*)|"
    r"average ratio of batch \((?P<ratio>\d[\d.e+-]*)\) exceeds threshold"
)
WARNED_NAMES = {"kl": "objective/kl", "ratio": "ppo/policy/ratio"}
OF_WARNINGS = "numbers are those of the trainer's warnings alone, which say only what was out of bounds"
LOSS = re.compile(r"loss(?!\w*coef)", re.IGNORECASE)


class _Console:
    """Takes the lines of a console in their order."""

    def __init__(self) -> None:
        self.config, self.bars = PrintedConfig(), Bars()
        self.verl, self.words = Rows(("step",)), Words()
        self.warnings = Rows()
        self.dicts, self.runs = Rows(), list[Rows]()  # of the latest run, and of those before it
        self._tracker: RunTracker | None = None
        self._heading = ""  # the text before a dict
        self._tokens = 0.0  # TRL's count in the latest row
        self._restarts, self._rows = 0, 0  # how often that count began again, and rows since
        self.has_text_tables = False  # whether there are tables of completions
        self._in_table = False  # whether lines are rows of a table, whose cells are no names and values in turn
        self._is_scored = False  # whether the line before ends a header of two columns, the second of them of scores
        self.rows_before_reward = 0  # rows of a training without rewards that ended before one with them
        self._has_summary = self._has_reward = False  # whether a Trainer has summed up, and whether a row had a reward
        self._open_dict = self._verl_line = ""  # a dict whose end is on a later line; a line of verl that may go on

    def add(self, raw: bytes) -> bool:
        """Take in a line; return whether the lines so far hold metrics for sure."""
        line = plain(raw)
        is_barred = line.lstrip()[:1] == "|"
        begins_table = is_barred and RULE.fullmatch(line) is not None and (line.count("|") > 3 or self._is_scored)
        self._in_table = is_barred and (self._in_table or begins_table)
        self._is_scored = is_barred and SCORE.search(line) is not None
        is_continued = self._open_dict or self._verl_line or self.words.open_list
        if not is_continued and "{" not in line and WORDLESS.fullmatch(line):
            return self.words.has_record or self.dicts.count > 0
        if "step:" in line and " - " in line and _verl_row(line):
            self.end()
            self._verl_line = line
            return True
        if self._verl_line and len(self._verl_line) < MAX_TEXT and WRAPPED.search(line):
            self._verl_line += line.rstrip("\r")
            return True
        self.end()
        if "%|" in line:
            self.bars.add(line)
        if (warning := WARNED.search(line)) and (quantity := warning.lastgroup):
            self.warnings.put({WARNED_NAMES[quantity]: spelled(warning[quantity].rstrip("."))})
        self.has_text_tables |= "┃ Prompt" in line
        self.config.add(line)
        texts = [self._open_dict + line, line] if self._open_dict else [line]
        opens_dict = texts[0].rfind("{") > texts[0].rfind("}") and len(texts[0]) < MAX_TEXT
        self._open_dict = texts[0] if opens_dict else ""
        row = next(filter(None, map(_dict_in, texts)), {}) if "}" in line else {}
        self._has_summary |= SUMMARY in row
        self._heading = line.strip() if not row and not opens_dict and HEADING.search(line) else self._heading
        if SUMMARY not in row and any(map(METRIC.search, row)):  # no summary of the run
            self._restart_at_reward(row)
            self.bars.rows += 1
            self._split_runs(row)
            self.dicts.put(row)
        elif self.dicts.count < FEW_DICTS and not self.verl.count and not self._in_table:
            for redraw in line.split("\r"):  # a bar draws itself anew over what it drew
                self.words.add(redraw)
        return self.words.has_record or self.dicts.count > 0 or self.warnings.count >= FEW_DICTS

    def end(self) -> None:
        """Put the last row of verl to the others, with the lines onto which a terminal has wrapped it."""
        if self._verl_line:
            self.verl.put(_verl_row(self._verl_line))
        self._verl_line = ""

    def _split_runs(self, row: dict[str, Any]) -> None:
        """Begin another run where the steps of dicts begin again below another heading: a seam is no course."""
        step = next((key for key in STEP_KEYS if key in row), "")
        texts = {HEADING_KEY: self._heading, step: row.get(step)}
        if step in ("", "epoch") and isinstance(tokens := row.get(TOKENS), int | float):
            restarts, self._tokens = tokens < self._tokens, tokens
            self._restarts, self._rows = self._restarts + restarts, 0 if restarts else self._rows + 1
            step, texts = TOKENS, {HEADING_KEY: f"start {self._restarts}", TOKENS: self._rows}
        if not step:
            return
        self._tracker = self._tracker or RunTracker(step, texts)
        run = self._tracker.run
        if self._tracker.run_of(texts) != run:
            self.runs.append(self.dicts)
            self.dicts = Rows()

    def _restart_at_reward(self, row: dict[str, Any]) -> None:
        """Begin anew with the first reward after a Trainer's summary: rows before it are of supervised training."""
        if self._has_reward or not any(tables.REWARD.search(key) for key in row):
            return
        self._has_reward = True
        if self._has_summary and self.dicts.count:
            self.rows_before_reward, self.dicts, self.bars = self.dicts.count, Rows(), Bars()
            self.runs, self._tracker = [], None


def read(path: Path) -> list[RawLog]:
    """Read the runs that a console log holds, with the settings and completions printed beside them."""
    console, notes = _Console(), list[str]()
    for chunk in lines(path, notes):
        for line in chunk:
            console.add(line)
    console.end()
    verl = [console.verl.log(str(path), "verl_console", {}, notes)] if console.verl.count else []
    logs = verl or _fullest(console, path, notes)
    planned = {"max_steps": console.bars.planned} if console.bars.planned and not verl else {}
    source_settings = settings_in(source(path))
    source_notes = (FROM_SOURCE,) if source_settings else ()
    last = max((int(column.steps[-1]) for log in logs for column in log.columns.values()), default=0)
    if isinstance(source_settings.get("max_steps"), int) and 0 < source_settings["max_steps"] < last:
        # The source has changed since it wrote what is shown.
        note = f"the source plans {source_settings['max_steps']} steps, and {last} are here: its settings are left out"
        source_settings, source_notes = {}, (note,)
    return [
        replace(
            log,
            # The later ones win: a printed config is what the run had.
            settings={**source_settings, **planned, **console.config.settings},
            notes=(*log.notes, *source_notes),
            completions=PrintedTables(path) if console.has_text_tables and len(logs) == 1 else (),
        )
        for log in logs
    ]


def _fullest(console: _Console, path: Path, notes: list[str]) -> list[RawLog]:
    """Return the rows of dicts, tables or words: of the first with a loss and a reward, else of the most metrics."""
    dict_log = None
    if console.dicts.count:
        earlier_rows = console.rows_before_reward
        note = [f"rows of a training without rewards before it, left out: {earlier_rows}"] if earlier_rows else []
        dict_log = _at_bar_steps(console, str(path), [*notes, *note])
        if console.runs:
            earlier = [rows.log(f"{path}#{i}", "printed", {}, notes) for i, rows in enumerate(console.runs, 1)]
            return [*earlier, replace(dict_log, path=f"{path}#{len(earlier) + 1}")]
        if _is_full(dict_log):
            return [dict_log]
    table_logs = tables.find(path, notes)
    word_log = console.words.log(str(path), notes)
    # Beside tables without a reward some lines may yet hold one.
    rewards_tell = not any(map(_rewards, table_logs)) and (not table_logs or _rewards(word_log) >= FEW_DICTS)
    reads_words = console.words.has_record or rewards_tell
    logs = [log for log in (dict_log, *table_logs[-1:], word_log if reads_words else None) if log is not None]
    rows = max((len(column.steps) for log in logs for column in log.columns.values()), default=0)
    if console.warnings.count > rows and all(FEWER * _rewards(log) < console.warnings.count for log in logs):
        return [console.warnings.log(str(path), "trl_warnings", {}, [*notes, OF_WARNINGS])]
    fullest = max(map(_rewards, logs), default=0)
    full = (log for log in logs if _is_full(log) and 2 * _rewards(log) >= fullest)  # and no remark beside a table
    log = next(full, None) or max(logs, key=lambda log: (_rewards(log) >= FEW_DICTS, _metrics(log)))
    chosen = table_logs if table_logs and log is table_logs[-1] else [log]
    warned = console.warnings.log(str(path), "trl_warnings", {}, []).columns if console.warnings.count else {}
    beside = [
        f"beside its rows the trainer warned of {name} {len(x.steps)} times, of up to {max(map(abs, x.values)):.3g}"
        for name, x in warned.items()
        if name not in chosen[-1].columns
    ]
    return [*chosen[:-1], replace(chosen[-1], notes=(*chosen[-1].notes, *beside))]


def _is_full(log: RawLog) -> bool:
    return _rewards(log) > 0 and any(map(LOSS.search, log.columns))


def _rewards(log: RawLog) -> int:
    return max((len(x.steps) for name, x in log.columns.items() if tables.REWARD.search(english(name))), default=0)


def _metrics(log: RawLog) -> int:
    return sum(len(log.columns[name].steps) for name in filter(METRIC.search, log.columns))


def holds_metrics(path: Path) -> bool:
    """Return whether a text file holds something that ``read`` finds."""
    console, chunks = _Console(), lines(path)
    if any(map(console.add, next(chunks, ()))) or tables.holds_rows(path):
        return True
    return any(console.add(line) for chunk in chunks for line in chunk)


def _verl_row(line: str) -> dict[str, Any]:
    start = VERL.search(line)
    row: dict[str, Any] = {}
    for metric in line[start.end() :].split(" - ") if start else ():
        name, _, text = metric.rpartition(":")
        # Ray appends "[repeated 2x across cluster]" to lines that several workers print.
        value = spelled(text.partition(" [")[0])
        if name.strip() and value is not None:
            row[name.strip()] = value
    return {**row, "step": int(start[1])} if start and row else {}


def _dict_in(line: str) -> dict[str, Any]:
    """Return the dict that a line holds, Python's or JSON's; empty if it holds none."""
    opening = OPENING.search(line)
    literal = line[opening.start() : line.rfind("}") + 1].replace("`", "") if opening else ""
    # Metrics have no backslashes; Python would warn of some of them while parsing.
    if not literal or len(literal) > MAX_TEXT or "\\" in literal or literal.count("[") > MAX_BRACKETS:
        return {}
    python = "'" in literal and '"' not in literal  # JSON but for its quotes, and so read at a fifth of the time
    for read_text, text in (
        (json.loads, literal.replace("'", '"') if python else literal),
        (ast.literal_eval, literal),
        (ast.literal_eval, BARE.sub(lambda bare: repr(bare[1]), literal)),
    ):
        try:
            row = read_text(text)
        except (ValueError, SyntaxError, TypeError, RecursionError, MemoryError):  # text that only looks like a dict
            continue
        if not isinstance(row, dict):
            return {}
        prefix = line[: opening.start()] if opening else ""
        step_match = NAMED.search(prefix[-MAX_PREFIX:])
        step = {"step": int(step_match[1])} if step_match and row.keys() & set(STEP_KEYS) <= {"epoch"} else {}
        # Beside a dict of something else, metrics are of a remark, such as one of each spike of the KL.
        has_metric = any(METRIC.search(str(key)) and isinstance(value, int | float) for key, value in row.items())
        reads_pairs = has_metric and len(prefix) <= MAX_BEFORE and METRIC_WORD.search(prefix)
        return {**(pairs_in(prefix) if reads_pairs else {}), **step, **{str(key): value for key, value in row.items()}}
    return {}


def _at_bar_steps(console: _Console, path: str, notes: list[str]) -> RawLog:
    """Return the log of dicts, each at the step that it names, or that the bar beside it shows."""
    log = console.dicts.log(path, "printed", {}, notes)
    planned = console.config.settings.get("max_steps")
    if console.dicts.step_key is not None:
        return log
    steps = console.bars.steps(planned if type(planned) is int else 0, console.config.complete)
    if steps is None:
        return log
    columns = {name: Column(steps[column.steps - 1], column.values) for name, column in log.columns.items()}
    return replace(log, columns=columns, notes=tuple(note for note in log.notes if note != NUMBERED))
