"""Tables: CSV, and those in text as notebooks and issue threads show them, with bars, tabs or spaces, or in HTML.

In text a header is a line of names, one of them a metric's, over a line with as many cells, most of them numbers.
"""

from __future__ import annotations

import csv
import html
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import chain, islice
from pathlib import Path

import numpy as np

from steadyrl.doctor.readers.json_tables import CHART
from steadyrl.doctor.readers.lines import head, lines, text_of
from steadyrl.doctor.readers.parting import EXTREMES, METRIC, Runs
from steadyrl.doctor.readers.rows import STEP_FORMS, Rows, find_step_key, step_numbers
from steadyrl.doctor.readers.spelling import NOTHING, english, spelled
from steadyrl.doctor.series import NUMBERED, Column, RawLog

Row = dict[str, str]

SEPARATORS = ",\t;"
# A chart that TensorBoard's page saves. Browsers write underscores for the slashes of the tag, of which one is known.
CHART_FILE = re.compile(r"run-(.*)-tag-(.*?)(?: ?\(\d+\))?")
SLASH = re.compile(r"^(train|eval)_")
COMMENT = b"#"
MAX_HTML = 4 << 20  # bytes; they are rewritten as a whole
MAX_TEXT = 1 << 14  # characters of a line
LONG_TABLE = 0.5  # of the rows of the longest
MIN_STEPS, REMARKS = 3, 1  # in the header of a table with a metric in each row, and other columns there
FEWEST_OF_TWO = 3  # metrics of a table with two steps alone: two columns are mostly of two runs
AT_START = re.compile(r"\W*(?:start|first|begin|initial|early|before|초반|初期|初始|开始|训练前)", re.IGNORECASE)
AT_END = re.compile(r"\W*(?:end|last|final|late|after|now|최근|종료|후반|最终|末期|结束|训练后)", re.IGNORECASE)
CONTINUED = 200  # rows of a table that may go on in another one at most
STEPS = re.compile(r"step|iter(ation)?|epoch|update|episode|^rollout$|^checkpoint$|^ckpt$", re.IGNORECASE)
REWARD = re.compile(r"reward(?!s?[/ _]*margin)", re.IGNORECASE)  # margins are of training on pairs
COMMA = re.compile(r"^([-+]?\d+),(\d+(?:[eE][-+]?\d+)?)$")
RULE = re.compile(r"[\s|:+=_\u2500-\u257f-]*")  # with the strokes that draw boxes
TWO_WORDS = re.compile(r"\b(Training|Validation|Train|Eval) (Loss)\b")
# Behind a number: a unit that leaves its size as it is, or a remark.
BEHIND = re.compile(r"(?<=[\d%*]) ?(?:ms|sec|s|min|h|x|GB|MB|GiB|MiB|tok|tokens|pp|\(.*\)|[^\x00-\x7f%]+)$")
# A line with several has names in it, and is no row of a table.
ASSIGNMENT = re.compile(r"[:=] ?[-+]?\.?\d|[A-Za-z] [-+]?[.\d]+,")
PLAIN = re.compile(r"-?(?:\d+(?:\.\d+)?|\.\d+)")  # as nearly all are
BEFORE = re.compile(r"^[^\x00-\x7f\u2212]+ ?(?=[\d.])")  # a word of another script
_NUMBER = r"(?:\d+(?:\.\d+)?|\.\d+)"
COURSE = re.compile(rf"~?[-+\u2212]?{_NUMBER} ?(?:\u2192|->|to) ?~?([-+\u2212]?{_NUMBER})")
RANGE = re.compile(rf"~?({_NUMBER}) ?[-\u2013~] ?({_NUMBER})")
ENDED = "\0"  # a line that ends a table
OTHERS, MOST_SHOWN = "rows of other tables, left out: ", 80  # characters of the names of the table that is read
STEPLESS = "values of sentences that say no step, of which a level stands at the last one: "
# "KL: 0.1 -> 0.3 -> 2,041.5"
VALUE = r"~?[-+\u2212]?\d++(?:,\d++)*+(?:\.\d++)?(?:e[-+]?\d+)?%?"
VALUES = re.compile(VALUE, re.IGNORECASE)
COURSES = rf"{VALUE}(?: ?(?:[\u2192\u27f6\u21d2\u279c]|[-=\u2013]+>| to ) ?{VALUE})+"
ARROWS = re.compile(rf"^\W*([A-Za-z][\w ./()-]{{0,40}}?)[*`]{{0,3}} ?[:=]\W{{0,3}}?({COURSES})", re.IGNORECASE)
# "`completions/clipped_ratio` is very high (~0.8-0.9)", "frac_reward_zero_std: 1 throughout": names that are no words.
LEVELS = re.compile(
    rf"(?<![\w/.])([a-z]\w*[_/][\w/]*)`?"
    rf"(?: ?[:=~(]|(?= \d[\d.]*%?\))| (?:is|was|stays|stayed|sits|at|of|around|about)\b)"
    rf"(?: (?:\w+ ){{0,2}}| ?)\W{{0,3}}?(~?[-+\u2212]?{_NUMBER}%?)(?: ?[-\u2013] ?({_NUMBER}%?))?(?! ?/|\w|\.\d)"
)
ARGUMENT = re.compile(r"\s*[\w.]+ ?= ?[^\s,]+ ?,?\s*(?:#.*)?")  # a setting in the code of a text
PROSE = (".md", ".markdown", ".rst")  # elsewhere rows are printed so
THROUGHOUT = 0  # the step of a level that all rows have
COURSED = re.compile(rf"(?<!max_)(?:{METRIC.pattern}|(?<![a-z])ratio|(?<!max_completion_)length)", re.IGNORECASE)
SCORED = re.compile(rf"{METRIC.pattern}|pass@|success|\bsolved?\b|win.rate", re.IGNORECASE)


