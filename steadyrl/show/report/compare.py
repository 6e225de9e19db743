"""Writes a comparison as a page: comparison.html and its picture, from comparison.json only."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from steadyrl.core.rundir import read_json, write_text
from steadyrl.lab.compare.compare import RECORD
from steadyrl.lab.compare.findings import metric_row
from steadyrl.show.page import markup
from steadyrl.show.report.compare_picture import draw
from steadyrl.show.report.write import page

HEADINGS = {"win": "large win", "loss": "large loss", "tie": "no difference"}
SAMPLES_SHOWN = 2  # of each side of an example


def write_comparison(folder: Path | str) -> Path:
    """Write the page of a comparison into its folder, and return the page's path.

    Raises:
        RunError: The folder holds no comparison.json.
        AccessError: The folder cannot be written.
    """
    folder = Path(folder)
    record = read_json(folder / RECORD)
    svg = draw(record)
    write_text(folder / "comparison.svg", svg)
    view = {
        "record": record,
        "sentences": [_as_sentence(text) for text in record["sentences"]],
        "picture": markup.inline_svg(svg, "comparison"),
        "rows": [metric_row(record, record["metric"]), *record["parts"]],
        "examples": [_example(example) for example in record["examples"]],
        "shown": SAMPLES_SHOWN,
    }
    write_text(folder / "comparison.html", page("comparison.html.j2", view, markup.clean))
    return folder / "comparison.html"


def _as_sentence(text: str) -> str:
    return f"{text[:1].upper()}{text[1:]}.".replace(" -> ", " → ")


def _example(example: Mapping[str, Any]) -> dict[str, Any]:
    """Return an example with the sample that shows its difference first, beside the same sample of the other side."""
    other_samples = [i for i in range(len(example["a"])) if i != example["sample"]]
    shown = [example["sample"], *other_samples][:SAMPLES_SHOWN]
    return {
        "problem": example["problem"],
        "why": HEADINGS[example["why"]],
        "difference": example["difference"],
        "prompt": markup.shorten(example["prompt"]),
        "sides": [(side.upper(), [_answer(example[side][i]) for i in shown]) for side in ("a", "b")],
        "more": max(0, len(example["a"]) - SAMPLES_SHOWN),
    }


def _answer(record: Mapping[str, Any]) -> dict[str, Any]:
    return {**record, "text": markup.shorten(record["text"]), "note": markup.shorten(record["note"])}
