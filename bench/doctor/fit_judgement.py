"""Fit the doctor's judgement to labelled logs: python bench/doctor/fit_judgement.py [--logs LABELS FOLDER ...].

``vectors.jsonl`` holds the quantities of each labelled log, so that the fit needs no logs; ``--logs`` measures them
anew, from a file of labels and the folders with the logs. Writes steadyrl/doctor/judgement/weights.toml and
bench/results/doctor_judgement.md.

Two logistic regressions over ordered bins: for "sick" no weight of a bin is below 0, for "healthy" none above. Each
weight is drawn to ``PRIOR``, so that a bin with few logs says little. Everything that is reported is of sets of logs
that were left out: weights and thresholds come from the other sets alone. Sets after ``LAST_SET`` teach nothing: they
show how the judgement does on logs that came later.
"""

from __future__ import annotations

import argparse
import json
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from scipy.optimize import minimize

from steadyrl.core.errors import SteadyError
from steadyrl.doctor.examine import diagnose_all
from steadyrl.doctor.judgement.model import DOUBT, FAMILIES, LONG, QUANTITIES, is_long
from steadyrl.doctor.judgement.quantities import quantities

HERE = Path(__file__).parent
VECTORS = HERE / "vectors.jsonl"
WEIGHTS = HERE.parents[1] / "steadyrl" / "doctor" / "judgement" / "weights.toml"
RESULTS = HERE.parent / "results" / "doctor_judgement.md"
LAST_SET = 25  # of those that teach
VERDICTS = ("sick", "too little to judge", "healthy")
CUTS = (0.1, 0.25, 0.5, 0.75, 0.9)  # of the logs that have a quantity: shares that lie below the end of a bin
FEWEST = 12  # logs with a quantity
PRIOR, STIFFNESS = 0.2, 5.0  # of a weight, in log-odds, and how hard it is drawn there
STATES = ("sick", "healthy")
# Of the logs that the rules leave open and that are called something: the share that has to be so, and the share that
# may be the opposite. The others are undecided, that is too short or too mixed for a person.
RIGHT, OPPOSITE = {"short": {"sick": 0.75, "healthy": 0.55}, "long": {"sick": 0.65, "healthy": 0.55}}, 0.05
LEAST = 0.4  # of a threshold
NUMERIC = "non_finite"  # first in a label: a check finds these for certain, and other quantities show nothing of it
PROBABILITIES = (0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0)
BANDS, NEAR = (0.2, 0.35, 0.5, 0.65, 0.8), 0.12  # ends of what is told; those near to a threshold are left out
NAMES = tuple(QUANTITIES)
ANSWERS = ("right", "wrong cause", "too little", "called healthy", "alarm", "not readable")
# The words of fresh.jsonl.
FIRST = {
    "named": "right", "elsewhere": "wrong cause", "wrong": "wrong cause", "silent": "too little", "false alarm": "alarm"
}  # fmt: skip
OPEN = ("right", "undecided")


@dataclass(frozen=True)
class Logs:
    """Labelled logs."""

    labels: Sequence[Mapping[str, Any]]
    """File, set, state, any_of and the answer at first sight."""
    values: np.ndarray
    """[n, q], NaN for what a log does not hold."""
    sets: np.ndarray
    """[n]."""

    def are(self, state: str) -> np.ndarray:
        """Return which logs are of a state, [n] bool."""
        return np.array([label["state"] == state for label in self.labels], dtype=bool)

    @property
    def undecided_by_rules(self) -> np.ndarray:
        """Which logs the rules had too little for at first sight, [n] bool."""
        return np.array([_left_open(label) for label in self.labels], dtype=bool)

    @property
    def taught(self) -> Logs:
        """Those that teach: all but the logs whose numbers broke."""
        return self.at(np.array([NUMERIC not in label["any_of"][:1] for label in self.labels]))

    @property
    def earlier(self) -> Logs:
        """Those of the sets that teach."""
        return self.at(self.sets <= LAST_SET)

    @property
    def later(self) -> Logs:
        """Those of later sets that the rules left open at first sight."""
        return self.at((self.sets > LAST_SET) & self.undecided_by_rules)

    def lengths(self) -> Mapping[str, np.ndarray]:
        """Return which logs are "short" and which "long", [n] bool: to be sure takes more where there are few rows."""
        long = np.array([is_long(dict(zip(NAMES, row, strict=True))) for row in self.values], dtype=bool)
        return {"short": ~long, "long": long}

    def at(self, places: np.ndarray) -> Logs:
        """Return some of them, by [n] bool."""
        labels = [label for label, wanted in zip(self.labels, places, strict=True) if wanted]
        return Logs(labels, self.values[places], self.sets[places])