def separator_of(first: Sequence[bytes], needs_step: bool) -> str | None:
    """Return what separates the cells of a CSV that begins with these lines, or None if it is none.

    Args:
        first: Without their ends.
        needs_step: Whether one of its columns has to be the step.
    """
    for separator in SEPARATORS:
        table = csv_cells(first, separator)
        names, cells = next(table, []), next(table, [])
        if not len(names) == len(cells) > 1 or all(spelled(cell) is None for cell in cells):
            continue
        has_names = any(name.strip() for name in names) and all(spelled(name) is None for name in names)
        if has_names and (not needs_step or find_step_key([dict(zip(names, cells, strict=True))])):
            return separator
    return None


def read_csv(path: Path, separator: str) -> list[RawLog]:
    """Read every run of a CSV; an empty cell is no value, and a row with too few or too many cells is left out.

    Raises:
        RunError: It has too many rows, or too many runs.
    """
    runs, notes, broken = Runs(), list[str](), 0
    table = csv_cells((line for chunk in lines(path, notes) for line in chunk), separator)
    names, chart_of = next(table), ""
    if tuple(name.lower() for name in names) == CHART and chart_in(path)[0]:
        (tag, chart_of) = chart_in(path)
        names = ["", names[1], tag]
    if repeated_names := sorted({name for name in names if name and names.count(name) > 1}):
        notes.append(f"of columns with one name the last one counts: {', '.join(repeated_names)}")
    for cells in table:
        if len(cells) == len(names):
            runs.put({name: cell for name, cell in zip(names, cells, strict=True) if name and cell})
        elif all(spelled(cell) is None for cell in cells) and find_step_key([dict.fromkeys(cells, 1)]):
            names = cells  # what goes on after a restart may log more or less
        else:
            broken += bool(cells)
    if broken:
        notes.append(f"rows left out, for they have not {len(names)} cells: {broken}")
    logs, are_charts = runs.logs(path, "csv", {}, notes), any(name.endswith(EXTREMES) for name in names)
    return [replace(log, chart_of=run if are_charts else chart_of) for run, log in logs.items()]


def chart_in(path: Path) -> tuple[str, str]:
    """Return the metric and the run of a chart that TensorBoard saved, which the file's name says alone; "" each."""
    file = CHART_FILE.fullmatch(path.stem)
    return (SLASH.sub(r"\1/", file[2]), file[1]) if file else ("", "")


def _from_header(table: Iterable[bytes], separator: str) -> Iterator[bytes]:
    """Yield the lines of a CSV without the comments before it; the last of them is its header where no other is."""
    remaining, comment = iter(table), b""
    for line in remaining:
        if line.strip() and not line.startswith(COMMENT):
            cells = next(_cells_of([line], separator), [])
            if comment and any(spelled(cell) is not None for cell in cells):
                yield comment
            yield line
            break
        comment = line.lstrip(COMMENT + b" ") or comment
    yield from remaining


