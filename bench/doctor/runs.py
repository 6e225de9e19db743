"""Make the runs of the fault benchmark: python bench/doctor/runs.py [--jobs 2] [--only lr_x10 ...] [--limit 4].

Every run is a real training run of the base model. Equal names give equal metrics. Runs that are stored
already are left as they are, unless --again is given.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import faults
import numpy as np
import settings
import store
import wrappers

from steadyrl.core import config
from steadyrl.core.errors import SteadyError
from steadyrl.core.metrics import answer_means
from steadyrl.loop import evaluate
from steadyrl.loop.checkpoint import State
from steadyrl.loop.train import Session, one_step, open_session

HEALTHY = "healthy"
ROOT = Path(__file__).parent.parent.parent


@dataclass(frozen=True)
class Plan:
    """One run to make.

    Attributes:
        name: Of its file.
        fault: A name of ``faults.EVERY``, or "healthy".
        seed: Of the run.
        task: A name of ``settings.TASKS``.
        algorithm: "ppo" or "grpo".
        data: Its settings, those that a fault from the start changes included.
        variant: Of a healthy run.
    """

    name: str
    fault: str
    seed: int
    task: str
    algorithm: str
    data: settings.Data
    variant: str = ""

    @property
    def split(self) -> settings.Split:
        """What it may be used for."""
        split = settings.SPLIT[self.task]
        return "last" if split == "fresh" and self.name not in settings.EXAMINED else split

    def label(self, steps: int, error: str | None) -> dict[str, Any]:
        """Return its line in the labels."""
        known = faults.EVERY.get(self.fault)
        return {
            "run": self.name,
            "fault": self.fault,
            "onset": known.onset if known else None,
            "split": self.split,
            "task": self.task,
            "algorithm": self.algorithm,
            "variant": self.variant,
            "seed": self.seed,
            "steps": steps,
            "error": error,
        }


def plans() -> Iterator[Plan]:
    """Yield all runs: seven of every fault, one more of each in the fresh part, then the healthy ones."""
    for name, fault in faults.FAULTS.items():
        for seed, (task, algorithm) in enumerate(faults.PLACES[fault.algorithms]):
            data = settings.put(fault.settings(settings.base(task, algorithm)), "run.seed", seed)
            yield Plan(f"{name}-{seed}", name, seed, task, algorithm, data)
    for number, (name, fault) in enumerate(faults.EVERY.items()):
        places = [place for place in faults.FRESH if place[1] in fault.algorithms]
        task, algorithm = places[number % len(places)]
        data = settings.put(fault.settings(settings.base(task, algorithm)), "run.seed", faults.FRESH_SEED)
        yield Plan(f"{name}-{faults.FRESH_SEED}", name, faults.FRESH_SEED, task, algorithm, data)
    for task in settings.TASKS:
        for case in settings.HEALTHY:
            data = settings.put(settings.base(task, case.algorithm), "run.seed", case.seed)
            for key, value in case.changes:
                data = settings.put(data, key, value)
            name = f"{HEALTHY}-{task}-{case.algorithm}-{case.variant}-{case.seed}"
            yield Plan(name, HEALTHY, case.seed, task, case.algorithm, data, case.variant)


def make(plan: Plan, folder: Path, steps: int | None) -> tuple[int, str | None]:
    """Train and store; return the steps that were made, and the error that ended the run early, if any did."""
    data = plan.data if steps is None else settings.put(plan.data, "run.steps", steps)
    resolved = config.resolve(data)
    with wrappers.seeded(resolved.run.seed):
        records, error = train(open_session(resolved), faults.EVERY.get(plan.fault), plan.name)
    told = config.dump(resolved)
    if path := told["task"]["args"].get("path"):
        told["task"]["args"]["path"] = str(Path(path).relative_to(ROOT))
    info = {"id": plan.name, "status": "failed" if error else "finished", "error": error, "seed": plan.seed}
    store.write_run(path_of(plan, folder), {"resolved": told, "run": info}, records)
    return len(records), error


def train(session: Session, fault: faults.Fault | None, name: str) -> tuple[list[dict[str, Any]], str | None]:
    """Return the metrics of every step, and the error that ended the run before its end, if any did."""
    state, records = State(algorithm=dict(session.algorithm.state)), []
    generator = np.random.default_rng([session.config.run.seed, zlib.crc32(name.encode())])
    while state.step < session.config.run.steps:
        sick = fault is not None and state.step >= fault.onset
        if fault is not None and state.step == fault.onset:
            session = fault.strike(faults.Scene(session, state, tuple(records), generator))
        try:
            _, found = one_step(session, state)
        except SteadyError as error:
            return records, str(error)
        record: dict[str, Any] = {"step": state.step - 1, "attempt": 0, **found}
        records.append((fault.record(record) if fault is not None and sick else record) | heldout(session, state))
    return records, None


def heldout(session: Session, state: State) -> Mapping[str, float]:
    """Return held-out measurements at the steps that have one, as the loop of the library does."""
    every = session.config.evaluate.every
    if not every or state.step % every:
        return {}
    answers = evaluate.evaluate(
        session.backend, session.heldout, session.terms, session.task.metric, session.sampling, session.config.run.seed
    )
    return {f"heldout/{name}": value for name, value in answer_means(answers, "sampled").items()}


def main() -> None:
    """Make what is lacking, in this process or in several, and write the labels of all that is there."""
    args = arguments()
    wanted = [p for p in plans() if not args.only or p.fault in args.only or p.name in args.only]
    missing = [p for p in wanted if args.again or not path_of(p, args.out).is_file()]
    # The part to tune on first, and in each the healthy runs: an unfinished set can be used already.
    order = (*dict.fromkeys(settings.SPLIT.values()), "last")
    missing = sorted(missing, key=lambda p: (order.index(p.split), p.fault != HEALTHY, p.seed))[: args.limit]
    if args.jobs > 1:
        share_out([plan.name for plan in missing], args)
    else:
        for plan in missing:
            began = time.perf_counter()
            steps, error = make(plan, args.out, args.steps)
            ended = f", ended by: {error}" if error else ""
            print(f"{plan.name}: {steps} steps in {time.perf_counter() - began:.1f} s{ended}", flush=True)
    if not args.part:
        write_labels(args.out)


def path_of(plan: Plan, folder: Path) -> Path:
    """Return the file of a run."""
    return store.stored(folder, {"run": plan.name})


def share_out(names: list[str], args: argparse.Namespace) -> None:
    """Make runs in several processes of one thread each."""
    common = [sys.executable, __file__, "--part", "--out", str(args.out), *(["--again"] if args.again else [])]
    common += ["--steps", str(args.steps)] if args.steps else []
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}
    parts = [names[i :: args.jobs] for i in range(args.jobs)]
    running = [subprocess.Popen([*common, "--only", *part], env=environment) for part in parts if part]
    codes = [process.wait() for process in running]
    if any(codes):
        sys.exit("a process of runs failed; what it had finished is kept, start again to make the rest")


def write_labels(folder: Path) -> None:
    """Write the labels of all stored runs."""
    labels = []
    for plan in plans():
        if path_of(plan, folder).is_file():
            head, records = store.read_run(path_of(plan, folder))
            labels.append(plan.label(len(records), head["run"]["error"]))
    store.write_labels(labels, folder)
    print(f"{len(labels)} runs in {folder}")


def arguments() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", nargs="+", help="faults, runs, or 'healthy'")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--limit", type=int, help="so many runs at most")
    parser.add_argument("--steps", type=int, help="instead of the planned ones, for trials")
    parser.add_argument("--again", action="store_true", help="make stored runs anew")
    parser.add_argument("--out", type=Path, default=store.DATA)
    parser.add_argument("--part", action="store_true", help=argparse.SUPPRESS)
    return parser.parse_args()


if __name__ == "__main__":
    main()
