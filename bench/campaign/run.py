"""The campaign: attacks of every kind until the time is up, and a table of what was promised, tried and broken.

    python bench/campaign/run.py --minutes 30 --seed 0

The parts that run in this process share the time and are tried in turn; the attacks on the sandbox and the hostile
pages (bench/campaign/sandbox.py and pages.py) then get a share each. Every trial has a seed of its own: a failure names
it, and ``--only PART --first NUMBER --trials 1`` repeats it. Exit code 1 if any promise was broken.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import platform
import random
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import date
from pathlib import Path

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))  # the parts lie beside this file, in no package that is installed

from bench.campaign import configs, data_files, judges, killer, logs, model_folders, run_files  # noqa: E402
from bench.campaign.trial import Attack  # noqa: E402

RESULT = ROOT / "bench" / "results" / "campaign.md"
SHOWN = 40  # failures that the result lists
OUTSIDE = ("sandbox", "pages")  # programs of their own, with an eighth of the time each


@dataclass
class Part:
    """One kind of attack: its promise, and its share of the time against the others'."""

    promise: str
    attack: Attack
    share: float
    needs: str = ""
    trials: int = 0
    seconds: float = 0.0
    failures: list[str] = field(default_factory=list)


def parts() -> dict[str, Part]:
    """Return the parts that run in this process, those that change nothing of it first."""
    return {
        "configs": Part("a config resolves, or is refused with an error of ours within a second", configs.attack, 1),
        "data_files": Part("a data file is read, or refused with an error of ours", data_files.attack, 1),
        "logs": Part("a damaged log is read as far as it is whole", logs.attack, 1),
        "judges": Part("a judge's server gives a verdict or one error, in time, and no key", judges.attack, 1),
        "killer": Part("a killed run ends as if nothing had happened", killer.attack, 3),
        "run_files": Part("every command reads a damaged run, or says in one line why not", run_files.attack, 3),
        "model_folders": Part(
            "a damaged model loads or is refused; its code never runs", model_folders.attack, 2, "torch"
        ),
    }


def main() -> int:
    """Attack until the time is up, write the table, and say by the exit code whether all promises held."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", action="append", choices=[*parts(), *OUTSIDE], help="default: every part")
    parser.add_argument("--first", type=int, default=0, help="number of the first trial of each part")
    parser.add_argument("--trials", type=int, default=None, help="at most so many of each part")
    parser.add_argument("--out", type=Path, default=RESULT, help="where the table is written")
    args = parser.parse_args()
    began = time.monotonic()
    wanted = args.only or [*parts(), *OUTSIDE]
    chosen = {name: part for name, part in parts().items() if name in wanted and not _left_out(name, part)}
    outside = [name for name in OUTSIDE if name in wanted]
    for_outside = args.minutes / 8 if chosen else args.minutes / max(1, len(outside))
    inside = 60 * (args.minutes - len(outside) * for_outside)
    _attack(chosen, began + inside, args)
    rows = [(part.promise, part.trials, len(part.failures)) for part in chosen.values()]
    seen = [f"{name} {failure}" for name, part in chosen.items() for failure in part.failures]
    for name in outside:
        found, said = _outside(name, for_outside, args.seed)
        rows += found
        seen += said
    text = _page(rows, seen, args, time.monotonic() - began)
    args.out.parent.mkdir(parents=True, exist_ok=True)
    args.out.write_text(text, encoding="utf-8")
    print(text)
    return 1 if seen else 0


def _left_out(name: str, part: Part) -> bool:
    if part.needs and importlib.util.find_spec(part.needs) is None:
        print(f"{name} is left out: it needs {part.needs}", file=sys.stderr)
        return True
    return False


def _attack(chosen: dict[str, Part], until: float, args: argparse.Namespace) -> None:
    """Try the part that had the least of its share so far, again and again."""
    while time.monotonic() < until:
        ready = [name for name, part in chosen.items() if args.trials is None or part.trials < args.trials]
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
            part.failures.append(f"{number}: {failure}")
            print(f"{name} {number}: {failure}", file=sys.stderr, flush=True)


def _outside(name: str, minutes: float, seed: int) -> tuple[list[tuple[str, int, int]], list[str]]:
    """Run a program of its own; return its rows and what it saw."""
    read: dict[str, Callable[[Path], Iterator[tuple[str, int, int]]]] = {"sandbox": _sandbox_rows, "pages": _pages_rows}
    with tempfile.TemporaryDirectory(prefix="campaign-") as folder:
        out = Path(folder) / "out.json"
        script = ROOT / "bench" / "campaign" / f"{name}.py"
        command = [sys.executable, str(script), "--minutes", str(minutes), "--seed", str(seed)]
        command += ["--out", str(out)] if name == "sandbox" else []
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])}
        done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
        if name == "pages":
            out.write_text(done.stdout, encoding="utf-8")
        rows = list(read[name](out)) if out.is_file() and out.stat().st_size else []
    said = [line for line in done.stderr.splitlines() if line.strip()][-SHOWN:]
    if not rows:
        print(f"{name} is left out: {said[-1] if said else 'it said nothing'}", file=sys.stderr)
    broken = sum(failures for _, _, failures in rows)
    said += [line for line in done.stdout.splitlines() if line.startswith("failed: ")]
    return rows, [f"{name}: {line}" for line in said] if broken else []


def _sandbox_rows(out: Path) -> Iterator[tuple[str, int, int]]:
    for row in json.loads(out.read_text(encoding="utf-8"))["table"]:
        yield f"{row['promise']} ({row['jail']})", row["trials"], row["failures"]


def _pages_rows(out: Path) -> Iterator[tuple[str, int, int]]:
    for line in out.read_text(encoding="utf-8").splitlines():
        if found := re.fullmatch(r"\| (.+) \| (\d+) \| (\d+) \|", line):
            yield found[1], int(found[2]), int(found[3])


def _page(rows: list[tuple[str, int, int]], seen: list[str], args: argparse.Namespace, seconds: float) -> str:
    """Return the result as Markdown: when and where, the table, and the failures."""
    release = ".".join(platform.release().split(".")[:2])
    what = f"{platform.system()} {release}, {platform.machine()}, {os.cpu_count()} cores"
    user = "root" if os.getuid() == 0 else "an ordinary user"
    lines = [
        "# Campaign",
        "",
        f"`python bench/campaign/run.py --minutes {args.minutes:g} --seed {args.seed}` on {date.today().isoformat()}, "
        f"{seconds / 60:.1f} minutes, Python {platform.python_version()}, {what}, as {user}.",
        "",
        "| promise | trials | failures |",
        "|---|---|---|",
        *(f"| {promise} | {trials} | {failures} |" for promise, trials, failures in rows),
    ]
    if seen:
        lines += ["", "## Failures", "", *(f"- `{text[:400].replace('`', chr(39))}`" for text in seen[:SHOWN])]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.exit(main())
