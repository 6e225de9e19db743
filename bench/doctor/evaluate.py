"""Examine the stored runs and report what was found: python bench/doctor/evaluate.py [--rlwatch <its python>].

Writes bench/results/doctor.md and doctor.json. Figures of the parts (see ``settings.SPLIT``) stand apart; single runs
are listed of the first only. With --rlwatch the same logs are given to rlwatch.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from datetime import date
from pathlib import Path
from typing import Any

import store
import tables
from expected import RIGHT, RLWATCH_FITS, fits
from scoring import HEALTHY, Alarm, Judged, Label, Right

from steadyrl.doctor.examine import diagnose

RESULTS = Path(__file__).parent.parent / "results"
LOOK_EVERY, LOOK_FROM = 5, 10  # steps between looks at the run so far, and the first one
TRL = "trl"


def main() -> None:
    """Evaluate and write."""
    args = arguments()
    corpora = {"steadyrl": args.data, TRL: args.data / TRL}
    judged = {name: [judge(folder, label) for label in labels(folder, args.split)] for name, folder in corpora.items()}
    report: dict[str, Any] = {
        "date": date.today().isoformat(),
        "command": "python bench/doctor/evaluate.py"
        + (" --rlwatch <a python that has it>" if args.rlwatch else "")
        + (f" --split {args.split}" if args.split else ""),
        "machine": {"system": platform.system(), "processor": platform.machine(), "cores": os.cpu_count()},
        "doctor": {name: figures(runs, RIGHT) for name, runs in judged.items() if runs},
    }
    if args.rlwatch:
        theirs = {
            name: by_rlwatch(args.rlwatch, folder, args.split) for name, folder in corpora.items() if judged[name]
        }
        right = {fault: tuple((detector, "*") for detector in names) for fault, names in RLWATCH_FITS.items()}
        version = "from importlib.metadata import version; print(version('rlwatch'))"
        report["rlwatch_version"] = subprocess.check_output([args.rlwatch, "-c", version], text=True).strip()
        report["rlwatch"] = {name: figures(runs, right) for name, runs in theirs.items()}
    report["runs"] = [summary(run) for runs in judged.values() for run in runs if run.label["split"] == "tune"]
    args.out.mkdir(parents=True, exist_ok=True)
    (args.out / "doctor.json").write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    (args.out / "doctor.md").write_text(tables.document(report), encoding="utf-8")
    print(tables.short(report))


def labels(folder: Path, split: str = "") -> list[Label]:
    """Return the labels of a folder of stored runs, of one part if named; none where there are none yet."""
    found = store.read_labels(folder) if (folder / store.LABELS).is_file() else []
    return [label for label in found if split in ("", label["split"])]


def judge(folder: Path, label: Label) -> Judged:
    """Examine a whole run, and what there was of it every few steps."""
    with tempfile.TemporaryDirectory() as place:

        def look(steps: int) -> tuple[Alarm, ...]:
            return alarms(store.unpack(store.stored(folder, label), Path(place) / str(steps), steps))

        moments = [*range(LOOK_FROM, label["steps"], LOOK_EVERY), label["steps"]]
        looks = [(steps, look(steps)) for steps in moments]
    whole = looks[-1][1]
    if label["fault"] == HEALTHY:
        return Judged(label, whole, live=any(found for _, found in looks))
    right = RIGHT[label["fault"]]
    told = next((n for n, found in looks if n > label["onset"] and any(fits(a.pair, right) for a in found)), None)
    return Judged(label, whole, told)


def alarms(path: Path) -> tuple[Alarm, ...]:
    """Return what the doctor finds worth a warning, in its order."""
    findings = [finding for diagnosis in diagnose(path) for finding in diagnosis.findings]
    return tuple(Alarm(f.check, f.cause, f.severity, f.since_step) for f in findings if f.severity != "info")


def by_rlwatch(python: str, folder: Path, split: str = "") -> list[Judged]:
    """Return what rlwatch says of the same logs, step after step, in its own environment."""
    script = Path(__file__).with_name("rlwatch_alerts.py")
    done = subprocess.run([python, str(script), str(folder)], capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"{python} could not run rlwatch: {done.stderr}")
    found: dict[str, list[Alarm]] = {}
    for line in done.stdout.splitlines():
        alert = json.loads(line)
        alarm = Alarm(alert["detector"], "", alert["severity"], alert["step"])
        found.setdefault(alert["run"], []).append(alarm)
    return list(_judged_live(labels(folder, split), found))


def _judged_live(every: Sequence[Label], found: dict[str, list[Alarm]]) -> Iterator[Judged]:
    for label in every:
        raised = tuple(found.get(label["run"], ()))
        fitting = RLWATCH_FITS.get(label["fault"], ())
        in_time = [a.since for a in raised if a.check in fitting and a.since is not None and a.since >= label["onset"]]
        yield Judged(label, raised, told=min(in_time) + 1 if in_time else None, live=bool(raised))


def figures(runs: Sequence[Judged], right: Right) -> dict[str, Any]:
    """Return all figures of every part."""
    return {name: tables.half([run for run in runs if run.label["split"] == name], right) for name in tables.HALVES}


def summary(run: Judged) -> dict[str, Any]:
    """Return a run for the list of single runs."""
    said = [f"{a.severity[0]}:{a.check}/{a.cause}@{a.since}" for a in run.alarms]
    return {**run.label, "alarms": said, "told": run.told}


def arguments() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, default=store.DATA)
    parser.add_argument("--out", type=Path, default=RESULTS)
    parser.add_argument("--split", choices=tables.HALVES, default="", help="one part only")
    parser.add_argument("--rlwatch", metavar="PYTHON", help="an interpreter that has rlwatch; see the report")
    return parser.parse_args()


if __name__ == "__main__":
    main()
