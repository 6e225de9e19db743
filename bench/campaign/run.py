"""The campaign: attacks of every kind until the time is up, and a table of what was promised, tried and broken.

    python bench/campaign/run.py --minutes 30 --seed 0
    python bench/campaign/run.py --full --seed 0 --python /usr/bin/python3.13

The parts that run in this process share the time and are tried in turn. The attacks on the sandbox and the hostile
pages (bench/campaign/sandbox.py and pages.py) then get a share each. With ``--full`` every part has its number of
trials, however long that takes. ``--add`` counts the trials of earlier calls as well. Every trial has its own seed: a
failure names it, and ``--only PART --first NUMBER --trials 1`` repeats it. Exit code 1 if any promise was broken.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import math
import os
import random
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))  # the parts lie beside this file, in no package that is installed

from bench.campaign import configs, data_files, judges, logs, model_folders, run_files  # noqa: E402
from bench.campaign.killer import KILLS, Killer  # noqa: E402
from bench.campaign.table import SHOWN, Record, write  # noqa: E402
from bench.campaign.trial import Attack, Failure  # noqa: E402

RESULT = ROOT / "bench" / "results" / "campaign.md"
OUTSIDE = ("sandbox", "pages")  # programs of their own, with an eighth of the time each
PAGES = 150  # with --full
Rows = list[tuple[str, int, int]]


@dataclass
class Part:
    """One kind of attack.

    Attributes:
        promise: What it tries to break.
        attack: One trial.
        share: Of the time, against the other parts.
        count: What ``--full`` asks for.
        needs: A package.
        counted: What counts, where that is not the trials.
        rows: The rows of the table, where there is not one for all trials.
    """

    promise: str
    attack: Attack
    share: float
    count: int
    needs: str = ""
    counted: Callable[[], int] | None = None
    rows: Callable[[], Rows] | None = None
    trials: int = 0
    seconds: float = 0.0
    failures: list[Failure] = field(default_factory=list)

    def done(self) -> int:
        """Return how much of ``count`` is done."""
        return self.trials if self.counted is None else self.counted()

    def record(self) -> Record:
        """Return what the part has given."""
        rows = [(self.promise, self.trials, len(self.failures))] if self.rows is None else self.rows()
        return Record(rows, self.failures, self.seconds / 60)


def parts(killer: Killer) -> dict[str, Part]:
    """Return the parts that run in this process, those that change nothing of it first."""
    return {
        "configs": Part(
            "a config resolves, or is refused with an error of ours within a second", configs.attack, 1, 2000
        ),
        "data_files": Part(
            "a data file or corpus is read, or refused with an error of ours", data_files.attack, 1, 500
        ),
        "logs": Part("a damaged log is read as far as it is whole", logs.attack, 1, 1000),
        "judges": Part("a judge's server gives a verdict or one error, in time, and no key", judges.attack, 1, 100),
        "killer": Part(
            "a killed run ends as if nothing had happened",
            killer.attack,
            3,
            200,
            counted=lambda: sum(killer.met[kind] for kind in KILLS),
            rows=killer.rows,
        ),
        "run_files": Part("every command reads a damaged run, or says in one line why not", run_files.attack, 3, 500),
        "model_folders": Part(
            "a damaged model loads or is refused; its code never runs", model_folders.attack, 2, 300, "torch"
        ),
    }


def main() -> int:
    """Attack until the time is up, write the table, and say by the exit code whether all promises held."""
    killer = Killer()
    known = parts(killer)
    args = _arguments([*known, *OUTSIDE])
    killer.take(args.kind)
    wanted = args.only or [*known, *OUTSIDE]
    chosen = {name: part for name, part in known.items() if name in wanted and not _left_out(name, part)}
    outside = [name for name in OUTSIDE if name in wanted]
    for_outside = args.minutes / 8 if chosen else args.minutes / max(1, len(outside))
    _attack(chosen, math.inf if args.full else 60 * (args.minutes - len(outside) * for_outside), args)
    killer.close()
    records = {name: part.record() for name, part in chosen.items()}
    for name in outside:
        if (found := _outside(name, for_outside, args)).rows:
            records[name] = found
    print(write(records, args.out, args.add))
    return 1 if any(record.seen for record in records.values()) else 0


def _arguments(names: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--full", action="store_true", help="every part's number of trials, however long it takes")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", action="append", choices=names, help="default: every part")
    parser.add_argument("--first", type=int, default=0, help="number of the first trial of each part")
    parser.add_argument("--trials", type=int, default=None, help="at most so many of each part")
    parser.add_argument("--python", action="append", default=[], help="a further interpreter for the sandbox's attacks")
    parser.add_argument("--kind", default="", help="kill only kinds of runs whose names hold this text")
    parser.add_argument("--out", type=Path, default=RESULT, help="where the table is written")
    parser.add_argument("--add", action="append", type=Path, default=[], help="a JSON file of an earlier call")
    return parser.parse_args()


def _left_out(name: str, part: Part) -> bool:
    if part.needs and importlib.util.find_spec(part.needs) is None:
        print(f"{name} is left out: it needs {part.needs}", file=sys.stderr)
        return True
    return False


def _attack(chosen: dict[str, Part], seconds: float, args: argparse.Namespace) -> None:
    """Try the part that had the least of its share so far, again and again."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        ready = [name for name, part in chosen.items() if args.trials is None or part.trials < args.trials]
        ready = [name for name in ready if not args.full or chosen[name].done() < chosen[name].count]
        if not ready:
            return
        name = min(ready, key=lambda name: chosen[name].seconds / chosen[name].share)
        part, began = chosen[name], time.monotonic()
        number = args.first + part.trials
        with tempfile.TemporaryDirectory(prefix="campaign-") as folder:
            failure = part.attack(random.Random(f"{args.seed}/{name}/{number}"), Path(folder))
        part.trials += 1
        part.seconds += time.monotonic() - began
        if failure:
            part.failures.append(f"{name} {number}: {failure}")
            print(part.failures[-1], file=sys.stderr, flush=True)