def csv_cells(table: Iterable[bytes], separator: str) -> Iterator[list[str]]:
    """Yield the cells of the header of a CSV, without the blanks around them, and of each row below it."""
    rows = _cells_of(_from_header(table, separator), separator)
    yield from ([name.strip() for name in header] for header in islice(rows, 1))
    yield from rows


def _cells_of(table: Iterable[bytes], separator: str) -> Iterator[list[str]]:
    """Yield the cells of each row; of a row that is no text of a table, one empty cell.

    Spreadsheets write semicolons where the decimal sign is a comma.
    """
    reader = csv.reader(map(text_of, table), delimiter=separator, skipinitialspace=True)
    while True:
        try:
            cells = next(reader)
        except StopIteration:
            return
        except csv.Error:
            cells = [""]
        yield [COMMA.sub(r"\1.\2", cell) for cell in cells] if separator == ";" else cells


def find(path: Path, notes: Sequence[str]) -> list[RawLog]:
    """Return the runs of the first long table with a reward in a text, else of its table of metrics; [] without any.

    A notebook shows one of supervised training before it, and a page one of results. A header that comes again over
    other numbers at the same steps begins another run. Values with arrows between them are added where the table has
    none of that metric.
    """
    tables, courses = dict[tuple[str, ...], list[_Table]](), dict[str, Column]()
    for header, begins, row in _rows(path, courses):
        same_header = tables.setdefault(tuple(header), [])
        same_header += [_Table()] if begins or not same_header else []
        same_header[-1].put(row)
    runs = {names: _runs_of_tables(same_header) for names, same_header in tables.items()}
    rewarded = [names for names, same_header in runs.items() if same_header[0].holds_reward()]
    # Tables without a column of steps compare runs.
    stepped = {names for names, same_header in runs.items() if same_header[0].by_step()}
    rewarded = [names for names in rewarded if names in stepped] or rewarded
    longest = max((table.count for names in rewarded for table in runs[names]), default=0)
    long_tables = (names for names in rewarded if max(table.count for table in runs[names]) >= LONG_TABLE * longest)
    richest = max(runs, key=lambda names: (names in stepped, sum(map(_is_metric, names))), default=None)
    chosen = next(long_tables, richest)
    if chosen is None:
        return [_with_courses(RawLog(str(path), "printed", {}, {}, tuple(notes)), courses)] if courses else []
    longest = max(table.count for table in runs[chosen])
    long_runs = [table for table in runs[chosen] if table.count >= LONG_TABLE * longest]
    left_out_tables = [table for same_header in runs.values() for table in same_header if table not in long_runs]
    left_out = sum(table.count for table in left_out_tables if not long_runs[-1].take_continuation(table))
    notes = [*notes, *([f"{OTHERS}{left_out}; read is that of {', '.join(chosen)[:MOST_SHOWN]}"] if left_out else [])]
    names = [f"{path}#{i}" for i in range(1, len(long_runs) + 1)] if len(long_runs) > 1 else [str(path)]
    logs = [table.log(name, "printed", {}, notes) for name, table in zip(names, long_runs, strict=True)]
    return [_with_courses(log, courses) for log in logs] if len(logs) == 1 else logs


def holds_rows(path: Path) -> bool:
    """Return whether ``find`` finds something in a text."""
    courses: dict[str, Column] = {}
    return any(True for _ in _rows(path, courses)) or bool(courses)


def _rows(path: Path, courses: dict[str, Column]) -> Iterator[tuple[list[str], bool, Row]]:
    """Yield each row of the tables of a text with its header, and whether it is the first below that."""
    header, header_above = list[str](), list[str]()
    text = _collect_courses(text_lines(path), courses, path.suffix in PROSE)
    for cells in _unfolded_blocks(_with_transposed(map(_cells, _without_rules(text)))):
        if cells == [ENDED]:
            header = []
        for names in filter(None, (header_above, header)):
            # One cell more is an index without a name, as pandas prints.
            row = cells[1:] if len(cells) == len(names) + 1 else cells
            if type(cells) is _Barred and len(cells) == len(names) - 1:
                row = [*cells, ""]  # the last cell is empty, and the bar behind it looks like that of an end
            if type(cells) is not type(names) or len(row) != len(names):
                continue
            numbers = all(map(PLAIN.fullmatch, row))  # as most rows are
            pairs = list(zip(names, row, strict=True))
            if not numbers:
                pairs = [pair for name, cell in pairs for pair in _split_pairs(name, _cell_value(name, cell))]
            if numbers or _is_row([cell for _, cell in pairs]):
                header = names
                yield names, names is header_above, dict(pairs)
                break
        header_above = cells if _is_header(cells) else []


