"""Kill runs at random moments (SIGKILL), resume them, and compare with the unbroken run.

    python bench/kill_resume.py --backend torch --runs 10

Exit code 0 if every run ended with the same metrics and the same held-out answers, else 1.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from steadyrl.core.metrics import repeatable
from steadyrl.core.rundir import RunDir

SETTINGS = {
    "toy": [
        "backend.name=toy", "run.steps=24", "run.checkpoint_every=3", "rollout.prompts_per_step=12",
        "sampling.max_new_tokens=12", "update.learning_rate=0.05", "evaluate.problems=20",
        "evaluate.every=3", "evaluate.patience=4", "run.keep_checkpoints=1",
    ],
    "torch": [
        "backend.name=torch", "run.steps=12", "run.checkpoint_every=3", "rollout.prompts_per_step=16",
        "sampling.max_new_tokens=12", "update.learning_rate=1e-4", "evaluate.problems=20",
        "evaluate.every=2", "evaluate.patience=3", "run.keep_checkpoints=1",
    ],
    "mlx": [
        "backend.name=mlx", "run.steps=6", "run.checkpoint_every=2", "rollout.prompts_per_step=4",
        "sampling.max_new_tokens=8", "update.learning_rate=1e-4", "evaluate.problems=8",
    ],
}  # fmt: skip
CONFIG = '[task]\nname = "search"\nargs = { corpus = "generated" }\n[rewards]\nretrieval = 1.0\nlength = 0.1\n'


def main() -> int:
    """Run the comparison."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--backend", choices=sorted(SETTINGS), default="torch")
    parser.add_argument("--runs", type=int, default=10)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    generator = random.Random(args.seed)
    with tempfile.TemporaryDirectory() as folder:
        began = time.perf_counter()
        whole = unbroken(Path(folder), args.backend)
        duration = time.perf_counter() - began
        expected = outcome(whole)
        print(f"unbroken run: {duration:.1f} s, {len(expected[0])} steps, checkpoints {expected[2][2]}", flush=True)
        wrong = 0
        for number in range(args.runs):
            run, kills = broken(Path(folder) / str(number), args.backend, duration, generator)
            same = outcome(run) == expected
            wrong += not same
            print(f"run {number}: killed {kills} times, {'same' if same else 'DIFFERENT'}", flush=True)
    print(f"{args.runs - wrong} of {args.runs} the same")
    return 1 if wrong else 0


def command(folder: Path, backend: str, resume: Path | None = None) -> list[str]:
    """Return the command that starts or resumes a run."""
    steadyrl = [sys.executable, "-c", "from steadyrl.cli.main import main; main()", "train"]
    if resume:
        return [*steadyrl, "--resume", str(resume)]
    config = folder / "config.toml"
    folder.mkdir(parents=True, exist_ok=True)
    config.write_text(CONFIG, encoding="utf-8")
    return [*steadyrl, str(config), *SETTINGS[backend], f"run.folder={folder / 'runs'}"]


def unbroken(folder: Path, backend: str) -> RunDir:
    """Make the run that nothing disturbs."""
    done = subprocess.run(command(folder / "whole", backend), capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"the unbroken run failed: {done.stderr}")
    return only_run(folder / "whole")


def broken(folder: Path, backend: str, duration: float, generator: random.Random) -> tuple[RunDir, int]:
    """Start a run, kill it at a random moment, resume it, kill it again now and then, until it ends."""
    kills = 0
    resume: Path | None = None
    while True:
        process = subprocess.Popen(
            command(folder, backend, resume),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            start_new_session=True,
            text=True,
        )
        if kills == 0 or (kills < 3 and generator.random() < 0.5):
            time.sleep(generator.uniform(0.05, 0.95) * duration)
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                kills += 1
        error = process.communicate()[1]
        if process.returncode == 0 or finished(folder):  # the kill may come while the report is written
            return only_run(folder), kills
        if process.returncode != -signal.SIGKILL:
            sys.exit(f"the resumed run failed: {error}")
        found = sorted((folder / "runs").glob("*/run.json")) if (folder / "runs").is_dir() else []
        resume = found[0].parent if found else None


def only_run(folder: Path) -> RunDir:
    """Return the finished run of a folder; earlier ones were killed before they had begun."""
    runs = sorted(path.parent for path in (folder / "runs").glob("*/run.json"))
    return RunDir.open(runs[0])


def finished(folder: Path) -> bool:
    """Tell whether the training itself has ended."""
    return any(RunDir.open(path.parent).info()["status"] == "finished" for path in (folder / "runs").glob("*/run.json"))


def outcome(run: RunDir) -> tuple[list[dict[str, object]], str, list[object]]:
    """Return what must not depend on the kills: metrics, held-out answers, the best checkpoint and an early end."""
    metrics = [repeatable(line) for line in run.metrics()]
    choice = [run.info()["best"], run.info()["stopped_early"], run.checkpoints()]
    return json.loads(json.dumps(metrics)), run.evaluation_file("after").read_text(encoding="utf-8"), choice


if __name__ == "__main__":
    sys.exit(main())