@dataclass(frozen=True)
class Fit:
    """Weights of one regression."""

    cuts: Sequence[np.ndarray]
    """By quantity, ends of its bins."""
    usual: np.ndarray
    """[w] share of the logs above each cut: what a log that lacks the quantity counts as."""
    weights: np.ndarray
    """[w]."""
    base: float


def main() -> None:
    """Measure the logs if they are there, fit, judge what was left out, and write both files."""
    parser = argparse.ArgumentParser(description="Fit the doctor's judgement to labelled logs.")
    parser.add_argument("--logs", nargs="+", type=Path, help="a file of labels, and the folders that hold their logs")
    args = parser.parse_args()
    if args.logs:
        measure(args.logs[0], args.logs[1:])
    entries = [json.loads(line) for line in VECTORS.read_text(encoding="utf-8").splitlines()]
    logs = read(entries)
    WEIGHTS.write_text(weights_file(logs.earlier.taught), encoding="utf-8")
    RESULTS.write_text(document(logs), encoding="utf-8")
    print(RESULTS.read_text(encoding="utf-8"))


def read(entries: Sequence[Mapping[str, Any]]) -> Logs:
    """Return labelled logs from the lines of ``vectors.jsonl``."""
    values = [[entry["quantities"].get(name, np.nan) for name in NAMES] for entry in entries]
    return Logs(entries, np.array(values), np.array([entry["set"] for entry in entries]))


def measure(labels: Path, folders: Sequence[Path]) -> None:
    """Write the quantities of the labelled logs into ``vectors.jsonl``, in place of earlier ones of the same files."""
    lines = VECTORS.read_text(encoding="utf-8").splitlines() if VECTORS.exists() else []
    entries = {(entry["set"], entry["file"]): entry for entry in map(json.loads, lines)}
    for label in map(json.loads, labels.read_text(encoding="utf-8").splitlines()):
        if "copy_of" in label:  # a log of an earlier set, found again
            continue
        path = next((folder / label["file"] for folder in folders if (folder / label["file"]).is_file()), None)
        try:
            diagnoses = diagnose_all(path)[0] if path else []
        except SteadyError:
            diagnoses = []
        if not diagnoses:
            continue
        worst = min(diagnoses, key=lambda diagnosis: (VERDICTS.index(diagnosis.verdict), -diagnosis.run.steps))
        entry = {name: label[name] for name in ("file", "state", "any_of", "first") if name in label}
        entry |= {"set": label.get("set", 0)} | ({"first": label["rules"]} if "rules" in label else {})
        entry["quantities"] = {name: float(f"{x:.5g}") for name, x in quantities(worst.run).items()}
        entries[entry["set"], entry["file"]] = entry
    VECTORS.write_text("".join(json.dumps(entry) + "\n" for entry in entries.values()), encoding="utf-8")


def fit(logs: Logs, state: str) -> Fit:
    """Return the regression of "is of this state"."""
    logs = logs.taught
    cuts = [edges(column) for column in logs.values.T]
    bins = binned(logs.values, cuts)
    usual = np.nanmean(bins, axis=0)
    above = np.where(np.isfinite(bins), bins, usual)  # [n, w]
    is_so, sign = logs.are(state) * 1.0, 1.0 if state == "sick" else -1.0

    def loss(parameters: np.ndarray) -> tuple[float, np.ndarray]:
        base, weights = parameters[0], parameters[1:]
        logit = above @ weights + base
        wrong, off = 1.0 / (1.0 + np.exp(-logit)) - is_so, weights - sign * PRIOR
        gradient = np.concatenate([[wrong.sum()], above.T @ wrong + STIFFNESS * off])
        return float(np.logaddexp(0.0, logit * (1.0 - 2.0 * is_so)).sum() + STIFFNESS / 2.0 * off @ off), gradient

    width = above.shape[1]
    bounds = [(None, None)] + [(0.0, None) if sign > 0 else (None, 0.0)] * width
    best = minimize(loss, np.zeros(width + 1), jac=True, method="L-BFGS-B", bounds=bounds).x
    return Fit(cuts, usual, best[1:], float(best[0]))