class _Table(Rows):
    """Rows below one header, and the first of them as they stand."""

    def __init__(self) -> None:
        super().__init__()
        self.first_rows: list[Row] = []

    def put(self, row: Row) -> None:
        """Add one row; refuses as ``add`` does."""
        self.first_rows += [row] if len(self.first_rows) <= CONTINUED else []
        super().put(row)

    def take_continuation(self, later: _Table) -> bool:
        """Add the rows of a table that shows the same metric at later steps; return whether there is one."""
        shared = self.first_rows[0].keys() & later.first_rows[0].keys()
        is_same_metric = len(shared) == len(self.first_rows[0]) == len(later.first_rows[0])
        # Supervised training beside it has losses, too.
        is_same_metric |= any(_is_metric(name) and "loss" not in name.lower() for name in shared)
        own_rows, later_rows = self.by_step(), later.by_step()
        if not is_same_metric or later.count > CONTINUED:
            return False
        if not own_rows or not later_rows or max(own_rows) >= min(later_rows):
            return False
        for row in later.first_rows:
            self.put(row)
        return True

    def extends(self, earlier: _Table) -> bool:
        """Return whether an earlier table is of this run, and was shown before the run was at its end."""
        own_rows, earlier_rows = self.by_step(), earlier.by_step()
        return bool(earlier_rows) and all(own_rows.get(step) == row for step, row in earlier_rows.items())

    def holds_reward(self) -> bool:
        """Return whether a number stands below the name of a reward."""
        cells = [cell for name, cell in self.first_rows[0].items() if REWARD.search(english(name))]
        return any(spelled(cell) is not None for cell in cells)

    def by_step(self) -> dict[float, Row]:
        """Return the first rows by their steps."""
        first_row = self.first_rows[0]
        step = next((name for name in first_row if STEPS.search(english(name))), "")
        numbers, _ = step_numbers([row.get(step, "") for row in self.first_rows])
        return dict(zip(numbers.tolist(), self.first_rows, strict=True)) if len(numbers) == len(self.first_rows) else {}


def _runs_of_tables(tables: Sequence[_Table]) -> list[_Table]:
    """Return one table for each run, of tables with the same names: they go on, or show more of what was shown."""
    runs: list[_Table] = []
    for table in tables:
        if runs and table.extends(runs[-1]):
            runs[-1] = table
        elif not runs or not runs[-1].take_continuation(table):
            runs.append(table)
    return runs


def _collect_courses(printed: Iterable[str], courses: dict[str, Column], prose: bool) -> Iterator[str]:
    """Yield lines as they stand, and add to the courses those that a metric takes in them, and its level in prose."""
    for line in printed:
        arrow = ">" in line or " to " in line or not line.isascii()
        if arrow and len(line) <= MAX_TEXT and COURSED.search(line):
            for name, course in ARROWS.findall(line):
                values = [spelled(text.lstrip("~")) for text in VALUES.findall(course)]
                if COURSED.search(name) and None not in values:  # as of more digits than a metric has
                    courses.setdefault(name, Column(np.arange(1, len(values) + 1), np.array(values, np.float64)))
        reads_levels = prose and ("_" in line or "/" in line) and not ARGUMENT.fullmatch(line[:MAX_TEXT])
        for name, low, high in LEVELS.findall(line[:MAX_TEXT]) if reads_levels else ():
            ends = np.array([spelled(text.lstrip("~")) for text in (low, high or low)], np.float64)
            if COURSED.search(name) and np.isfinite(ends).all():
                step = THROUGHOUT if "throughout" in line else 1
                courses.setdefault(name, Column(np.array([step]), ends.mean(keepdims=True)))
        yield line


