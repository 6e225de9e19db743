"""GRPO beside PPO on the search task, same rollouts, several seeds: python bench/grpo_vs_ppo.py [--seeds 5].

Runs `steadyrl train` on examples/search.toml and examples/search-grpo.toml at the same time, a core each, a line per
finished run in bench/results/grpo_vs_ppo.jsonl (a run that stands there is not made again), and writes the table
bench/results/grpo_vs_ppo.md. CPU seconds depend less on what else the machine does than wall seconds.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from steadyrl.core.metrics import answer_means
from steadyrl.core.rundir import RunDir, append_line, read_lines, write_text
from steadyrl.core.stats import paired_difference

ROOT = Path(__file__).parent.parent
RESULTS = ROOT / "bench" / "results" / "grpo_vs_ppo.jsonl"
# Both from the base model, which reads the request alone.
CONFIGS = {
    "ppo": ("examples/search.toml",),
    "grpo": ("examples/search-grpo.toml", "model.path=base", 'task.args={corpus="stdlib"}'),
}
# No preflight and no doctor: their time is neither algorithm's.
FIXED = ("run.preflight=off", "run.doctor_every=0", "backend.threads=1")
ROWS = (
    ("held-out F1, sampled", ("sampled", "retrieval"), 3),
    ("held-out F1, greedy", ("greedy", "retrieval"), 3),
    ("held-out reward, sampled", ("sampled", "reward"), 3),
    ("held-out reward, greedy", ("greedy", "reward"), 3),
    ("rollouts", ("rollouts",), 0),
    ("wall time of all steps, s", ("steps_s",), 0),
    ("wall time of the run, s", ("wall_s",), 0),
    ("CPU time of the run, s", ("cpu_s",), 0),
)


def main() -> None:
    """Make the runs that are missing, then the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=5, help="0 makes the table alone")
    parser.add_argument("--out", type=Path, default=RESULTS)
    args = parser.parse_args()
    for seed in range(args.seeds):
        done = {record["algorithm"] for record in read_lines(args.out) if record["seed"] == seed}
        for record in measure([algorithm for algorithm in CONFIGS if algorithm not in done], seed):
            append_line(args.out, record)
            print(json.dumps(record), flush=True)
    text = table(list(read_lines(args.out)))
    write_text(args.out.with_suffix(".md"), text)
    print(text)


def measure(algorithms: Sequence[str], seed: int) -> Iterator[dict[str, Any]]:
    """Train with all algorithms at the same time, so that each meets the same machine; yield what came of each."""
    load = os.getloadavg()[0]
    with tempfile.TemporaryDirectory() as folder:
        started = time.perf_counter()
        runs = {start(algorithm, seed, Path(folder) / algorithm).pid: algorithm for algorithm in algorithms}
        while runs:
            pid, status, used = os.wait4(-1, 0)
            algorithm = runs.pop(pid)
            if status:
                sys.exit(f"{algorithm}, seed {seed}, failed; see above")
            times = {"wall_s": time.perf_counter() - started, "cpu_s": used.ru_utime + used.ru_stime}
            run = RunDir(next((Path(folder) / algorithm).iterdir()))
            yield {"algorithm": algorithm, "seed": seed, **outcome(run), **times, "load_before": load}


def start(algorithm: str, seed: int, folder: Path) -> subprocess.Popen[bytes]:
    """Start a run."""
    overrides = [*FIXED, f"run.seed={seed}", f"run.folder={folder}"]
    code = "from steadyrl.cli.main import main; main()"
    command = [sys.executable, "-c", code, "train", *CONFIGS[algorithm], *overrides]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    return subprocess.Popen(command, cwd=ROOT, env=environment, stdout=subprocess.DEVNULL)


def outcome(run: RunDir) -> dict[str, Any]:
    """Return what is kept of a finished run."""
    steps, after = run.metrics(), list(read_lines(run.evaluation_file("after")))
    rollout, info = run.resolved()["rollout"], run.info()
    return {
        **{decoding: answer_means(after, decoding) for decoding in ("sampled", "greedy")},
        "problems": len(after),
        "rollouts": len(steps) * rollout["prompts_per_step"] * rollout["samples_per_prompt"],
        "entropy": [steps[0]["entropy"], steps[-1]["entropy"]],
        "steps_s": sum(step["time/step"] for step in steps),
        "commit": info["commit"],
        "machine": info["machine"],
    }


def table(records: Sequence[dict[str, Any]]) -> str:
    """Return the table: means over the seeds that both have, their difference with its interval, and every seed."""
    by_run = {(record["algorithm"], record["seed"]): record for record in records}
    seeds = sorted(seed for algorithm, seed in by_run if algorithm == "ppo" and ("grpo", seed) in by_run)
    lines = [
        "# GRPO beside PPO on `search`",
        "",
        f"{len(seeds)} seeds, `python bench/grpo_vs_ppo.py`. In brackets: the least and the greatest seed; for "
        "the difference the 95 % interval over seeds (`stats.paired_difference`).",
        "",
        "| | PPO | GRPO | GRPO - PPO |",
        "|---|---|---|---|",
    ]
    if len(seeds) > 1:
        for name, path, digits in ROWS:
            ppo, grpo = ([value(by_run[algorithm, seed], path) for seed in seeds] for algorithm in ("ppo", "grpo"))
            change = paired_difference(ppo, grpo)
            between = f"{change.difference:+.{digits}f} [{change.low:+.{digits}f}, {change.high:+.{digits}f}]"
            lines.append(f"| {name} | {spread(ppo, digits)} | {spread(grpo, digits)} | {between} |")
    lines += [
        "",
        "| seed | PPO F1 sampled | GRPO | PPO F1 greedy | GRPO | PPO CPU s | GRPO |",
        "|---|---|---|---|---|---|---|",
    ]
    for seed in seeds:
        pair = [by_run[algorithm, seed] for algorithm in ("ppo", "grpo")]
        cells = [f"{run[decoding]['retrieval']:.3f}" for decoding in ("sampled", "greedy") for run in pair]
        cells += [f"{run['cpu_s']:.0f}" for run in pair]
        lines.append(f"| {seed} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def value(record: dict[str, Any], path: Sequence[str]) -> float:
    """Return a number of a record by its keys."""
    found: Any = record
    for key in path:
        found = found[key]
    return float(found)


def spread(values: Sequence[float], digits: int) -> str:
    """Return mean, least and greatest."""
    return f"{np.mean(values):.{digits}f} [{min(values):.{digits}f}, {max(values):.{digits}f}]"


if __name__ == "__main__":
    main()
