"""Is the advice worth following? python bench/doctor/advice.py [--split heldout] [--only lr_x10 ...].

Of the stored runs whose fault lies in their settings, the doctor's first finding that changes a setting is followed:
the run is made again with it, from the same seed, by the settings alone. Reward over the last fifth of the steps is
compared, with twice the standard error of its difference. A line of JSON for each run, and a table at the end.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import faults
import numpy as np
import runs
import store
import wrappers

from steadyrl.core import config
from steadyrl.core.types import Finding
from steadyrl.doctor.examine import diagnose
from steadyrl.loop.train import open_session

LAST = 0.2  # of the steps
# Faults that are settings, and that a reward shows: what pays for the wrong thing ends with a high reward.
SETTINGS = ("warped_temperature", "warped_top_p", "warped_hot", "lr_x10", "lr_div100", "no_update", "epochs_8",
            "controller_slow", "unit_clash", "entropy_bonus", "cut_off")  # fmt: skip


def main() -> None:
    """Follow the advice on every stored run that was asked for."""
    args = arguments()
    plans = [p for p in runs.plans() if p.split in args.split and p.fault in (args.only or SETTINGS)]
    lines = [line for plan in plans if (line := followed(plan)) is not None]
    print(table(lines))


def followed(plan: runs.Plan) -> dict[str, Any] | None:
    """Make a run again as the doctor says, and print what came of it; None where the run is not stored."""
    path = runs.path_of(plan, store.DATA)
    if not path.is_file():
        return None
    before = store.read_run(path)[1]
    finding = advice(path)
    line: dict[str, Any] = {"run": plan.name, "fault": plan.fault, "before": rewards(before).mean()}
    if finding is None:
        line |= {"outcome": "no setting is advised"}
    else:
        line |= {"finding": finding.check, "cause": finding.cause, "overrides": list(finding.overrides)}
        line |= compared(before, again(plan, finding.overrides))
    print(json.dumps(line), flush=True)
    return line


def advice(path: Path) -> Finding | None:
    """Return the first finding that changes a setting."""
    with tempfile.TemporaryDirectory() as folder:
        for diagnosis in diagnose(store.unpack(path, Path(folder))):
            for finding in diagnosis.findings:
                if finding.harms and finding.overrides:
                    return finding
    return None


def again(plan: runs.Plan, overrides: Sequence[str]) -> list[dict[str, Any]]:
    """Return the metrics of the run with some settings changed."""
    resolved = config.resolve(plan.data, overrides)
    with wrappers.seeded(resolved.run.seed):
        return runs.train(open_session(resolved), faults.EVERY[plan.fault], plan.name)[0]


def rewards(records: Sequence[Mapping[str, Any]]) -> np.ndarray:
    """Return the mean rewards of the last steps."""
    values = [float(record["reward/mean"]) for record in records if record.get("reward/mean") is not None]
    return np.array(values[-max(2, int(LAST * len(values))) :])


def compared(before: Sequence[Mapping[str, Any]], after: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the mean rewards, and whether the difference is beyond its noise."""
    old, new = rewards(before), rewards(after)
    gain = float(new.mean() - old.mean())
    error = float(np.sqrt(old.var(ddof=1) / len(old) + new.var(ddof=1) / len(new)))
    outcome = "better" if gain > 2 * error else "worse" if gain < -2 * error else "the same"
    return {"after": float(new.mean()), "error": error, "outcome": outcome}


def table(lines: Sequence[Mapping[str, Any]]) -> str:
    """Return the lines as a table in Markdown, with the count of each outcome."""
    rows = ["| run | advice | before | after | |", "|---|---|---:|---:|---|"]
    for line in lines:
        after = f"{line['after']:.3f}" if "after" in line else ""
        change = f"{line.get('finding', '')}: {', '.join(line.get('overrides', []))}"
        rows.append(f"| {line['run']} | {change} | {line['before']:.3f} | {after} | {line['outcome']} |")
    counts = Counter(line["outcome"] for line in lines)
    return "\n".join([*rows, "", ", ".join(f"{name}: {count}" for name, count in counts.most_common())])


def arguments() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--split", nargs="+", default=["heldout"], help="of settings.SPLIT, or last")
    parser.add_argument("--only", nargs="+", choices=SETTINGS, metavar="FAULT", help=", ".join(SETTINGS))
    return parser.parse_args()


if __name__ == "__main__":
    main()