def edges(column: np.ndarray) -> np.ndarray:
    """Return where the bins of a quantity end, [at most 5]; none where few logs have it."""
    known = column[np.isfinite(column)]
    if len(known) < FEWEST:
        return np.zeros(0)
    ends = np.array(sorted({float(f"{end:.3g}") for end in np.quantile(known, CUTS)}))
    return ends[ends < known.max()]


def binned(values: np.ndarray, cuts: Sequence[np.ndarray]) -> np.ndarray:
    """Return [n, w]: 1 above a cut, 0 below, NaN where a log lacks the quantity."""
    columns = [
        np.where(np.isfinite(column), column > end, np.nan)
        for column, ends in zip(values.T, cuts, strict=True)
        for end in ends
    ]
    return np.array(columns).T


def shares(model: Fit, values: np.ndarray) -> np.ndarray:
    """Return what each weight adds to the log-odds of each log, beyond what it adds to a usual one; [n, w]."""
    above = binned(values, model.cuts)
    return np.where(np.isfinite(above), above - model.usual, 0.0) * model.weights


def probability(model: Fit, values: np.ndarray) -> np.ndarray:
    """Return the probability of each log, [n]."""
    logit = shares(model, values).sum(axis=1) + model.base + float(model.usual @ model.weights)
    return np.asarray(1.0 / (1.0 + np.exp(-logit)))


def by_sets(logs: Logs, answer: Callable[[Logs, Logs], Iterable[Any]]) -> list[Any]:
    """Return the answer to each log, [n], where a set is answered by ``answer(other sets, set)``."""
    answers: dict[int, Any] = {}
    for number in np.unique(logs.sets):
        inside = logs.sets == number
        answers |= zip(np.flatnonzero(inside).tolist(), answer(logs.at(~inside), logs.at(inside)), strict=True)
    return [answers[i] for i in range(len(logs.labels))]


def left_out(logs: Logs, state: str) -> np.ndarray:
    """Return the probability of each log by a fit to the other sets, [n]."""
    return np.array(by_sets(logs, lambda others, judged: probability(fit(others, state), judged.values)))


def leads(teaching: Logs, judged: Logs) -> list[str]:
    """Return the family that speaks most for a fault in each judged log."""
    model = fit(teaching, "sick")
    families = [QUANTITIES[name].family for name, ends in zip(NAMES, model.cuts, strict=True) for _ in ends]
    result = []
    for row in shares(model, judged.values):
        total: Counter[str] = Counter()
        for family, share in zip(families, row, strict=True):
            total[family] += max(share, 0.0)
        total.pop("", None)
        result.append(max(total, key=total.__getitem__))
    return result


def _left_open(label: Mapping[str, Any]) -> bool:
    first = FIRST.get(label.get("first", ""), label.get("first", ""))
    return first == "too little" or (first, label["state"]) == OPEN


Limits = Mapping[str, Mapping[str, float]]  # by length and state


def limits(logs: Logs) -> tuple[Mapping[str, np.ndarray], Limits]:
    """Return the probability of each state in each log by a fit to the other sets, [n], and what lets it be said.

    That is the least threshold, in steps of .05, above which a share ``RIGHT`` of the logs of a length that the rules
    leave open are of the state, and ``OPPOSITE`` at most of the other; what may be sick is not healthy.
    """
    inner = {state: left_out(logs, state) for state in STATES}
    inner["healthy"] = np.where(inner["sick"] <= DOUBT, inner["healthy"], 0.0)
    return inner, {
        length: {state: _limit(logs.at(inside), state, inner[state][inside], RIGHT[length][state]) for state in STATES}
        for length, inside in logs.lengths().items()
    }


def _limit(logs: Logs, state: str, probabilities: np.ndarray, right: float) -> float:
    opposite = next(other for other in STATES if other != state)
    steps = np.arange(round(LEAST * 20), 20) / 20.0
    for step in steps:
        called = logs.at(logs.undecided_by_rules & (probabilities >= step))
        if called.labels and called.are(state).mean() >= right and called.are(opposite).mean() <= OPPOSITE:
            return float(step)
    return float(steps[-1])


