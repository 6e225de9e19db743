"""The doctor on logs that other people published: python bench/doctor/wild.py --logs FOLDER [--peer NAME=PYTHON ...].

FOLDER holds ``labels.jsonl`` (a line a log: "file", "state", "any_of", "what", "source") and the logs. They are other
people's and no part of this project; without the folder there is nothing to run. Writes
bench/results/doctor_wild.md and doctor_wild.json. Peers are run by their own interpreters through
``wild_peers.py``, on the rows that our reader found, because hardly one of these files is in a form that they read.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import date
from pathlib import Path
from typing import Any

from steadyrl.core.errors import SteadyError
from steadyrl.doctor.examine import Diagnosis, diagnose_all

RESULTS = Path(__file__).parent.parent / "results"
VERDICTS = ("sick", "too little to judge", "healthy", "unreadable")
PEERS = ("rlwatch", "rldoctor", "rlprobe")
# The peers name symptoms. What each of their alarms can be taken for, generously, in the words of the labels.
TAKEN_FOR: Mapping[str, str] = {
    "kl_explosion": "kl_runaway", "kl_drift": "kl_runaway reference", "kl_blowup": "kl_runaway reference",
    "gradient_norm_spike": "grad_norm learning_rate_too_high jump", "loss_nan": "non_finite",
    "gradient_pathology": "grad_norm non_finite learning_rate_too_high jump detached",
    "grad_pathology": "grad_norm non_finite learning_rate_too_high jump detached",
    "advantage_collapse": "no_signal_groups advantage reward_constant saturat",
    "adv_collapse": "no_signal_groups advantage reward_constant saturat",
    "degenerate_groups": "no_signal_groups advantage reward_constant saturat",
    "reward_std_death": "no_signal_groups reward_constant saturat", "advantage_variance": "advantage",
    "length_pathology": "length_collapse truncated hack", "truncation_starve": "truncated length",
    "plateau": "reward_flat reward", "reward_hacking": "hack", "reward_hack_length": "hack length",
    "reward_composition": "part component hack accuracy", "format_gaming": "hack accuracy part",
    "entropy_collapse": "collapse",
}  # fmt: skip


@dataclass(frozen=True)
class Answer:
    """What a tool says of one log.

    Attributes:
        verdict: One of VERDICTS.
        lead: What it names first, check and cause; "" for nothing.
        harms: Everything of it that counts as an alarm.
    """

    verdict: str
    lead: str
    harms: tuple[str, ...]


def main() -> None:
    """Judge every log, by the doctor and by the peers that are named, and write the tables."""
    args = arguments()
    if not (args.logs / "labels.jsonl").is_file():
        sys.exit(f"there is no labels.jsonl in '{args.logs}'; give the folder of the published logs")
    lines = (args.logs / "labels.jsonl").read_text(encoding="utf-8").splitlines()
    labels = [json.loads(line) for line in lines]
    diagnoses = {label["file"]: read(args.logs / label["file"]) for label in labels}
    said = {"steadyrl": {file: ours(found) for file, found in diagnoses.items()}}
    for peer, python in (entry.split("=", 1) for entry in args.peer):
        said[peer] = theirs(peer, python, diagnoses)
    report = {"date": date.today().isoformat(), "labels": labels, "said": said}
    args.out.mkdir(parents=True, exist_ok=True)
    plain = {**report, "said": {who: {f: asdict(a) for f, a in all_.items()} for who, all_ in said.items()}}
    (args.out / "doctor_wild.json").write_text(json.dumps(plain, indent=1) + "\n", encoding="utf-8")
    (args.out / "doctor_wild.md").write_text(document(labels, said, report["date"]), encoding="utf-8")
    print(summary(labels, said))


def read(path: Path) -> Diagnosis | None:
    """Return the diagnosis of a log, the worst of several runs in it; None if it cannot be read."""
    try:
        found, _ = diagnose_all(path)
    except SteadyError:
        return None
    return min(found, key=lambda diagnosis: VERDICTS.index(diagnosis.verdict))


def ours(diagnosis: Diagnosis | None) -> Answer:
    """Return the doctor's answer in the words of the table."""
    if diagnosis is None:
        return Answer("unreadable", "", ())
    harms = tuple(f"{f.check}: {f.cause}" for f in diagnosis.findings if f.harms)
    first = diagnosis.findings[0] if harms else None
    if diagnosis.judgement and diagnosis.verdict == "sick":
        return Answer("sick", diagnosis.judgement.cause, (diagnosis.judgement.cause,))
    return Answer(diagnosis.verdict, f"{first.check}: {first.cause}" if first else "", harms)


def theirs(peer: str, python: str, diagnoses: Mapping[str, Diagnosis | None]) -> dict[str, Answer]:
    """Return a peer's answers to the rows of every log that was read."""
    with tempfile.TemporaryDirectory() as folder:
        rows = {file: rows_of(found) for file, found in diagnoses.items() if found is not None}
        path = Path(folder) / "rows.json"
        path.write_text(json.dumps(rows), encoding="utf-8")
        script = Path(__file__).with_name("wild_peers.py")
        done = subprocess.run([python, str(script), peer, str(path)], capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"{python} could not run {peer}: {done.stderr.strip().splitlines()[-1:]}")
    alarms: dict[str, list[str]] = json.loads(done.stdout)
    answers = {}
    for file in diagnoses:
        found = tuple(alarms.get(file, ()))
        verdict = "unreadable" if file not in rows else "sick" if found else "healthy"
        answers[file] = Answer(verdict, found[0] if found else "", found)
    return answers


