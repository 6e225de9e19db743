"""The tables of doctor_fresh.md and doctor_preferences.md in bench/results: python bench/doctor/fresh.py.

They come from labels and answers; everything else on the pages is written by hand. A label's "first" is what the
doctor said before a log of its set had taught a rule, "after" what it says since; "form" stands where the file's ending
does not tell it. "second" is what a second reader said of the file alone, who knew neither the label nor the doctor's
answer.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

LABELS = Path(__file__).parent / "fresh.jsonl"
PAGE = Path(__file__).parent.parent / "results" / "doctor_fresh.md"
PREFERENCES = LABELS.with_name("preferences.jsonl"), PAGE.with_name("doctor_preferences.md")  # of DPO and its kin
NEWEST_FROM = 8  # the sets that count as the newest
PASTED = re.compile(r"#\d+|not known")  # the source of what stands in a thread, or was found by its text
Label = Mapping[str, Any]
ANSWERS: Mapping[str, Mapping[str, tuple[str, ...]]] = {
    "sick": {
        "named rightly": ("named",), "wrong cause leads": ("wrong", "elsewhere"), "too little to judge": ("silent",),
        "called healthy": ("called healthy",), "not readable": ("not readable",),
    },
    "healthy": {
        "called so": ("right",), "too little to judge": ("too little",), "alarm": ("false alarm",),
        "not readable": ("not readable",),
    },
    "undecided": {
        "too little to judge": ("right", "too little"), "called healthy": ("called healthy",),
        "alarm": ("false alarm",), "not readable": ("not readable",),
    },
}  # fmt: skip
PARTS = {5: {"first": "open part", "last": "last third"}, 6: {"open": "open part", "last": "last part"},
         8: {"open": "open part", "last": "last part"}}  # fmt: skip
FORMS = {"trainer": "as trainers write them", "notebook": "notebooks", "write-up": "write-ups and pastes"}


def main() -> None:
    """Replace the tables on the pages."""
    for (file, written), tables in {
        (LABELS, PAGE): (by_set, by_form, by_reader, each),
        PREFERENCES: (by_set, each),
    }.items():
        labels = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]
        page = written.read_text(encoding="utf-8")
        for table in tables:
            page = replaced(page, table(labels))
        written.write_text(page, encoding="utf-8")


def replaced(page: str, table: Sequence[str]) -> str:
    """Return a page with a table in place of the one whose heading begins with the same two cells."""
    lines = page.splitlines()
    begin = table[0].split(" | ")[:2]
    start = next(n for n, line in enumerate(lines) if line.split(" | ")[:2] == begin)
    end = next((n for n, line in enumerate(lines[start:], start) if not line.startswith("|")), len(lines))
    return "\n".join([*lines[:start], *table, *lines[end:]]) + "\n"


def by_set(labels: Sequence[Label]) -> list[str]:
    """Return the table of the sets and their parts."""
    groups: dict[str, list[Label]] = {}
    for label in sorted(labels, key=lambda x: (x["set"], x["half"] == "last")):
        groups.setdefault(part(label), []).append(label)
    groups["all"] = list(labels)
    rows = [("logs", *(str(len(several)) for several in groups.values())), *_counts(groups)]
    return _table(("first / now", *(f"set {name}" if name == "1" else name for name in groups)), rows)


def by_form(labels: Sequence[Label]) -> list[str]:
    """Return the table of the forms, over all sets and over the newest."""
    newest = f"sets {NEWEST_FROM} to {max(label['set'] for label in labels)}"
    groups = {name: [x for x in labels if form(x) == key] for key, name in FORMS.items()}
    short = {"trainer": "trainers", "notebook": "notebooks", "write-up": "write-ups"}
    for key, name in short.items():
        groups[f"{name}, {newest}"] = [x for x in labels if form(x) == key and x["set"] >= NEWEST_FROM]
    sizes: dict[str, Callable[[Label], bool]] = {"logs": lambda _: True}
    sizes |= {state: lambda x, state=state: x["state"] == state for state in ANSWERS}  # type: ignore[misc]
    rows = [(what, *(str(sum(map(counts, x))) for x in groups.values())) for what, counts in sizes.items()]
    return _table(("first / now", *groups), [*rows, *_counts(groups)])


def by_reader(labels: Sequence[Label]) -> list[str]:
    """Return the table of what a second reader and the doctor at first said of the same logs."""
    twice = [x for x in labels if "second" in x]
    groups = {state: [x for x in twice if x["state"] == state] for state in ANSWERS}
    sick_words = ("named", "wrong", "elsewhere", "false alarm")
    counted: dict[str, Callable[[Label], bool]] = {
        "logs": lambda _: True,
        "reader: sick": lambda x: x["second"]["state"] == "sick",
        "reader: sick, with a word of the label": lambda x: x["second"]["state"] == "sick" and names_cause(x),
        "reader: healthy": lambda x: x["second"]["state"] == "healthy",
        "doctor: sick": lambda x: x["first"] in sick_words,
        "doctor: sick, with a word of the label": lambda x: x["first"] == "named",
        "doctor: healthy": lambda x: x["first"] == ("right" if x["state"] == "healthy" else "called healthy"),
    }
    rows = [(what, *(str(sum(map(counts, x))) for x in groups.values())) for what, counts in counted.items()]
    return _table(("of a label", *groups), rows)


def names_cause(label: Label) -> bool:
    """Return whether the second reader's cause has a word of the first one's label."""
    cause = re.sub("[-_]", " ", label["second"]["cause"].lower())
    return any(re.sub("[-_]", " ", word.lower()) in cause for word in label["any_of"])


def each(labels: Sequence[Label]) -> list[str]:
    """Return the table of all logs."""
    rows = [(x["file"], x["source"], x["state"], x["first"], x["after"], part(x)) for x in labels]
    return _table(("log", "published in", "state", "first", "now", "part"), rows)


def part(label: Label) -> str:
    """Return the set of a log, and its part where the set was split before anything was read."""
    half = PARTS.get(label["set"], {}).get(label["half"], "")
    return f"{label['set']}, {half}" if half else str(label["set"])


def form(label: Label) -> str:
    """Return in which form a log was published."""
    ending = label["file"].rpartition(".")[2]
    pasted = "write-up" if PASTED.search(label["source"]) else "trainer"
    return str(label.get("form", {"ipynb": "notebook", "md": "write-up"}.get(ending, pasted)))


def _counts(groups: Mapping[str, Sequence[Label]]) -> Iterator[tuple[str, ...]]:
    for state, answers in ANSWERS.items():
        for what, words in answers.items():
            cells = [
                " / ".join(
                    str(sum(x["state"] == state and x[when] in words for x in several)) for when in ("first", "after")
                )
                for several in groups.values()
            ]
            yield (f"{state}, {what}", *cells)


def _table(heading: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    return (
        [f"| {' | '.join(row)} |" for row in (heading,)]
        + ["|" + "---|" * len(heading)]
        + [f"| {' | '.join(row)} |" for row in rows]
    )


if __name__ == "__main__":
    main()
