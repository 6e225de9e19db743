"""Is the advice worth following? python bench/doctor/advice.py [--split heldout] [--seeds 7 8] [--toy last].

Of the stored runs whose fault lies in their settings, the doctor's first finding that changes a setting is followed,
one that harms before one that is worth knowing: the run is made again with it, from the same seed, by the settings
alone. With --seeds the runs before are made too, on the tasks that were held out, from seeds that no stored run has.
With --toy they are the runs of strengths.py, and both are made. A run without the fault is made from the same seed,
too. Runs are kept in --folder by their settings, and are not made again.

Two things are counted apart. Reward: its mean over the last fifth of the steps is higher, beyond twice the standard
error of the difference and by more than a hundredth of the reward without the fault. Repaired: the doctor's check
judges the run after and finds nothing, no other check finds a harm that neither the run before nor the one without the
fault has, and the reward is not lower. A line of JSON for each run, and a table at the end.

With --toy a fault has a run for each of several seeds, and counts once: higher or lower if the 95 % interval of the
mean gain over the seeds (Student's) says so, by more than that hundredth, and repaired if most of its runs are. A seed
without advice gains nothing.

The doctor then examines the run that its advice has led to, and its advice on that run is followed as long as something
harms, up to --times pieces: "in the end" is the run before the first piece that raises the reward no further. What the
settings refuse counts as no advice, and the line says so.

With --runs DIRECTORY ... the advice on these runs is followed instead.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import faults
import numpy as np
import runs
import settings
import store
import strengths

from steadyrl.core import config
from steadyrl.core.errors import ConfigError
from steadyrl.core.rundir import RunDir
from steadyrl.core.stats import student_quantile
from steadyrl.core.types import Finding
from steadyrl.doctor.examine import Diagnosis, diagnose
from steadyrl.loop import launch

LAST = 0.2  # of the steps
MARGIN, COSTS = 0.01, 0.1  # of the reward without the fault: a difference that counts, and a fault that costs reward
# Faults that are settings, and that a reward shows: what pays for the wrong thing ends with a high reward.
SETTINGS = ("warped_temperature", "warped_top_p", "warped_hot", "lr_x10", "lr_div100", "no_update", "epochs_8",
            "controller_slow", "unit_clash", "entropy_bonus", "cut_off")  # fmt: skip


@dataclass(frozen=True)
class Examined:
    """A run, and what the doctor says of it."""

    records: Sequence[Mapping[str, Any]]
    diagnosis: Diagnosis

    @property
    def advice(self) -> Finding | None:
        """The first finding that changes a setting; what harms comes first."""
        advised = [finding for finding in self.diagnosis.findings if finding.overrides]
        return next((finding for finding in advised if finding.harms), advised[0] if advised else None)

    def scaled(self, factor: float) -> Examined:
        """Return it with rewards in the unit of a run with other weights."""
        if factor == 1.0:
            return self
        return replace(self, records=[{**r, "reward/mean": factor * r["reward/mean"]} for r in self.records])


def main() -> None:
    """Follow the advice on every run that was asked for."""
    args = arguments()
    if args.runs:
        print(table([line for path in args.runs for line in chain(RunDir(path), args.times, args.folder)]))
        return
    if args.toy:
        plans = [plan for seed in args.seeds or strengths.seeds(args.toy) for plan in strengths.plans(args.toy, seed)]
    elif args.seeds:
        plans = [plan for seed in args.seeds for plan in unseen(seed)]
    else:
        plans = [p for p in runs.plans() if p.split in args.split and runs.path_of(p, store.DATA).is_file()]
    names = args.only or (strengths.kinds(args.toy) if args.toy else SETTINGS)
    lines = []
    for plan in plans:
        if plan.fault in names:
            wanted = replace(plan, data=settings.put(plan.data, "run.steps", args.steps)) if args.steps else plan
            stored = not (args.toy or args.seeds or args.steps)
            lines.append(followed(wanted, without_fault(wanted, args.toy), stored, args.folder, args.times))
    print(table(lines))
    if args.toy:
        print(table(over_seeds(lines)))


def unseen(seed: int) -> Iterator[runs.Plan]:
    """Yield a run of every fault from a seed that no stored run has, on one of the tasks that were held out."""
    for name in SETTINGS:
        fault = faults.EVERY[name]
        places = [place for place in faults.PLACES[fault.algorithms] if settings.SPLIT[place[0]] == "heldout"]
        task, algorithm = places[seed % len(places)]
        data = settings.put(fault.settings(settings.base(task, algorithm)), "run.seed", seed)
        yield runs.Plan(f"{name}-{seed}", name, seed, task, algorithm, data)


def followed(plan: runs.Plan, sound: runs.Plan, stored: bool, folder: Path, times: int) -> dict[str, Any]:
    """Make a run again as the doctor says, and the next one, and print what came of it.

    Args:
        plan: Of the run.
        sound: Of the run without the fault.
        stored: Whether the run before is one of the benchmark's.
        folder: Where runs are made.
        times: How many pieces of advice are followed at most, those after the first only where they are on a harm.
    """
    before = examined(runs.path_of(plan, store.DATA) if stored else made(plan, folder))
    course, changed, finding, line = list[Examined](), plan, before.advice, {"fault": plan.fault}
    while finding is not None and len(course) < times and (not course or finding.harms):
        try:
            changed = replace(changed, data=config.dump(config.resolve(changed.data, finding.overrides)))
        except ConfigError as refusal:
            line["refused"] = f"{', '.join(finding.overrides)}: {refusal}"
            break
        after = examined(made(changed, folder)).scaled(paid(sound) / paid(changed))  # the advice may be on the rewards
        if course and rewards(after.records).mean() <= rewards(course[-1].records).mean():
            break
        course.append(after)
        finding = after.advice
    before = before.scaled(paid(sound) / paid(plan))
    line |= compared(plan.name, before, course[0] if course else None, examined(made(sound, folder)))
    if course:
        line |= {"pieces": len(course), "end": float(rewards(course[-1].records).mean())}
    print(json.dumps(line), flush=True)
    return line


def paid(plan: runs.Plan) -> float:
    """Return the sum of the weights of a run's rewards."""
    return sum(config.reward_weights(config.resolve(plan.data)).values())


