"""A comparison in a terminal: the verdict, then the numbers behind it, then answers side by side."""

from __future__ import annotations

import io
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.table import Table

from steadyrl.cli.terminal import printable
from steadyrl.lab.compare.findings import metric_row

STYLES = {"better": "bold green", "worse": "bold red", "equal": "bold cyan", "undecided": "bold yellow"}
EXAMPLES = 2  # wins shown, and losses; the report has more
LONGEST = 300  # characters of a prompt or an answer
UNBROKEN = 130  # columns if the output is not a terminal


def show(record: Mapping[str, Any]) -> None:
    """Print a comparison."""
    # A model's text may contain characters that the terminal's encoding lacks.
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")
    width = None if sys.stdout.isatty() else UNBROKEN
    console = Console(highlight=False, markup=False, emoji=False, width=width, soft_wrap=width is not None)
    word = "undecided" if record["doubts"] else record["verdict"]["word"]
    for number, sentence in enumerate(record["sentences"]):
        console.print(sentence, style=STYLES[word] if number == 0 else None)
    for line in notes(record):
        console.print(line)
    console.print()
    console.print(_changes(record))
    if record["difficulty"]:
        console.print()
        console.print(_difficulty(record["difficulty"]))
    _examples(console, record)


def notes(record: Mapping[str, Any]) -> list[str]:
    """Return the verdict's other numbers, and what was left out, as lines."""
    verdict = record["verdict"]
    n, several = verdict["change"]["n"], record["samples"] > 1
    lines = [
        f"B wins {verdict['wins']}, ties {verdict['ties']}, loses {verdict['losses']} of {n} problems; "
        f"chance alone gives such a difference with {p_value(verdict['p_value'])}"
    ]
    if verdict["mcnemar"] is not None:
        counted = "more passes than the other's" if several else "a pass"
        lines.append(f"McNemar's exact test of pass and fail ({counted} wins): {p_value(verdict['mcnemar'])}")
    if record["same_answers"]:
        lines.append(f"both gave the same answers to {record['same_answers']} of {n} problems")
    unscored = {side: record[side]["unscored"] for side in ("a", "b") if record[side]["unscored"]}
    if unscored:
        counts = ", ".join(f"{count} of {side.upper()}" for side, count in unscored.items())
        lines.append(
            f"answers that could not be scored: {counts}; {record['left_out']} problems are left out for this reason"
        )
    return lines


def p_value(p: float) -> str:
    """Return a p-value in the usual form."""
    return "p < 0.001" if p < 0.001 else f"p = {p:.3f}"


def _changes(record: Mapping[str, Any]) -> Table:
    names = f"A = {record['a']['name']}, B = {record['b']['name']}"
    answers = f"{record['decoding']} answer{'s' if record['samples'] > 1 else ''}"
    table = _table(f"{record['task']}: {names} ({record['samples']} {answers} to each problem)", "measured")
    table.add_row(record["metric"], *_cells(metric_row(record, record["metric"])), style="bold")
    for part in record["parts"]:
        table.add_row(part["name"], *_cells(part))
    return table


def _difficulty(rows: Sequence[Mapping[str, Any]]) -> Table:
    table = _table("by difficulty (with many rows, some differ by chance)", "difficulty")
    table.add_column("won", justify="right")
    table.add_column("lost", justify="right")
    for row in rows:
        table.add_row(row["level"], *_cells(row), str(row["wins"]), str(row["losses"]))
    return table


def _table(title: str, first: str) -> Table:
    table = Table(title=title, title_justify="left", box=None)
    table.add_column(first, no_wrap=True)
    for heading in ("problems", "A", "B", "B - A", "95 % interval"):
        table.add_column(heading, justify="right", no_wrap=True)
    return table


def _cells(row: Mapping[str, Any]) -> list[str]:
    interval = row["interval"]
    between = "-" if interval is None else f"[{interval[0]:+.3f}, {interval[1]:+.3f}]"
    return [str(row["n"]), f"{row['a']:.3f}", f"{row['b']:.3f}", f"{row['difference']:+.3f}", between]


def _examples(console: Console, record: Mapping[str, Any]) -> None:
    for why, heading in (("win", "largest wins of B"), ("loss", "largest losses of B")):
        chosen = [example for example in record["examples"] if example["why"] == why][:EXAMPLES]
        if chosen:
            console.print(f"\n{heading}", style="bold")
        for example in chosen:
            console.print(
                f"{printable(example['problem'])} ({example['difference']:+.3f}): {_short(example['prompt'])}"
            )
            for side in ("a", "b"):
                answer = example[side][example["sample"]]
                console.print(f"  {side.upper()}: {_short(answer['text']) or '(nothing)'}")
                console.print(f"     {printable(parts_of(answer))}", style="dim")


def parts_of(answer: Mapping[str, Any]) -> str:
    """Return the reward of an answer and its parts, in a line."""
    if answer["unscored"]:
        return f"unscored: {answer['unscored']}"
    parts = "".join(f", {name} {value:.3g}" for name, value in sorted(answer["parts"].items()))
    return f"reward {answer['reward']:.3g}{parts}"


def _short(text: str) -> str:
    line = printable(" ".join(text.split()))
    return line if len(line) <= LONGEST else f"{line[:LONGEST]} ..."
