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
from steadyrl.show.web.folder import Folder, RunRef
from steadyrl.show.web.overview import row
from steadyrl.show.web.run_page import score_ends, source

MOST_RUNS = 7  # as many as there are colours
TOGETHER = 2  # runs in whose pictures several metrics may stand


def compare_view(folder: Folder, shelf: Shelf, diagnoses: Diagnoses, ids: Sequence[str]) -> dict[str, Any]:
    """Return what the page shows of runs beside the first; with fewer than two, the runs that can be chosen.

    Raises:
        RunError: A run cannot be read, or there are more than ``MOST_RUNS``.
    """
    run_ids = list(dict.fromkeys(run_id for run_id in ids if run_id))
    if len(run_ids) > MOST_RUNS:
        raise RunError(f"{len(run_ids)} runs are marked; at most {MOST_RUNS} can be compared on one page")
    choices = folder.runs()
    view: dict[str, Any] = {"section": "compare", "chosen": run_ids, "choices": choices, "runs": []}
    if len(run_ids) < 2:
        return view | {"chosen": _preselected(choices, run_ids)}
    refs = [folder.find(run_id) for run_id in run_ids]
    names = dict(zip(run_ids, short_names([ref.title for ref in refs]), strict=True))
    compared = [_compared(ref, names[ref.id], diagnoses) for ref in refs]
    return view | {
        "runs": [{"id": ref.id, "name": names[ref.id], "row": row(ref)} for ref in refs],
        "conclusions": conclusions(compared),
        "differences": differences(compared),
        **boards_of(refs, shelf, diagnoses),
        "sources": [source(ref, names[ref.id]) for ref in refs],
    }


def _preselected(choices: Sequence[RunRef], run_ids: Sequence[str]) -> list[str]:
    """Return two runs to begin with: the one chosen, or else the newest, and the newest other of the same task."""
    rows = sorted((row(ref) for ref in choices), key=lambda row: (row.ref.kind == "log", -(row.time or 0.0)))
    first = next((row for row in rows if row.ref.id in run_ids), rows[0] if rows else None)
    if first is None:
        return []
    candidates = [row for row in rows if row.ref.id != first.ref.id]
    second = next((row for row in candidates if row.task == first.task), candidates[0] if candidates else None)
    return [first.ref.id] + ([second.ref.id] if second else [])


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
    return next((i for i, words in enumerate(zip(*split, strict=False)) if len(set(words)) > 1), min(map(len, split)))


def boards_of(refs: Sequence[RunRef], shelf: Shelf, diagnoses: Diagnoses) -> dict[str, Any]:
    """Return the panels that are looked at first, and all others by topic, first those that more runs have."""
    names: dict[str, int] = {}
    lines: list[dict[str, str]] = []
    log_topics: dict[str, list[Panel]] = {}
    for ref in refs:
        if ref.kind == "log":
            lines.append(log_names(diagnoses.get(ref)[0]))
            for topic, topic_panels in log_panels(diagnoses.get(ref)[0]).items():
                log_topics.setdefault(topic, []).extend(topic_panels)
        else:
            run = RunDir(ref.path)
            ends = score_ends(run)
            run_names = dict.fromkeys([*shelf.columns(run).names(), *([ends[0]] if ends else [])])
            lines.append({name: name for name in run_names})
            for name in run_names:
                names[name] = names.get(name, 0) + 1
    runs = (RunDir(ref.path) for ref in refs if ref.kind == "run" and not row(ref).problem)
    score = next((f"heldout/{metric}" for run in runs if (metric := run.info().get("metric"))), "")  # of the first run
    first = overview(lines, score, apart=len(refs) > TOGETHER)
    in_overview = {name for panel in first for name, _ in panel.metrics}
    ordered = sorted((name for name in names if name not in in_overview), key=lambda name: -names[name])
    topics = panels(ordered, apart=len(refs) > TOGETHER)
    for topic, topic_panels in log_topics.items():
        present = in_overview | {name for panel in topics.get(topic, []) for name, _ in panel.metrics}
        if further := [panel for panel in topic_panels if panel.metrics[0][0] not in present]:
            topics.setdefault(topic, []).extend(further)
    return {"overview": first, "topics": in_order(topics)}


def _compared(ref: RunRef, name: str, diagnoses: Diagnoses) -> Compared:
    leading = row(ref).finding
    run = RunDir(ref.path) if ref.kind == "run" else None
    return Compared(name, run, lambda: diagnoses.get(ref)[0].run, [leading.check] if leading else [])