def without_fault(plan: runs.Plan, toy: strengths.Part | None) -> runs.Plan:
    """Return the plan of the same task, algorithm, seed and number of steps without the fault."""
    data = strengths.base(toy, plan.algorithm) if toy else settings.base(plan.task, plan.algorithm)
    data = settings.put(settings.put(data, "run.seed", plan.seed), "run.steps", plan.data["run"]["steps"])
    return replace(plan, name=f"sound-{plan.algorithm}-{plan.seed}", fault=runs.HEALTHY, data=data)


def made(plan: runs.Plan, folder: Path) -> Path:
    """Return the file of a run, which is made where it is not there."""
    digest = hashlib.sha256(json.dumps(plan.data, sort_keys=True).encode()).hexdigest()[:12]
    kept = replace(plan, name=f"{plan.name}-{digest}")
    if not runs.path_of(kept, folder).is_file():
        if plan.data.get("autopilot", {}).get("mode", "off") == "off":
            runs.make(kept, folder, None)
        else:
            make_piloted(kept, folder)
    return runs.path_of(kept, folder)


def make_piloted(plan: runs.Plan, folder: Path) -> None:
    """Train with the autopilot, which the loop of the benchmark does not have, and store."""
    with tempfile.TemporaryDirectory() as place:
        run = launch.run(config.resolve(plan.data, [f"run.folder={place}", "run.preflight=off"]))
        info = {"id": plan.name, "status": "finished", "error": None, "seed": plan.seed}
        store.write_run(runs.path_of(plan, folder), {"resolved": run.resolved(), "run": info}, list(run.metrics()))


