"""Scores before and after training in a text, as people write up an experiment: in a table, or after a name.

A stage stands in the rows of a table ("Qwen3-8B base", "GRPO, 200 steps"), in its columns ("Baseline", "Trained"), in
a cell ("46% -> 29%" below "solved (before -> after)"), or in names ("baseline accuracy: 0.41", {"base": {"f1": 0.4}}).
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import lru_cache
from pathlib import Path

from steadyrl.doctor.readers import sentences, tables
from steadyrl.doctor.readers.lines import head, parse_json, text_of
from steadyrl.doctor.readers.spelling import english, flat_settings, spelled
from steadyrl.doctor.series import Evaluation

Table = list[list[str]]

CSV = (".csv", ".tsv")
MAX_BYTES, ENDS = 16 << 20, 1 << 18  # of a text with scores
MOST_ROWS, MOST_LABEL = 60, 80  # of a table of stages, and characters of a label
MOST_LABELS = 3  # columns before the scores, of which one names the stages
_AS_WORD = r"(?<![a-z])(?:{})(?![a-z])"
TRAINED = re.compile(
    _AS_WORD.format("grpo|ppo|rloo|dapo|gspo|reinforce|raft|rl|rlhf|rlvr|rlaif|trained|after|tuned|fine-?tuned|final")
    + "|\u8bad\u7ec3\u540e",
    re.IGNORECASE,
)
# Where no word says "trained", what training began with.
BASE = re.compile(
    _AS_WORD.format("base|baseline|untrained|initial|original|zero-?shot|pre-?trained|sft|before")
    + "|\u539f\u59cb|\u57fa\u7ebf|\u57fa\u5ea7|\u8bad\u7ec3\u524d",
    re.IGNORECASE,
)
BEFORE = re.compile(
    _AS_WORD.format("untrained|before|pre-?(?:rl|training|grpo|ppo)|no (?:rl|grpo|ppo|training)"), re.IGNORECASE
)
POST = re.compile(r"(?<![a-z])post-?(?=(?:rl|training|grpo|ppo)(?![a-z]))", re.IGNORECASE)
LATER = re.compile(_AS_WORD.format("checkpoint|ckpt|ours|(?:step|epoch)[- ]?\\d+"), re.IGNORECASE)
# Of an arm of a comparison, or the best of several; and of a column of differences.
OTHER = re.compile(
    r"(?<![a-z])(?:no|with|without)[ _-]base|vanilla|best|[\u0394\u2206]|"
    + _AS_WORD.format("delta|vs|gain|change|improvement|diff|p-value"),
    re.IGNORECASE,
)
_VALUE = r"[-+\u2212]?\d++(?:\.\d++)?+%?+"
_ARROW = r"(?:\u2192|\u27f6|-+>|=>)"
COURSE = re.compile(rf"\W{{0,4}}({_VALUE})\s*{_ARROW}\W{{0,4}}({_VALUE})\W{{0,4}}")
WIDE = re.compile(r"\s{2,}")
ARROW = re.compile(rf"\s*{_ARROW}\s*")
FRACTION = re.compile(r"(\d{1,7}) ?/ ?(\d{1,7})")
COUNTS = re.compile(
    r"n|total|samples|problems|questions|cases|prompts|tasks|scenarios|episodes|examples|items|size|eval size|/\d+|"
    "\u6837\u672c\u6570|\u9898\u6570",
    re.IGNORECASE,
)
ARMS = re.compile(r"(?<![a-z])(?:experiments?|runs?|arms?|variants?|ablations?)(?![a-z])|\u5b9e\u9a8c", re.IGNORECASE)
RIGHT = re.compile("correct|solved|passed|right", re.IGNORECASE)  # of which a count is as good as their share
MARKS = re.compile(r"`|\*\*")
ROUNDED = 5e-4  # a share of three digits
LETTERS = re.compile(r"[^\W\d_]{2}")
WORD = re.compile(r"[^\W\d_]+")
OF_TRAINING = re.compile("rewards?$")  # what a line calls so is as a rule the training's own
DIGITS = re.compile(r"\d+")
OF_COUNT = re.compile(r"(?<![a-z])n ?= ?(\d{1,7})", re.IGNORECASE)
HEADING = re.compile(r"\s*(?:(?:#{1,6} |={2,} ?|\*\*)(.{3,80}?)[\s=#*:]*|([A-Za-z][\w ,()-]{2,60}):\s*)$")
HEADED = "\0headed"  # behind the name of a score whose stage stands in a heading
_LABEL = r"(?!(?:The|An?|So|If|He|She|It) )[A-Za-z][\w ,./()@\[\]-]{2,60}?"
_BAR = r"\||\s*\d+/\d+ \["  # behind the share that a progress bar has reached
STATED = re.compile(
    rf"(?:\s*\d{{1,3}}[.)] )?\W{{0,4}}({_LABEL})\W{{0,3}}[:=]\W{{0,3}}"
    rf"({_VALUE}(?: ?/ ?\d{{1,7}}| \(\d{{1,7}} ?/ ?\d{{1,7}}\))?)(?![\w.]|{_BAR})"
)
# What an answer to a single question says, or should say, and no score of it.
CONTENT = re.compile(r"(?:ref(?:erence)?|pred(?:icted|iction)?|gold|expected|(?:ground )?truth)(?: answer)?", re.I)


def find(path: Path) -> tuple[Evaluation, ...]:
    """Return the scores before and after training that a text, a CSV or a JSON file states."""
    content = head(path, MAX_BYTES)
    if len(content) > 2 * ENDS:  # a long log states scores before its rows and after them
        content = content[:ENDS] + b"\n" + content[-ENDS:]
    if content.lstrip()[:1] == b"{" and isinstance(parsed := parse_json(content), dict):
        return tuple(_line_scores([f"{name}: {value}" for name, value in flat_settings(parsed, separator=" ").items()]))
    first = content.splitlines()[: MOST_ROWS + 1]
    separator = tables.separator_of(first, needs_step=False) if path.suffix in CSV else None
    text = [] if separator else text_of(content).splitlines()
    text += tables.text_lines(path) if b"<tr" in content else ()
    rows = list(tables.csv_cells(first, separator)) if separator else []
    text_tables = [[row for row in rows if len(row) == len(rows[0])]] if rows else _tables(text)
    table_scores = (scores for table in text_tables for scores in _table_scores(table))
    stated = sentences.courses(text) if path.suffix in sentences.TEXTS else ()
    return tuple(dict.fromkeys([*table_scores, *_line_scores(text), *stated]))


def _tables(text: Sequence[str]) -> Iterator[Table]:
    """Yield each table with bars, or with two spaces and more between its cells, its header first."""
    table: Table = []
    for line in (*text, ""):
        if line and len(line) <= tables.MAX_TEXT and tables.RULE.fullmatch(line):
            continue
        cells = tables.between_bars(line) or (WIDE.split(line.strip()) if "  " in line else [])
        if table and len(cells) != len(table[0]):
            yield from [table] if 1 < len(table) <= MOST_ROWS else []
            table = []
        table += [cells] if len(cells) > 1 else []


def _table_scores(table: Table) -> Iterator[Evaluation]:
    header, *rows = table
    for row in rows:
        for name, cell in zip(header[1:], row[1:], strict=True):
            if (course := COURSE.fullmatch(cell)) and ARROW.search(name):
                metric = name.partition("(")[0].strip() if "(" in name else ""
                problems = row[0] if metric else ""
                yield from _evaluation(metric or row[0], problems, [course[1], course[2]], ("before", "after"))
    stage_columns = {name: i for i, name in enumerate(header) if i and _stage(name) is not None}
    bases, trained = ([name for name in stage_columns if _stage(name) == stage] for stage in (0, 1))
    if bases and trained:
        answer_counts = {fraction[2] for row in rows for cell in row[1:] if (fraction := FRACTION.search(cell))}
        stated = OF_COUNT.search(header[0])
        count = f"n={stated[1] if stated else answer_counts.pop()}" if stated or len(answer_counts) == 1 else ""
        for end in trained:
            same_metric = (name for name in bases if _without_stage(name) == _without_stage(end))
            base = next(same_metric, bases[0])
            i, j = stage_columns[base], stage_columns[end]
            for row in rows:
                yield from _evaluation(row[0], count, [row[i], row[j]], (base, end))
    else:
        yield from _row_scores(header, rows)


def _row_scores(header: list[str], rows: Table) -> Iterator[Evaluation]:
    """Yield the scores of a table with a stage in each row: of training the last stage above it that it began with."""
    count_column = next((i for i, name in enumerate(header) if COUNTS.fullmatch(name)), -1)
    labels = [{_stage(row[i]) for row in rows} for i in range(min(len(header) - 1, MOST_LABELS))]
    label = next((i for i, stages in enumerate(labels) if stages >= {0, 1}), 0)
    # What is no baseline in such a table is an arm of the comparison.
    arm_stage = 1 if 1 not in labels[label] and ARMS.search(header[label]) else None
    stages = [arm_stage if (stage := _stage(row[label])) is None else stage for row in rows]
    # A model or a way of decoding that stands beside both stages: each is compared with its own.
    bases, ends = ([row for row, row_stage in zip(rows, stages, strict=True) if row_stage == stage] for stage in (0, 1))
    worded = [i for i in range(len(header)) if i != label and not any(_value(row[i]) for row in rows)]
    shared_columns = [i for i in worded if {row[i] for row in ends} <= {row[i] for row in bases}]
    scored = [i for i, name in enumerate(header) if i > label and i != count_column and not OTHER.search(name)]
    for index, after in enumerate(rows):
        comparable = [i for i, row in enumerate(rows) if all(row[column] == after[column] for column in shared_columns)]
        comparable = [i for i in comparable if count_column < 0 or rows[i][count_column] == after[count_column]]
        starts = [i for i in comparable if stages[i] == 0]
        if stages[index] != 1 or not starts:
            continue
        # Rows that differ in their numbers alone are checkpoints of one training.
        previous = [rows[i] for i in comparable if i < index and rows[i][label] != after[label]]
        earlier = [row for row in previous if WORD.findall(row[label]) == WORD.findall(after[label])]
        base = rows[max((i for i in starts if i < index), default=starts[0])]
        counts = [f"n={after[count_column]}" if count_column >= 0 else _count_beside(cell, after) for cell in after]
        # Arms that differ in numbers alone are no checkpoints.
        for before in (base, *(earlier if arm_stage is None else ())):
            names = (before[label], after[label])
            for i in scored:
                for scores in _evaluation(header[i], counts[i], [before[i], after[i]], names, before in earlier):
                    yield replace(scores, arm=arm_stage is not None)


def _count_beside(cell: str, row: Sequence[str]) -> str:
    """Return of how many answers a share is, if a count of right ones beside it in the row is that share; else ""."""
    values = [_value(beside) for beside in row]
    share = _value(cell)
    counts = [value[1] for value in values if value and value[1] and share and abs(value[0] - share[0]) < ROUNDED]
    return f"n={counts[0]}" if counts else ""


def _line_scores(text: Sequence[str]) -> Iterator[Evaluation]:
    """Yield the scores of lines that differ in the words for a stage alone, or below headings with these.

    Of each the first one before training counts, and the last one after it.
    """
    before, after, heading = dict[str, tuple[str, str]](), dict[str, tuple[str, str]](), ""
    for line in text:
        if heading_match := HEADING.match(line):
            heading = heading_match[1] or heading_match[2]
        stated = STATED.match(line) if ":" in line or "=" in line else None
        label = english(stated[1]).replace("_", " ") if stated else ""
        # Labels that differ in their numbers alone are of one stage, and as a rule of none.
        label_stage, heading_stage = (_stage(DIGITS.sub("0", words), in_table=False) for words in (label, heading))
        if stated is None or (stage := heading_stage if label_stage is None else label_stage) is None:
            continue
        # A line below a heading, such as a row of the training, is no counterpart of one that names its stage itself.
        name = f"{_without_stage(label)}{HEADED if label_stage is None else ''}"
        (before.setdefault if stage == 0 else after.__setitem__)(name, (label, stated[2]))
    names = {key: key.removesuffix(HEADED) for key in sorted(before.keys() & after.keys())}
    count = next((f"n={after[key][1]}" for key, name in names.items() if COUNTS.fullmatch(name)), "")
    for key, name in names.items():
        if not COUNTS.fullmatch(name) and not OF_TRAINING.search(name):
            yield from _evaluation(name, count, [before[key][1], after[key][1]], (before[key][0], after[key][0]))


def _evaluation(
    name: str, problems: str, cells: Sequence[str], stages: tuple[str, str], from_training: bool = False
) -> Iterator[Evaluation]:
    """Yield the evaluation of two cells, if both are numbers, of the fewest answers that anything says."""
    start, end = map(_value, cells)
    if start is not None and end is not None and LETTERS.search(name) and not CONTENT.fullmatch(name):
        stated = OF_COUNT.search(f"{name} {problems} {' '.join(stages)}")
        counts = [start[1], end[1], int(stated[1]) if stated else 0]
        answers = min(filter(None, counts), default=0)
        divisor = answers if RIGHT.search(name) and 1.0 < max(start[0], end[0]) <= answers else 1
        before, after = start[0] / divisor, end[0] / divisor
        labels = (MARKS.sub("", stages[0]), MARKS.sub("", stages[1]))
        yield Evaluation(MARKS.sub("", name), before, after, answers, labels, problems, from_training)


def _value(cell: str) -> tuple[float, int] | None:
    """Return the number of a cell, and of how many answers it is a share; 0 where that is not said."""
    fraction = FRACTION.search(cell)
    if fraction and 0 < int(fraction[2]) >= int(fraction[1]):
        return int(fraction[1]) / int(fraction[2]), int(fraction[2])
    value = spelled(re.sub(r"[^\d%]+$", "", re.sub(r"\s*[(\[\u00b1].*$", "", cell)).strip("*`~\u2248 "))
    return (value, 0) if value is not None and math.isfinite(value) else None


def _without_stage(label: str) -> str:
    words = TRAINED.sub("", BASE.sub("", BEFORE.sub("", POST.sub("", label))))
    return " ".join(re.sub(r"\[[^\]]*\]|[^\w@/.]", " ", words).split()).lower()  # "toxicity [mean, std]"


@lru_cache(1 << 12)
def _stage(label: str, in_table: bool = True) -> int | None:
    """Return 0 for a name of what training began with, 1 for what it led to, None for others.

    In a table a step is a checkpoint; in a line it is one of a log.
    """
    if len(label) > MOST_LABEL or OTHER.search(label):
        return None
    kinds = ((BEFORE, 0), (TRAINED, 1), (BASE, 0), (LATER, 1))  # "base, before GRPO", "GRPO on base", "base, step 0"
    return next((stage for words, stage in kinds[: None if in_table else -1] if words.search(label)), None)