def weights_file(logs: Logs) -> str:
    """Return weights.toml: by quantity the ends of bins and their weights."""
    fits = {state: fit(logs, state) for state in STATES}
    counted = ", ".join(f"{int(logs.are(state).sum())} {state}" for state in ("sick", "healthy", "undecided"))
    lines = [
        f"# Made by bench/doctor/fit_judgement.py from {len(logs.labels)} labelled logs ({counted}).",
        '# A log above an end of "above" gains the weights at its place, in log-odds; "usual" is the share of the logs',
        "# above it, which a log without the quantity counts as.",
        "",
        *(f"base_{state} = {fits[state].base:.3f}" for state in STATES),
        "",
        "# By the number of rows, from which probability on a state is said; and of logs that the rules left open, by",
        "# fits to other sets: probability from, to, how many were so, how many.",
    ]
    inner, least = limits(logs)
    for length, inside in logs.lengths().items():
        asked = logs.undecided_by_rules & inside
        lines.append(f"[{length}]")
        for state in STATES:
            limit, are = least[length][state], logs.are(state)[asked]
            bands = [list(row) for row in calibration(inner[state][asked], are, band_ends(limit))]
            lines += [f"limit_{state} = {limit:g}", f"labelled_{state} = {bands}"]
    place = 0
    for name, ends in zip(NAMES, fits["sick"].cuts, strict=True):
        here = slice(place, place + len(ends))
        place += len(ends)
        lines += [
            "",
            f"[{name}]",
            f"above = {[float(end) for end in ends]}",
            f"usual = {[round(float(x), 3) for x in fits['sick'].usual[here]]}",
            *(f"{state} = {[round(float(x), 2) + 0.0 for x in fits[state].weights[here]]}" for state in STATES),
        ]
    return "\n".join(lines) + "\n"


def band_ends(threshold: float) -> list[float]:
    """Return the ends of the bands of probability whose counts are told to a reader."""
    return sorted({0.0, 1.0, threshold, *(end for end in BANDS if abs(end - threshold) > NEAR)})


def calibration(
    probabilities: np.ndarray, is_so: np.ndarray, ends: Sequence[float] = PROBABILITIES
) -> list[tuple[float, float, int, int]]:
    """Return (from, to, how many are so, how many) of the logs in each band of probability."""
    rows = []
    for low, high in pairwise(ends):
        inside = (probabilities >= low) & (probabilities < high + (high == 1.0))
        rows.append((low, high, int((inside & is_so).sum()), int(inside.sum())))
    return rows


def outcome(label: Mapping[str, Any], verdict: str, lead: str) -> str:
    """Return how an answer compares with a label."""
    if verdict != label["state"] and (verdict, label["state"]) != ("too little", "undecided"):
        return {"sick": "alarm", "too little": "too little", "healthy": "called healthy"}[verdict]
    return "right" if verdict != "sick" or any(word in lead for word in label["any_of"]) else "wrong cause"


def outcomes(teaching: Logs, judged: Logs) -> list[str]:
    """Return the outcome of each judged log, weights and thresholds from the teaching ones."""
    _, least = limits(teaching)
    sick, healthy = (probability(fit(teaching, state), judged.values) for state in STATES)
    long = judged.lengths()["long"]
    from_sick, from_healthy = (np.where(long, least["long"][state], least["short"][state]) for state in STATES)
    causes = leads(teaching, judged)
    untold = ~long & np.array([cause in FAMILIES and FAMILIES[cause].course for cause in causes], dtype=bool)
    called = np.where((healthy >= from_healthy) & (sick <= DOUBT), "healthy", "too little")
    verdicts = np.where((sick >= from_sick) & ~untold, "sick", called).tolist()
    return [outcome(*answer) for answer in zip(judged.labels, verdicts, causes, strict=True)]


