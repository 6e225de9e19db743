"""A comparison of two models as a page: the verdict, its tests, every measurement, and answers side by side."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from steadyrl.core.rundir import read_json, write_text
from steadyrl.core.words import counted
from steadyrl.lab.compare.compare import RECORD
from steadyrl.lab.compare.findings import metric_row
from steadyrl.show.page import html, records
from steadyrl.show.page.markup import interval, number, p_value, shorten, signed

EXAMPLE_KINDS = {"win": "large win", "loss": "large loss", "tie": "no difference"}
SAMPLES_SHOWN = 2  # of each side of an example
LABEL = "The difference with its interval, every problem's mean for A and B, and all differences in order"
CAPTION = (
    "Top: the difference of the means with its 95 % interval. A set like this misses a true difference inside the grey "
    "range more than once in five times. Left: every problem at its mean for A and for B. B is better above the "
    "diagonal, and larger dots are several problems. Right: the same differences in order."
)


def write_comparison(folder: Path | str) -> Path:
    """Write the page of a comparison into its folder, and return the page's path.

    Raises:
        RunError: The folder holds no comparison.json.
        AccessError: The folder cannot be written.
    """
    from steadyrl.show.report.pictures.comparison import draw  # matplotlib takes a second to load

    folder = Path(folder)
    record = read_json(folder / RECORD)
    picture = records.Picture("comparison.svg", LABEL, CAPTION, (draw(record),))
    write_text(folder / picture.file, picture.panels[0])
    a, b = record["a"]["name"], record["b"]["name"]
    page = [records.Heading(f"{b} against {a}", 1), *comparison_view(record, (picture,))]
    write_text(folder / "comparison.html", html.page(f"{a} and {b}: comparison", page))
    return folder / "comparison.html"


def comparison_view(
    record: Mapping[str, Any], pictures: Sequence[records.Picture] = (), examples: int | None = None
) -> list[records.Record]:
    """Return what every page and the terminal show of a comparison, with so many examples of each kind (None: all)."""
    a, b, answers = record["a"], record["b"], "answers" if record["samples"] > 1 else "answer"
    word = "undecided" if record["doubts"] else record["verdict"]["word"]
    headline, *details = (f"{text[:1].upper()}{text[1:]}.".replace(" -> ", " → ") for text in record["sentences"])
    side_by_side = [
        example
        for kind in EXAMPLE_KINDS
        for example in [example for example in record["examples"] if example["why"] == kind][:examples]
    ]
    verdict = record["verdict"]
    facts = {
        "problems won, tied, lost by B": f"{verdict['wins']}, {verdict['ties']}, {verdict['losses']}",
        "standard error of the difference": number(verdict["change"]["standard_error"]),
        "chance alone, by flipped signs": p_value(verdict["p_value"]),
    }
    if verdict["mcnemar"] is not None:
        passes = "more passes than the other's" if record["samples"] > 1 else "a pass"
        facts[f"McNemar's exact test ({passes} wins)"] = p_value(verdict["mcnemar"])
    facts["smallest difference that could be shown"] = number(verdict["smallest"])
    if verdict["margin"] is not None:
        facts["margin"] = number(verdict["margin"])
    return [
        records.Note(headline, "headline", records.TONES[word]),
        *map(records.Note, details),
        records.Note(
            f"A = {a['name']} ({a['what']}), B = {b['name']} ({b['what']}); task {record['task']}, "
            f"{record['samples']} {record['decoding']} {answers} to each problem, seed {record['seed']}.",
            "soft",
        ),
        records.Note(
            "The interval is over problems, whose samples are averaged first. It says what other problems of this kind "
            "would show. Another training seed can differ by more.",
            "soft",
        ),
        *_left_out(record),
        *pictures,
        records.Heading("The tests"),
        records.Facts([*facts.items(), ("problems with the same answers from both", f"{record['same_answers']}")]),
        records.Heading("Every measurement"),
        records.Note(
            f"Means over the problems where both have it (n). The verdict is about {record['metric']} alone.", "soft"
        ),
        records.Table(
            ("measurement", *records.numbers("n", "A", "B", "B - A", "95 % interval")),
            [(row["name"], *_cells(row)) for row in (metric_row(record, record["metric"]), *record["parts"])],
            frozenset({0}),
        ),
        *_difficulty(record["difficulty"]),
        records.Heading("Side by side"),
        records.Note("The largest wins of B, its largest losses, and some problems without a difference.", "soft"),
        *(_sample(example) for example in side_by_side),
    ]


def _left_out(record: Mapping[str, Any]) -> Iterator[records.Record]:
    unscored_a, unscored_b = record["a"]["unscored"], record["b"]["unscored"]
    count = f"{unscored_a} answers of A and {unscored_b} of B have no {record['metric']}"
    if record["left_out"]:
        problems = f"{record['left_out']} problems could not be measured for both and are left out"
        yield records.Note(f"{problems} ({count}).", "note")
    elif unscored_a or unscored_b:
        yield records.Note(f"{count}; the other samples of these problems count.", "note")


def _cells(row: Mapping[str, Any]) -> tuple[records.Text, ...]:
    return f"{row['n']}", number(row["a"]), number(row["b"]), signed(row["difference"]), interval(row["interval"])


def _difficulty(rows: Sequence[Mapping[str, Any]]) -> Iterator[records.Record]:
    if rows:
        yield records.Heading("By difficulty")
        yield records.Note(
            "Each row has fewer problems than the whole set, and many rows show something by chance. Use them to "
            "decide where to look, not as verdicts.",
            "soft",
        )
        yield records.Table(
            ("difficulty", *records.numbers("n", "A", "B", "B - A", "95 % interval", "won", "lost")),
            [(row["level"], *_cells(row), f"{row['wins']}", f"{row['losses']}") for row in rows],
        )


def _sample(example: Mapping[str, Any]) -> records.Sample:
    """Return an example with the sample that shows its difference first, beside the same sample of the other side."""
    other_samples = [i for i in range(len(example["a"])) if i != example["sample"]]
    sample_indices = [example["sample"], *other_samples][:SAMPLES_SHOWN]
    hidden = len(example["a"]) - len(sample_indices)
    omitted = f", without {counted(hidden, 'more sample')}" if hidden else ""
    title = f"{example['problem']} ({EXAMPLE_KINDS[example['why']]}, {signed(example['difference'])}{omitted})"
    answers = []
    for side, answer in [(side, example[side][i]) for i in sample_indices for side in ("a", "b")]:
        if answer["unscored"]:
            label = f"{side.upper()}, unscored: {answer['unscored']}"
        else:
            rewards = "".join(f", {name} {number(value)}" for name, value in sorted(answer["parts"].items()))
            label = f"{side.upper()}, reward {number(answer['reward'])}{rewards}"
        cut = ", cut at the token limit" if answer["truncated"] else ""
        answers.append(records.Answer(f"{label}{cut}", shorten(answer["text"]), shorten(answer["note"])))
    return records.Sample(title, shorten(example["prompt"]), answers)