def _outside(name: str, minutes: float, args: argparse.Namespace) -> Record:
    """Run a program of its own, the sandbox's under every interpreter; return what it gave."""
    began, record = time.monotonic(), Record()
    script = ROOT / "bench" / "campaign" / f"{name}.py"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])}
    for python in [sys.executable, *(args.python if name == "sandbox" else [])]:
        with tempfile.TemporaryDirectory(prefix="campaign-") as folder:
            out = Path(folder) / "out.json"
            command = [python, str(script), "--seed", str(args.seed)]
            if name == "sandbox":
                command += ["--minutes", str(0 if args.full else minutes), "--out", str(out)]
            else:
                command += ["--minutes", "600", "--pages", str(PAGES)] if args.full else ["--minutes", str(minutes)]
            done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
            said = [line for line in done.stderr.splitlines() if line.strip()][-SHOWN:]
            rows = _sandbox_rows(out) if name == "sandbox" else _pages_rows(done.stdout)
        if not rows:
            print(f"{name} is left out: {said[-1] if said else 'it said nothing'}", file=sys.stderr)
        record.rows += rows
        if any(failures for _, _, failures in rows):
            failed = [line for line in done.stdout.splitlines() if line.startswith("failed: ")]
            record.seen += [f"{name}: {line}" for line in [*said, *failed]]
    record.minutes = (time.monotonic() - began) / 60
    return record


def _sandbox_rows(out: Path) -> Rows:
    """Return a row for the attacks in each jail, whose failures are broken promises, and one for whatever else."""
    if not out.is_file():
        return []
    found = json.loads(out.read_text(encoding="utf-8"))
    python = ".".join(found["python"].split(".")[:2])
    rows: Rows = []
    for jail in found["jails"]:
        tried = [row for row in found["table"] if row["jail"] == jail]
        attacks = [row for row in tried if row["trials"] == tried[0]["trials"]]
        failures = sum(row["failures"] for row in attacks)
        rows.append(
            (
                f"an attack on {jail} breaks none of {len(attacks)} promises (Python {python})",
                tried[0]["trials"],
                failures,
            )
        )
        tried = [row for row in tried if row not in attacks]
        rows += [(f"{row['promise']} ({jail}, Python {python})", row["trials"], row["failures"]) for row in tried]
    others = [row for row in found["table"] if row["jail"] not in found["jails"]]
    return rows + [(f"{row['promise']} (Python {python})", row["trials"], row["failures"]) for row in others]


def _pages_rows(said: str) -> Rows:
    """Return one row for all pages, whose failures are promises broken."""
    found = re.findall(r"^\| (.+) \| (\d+) \| (\d+) \|$", said, re.MULTILINE)
    if not found:
        return []
    trials = max(int(count) for _, count, _ in found)
    return [(f"a hostile page breaks none of {len(found)} promises", trials, sum(int(n) for _, _, n in found))]


if __name__ == "__main__":
    sys.exit(main())
