"""The page that compares runs: settings that differ, why, the curves, and which problems were gained and lost."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from steadyrl.core.errors import RunError
from steadyrl.core.rundir import RunDir, read_lines
from steadyrl.core.types import DECODINGS, Decoding
from steadyrl.doctor.differ import differ, sentences
from steadyrl.doctor.readers.spelling import flat_settings
from steadyrl.show.report.evidence import read_evaluation
from steadyrl.show.report.figures import change, concluded, metric_samples
from steadyrl.show.review.epochs import finite_number
from steadyrl.show.web.columns import Shelf
from steadyrl.show.web.diagnosis import Diagnoses, log_names, log_panels
from steadyrl.show.web.folder import Folder, Place
from steadyrl.show.web.overview import row
from steadyrl.show.web.run_page import score_ends, source
from steadyrl.show.web.topics import Panel, in_order, overview, panels

MOST_RUNS = 7  # as many as there are colours
TOGETHER = 2  # runs in whose pictures several metrics may stand
SHOWN_PROBLEMS = 8  # gained, and as many lost
SHORT = 600  # characters of a text
NOT_EXPLAINED_ABOVE = 64 << 20  # bytes of metrics; `steadyrl doctor A B` explains larger runs
_OF_NO_INTEREST = (
    "run.folder",
    "run.seed",
    "run.steps",
    "run.checkpoint_every",
    "run.keep_checkpoints",
    "run.rollouts_every",
)

Answers = Mapping[str, Mapping[str, Any]]


def compare_view(folder: Folder, shelf: Shelf, diagnoses: Diagnoses, ids: Sequence[str]) -> dict[str, Any]:
    """Return what the page shows of some runs; with fewer than two, the runs that can be chosen.

    Args:
        folder: Of the runs.
        shelf: Their metrics.
        diagnoses: Of those that are logs of other trainers.
        ids: Of the runs, the first of which the others are compared with.

    Raises:
        RunError: A run cannot be read, or there are more than ``MOST_RUNS``.
    """
    chosen = list(dict.fromkeys(run_id for run_id in ids if run_id))
    if len(chosen) > MOST_RUNS:
        raise RunError(f"{len(chosen)} runs are marked; at most {MOST_RUNS} can be compared on one page")
    there = folder.places()
    view: dict[str, Any] = {"section": "compare", "chosen": chosen, "places": there, "runs": []}
    if len(chosen) < 2:
        return view | {"chosen": _preselected(there, chosen)}
    places = [folder.find(run_id) for run_id in chosen]
    names = dict(zip(chosen, short_names([place.title for place in places]), strict=True))
    different, one_sided = _settings(places, diagnoses)
    return view | {
        "runs": [{"id": place.id, "name": names[place.id], "row": row(place)} for place in places],
        "different": different,
        "one_sided": one_sided,
        "explained": _explained(places[:2], diagnoses),
        "verdicts": [_verdict(places[0], place, names) for place in places[1:]],
        **boards_of(places, shelf, diagnoses),
        "sources": [source(place, names[place.id]) for place in places],
    }


def _preselected(there: Sequence[Place], chosen: Sequence[str]) -> list[str]:
    """Return two runs to begin with: the one chosen, or else the newest, and the newest other of the same task."""
    every = sorted((row(place) for place in there), key=lambda row: (row.place.kind == "log", -(row.time or 0.0)))
    first = next((row for row in every if row.place.id in chosen), every[0] if every else None)
    if first is None:
        return []
    others = [row for row in every if row.place.id != first.place.id]
    second = next((row for row in others if row.task == first.task), others[0] if others else None)
    return [first.place.id] + ([second.place.id] if second else [])


def short_names(names: Sequence[str]) -> list[str]:
    """Return names without the words that all of them begin and end with; whole where nothing would be left of one."""
    if len(names) < 2:
        return list(names)
    split = [re.findall(r"[^-_/.\s]+|[-_/.\s]", name) for name in names]
    begin = _equal_words(split)
    end = _equal_words([words[begin:][::-1] for words in split])
    shortened = ["".join(words[begin : len(words) - end]).strip("-_/. ") for words in split]
    return shortened if all(shortened) and len(set(shortened)) == len(set(names)) else list(names)


def _equal_words(split: Sequence[Sequence[str]]) -> int:
    """Return how many words all lists begin with."""
    return next((i for i, words in enumerate(zip(*split, strict=False)) if len(set(words)) > 1), min(map(len, split)))


def _settings(places: Sequence[Place], diagnoses: Diagnoses) -> tuple[list[Any], list[Any]]:
    """Return the settings that differ, as (name, values), and those that not every run knows."""
    every = [_known_settings(place, diagnoses) for place in places]
    names = dict.fromkeys(name for settings in every for name in settings)
    different: list[tuple[str, list[str | None]]] = []
    one_sided: list[tuple[str, list[str | None]]] = []
    for name in names:
        values = [settings.get(name) for settings in every]
        if len(set(values)) > 1:
            (one_sided if None in values else different).append((name, values))
    different.sort(key=lambda item: item[0].startswith(_OF_NO_INTEREST))
    return different, one_sided


def _known_settings(place: Place, diagnoses: Diagnoses) -> dict[str, str]:
    if place.kind == "log":
        return {name: str(value) for name, value in diagnoses.of(place)[0].run.settings.items()}
    run = RunDir(place.path)
    settings = flat_settings(run.resolved()) if run.resolved_file.is_file() else {}
    return {name: json.dumps(value, ensure_ascii=False, default=str) for name, value in settings.items()}


def _explained(places: Sequence[Place], diagnoses: Diagnoses) -> list[str]:
    """Return why the first two runs differ, as the doctor says it."""
    sizes = [RunDir(place.path).metrics_file for place in places if place.kind == "run"]
    if any(path.is_file() and path.stat().st_size > NOT_EXPLAINED_ABOVE for path in sizes):
        return ["these runs are too long to be explained while a page waits: `steadyrl doctor A B` does it"]
    try:
        first, second = (diagnoses.of(place)[0].run for place in places)
    except RunError as error:
        return [str(error)]
    return sentences(differ(first, second))


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
    first = overview(lines, _score(places), apart=len(places) > TOGETHER)
    shown = {name for panel in first for name, _ in panel.metrics}
    ordered = sorted((name for name in names if name not in shown), key=lambda name: -names[name])
    own = panels(ordered, apart=len(places) > TOGETHER)
    for topic, topic_panels in log_topics.items():
        there = shown | {name for panel in own.get(topic, []) for name, _ in panel.metrics}
        if more := [panel for panel in topic_panels if panel.metrics[0][0] not in there]:
            own.setdefault(topic, []).extend(more)
    return {"overview": first, "topics": in_order(own)}


def _score(places: Sequence[Place]) -> str:
    """Return the metric of the held-out score of the first run that has one; "" where none has."""
    runs = (RunDir(place.path) for place in places if place.kind == "run" and not row(place).problem)
    return next((f"heldout/{metric}" for run in runs if (metric := run.info().get("metric"))), "")


def _verdict(first: Place, second: Place, called: Mapping[str, str]) -> dict[str, Any]:
    """Return how the held-out answers of two runs differ, problem by problem, as the second will be used.

    Args:
        first: The run that is compared with.
        second: The run that is compared.
        called: By the ids of runs, their names on the page.
    """
    names = {"first": called[first.id], "second": called[second.id]}
    deploy = DECODINGS[0] if second.kind == "log" else RunDir(second.path).deploy
    every = {decoding: [_answers(place, decoding) for place in (first, second)] for decoding in DECODINGS}
    by_decoding = {decoding: _of_same_problems(*sides) for decoding, sides in every.items()}
    answers = by_decoding[deploy]
    if not all(answers):
        sides = zip((first, second), every[deploy], strict=True)
        lacks = [called[place.id] for place, by_problem in sides if not by_problem]
        return {**names, "change": None, "lacks": lacks, "gained": [], "lost": []}
    metrics = {decoding: [_metrics(side) for side in sides] for decoding, sides in by_decoding.items()}
    before, after = metrics[deploy]
    moved = {problem: after[problem] - value for problem, value in before.items() if problem in after}
    ordered = sorted(moved, key=lambda problem: -moved[problem])
    changes: dict[str, dict[str, Any]] = {decoding: change(*sides) for decoding, sides in metrics.items()}
    leading = {called[place.id]: row(place).finding for place in (first, second)}
    harms = {name: [finding.check] for name, finding in leading.items() if finding is not None}
    return {
        **names,
        "lacks": [],
        "deploy": deploy,
        "change": changes[deploy],
        "changes": changes
        | {f"{name}: {deploy}": moved for name, moved in _changes_of_sets(first, second, deploy).items()},
        "conclusion": concluded(changes, deploy, harms),
        "gained": [_pair(p, moved[p], answers) for p in ordered[:SHOWN_PROBLEMS] if moved[p] > 0],
        "lost": [_pair(p, moved[p], answers) for p in ordered[::-1][:SHOWN_PROBLEMS] if moved[p] < 0],
        "wins": sum(value > 0 for value in moved.values()),
        "losses": sum(value < 0 for value in moved.values()),
        "ties": sum(value == 0 for value in moved.values()),
    }


def _changes_of_sets(first: Place, second: Place, deploy: Decoding) -> dict[str, dict[str, Any]]:
    """Return how the answers differ on each further held-out set that both runs have (``evaluate.sets``)."""
    if "log" in (first.kind, second.kind):
        return {}
    runs = [RunDir(place.path) for place in (first, second)]
    names = [name for name in runs[0].heldout_sets() if name in runs[1].heldout_sets()]
    return {
        name: change(*(metric_samples(read_evaluation(run.evaluation_file("after", name)).of(deploy)) for run in runs))
        for name in names
    }


def _metrics(answers: Answers) -> dict[str, float]:
    return {problem: answer["metric"] for problem, answer in answers.items()}


def _answers(place: Place, decoding: Decoding) -> dict[str, dict[str, Any]]:
    """Return the answers of one kind after training, by problem, those that have a metric."""
    if place.kind == "log":
        return {}
    by_problem = {}
    for line in read_lines(RunDir(place.path).evaluation_file("after")):
        answers = line.get("answers")
        answer = answers.get(decoding) if isinstance(answers, dict) else None
        metric = finite_number(answer.get("metric")) if isinstance(answer, dict) else None
        if isinstance(answer, dict) and metric is not None:
            by_problem[str(line.get("problem"))] = {
                "metric": metric,
                "text": _cut(answer.get("text")),
                "prompt": _cut(line.get("prompt")),
            }
    return by_problem


def _of_same_problems(first: Answers, second: Answers) -> list[Answers]:
    """Return the answers to problems that both have; two tasks may give one name to different problems."""
    same = [problem for problem in first if problem in second and first[problem]["prompt"] == second[problem]["prompt"]]
    return [{problem: answers[problem] for problem in same} for answers in (first, second)]


def _pair(problem: str, difference: float, answers: Sequence[Answers]) -> dict[str, Any]:
    first, second = (by_problem[problem] for by_problem in answers)
    return {"problem": problem, "difference": difference, "prompt": first["prompt"], "sides": [first, second]}


def _cut(text: Any) -> str:
    string = str(text or "")
    return string if len(string) <= SHORT else f"{string[:SHORT]} …"