def examined(path: Path) -> Examined:
    """Return a stored run with what the doctor says of it."""
    with tempfile.TemporaryDirectory() as folder:
        (diagnosis,) = diagnose(store.unpack(path, Path(folder)))
    return Examined(store.read_run(path)[1], diagnosis)


def chain(run: RunDir, times: int, folder: Path) -> Iterator[dict[str, Any]]:
    """Make a run again as the doctor says, then that one as it says of that one, and yield what came of each."""
    before = Examined(run.metrics(), diagnose(run.path)[0])
    for _ in range(times):
        finding, after = before.advice, None
        if finding is not None:
            run = launch.run(config.resolve(run.resolved(), [*finding.overrides, f"run.folder={folder}"]))
            after = Examined(run.metrics(), diagnose(run.path)[0])
        line = compared(before.diagnosis.run.path, before, after)
        print(json.dumps(line), flush=True)
        yield line
        if after is None:
            return
        before = after


def rewards(records: Sequence[Mapping[str, Any]]) -> np.ndarray:
    """Return the mean rewards of the last steps."""
    values = [float(record["reward/mean"]) for record in records if record.get("reward/mean") is not None]
    return np.array(values[-max(2, int(LAST * len(values))) :])


def compared(name: str, before: Examined, after: Examined | None, sound: Examined | None = None) -> dict[str, Any]:
    """Return the mean rewards, whether they differ beyond their noise, and whether the fault is repaired.

    Args:
        name: Of the run.
        before: The run.
        after: The run with the advice; None where there is none.
        sound: The run without the fault, if it is known.
    """
    old, finding = rewards(before.records), before.advice
    line: dict[str, Any] = {"run": name, "before": float(old.mean()), "outcome": "no setting is advised"}
    line |= {"sound": float(rewards(sound.records).mean())} if sound is not None else {}
    margin = MARGIN * abs(line.get("sound", line["before"]))
    if finding is not None and after is not None:
        new = rewards(after.records)
        gain = float(new.mean() - old.mean())
        error = float(np.sqrt(old.var(ddof=1) / len(old) + new.var(ddof=1) / len(new)))
        least = max(2 * error, margin)
        outcome = _outcome(gain, least)
        passed = {judged.check for judged in (*after.diagnosis.fine, *after.diagnosis.uneven)}
        natural = set() if sound is None else set(sound.diagnosis.harmful)
        harms = sorted(set(after.diagnosis.harmful) - set(before.diagnosis.harmful) - natural)
        line |= {"finding": finding.check, "cause": finding.cause, "overrides": list(finding.overrides)}
        line |= {"after": float(new.mean()), "error": error, "outcome": outcome, "new_harms": harms}
        line["repaired"] = finding.check in passed and not harms and outcome != "worse"
    return line


