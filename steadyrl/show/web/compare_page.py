"""The page that compares runs: settings that differ, why, the curves, and which problems were gained and lost."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from steadyrl.core.errors import RunError
from steadyrl.core.rundir import RunDir
from steadyrl.show.page.records import Panel
from steadyrl.show.report.differences import Compared, conclusions, differences
from steadyrl.show.report.topics import in_order, overview, panels
from steadyrl.show.web.columns import Shelf
from steadyrl.show.web.diagnosis import Diagnoses, log_names, log_panels
from steadyrl.show.web.folder import Folder, Place
from steadyrl.show.web.overview import row
from steadyrl.show.web.run_page import score_ends, source

MOST_RUNS = 7  # as many as there are colours
TOGETHER = 2  # runs in whose pictures several metrics may stand


def compare_view(folder: Folder, shelf: Shelf, diagnoses: Diagnoses, ids: Sequence[str]) -> dict[str, Any]:
    """Return what the page shows of runs beside the first; with fewer than two, the runs that can be chosen.

    Raises:
        RunError: A run cannot be read, or there are more than ``MOST_RUNS``.
    """
    chosen = list(dict.fromkeys(run_id for run_id in ids if run_id))
    if len(chosen) > MOST_RUNS:
        raise RunError(f"{len(chosen)} runs are marked; at most {MOST_RUNS} can be compared on one page")
    choices = folder.places()
    view: dict[str, Any] = {"section": "compare", "chosen": chosen, "places": choices, "runs": []}
    if len(chosen) < 2:
        return view | {"chosen": _preselected(choices, chosen)}
    places = [folder.find(run_id) for run_id in chosen]
    names = dict(zip(chosen, short_names([place.title for place in places]), strict=True))
    compared = [_compared(place, names[place.id], diagnoses) for place in places]
    return view | {
        "runs": [{"id": place.id, "name": names[place.id], "row": row(place)} for place in places],
        "conclusions": conclusions(compared),
        "differences": differences(compared),
        **boards_of(places, shelf, diagnoses),
        "sources": [source(place, names[place.id]) for place in places],
    }


def _preselected(choices: Sequence[Place], chosen: Sequence[str]) -> list[str]:
    """Return two runs to begin with: the one chosen, or else the newest, and the newest other of the same task."""
    every = sorted((row(place) for place in choices), key=lambda row: (row.place.kind == "log", -(row.time or 0.0)))
    first = next((row for row in every if row.place.id in chosen), every[0] if every else None)
    if first is None:
        return []
    candidates = [row for row in every if row.place.id != first.place.id]
    second = next((row for row in candidates if row.task == first.task), candidates[0] if candidates else None)
    return [first.place.id] + ([second.place.id] if second else [])


def short_names(names: Sequence[str]) -> list[str]:
    """Return names without the words that all of them begin and end with.

    Where a name has no others, the last common word stays: "s0" and "s0-2". Names that would be equal stay whole.
    """
    if len(names) < 2:
        return list(names)
    split = [re.findall(r"[^-_/.\s]+|[-_/.\s]", name) for name in names]
    begin = _equal_words(split)
    end = _equal_words([words[begin:][::-1] for words in split])
    for first in (begin, max(0, begin - 1)):
        shortened = ["".join(words[first : len(words) - end]).strip("-_/. ") for words in split]
        if all(shortened) and len(set(shortened)) == len(set(names)):
            return shortened
    return list(names)


def _equal_words(split: Sequence[Sequence[str]]) -> int:
    """Return how many words all lists begin with."""
    return next((i for i, words in enumerate(zip(*split, strict=False)) if len(set(words)) > 1), min(map(len, split)))


def boards_of(places: Sequence[Place], shelf: Shelf, diagnoses: Diagnoses) -> dict[str, Any]:
    """Return the panels that are looked at first, and all others by topic, first those that more runs have."""
    names: dict[str, int] = {}
    lines: list[dict[str, str]] = []
    log_topics: dict[str, list[Panel]] = {}
    for place in places:
        if place.kind == "log":
            lines.append(log_names(diagnoses.of(place)[0]))
            for topic, topic_panels in log_panels(diagnoses.of(place)[0]).items():
                log_topics.setdefault(topic, []).extend(topic_panels)
        else:
            run = RunDir(place.path)
            ends = score_ends(run)
            own_names = dict.fromkeys([*shelf.columns(run).names(), *([ends[0]] if ends else [])])
            lines.append({name: name for name in own_names})
            for name in own_names:
                names[name] = names.get(name, 0) + 1
    runs = (RunDir(place.path) for place in places if place.kind == "run" and not row(place).problem)
    score = next((f"heldout/{metric}" for run in runs if (metric := run.info().get("metric"))), "")  # of the first run
    first = overview(lines, score, apart=len(places) > TOGETHER)
    shown = {name for panel in first for name, _ in panel.metrics}
    ordered = sorted((name for name in names if name not in shown), key=lambda name: -names[name])
    own = panels(ordered, apart=len(places) > TOGETHER)
    for topic, topic_panels in log_topics.items():
        present = shown | {name for panel in own.get(topic, []) for name, _ in panel.metrics}
        if more := [panel for panel in topic_panels if panel.metrics[0][0] not in present]:
            own.setdefault(topic, []).extend(more)
    return {"overview": first, "topics": in_order(own)}


def _compared(place: Place, name: str, diagnoses: Diagnoses) -> Compared:
    leading = row(place).finding
    run = RunDir(place.path) if place.kind == "run" else None
    return Compared(name, run, lambda: diagnoses.of(place)[0].run, [leading.check] if leading else [])