def document(logs: Logs) -> str:
    """Return the page of results: rules at first sight, the model, and both, on sets that were left out."""
    later, logs = logs.later, logs.earlier
    shown = [i for i, label in enumerate(logs.labels) if "first" in label]
    rules = {i: FIRST.get(logs.labels[i]["first"], logs.labels[i]["first"]) for i in shown}
    model = dict(enumerate(by_sets(logs, outcomes)))
    silent = set(np.flatnonzero(logs.undecided_by_rules))
    columns = (rules, model, {i: model[i] if i in silent else rules[i] for i in shown})
    lines = [
        "# The doctor's judgement on sets of logs that were left out",
        "",
        f"Made on {date.today().isoformat()} by `python bench/doctor/fit_judgement.py`. Rules: what the doctor said at",
        "first sight, before a log of its set had taught a rule. Model: weights and limits fitted to the other sets.",
        "Both: the model where the rules had too little to judge. A cause is right if it has a word of the label. The",
        "quantities were chosen with these sets in sight; only a set that is examined later shows how well they do.",
        "That less than ten steps show no health is left out here, for the quantities do not hold the steps.",
        "",
        "| logs | answer | rules | model | both |",
        "|---|---|---|---|---|",
    ]
    for state in ("sick", "healthy", "undecided"):
        of_state = [i for i in shown if logs.labels[i]["state"] == state]
        for answer in ANSWERS:
            counts = [sum(column[i] == answer for i in of_state) for column in columns]
            if any(counts):
                lines.append(f"| {len(of_state)} {state} | {answer} | {' | '.join(map(str, counts))} |")
    lines += ["", "| set | sick | rules | model | both |", "|---|---|---|---|---|"]
    for number in sorted({int(logs.sets[i]) for i in shown}):
        sick = [i for i in shown if logs.sets[i] == number and logs.labels[i]["state"] == "sick"]
        counts = [sum(column[i] == "right" for i in sick) for column in columns]
        lines.append(f"| {number} | {len(sick)} | {' | '.join(map(str, counts))} |")
    return "\n".join([*lines, *_calibrated(logs.taught), *(_later(logs.taught, later) if later.labels else ())]) + "\n"


def _calibrated(logs: Logs) -> list[str]:
    """Return how often a probability was right, and how often the leading cause."""
    lines = ["", "| probability of being sick | logs that were left out | of them sick |", "|---|---|---|"]
    for low, high, right, every in calibration(left_out(logs, "sick"), logs.are("sick")):
        lines.append(f"| {low:.0%} to {high:.0%} | {every} | {right} |")
    causes = zip(logs.labels, by_sets(logs, leads), strict=True)
    named = [any(word in lead for word in label["any_of"]) for label, lead in causes if label["state"] == "sick"]
    lines += ["", f"The leading cause is right in {sum(named)} of {len(named)} sick logs.", ""]
    lines += [
        "| logs that the rules left open | look sick from | sick | healthy | undecided |",
        "|---|---|---|---|---|",
    ]
    inner, least = limits(logs)
    for length, inside in logs.lengths().items():
        limit = least[length]["sick"]
        above = logs.at(inside & logs.undecided_by_rules & (inner["sick"] >= limit))
        counts = " | ".join(str(int(above.are(state).sum())) for state in (*STATES, "undecided"))
        lines.append(f"| {length}: {'from' if length == 'long' else 'below'} {LONG} rows | {limit:.0%} | {counts} |")
    return lines


def _later(logs: Logs, later: Logs) -> list[str]:
    """Return how a judgement that ``logs`` taught does on logs of later sets that the rules left open."""
    counts = Counter(zip((label["state"] for label in later.labels), outcomes(logs, later), strict=True))
    first, last = min(later.sets), max(later.sets)
    lines = [
        "",
        f"## {f'Set {first}' if first == last else f'Sets {first} to {last}'}, which taught nothing",
        "",
        f"The rules left {len(later.labels)} of their logs open at first sight. What the judgement says of these:",
        "",
        "| logs | answer | model |",
        "|---|---|---|",
    ]
    for state in ("sick", "healthy", "undecided"):
        rows = [(answer, counts[state, answer]) for answer in ANSWERS if counts[state, answer]]
        lines += [f"| {int(later.are(state).sum())} {state} | {answer} | {count} |" for answer, count in rows]
    inner, least = limits(logs)
    for length, inside in logs.lengths().items():
        asked, there = logs.undecided_by_rules & inside, later.at(later.lengths()[length])
        for state in STATES:
            ends = band_ends(least[length][state])
            told = calibration(inner[state][asked], logs.are(state)[asked], ends)
            seen = calibration(probability(fit(logs, state), there.values), there.are(state), ends)
            lines += [
                "",
                f"| {length} logs, probability of being {state} | logs of the odds that are told | later sets |",
                "|---|---|---|",
            ]
            for (low, high, right, every), (*_, true, seen_there) in zip(told, seen, strict=True):
                lines.append(f"| {low:.0%} to {high:.0%} | {right} of {every} | {true} of {seen_there} |")
    return lines


if __name__ == "__main__":
    main()
