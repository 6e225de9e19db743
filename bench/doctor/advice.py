"""Is the advice worth following? python bench/doctor/advice.py [--split heldout] [--only lr_x10 ...].

Of the stored runs whose fault lies in their settings, the doctor's first finding that changes a setting is followed:
the run is made again with it, from the same seed, by the settings alone. Reward over the last fifth of the steps is
compared, with twice the standard error of its difference. A line of JSON for each run, and a table at the end.

With --runs DIRECTORY ... the advice on these runs is followed instead, --times after one another: the doctor then
examines the run that its advice has led to.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import faults
import numpy as np
import runs
import store
import wrappers

from steadyrl.core import config
from steadyrl.core.rundir import RunDir
from steadyrl.core.types import Finding
from steadyrl.doctor.examine import diagnose
from steadyrl.loop import launch
from steadyrl.loop.train import open_session

LAST = 0.2  # of the steps
# Faults that are settings, and that a reward shows: what pays for the wrong thing ends with a high reward.
SETTINGS = ("warped_temperature", "warped_top_p", "warped_hot", "lr_x10", "lr_div100", "no_update", "epochs_8",
            "controller_slow", "unit_clash", "entropy_bonus", "cut_off")  # fmt: skip


def main() -> None:
    """Follow the advice on every stored run that was asked for."""
    args = arguments()
    if args.runs:
        print(table([line for path in args.runs for line in chain(RunDir(path), args.times, args.folder)]))
        return
    plans = [p for p in runs.plans() if p.split in args.split and p.fault in (args.only or SETTINGS)]
    lines = [line for plan in plans if (line := followed(plan)) is not None]
    print(table(lines))


def followed(plan: runs.Plan) -> dict[str, Any] | None:
    """Make a run again as the doctor says, and print what came of it; None where the run is not stored."""
    path = runs.path_of(plan, store.DATA)
    if not path.is_file():
        return None
    with tempfile.TemporaryDirectory() as folder:
        finding = advice(store.unpack(path, Path(folder)))
    before = store.read_run(path)[1]
    after = again(plan, finding.overrides) if finding else None
    return {"fault": plan.fault, **compared(plan.name, before, finding, after)}


def chain(run: RunDir, times: int, folder: Path) -> Iterator[dict[str, Any]]:
    """Make a run again as the doctor says, then that one as it says of that one, and yield what came of each."""
    for _ in range(times):
        finding, before = advice(run.path), run
        if finding is not None:
            run = launch.run(config.resolve(run.resolved(), [*finding.overrides, f"run.folder={folder}"]))
        yield compared(before.path.name, before.metrics(), finding, run.metrics())
        if finding is None:
            return


def advice(path: Path) -> Finding | None:
    """Return the first finding that changes a setting."""
    findings = (finding for diagnosis in diagnose(path) for finding in diagnosis.findings)
    return next((finding for finding in findings if finding.harms and finding.overrides), None)


def again(plan: runs.Plan, overrides: Sequence[str]) -> list[dict[str, Any]]:
    """Return the metrics of the run with some settings changed."""
    resolved = config.resolve(plan.data, overrides)
    with wrappers.seeded(resolved.run.seed):
        return runs.train(open_session(resolved), faults.EVERY[plan.fault], plan.name)[0]


def rewards(records: Sequence[Mapping[str, Any]]) -> np.ndarray:
    """Return the mean rewards of the last steps."""
    values = [float(record["reward/mean"]) for record in records if record.get("reward/mean") is not None]
    return np.array(values[-max(2, int(LAST * len(values))) :])


def compared(
    name: str,
    before: Sequence[Mapping[str, Any]],
    finding: Finding | None,
    after: Sequence[Mapping[str, Any]] | None,
) -> dict[str, Any]:
    """Print and return the mean rewards, and whether the difference is beyond its noise."""
    old = rewards(before)
    line: dict[str, Any] = {"run": name, "before": float(old.mean()), "outcome": "no setting is advised"}
    if finding is not None and after is not None:
        new = rewards(after)
        gain = float(new.mean() - old.mean())
        error = float(np.sqrt(old.var(ddof=1) / len(old) + new.var(ddof=1) / len(new)))
        outcome = "better" if gain > 2 * error else "worse" if gain < -2 * error else "the same"
        line |= {"finding": finding.check, "cause": finding.cause, "overrides": list(finding.overrides)}
        line |= {"after": float(new.mean()), "error": error, "outcome": outcome}
    print(json.dumps(line), flush=True)
    return line


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
    parser.add_argument("--runs", nargs="+", type=Path, metavar="DIRECTORY", help="run directories of your own")
    parser.add_argument("--times", type=int, default=2, help="how many pieces of advice are followed one after another")
    parser.add_argument("--folder", type=Path, default=Path("runs/advice"), help="where these runs are made")
    return parser.parse_args()


if __name__ == "__main__":
    main()
