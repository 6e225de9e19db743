"""RLAIF for code beside its cousins, as many samples each: python bench/rlaif_table.py [--seeds 0 1] [--arms raft ...].

Makes the warm start of examples/rlaif-code.toml once, trains every arm from it for every seed, and writes the table to
bench/results/rlaif.md and its numbers to rlaif.json. What is finished in --runs is not made again, so that arms and
seeds can be added. Held-out problems are the same for all.
"""

from __future__ import annotations

import argparse
import json
import platform
import resource
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from datetime import date
from pathlib import Path
from typing import Any

import numpy as np

from steadyrl.core.rundir import RunDir, read_lines, write_json, write_text
from steadyrl.core.stats import paired_difference

ROOT = Path(__file__).parent.parent
RESULTS = Path(__file__).parent / "results"
CODE = "from steadyrl.cli.main import main; main()"
# The founding system as it was: rewards above 0.2 times log p, no baseline, a KL penalty of 0.1.
FOUNDING = '{keep="above", reward_threshold=0.2, baseline="none", kl_coef=0.1}'
ARMS: Mapping[str, Sequence[str]] = {
    "rlaif": (),
    "rlaif, kl_coef = 0.004": ("algorithm.args.kl_coef=0.004",),
    "rlaif, keep = all": ("algorithm.args.keep=all",),
    "rlaif, keep = top_k": ("algorithm.args.keep=top_k",),
    "rlaif as founded": (f"algorithm.args={FOUNDING}",),
    "raft": ("algorithm.name=raft", "algorithm.args={}"),
    "rwr": ("algorithm.name=rwr", "algorithm.args={}"),
    "rloo": ("algorithm.name=rloo", "algorithm.args={}"),
    "grpo": ("algorithm.name=grpo", "algorithm.args={kl_coef=0.02}"),
    # As many good answers as the others have samples, in steps of the same size.
    "sft": (
        "algorithm.name=sft",
        "algorithm.args={}",
        "rollout.prompts_per_step=320",
        "rollout.samples_per_prompt=1",
        "run.epochs=56",
    ),
}


def main() -> None:
    """Make what is lacking, and write the table of what is there."""
    args = arguments()
    policy = warm_start(args.runs / "warm", args.more)
    for seed in args.seeds:
        for arm in args.arms:
            folder = args.runs / f"{arm.replace(' ', '')}-s{seed}"
            if not finished(folder):
                overrides = [f"model.path={policy}", *ARMS[arm], f"run.seed={seed}", *args.more]
                print(f"{arm}, seed {seed}", file=sys.stderr, flush=True)
                train("rlaif-code.toml", folder, overrides)
    found = {
        arm: [folder for folder in sorted(args.runs.glob(f"{arm.replace(' ', '')}-s*")) if finished(folder)]
        for arm in ARMS
    }
    rows = [summarise(arm, folders) for arm, folders in found.items() if folders]
    result = {"date": date.today().isoformat(), "machine": machine(), "rows": rows}
    write_json(args.results / "rlaif.json", result)
    write_text(args.results / "rlaif.md", markdown(result))
    print(markdown(result))


def arguments() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--arms", nargs="+", default=list(ARMS), choices=list(ARMS), metavar="ARM")
    parser.add_argument("--runs", type=Path, default=Path("runs/rlaif-table"))
    parser.add_argument("--results", type=Path, default=RESULTS)
    parser.add_argument("--more", nargs="*", default=[], help="overrides for every run, such as backend.threads=1")
    return parser.parse_args()


def finished(folder: Path) -> bool:
    """Return whether a folder holds a run that was trained to its end and timed."""
    return (folder / "cost.json").is_file()


def train(config: str, folder: Path, overrides: Sequence[str]) -> None:
    """Train one run, and note what it cost beside it."""
    began, used = time.monotonic(), cpu_seconds()
    command = [sys.executable, "-c", CODE, "train", str(ROOT / "examples" / config), *overrides]
    log = folder / "log.txt"
    folder.mkdir(parents=True, exist_ok=True)
    with log.open("w") as out:
        done = subprocess.run([*command, f"run.folder={folder}"], stdout=out, stderr=subprocess.STDOUT, check=False)
    if done.returncode:
        sys.exit(f"{log} says why it failed: {log.read_text().splitlines()[-1]}")
    write_json(folder / "cost.json", {"wall_s": time.monotonic() - began, "cpu_s": cpu_seconds() - used})


