"""Make TRL's own runs: python bench/doctor/trl_runs.py [--venvs bench/.venvs] [--jobs 2] [--only <part of a name>].

Each in TRL's own environment, which bench/peers/environments.py makes. Stored runs are left as they are.
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import store
from trl_cases import SPLIT, Case, cases

HERE = Path(__file__).parent
OUT = store.DATA / "trl"
SCRIPTS = {"grpo": "trl_grpo_run.py", "ppo": "trl_ppo_run.py"}
TRAINERS = {"grpo": "trl-grpo", "ppo": "trl-ppo"}  # the environments


def main() -> None:
    """Make what is lacking, and write the labels of all that is there."""
    args = arguments()
    missing = [c for c in cases() if not (OUT / c.file).is_file() and (not args.only or args.only in c.name)]
    missing = missing[: args.limit]
    OUT.mkdir(parents=True, exist_ok=True)
    with ThreadPoolExecutor(args.jobs) as pool:
        made = list(pool.map(lambda case: make(case, args.venvs), missing))
    store.write_labels([label(case) for case in cases() if (OUT / case.file).is_file()], OUT)
    if not all(made):
        sys.exit("failed: " + ", ".join(case.name for case, done in zip(missing, made, strict=True) if not done))


def make(case: Case, venvs: Path) -> bool:
    """Run a case in its environment and store its log; False if it failed."""
    began = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "log"
        command = [str(venvs / TRAINERS[case.trainer] / "bin" / "python"), str(HERE / SCRIPTS[case.trainer]), case.name]
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false", "HF_HUB_OFFLINE": "1"}
        done = subprocess.run([*command, str(log)], env=environment, capture_output=True, text=True, check=False)
        if done.returncode:
            print(f"{case.name}: failed\n{done.stderr[-2000:]}", flush=True)
            return False
        (OUT / case.file).write_bytes(gzip.compress(log.read_bytes(), mtime=0))
    print(f"{case.name}: {time.perf_counter() - began:.0f} s", flush=True)
    return True


def label(case: Case) -> dict[str, Any]:
    """Return a case's line in the labels."""
    return {
        "run": case.name,
        "file": case.file,
        "fault": case.fault,
        "onset": case.onset,
        "split": SPLIT[case.task],
        "task": case.task,
        "algorithm": case.trainer,
        "seed": case.seed,
        "steps": len(store.read_metrics(OUT / case.file)),
        "settings": json.loads(json.dumps({**case.settings, **case.sampling})),
    }


def arguments() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--venvs", type=Path, default=HERE.parent / ".venvs")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--only", default="", help="runs whose name holds this")
    parser.add_argument("--limit", type=int, help="so many runs at most")
    return parser.parse_args()


if __name__ == "__main__":
    main()