def _with_courses(log: RawLog, courses: dict[str, Column]) -> RawLog:
    """Return a log with the courses that none of its columns is of; two values beside a table are a remark."""
    table_words = {word.lower() for word in COURSED.findall(english(" ".join(log.columns)))}
    long_courses = {name: x for name, x in courses.items() if len(x.steps) > 2 or not log.columns}
    words = {name: set(map(str.lower, COURSED.findall(name))) for name in long_courses}
    added = {name: x for name, x in long_courses.items() if table_words.isdisjoint(words[name])}
    if any(REWARD.search(english(name)) for name in log.columns):  # a run's, and what is said of it is, too
        added |= {name: x for name, x in courses.items() if len(x.steps) == 1 and name not in log.columns}
    longest = max((x.steps for x in log.columns.values()), key=len, default=np.array([1]))
    added = {name: _at_rows(x, longest) for name, x in added.items()}
    numbered = () if log.columns else (NUMBERED,)
    notes = (*log.notes, *numbered, f"{STEPLESS}{', '.join(added)}") if added else log.notes
    return replace(log, columns=dict(sorted({**log.columns, **added}.items())), notes=notes)


def _at_rows(x: Column, steps: np.ndarray) -> Column:
    """Return a course as it is, and a level at the last of some steps, or at all of them where a sentence says so."""
    if len(x.steps) > 1:
        return x
    places = steps if x.steps[0] == THROUGHOUT else steps[-1:]
    return Column(places, np.full(len(places), x.values[0]))


def _split_pairs(name: str, cell: str) -> Iterator[tuple[str, str]]:
    """Yield a column's name and cell: of "KL max/mean" with "0.4/0.1" the two of each, with the first words of both."""
    if "/" not in name:
        yield name, cell
        return
    names, values = name.split("/"), cell.strip("*`").split("/")
    numbers = [spelled(text) is not None for text in (*names, *values)]  # "right/8" is a count of eight
    is_named = numbers == [False] * len(names) + [True] * len(values)
    if len(values) == 1 or len(names) != len(values) or STEPS.search(name) or not is_named:
        yield name, cell
        return
    shared, _, names[0] = names[0].rpartition(" ")
    yield from ((f"{shared} {column_name}".strip(), value) for column_name, value in zip(names, values, strict=True))


