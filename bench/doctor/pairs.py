"""The doctor on pairs of public runs with a known difference: python bench/doctor/pairs.py --pairs FOLDER [--out FILE].

FOLDER holds ``labels.jsonl`` (a line a pair, written before the doctor read it) and a folder for each pair with the
runs ``a`` and ``b``, each a log (``a.jsonl``) or a folder. A label has "pair", "trainer", "source", "known" (what
differs), "reading" (what a person reads from the curves) and

- "setting": words of which one must be in the lead's name of what is set differently; empty where no file says it
- "moved": words of which one must be in one of the first three quantities that differ; empty where none is asked for
- "not_moved": words that no quantity that differs may have
- "null": true where a person sees no difference beyond noise, for the reader

The logs are other people's and no part of this project.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import date
from pathlib import Path
from typing import Any

from steadyrl.core.errors import SteadyError
from steadyrl.doctor.differ import Difference, differ, sentences
from steadyrl.doctor.examine import diagnose

LEADING = 3  # quantities that a reader looks at
OUTCOMES = ("right", "silent", "misleading", "wrong", "not readable")


def main() -> None:
    """Judge every pair, print what was said of it, and write the outcomes where asked."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--pairs", type=Path, required=True, help="folder with labels.jsonl")
    parser.add_argument("--out", type=Path, help="JSON file for the outcomes")
    args = parser.parse_args()
    if not (args.pairs / "labels.jsonl").is_file():
        sys.exit(f"there is no labels.jsonl in '{args.pairs}'; give the folder of the pairs")
    labels = [json.loads(line) for line in (args.pairs / "labels.jsonl").read_text(encoding="utf-8").splitlines()]
    outcomes = {}
    for label in labels:
        outcome, why, lines = judge(args.pairs, label)
        outcomes[label["pair"]] = {"outcome": outcome, "why": why, "said": lines}
        print(f"{label['pair']}  {outcome:12s} {why}", *lines, sep="\n    ")
    counts = Counter(entry["outcome"] for entry in outcomes.values())
    print(", ".join(f"{counts[outcome]} {outcome}" for outcome in OUTCOMES), f"of {len(labels)} pairs")
    if args.out:
        report = {"date": date.today().isoformat(), "outcomes": outcomes}
        args.out.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")


def judge(folder: Path, label: Mapping[str, Any]) -> tuple[str, str, list[str]]:
    """Return the outcome of a pair, what decided it, and what the doctor says."""
    try:
        runs = []
        for side in "ab":
            (path,) = (folder / label["pair"]).glob(f"{side}*")
            runs.append(diagnose(path)[0].run)
    except SteadyError as error:
        return "not readable", str(error).splitlines()[0], []
    difference = differ(*runs)
    return *outcome_of(difference, label), sentences(difference)


def outcome_of(difference: Difference, label: Mapping[str, Any]) -> tuple[str, str]:
    """Return one of OUTCOMES and what decided it."""
    parted = [part.quantity for part in difference.parted]
    lead = difference.cause.split(";")[0]
    false = [name for name in parted if has(name, label["not_moved"])]
    if false:
        return "wrong", f"{', '.join(false)}: said to differ, and does not"
    if label["setting"] and not has(lead, label["setting"]):
        told = "is set differently" in lead
        return ("misleading" if told else "silent"), f"the lead does not name {' or '.join(label['setting'])}"
    if not label["setting"] and "is set differently" in lead:
        return "misleading", "a setting leads that is not what differs"
    if label["moved"] and not any(has(name, label["moved"]) for name in parted[:LEADING]):
        return "silent", f"none of {', '.join(label['moved'])} leads what differs"
    return "right", ""


def has(text: str, words: Sequence[str]) -> bool:
    """Return True if a text has one of some words."""
    return any(word.lower() in text.lower() for word in words)


if __name__ == "__main__":
    main()