def cpu_seconds() -> float:
    """Return what finished children, and theirs, have used."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def run_of(folder: Path) -> RunDir:
    """Return the newest run in a folder."""
    return RunDir.open(max(path for path in folder.iterdir() if path.is_dir()))


def warm_start(folder: Path, more: Sequence[str]) -> Path:
    """Return the policy that all arms start from."""
    if not finished(folder):
        print("warm start", file=sys.stderr, flush=True)
        train("rlaif-code-sft.toml", folder, more)
    run = run_of(folder)
    return run.checkpoint_folder(run.checkpoints()[-1]) / "policy"


def rewards(run: RunDir, when: str) -> dict[str, float]:
    """Return the reward of the sampled answer to every held-out problem that has one."""
    lines = read_lines(run.evaluation_file(when))
    found = {line["problem"]: line["answers"]["sampled"]["reward"] for line in lines}
    return {problem: reward for problem, reward in found.items() if reward is not None}


def summarise(arm: str, folders: Sequence[Path]) -> dict[str, Any]:
    """Return one arm's row: several seeds are averaged problem by problem, so that the interval is over problems."""
    runs = [run_of(folder) for folder in folders]
    sides = {when: [rewards(run, when) for run in runs] for when in ("before", "after")}
    shared = sorted(set.intersection(*(set(one) for several in sides.values() for one in several)))
    before, after = (
        np.mean([[one[problem] for problem in shared] for one in sides[when]], axis=0) for when in ("before", "after")
    )
    change = paired_difference(before, after)
    summaries = [json.loads((run.report_folder / "summary.json").read_text()) for run in runs]
    costs = [json.loads((folder / "cost.json").read_text()) for folder in folders]
    last = [run.metrics()[-1] for run in runs]
    ends = [summary["epochs"]["rows"][-1] for summary in summaries]
    return {
        "arm": arm,
        "seeds": len(runs),
        "n": change.n,
        "before": change.mean_before,
        "after": change.mean_after,
        "after_by_seed": [float(np.mean(list(one.values()))) for one in sides["after"]],
        "difference": change.difference,
        "interval": [change.low, change.high],
        "relative": change.difference / change.mean_before,
        "passed_all": [mean([s["parts"]["passed_all"][when] for s in summaries]) for when in ("before", "after")],
        "greedy_tests": [mean([s["greedy"][when] for s in summaries]) for when in ("before", "after")],
        "samples": samples(runs[0]),
        "gap": mean([row["gap"] for row in ends]),
        "variance": mean([row["variance"] for row in ends]),
        "entropy": mean([summary["health"]["entropy_end"] for summary in summaries]),
        "kl_ref_k3": mean([line.get("kl_ref_k3") for line in last]),
        "doctor": sorted({name for s in summaries for row in s["epochs"]["rows"] for name in row["findings"]}),
        "minutes": mean([cost["wall_s"] / 60 for cost in costs]),
        "cpu_s": mean([cost["cpu_s"] for cost in costs]),
    }


def samples(run: RunDir) -> int:
    """Return how many answers a run learned from or chose among."""
    settings = run.resolved()
    per_step = settings["rollout"]["prompts_per_step"] * settings["rollout"]["samples_per_prompt"]
    return per_step * len(run.metrics())


def mean(values: Sequence[float | None]) -> float | None:
    """Return the mean of what is known."""
    known = [value for value in values if value is not None]
    return float(np.mean(known)) if known else None


def machine() -> dict[str, Any]:
    """Return what the runs were made on."""
    lines = Path("/proc/cpuinfo").read_text().splitlines() if Path("/proc/cpuinfo").is_file() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return {"system": platform.platform(), "processor": names[0] if names else platform.machine(), "cores": len(names)}


def markdown(result: Mapping[str, Any]) -> str:
    """Return the table as text."""
    made_on = result["machine"]
    lines = [
        "# RLAIF for code and its cousins",
        "",
        f"{result['date']}, {made_on['processor']}, {made_on['cores']} cores, {made_on['system']}; "
        "`python bench/rlaif_table.py`. Reward of one sampled answer to each held-out problem, before and after; the "
        "95 % interval is over problems. CPU seconds are those of all processes, jails and evaluations included.",
        "",
        "| algorithm | seeds | samples | reward | difference [95 %] | relative | all tests pass | tests, greedy "
        "| best of N - mean | entropy | KL | doctor | minutes | CPU s |",
        "|---|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|---|--:|--:|",
    ]
    for row in sorted(result["rows"], key=lambda row: -row["after"]):
        low, high = row["interval"]
        cells = [
            row["arm"],
            row["seeds"],
            row["samples"],
            f"{row['before']:.3f} → {row['after']:.3f}",
            f"{row['difference']:+.3f} [{low:.3f}, {high:.3f}]",
            f"{row['relative']:+.0%}",
            f"{row['passed_all'][0]:.3f} → {row['passed_all'][1]:.3f}",
            f"{row['greedy_tests'][0]:.3f} → {row['greedy_tests'][1]:.3f}",
            shown(row["gap"]),
            shown(row["entropy"]),
            shown(row["kl_ref_k3"]),
            ", ".join(row["doctor"]) or "fine",
            f"{row['minutes']:.1f}",
            "–" if row["cpu_s"] is None else f"{row['cpu_s']:.0f}",
        ]
        lines.append(f"| {' | '.join(map(str, cells))} |")
    return "\n".join(lines) + "\n"


def shown(value: float | None) -> str:
    """Return a number with three digits, or a dash."""
    return "–" if value is None else f"{value:.3f}"


if __name__ == "__main__":
    main()
