"""steadyrl beside its peers on this machine, in turns: python bench/side_by_side.py [--workloads base 30m].

Every measurement is a process of its own: A B A B ... over the rounds, so that whatever else changes on the machine
changes for both. Prints a table, and writes it and its numbers to bench/results. Only a machine that does nothing
else gives wall times that mean something: what others take of it at the start is noted. CLOCK=processor counts the
processor's time instead. DEVICE=cuda (`make bench-gpu`), PRECISION=bf16 and LORA=8 set what both sides do, WARM_UP how
many steps are not counted.

This file imports neither torch nor steadyrl: a child's peak memory starts at what its parent had.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from datetime import date
from pathlib import Path
from typing import Any

import table
from peers.environments import DEFAULT_FOLDER, interpreter
from workloads import workload

HERE = Path(__file__).parent
# By kind of work: the peer, then ours. An environment is named where it is not the one that runs this file.
SYSTEMS: dict[str, dict[str, tuple[str | None, list[str]]]] = {
    "grpo": {
        "trl-grpo": ("trl-grpo", ["-m", "peers.trl_grpo"]),
        "steadyrl-grpo": (None, ["ours_step.py", "grpo"]),
    },
    "ppo": {
        "trl-ppo": ("trl-ppo", ["-m", "peers.trl_ppo"]),
        "steadyrl-ppo": (None, ["ours_step.py", "ppo"]),
    },
    "generate": {
        "transformers-generate": (None, ["generate.py", "transformers"]),
        "steadyrl-generate": (None, ["generate.py", "steadyrl"]),
    },
}
BUSY = 0.2  # cores taken by others: from here on the times are said to be rough
WATCH_S = 3.0


def main() -> None:
    """Measure everything that was asked for."""
    args = parse()
    works = [workload(name) for name in args.workloads]
    environments = find_environments(args.systems, args.venvs)
    others = busy_cores()
    run([sys.executable, "models.py", *dict.fromkeys(work.model for work in works)])
    limits = json.loads(run([sys.executable, "limits.py", *args.workloads]))
    lines: list[dict[str, Any]] = []
    for name in args.workloads:
        for systems in SYSTEMS.values():
            chosen = {system: how for system, how in systems.items() if system in args.systems}
            for number in range(args.rounds):
                for system, (environment, command) in chosen.items():
                    print(f"{name}, {system}: round {number + 1} of {args.rounds}", file=sys.stderr, flush=True)
                    steps = run([str(environments[environment]), *command, name, "--steps", str(args.steps)])
                    lines += [{"round": number, **json.loads(line)} for line in steps.splitlines()]
    result = {
        "date": date.today().isoformat(),
        "machine": machine(),
        "busy_cores_before": others,
        "rough": others is not None and others > BUSY,
        "steadyrl_commit": commit(),
        "threads": limits["threads"],
        "steps": args.steps,
        "rounds": args.rounds,
        "limits": limits,
        "systems": {line["system"]: {"version": line["version"], **line["packages"]} for line in lines},
        "results": [table.summarise(part, limits) for part in table.by_system(lines)],
    }
    write(result, args.results / args.name)


def parse() -> argparse.Namespace:
    """Read the command line."""
    known = [system for systems in SYSTEMS.values() for system in systems]
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--workloads", nargs="+", default=["base", "30m"], help="with other sizes: 30m:4x8x256")
    parser.add_argument("--systems", nargs="+", choices=known, default=known)
    parser.add_argument("--steps", type=int, default=10, help="counted steps of a process")
    parser.add_argument("--rounds", type=int, default=3, help="processes of every system")
    parser.add_argument("--venvs", type=Path, default=DEFAULT_FOLDER, help="where the peers' environments are")
    parser.add_argument("--results", type=Path, default=HERE / "results")
    parser.add_argument("--name", default="side_by_side", help="of the two files in the folder of results")
    return parser.parse_args()


def find_environments(systems: Sequence[str], folder: Path) -> dict[str | None, Path]:
    """Return the interpreters that are needed, or say how to make them."""
    found: dict[str | None, Path] = {None: Path(sys.executable)}
    for kind in SYSTEMS.values():
        for system, (environment, _) in kind.items():
            if system not in systems or environment is None:
                continue
            which = interpreter(folder.absolute(), environment)
            if which is None:
                sys.exit(
                    f"{system} has no environment in {folder}; make it with: python bench/peers/environments.py "
                    f"--folder {folder} (or leave it out: --systems)"
                )
            found[environment] = which
    return found


def run(command: Sequence[str]) -> str:
    """Run a script of this folder and return what it printed."""
    quiet = {"TOKENIZERS_PARALLELISM": "false", "HF_HUB_OFFLINE": "1", "PYTHONWARNINGS": "ignore"}
    done = subprocess.run(command, cwd=HERE, env={**os.environ, **quiet}, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"{' '.join(command)} failed:\n{done.stderr[-3000:]}")
    return done.stdout


def machine() -> dict[str, Any]:
    """Describe where this ran."""
    cpuinfo = Path("/proc/cpuinfo")
    lines = cpuinfo.read_text(encoding="utf-8").splitlines() if cpuinfo.is_file() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return {
        "device": os.environ.get("DEVICE", "cpu"),
        "processor": names[0] if names else platform.processor(),
        "cores": os.cpu_count(),
        "system": platform.platform(),
        "python": platform.python_version(),
    }


def busy_cores() -> float | None:
    """Return how many cores others keep busy now, None where the system does not tell.

    Not the load average: that still holds what ran before.
    """
    stat = Path("/proc/stat")
    if not stat.is_file():
        return None
    before = _jiffies(stat)
    time.sleep(WATCH_S)
    idle, total = (after - was for after, was in zip(_jiffies(stat), before, strict=True))
    return (os.cpu_count() or 1) * (1 - idle / total)


def _jiffies(stat: Path) -> tuple[int, int]:
    """Return the idle ticks of all cores since the start, and all ticks."""
    user, nice, system, idle, wait, *rest = (
        int(x) for x in stat.read_text(encoding="utf-8").split("\n")[0].split()[1:9]
    )
    return idle + wait, user + nice + system + idle + wait + sum(rest)


def commit() -> str:
    """Return the commit that was measured, with a + where files differ from it."""
    if shutil.which("git") is None:
        return "unknown"
    done = subprocess.run(
        ["git", "describe", "--always", "--dirty=+"], cwd=HERE, capture_output=True, text=True, check=False
    )
    return done.stdout.strip() or "unknown"


def write(result: Mapping[str, Any], file: Path) -> None:
    """Print the table; write it, and the numbers."""
    file.parent.mkdir(parents=True, exist_ok=True)
    text = table.markdown(result)
    print(text)
    file.with_suffix(".json").write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    file.with_suffix(".md").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