def _unfolded_blocks(table: Iterable[list[str]]) -> Iterator[list[str]]:
    """Yield the rows of text as they stand; of columns that come again beside them, one block below another."""
    width, blocks = 0, list[list[str]]()
    for cells in chain(table, [[]]):
        if width and len(cells) == len(blocks[0]):
            blocks.append(cells)
            continue
        if width:
            yield blocks[0][:width]
            yield from (row[start : start + width] for start in range(0, len(blocks[0]), width) for row in blocks[1:])
        may_repeat = len(cells) > 3 and cells[0] in cells[2:]
        width = next(
            (n for n in range(2, len(cells) // 2 + 1 if may_repeat else 0) if cells == cells[:n] * (len(cells) // n)), 0
        )
        width, blocks = (width, [cells]) if width and _is_header(cells) else (0, [])
        if not width:
            yield cells


def _without_rules(text: Iterable[str]) -> Iterator[str]:
    """Yield lines without rules, and before the header of each table with bars the end of the table above it."""
    before = ""
    for line in text:
        if not RULE.fullmatch(line) and len(line) <= MAX_TEXT:
            yield from filter(None, [before])
            before = line
        elif before and "|-" in line.replace(":", "").replace(" ", "") and not _is_row(_cells(before)):
            yield from (ENDED, before)
            before = ""
    yield from filter(None, [before])


def text_lines(path: Path) -> Iterator[str]:
    """Yield the lines of a text; of HTML one for each row of a table."""
    page = head(path, MAX_HTML)
    if b"<tr" not in page:
        yield from (text_of(line) for chunk in lines(path) for line in chunk)
        return
    flat = re.sub(r"\s+", " ", text_of(page))
    ruled = re.sub(r"<t[dh]\b[^>]{0,2000}>", "|", re.sub(r"</tr>|<tr\b[^>]{0,2000}>", "\n", flat))
    yield from html.unescape(re.sub(r"<[^>]{0,2000}>", "", ruled)).splitlines()


class _Barred(list[str]):
    """Cells between bars: a line without bars below them is text, whatever numbers it holds."""


def between_bars(line: str) -> list[str]:
    """Return the cells of a line between its bars; [] without any."""
    text = line.strip() if line.isascii() else line.replace("│", "|").replace("┃", "|").strip()
    if "|" not in text:
        return []
    text = text.replace(" / ", "/") if "/" in text else text
    return [cell.strip(" *`\t") for cell in text.removeprefix("|").removesuffix("|").split("|")]


def _cells(line: str) -> list[str]:
    """Return the cells of a line: between bars, else tabs, else two spaces or more, else single ones."""
    barred = between_bars(line)
    # What stands behind two numbers is a remark on them.
    if len(ASSIGNMENT.findall(line)) > 1 and not (len(barred) > 2 and all(map(PLAIN.fullmatch, barred[:2]))):
        return [line]
    if barred:
        return _Barred(barred)
    text = line.strip().replace(" / ", "/") if "/" in line else line.strip()
    if "\t" in text:
        return [cell.strip() for cell in text.split("\t")]
    wide = re.split(r"\s{2,}", text)
    return wide if len(wide) > 2 else TWO_WORDS.sub(r"\1_\2", text).split()


def _cell_value(name: str, cell: str) -> str:
    """Return a cell without what stands behind its number; of a course "1 → 2" its end, of a range "1-2" its middle."""
    if PLAIN.fullmatch(cell):
        return cell
    text = BEFORE.sub("", BEHIND.sub("", cell))
    course, between = COURSE.fullmatch(text), None if STEPS.search(english(name)) else RANGE.fullmatch(text)
    middle = str(sum(float(end) for end in between.groups()) / 2.0) if between else text
    return course[1] if course else middle


def _with_transposed(table: Iterable[list[str]]) -> Iterator[list[str]]:
    """Yield the rows of text as they stand, and those of a table with a metric in each row as columns after them."""
    width, step_columns, steps, metrics = 0, list[int](), list[str](), list[list[str]]()
    for cells in chain(table, [[]]):
        yield cells
        if not steps and cells and PLAIN.fullmatch(cells[0]):  # a row, and no header, as most are
            continue
        if steps and len(cells) == width and spelled(cells[0]) is None:
            row = [cells[i] for i in step_columns]
            metrics += [[cells[0], *row]] if _is_row(row) else []
            continue
        if sum(_is_metric(name) for name, *_ in metrics) >= (1 if len(steps) >= MIN_STEPS else FEWEST_OF_TWO):
            yield ["step", *(name for name, *_ in metrics)]
            yield from ([step, *row] for step, *row in zip(steps, *(row[1:] for row in metrics), strict=True))
        steps, metrics, width, step_columns = [], [], len(cells), _steps_in(cells)
        steps = [_step_cell(cells[i]) for i in step_columns]


def _steps_in(cells: list[str]) -> list[int]:
    """Return the places of the steps in the header of a table with a metric in each row; [] where it is none."""
    columns, last_step = list[int](), -1.0
    if len(cells) < 3 or PLAIN.fullmatch(cells[0]):  # a row, and no header
        return []
    for i, cell in enumerate(cells[1:], 1):
        step = spelled(STEP_FORMS.sub(r"\1", _step_cell(cell)))
        if (step is None and i - len(columns) > REMARKS) or (step is not None and (step <= last_step or step % 1 != 0)):
            return []
        columns, last_step = ([*columns, i], step) if step is not None else (columns, last_step)
    return columns if len(columns) >= max(2, len(cells) - 1 - REMARKS) else []


def _step_cell(cell: str) -> str:
    """Return a cell of a header, of a word for the start or the end of a run the first or second step."""
    return "1" if AT_START.match(cell) else "2" if AT_END.match(cell) else cell


def _is_metric(name: str) -> bool:
    return SCORED.search(english(name)) is not None


def _is_header(cells: list[str]) -> bool:
    if len(cells) < 2 or PLAIN.fullmatch(cells[0]) or not _is_metric(" ".join(cells)):
        return False
    if not any(map(STEPS.search, map(english, cells))):
        return False
    if not all(cell[0].isalpha() or STEP_FORMS.match(cell) is None for cell in cells if cell):
        return False
    return all(cell and spelled(cell) is None and len(cell) <= 80 for cell in cells)


def _is_row(cells: list[str]) -> bool:
    numbers = sum(spelled(cell) is not None or STEP_FORMS.match(cell) is not None for cell in cells)
    nothing = sum(cell.lower() in NOTHING for cell in cells)
    return numbers > 0 and numbers + nothing > len(cells) / 2