def over_seeds(lines: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return one line for each fault, from its runs of several seeds.

    Args:
        lines: As ``compared`` gives them; runs of one fault have one name.
    """
    faults_seen = dict.fromkeys(line["run"] for line in lines)
    return [_together(name, [line for line in lines if line["run"] == name]) for name in faults_seen]


def _together(name: str, several: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    before, sound = (np.array([line.get(key, line["before"]) for line in several]) for key in ("before", "sound"))
    advised, n = [line for line in several if "after" in line], len(several)
    line: dict[str, Any] = {"run": name, "before": float(before.mean()), "sound": float(sound.mean())}
    if len(advised) * 2 < n:
        return line | {"outcome": "no setting is advised"}
    counts = Counter(f"{line['finding']}: {', '.join(line['overrides'])}" for line in advised)
    shown = "; ".join(f"{text} ({count})" if n > 1 else text for text, count in counts.most_common())
    line |= {"finding": "", "overrides": [shown], "new_harms": []}
    for key, suffix in (("after", ""), ("end", "_end")):
        gains = np.array([line.get(key, line["before"]) for line in several]) - before
        reach = student_quantile(n - 1, 0.975) * float(gains.std(ddof=1) / np.sqrt(n)) if n > 1 else 0.0
        line |= {key: float((before + gains).mean()), f"reach{suffix}": reach}
        line[f"outcome{suffix}"] = _outcome(float(gains.mean()), max(reach, MARGIN * float(np.abs(sound).mean())))
    repaired = sum(line.get("repaired", False) for line in several) * 2 > n and line["outcome"] != "worse"
    return line | {"repaired": repaired, "pieces": max(line["pieces"] for line in advised)}


def _outcome(gain: float, least: float) -> str:
    return "better" if gain > least else "worse" if gain < -least else "the same"


def table(lines: Sequence[Mapping[str, Any]]) -> str:
    """Return the lines as a table in Markdown, with the count of each outcome."""
    rows = [
        "| run | advice | before | after | without the fault | reward | repaired | in the end | pieces |",
        "|---|---|---:|---:|---:|---|---|---|--:|",
    ]
    for line in lines:
        after, change, sound = "", "", f"{line['sound']:.3f}" if "sound" in line else ""
        if "after" in line:
            after, change = f"{line['after']:.3f}", ", ".join(line["overrides"])
            change = f"{line['finding']}: {change}" if line["finding"] else change
            after += f" ± {line['reach']:.3f}" if "reach" in line else ""
        shown = (
            f"no: {', '.join(line['new_harms'])}" if line.get("new_harms") else "yes" if line.get("repaired") else ""
        )
        end = f"{line['end']:.3f}" if "end" in line else ""
        end += f", {line['outcome_end']}" if "outcome_end" in line else ""
        rows.append(
            f"| {line['run']} | {change} | {line['before']:.3f} | {after} | {sound} | {line['outcome']} | {shown} "
            f"| {end} | {line.get('pieces', '')} |"
        )
    counts = Counter(line["outcome"] for line in lines)
    costly = [line for line in lines if line.get("sound", 0.0) - line["before"] > COSTS * abs(line.get("sound", 0.0))]
    rise = sum(line["outcome"] == "better" for line in costly)
    at_end = sum(line.get("outcome_end", line["outcome"]) == "better" for line in costly)
    either = sum(line["outcome"] == "better" or line.get("repaired", False) for line in lines)
    said = ", ".join(f"{name}: {count}" for name, count in counts.most_common())
    repaired = sum(line.get("repaired", False) for line in lines)
    counted = f"{said}; repaired: {repaired}; higher reward or repaired: {either} of {len(lines)}"
    rises = f"of {len(costly)} that cost more than a tenth of the reward {rise} rise, {at_end} in the end"
    return "\n".join([*rows, "", f"{counted}; {rises}"])


def arguments() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--split", nargs="+", default=["heldout"], help="of settings.SPLIT, or last")
    parser.add_argument("--seeds", nargs="+", type=int, help="make runs of these seeds in place of the stored ones")
    parser.add_argument("--steps", type=int, default=0, help="of the runs before and after, which are then both made")
    parser.add_argument("--toy", choices=strengths.PARTS, help="runs of the toy backend")
    parser.add_argument(
        "--only",
        nargs="+",
        metavar="FAULT",
        help=", ".join(dict.fromkeys([*SETTINGS, *(kind.name for kind in strengths.KINDS)])),
    )
    parser.add_argument("--runs", nargs="+", type=Path, metavar="DIRECTORY", help="run directories of your own")
    parser.add_argument("--times", type=int, default=4, help="how many pieces of advice are followed one after another")
    parser.add_argument("--folder", type=Path, default=Path("runs/advice"), help="where these runs are made")
    return parser.parse_args()


if __name__ == "__main__":
    main()