def rows_of(diagnosis: Diagnosis) -> list[dict[str, float]]:
    """Return a run as rows of canonical quantities, one for each step; of a quantity in several units the first."""
    by_step: dict[int, dict[str, float]] = {}
    for quantity, several in diagnosis.run.series.items():
        for step, value in zip(several[0].steps.tolist(), several[0].values.tolist(), strict=True):
            by_step.setdefault(step, {"step": step})[quantity] = value
    return [by_step[step] for step in sorted(by_step)]


def named(label: Mapping[str, Any], answer: Answer) -> bool:
    """Return True if what leads fits the label's words, however they are parted; NaN is what is not finite."""
    lead = answer.lead.lower()
    said = f"{lead} {TAKEN_FOR.get(lead, '')}{' nan' if 'non_finite' in lead else ''}".replace("_", "")
    return bool(lead) and any(word.lower().replace("_", "").replace("notf", "nonf") in said for word in label["any_of"])


def figures(labels: Sequence[Mapping[str, Any]], said: Mapping[str, Answer]) -> dict[str, int]:
    """Return the counts that decide."""
    sick = [label for label in labels if label["state"] == "sick"]
    states = Counter((label["state"], said[label["file"]].verdict) for label in labels)
    return {
        "sick logs": len(sick),
        "named first": sum(named(label, said[label["file"]]) for label in sick),
        "named anywhere": sum(
            any(named(label, Answer("sick", one, ())) for one in said[label["file"]].harms) for label in sick
        ),
        "any alarm": sum(bool(said[label["file"]].harms) for label in sick),
        "called healthy": states["sick", "healthy"],
        "alarms on healthy ones": states["healthy", "sick"],
        "alarms on undecided ones": states["undecided", "sick"],
        "undecided called healthy": states["undecided", "healthy"],
        "not read": sum(answer.verdict == "unreadable" for answer in said.values()),
    }


def summary(labels: Sequence[Mapping[str, Any]], said: Mapping[str, Mapping[str, Answer]]) -> str:
    """Return the figures as a table."""
    every = {who: figures(labels, answers) for who, answers in said.items()}
    names = list(next(iter(every.values())))
    lines = ["| | " + " | ".join(every) + " |", "|---|" + "---|" * len(every)]
    lines += [f"| {name} | " + " | ".join(str(counts[name]) for counts in every.values()) + " |" for name in names]
    return "\n".join(lines)


def document(labels: Sequence[Mapping[str, Any]], said: Mapping[str, Mapping[str, Answer]], day: str) -> str:
    """Return the report."""
    states = Counter((label["state"], said["steadyrl"][label["file"]].verdict) for label in labels)
    rows = [
        f"| {label['file'].removeprefix('runs/')} | {label['source']} | {label['state']} | "
        f"{said['steadyrl'][label['file']].verdict} | {said['steadyrl'][label['file']].lead or '-'} | "
        f"{'yes' if named(label, said['steadyrl'][label['file']]) else '-' if label['state'] != 'sick' else 'no'} |"
        for label in labels
    ]
    table = [
        f"| {state} | " + " | ".join(str(states[state, verdict]) for verdict in VERDICTS) + " |"
        for state in ("sick", "undecided", "healthy")
    ]
    return "\n".join(
        [
            "# The doctor on logs that other people published",
            "",
            f"{day}; `python bench/doctor/wild.py --logs FOLDER`. The logs are other people's: they are named here by "
            "where they were published, and are no part of this project.",
            "",
            "A sick log counts as named if what the doctor says first has one of the words in its check or cause that "
            "the label holds; labels were written from the numbers before any tool was run. These logs were in sight "
            "when the rules were written: the figures are those of the logs that taught them.",
            "",
            summary(labels, said),
            "",
            "The peers were given the same rows under their own names of the quantities (`wild_peers.py`), because "
            "they read few of these files themselves; a peer that raises nothing counts as healthy, since none of "
            "them says that it cannot tell. Their alarms name symptoms; each was taken for the causes that it can "
            "stand for, generously (`TAKEN_FOR` in `wild.py`).",
            "",
            "What the logs are, against what the doctor says:",
            "",
            "| | " + " | ".join(VERDICTS) + " |",
            "|---|" + "---|" * len(VERDICTS),
            *table,
            "",
            "| log | published in | state | verdict | leads | fits |",
            "|---|---|---|---|---|---|",
            *rows,
            "",
        ]
    )


def arguments() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--logs", type=Path, required=True, help="the folder of the published logs")
    parser.add_argument("--out", type=Path, default=RESULTS)
    parser.add_argument("--peer", action="append", default=[], metavar="NAME=PYTHON", help=f"one of {', '.join(PEERS)}")
    return parser.parse_args()


if __name__ == "__main__":
    main()
