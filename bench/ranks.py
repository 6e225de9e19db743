"""Train on several ranks and hold them to one process: the same numbers, checkpoints for any number, killed ranks.

    python bench/ranks.py equal      PPO and GRPO, all weights and LoRA, on 2 and 4 ranks against one process
    python bench/ranks.py equal --double    the same with everything in float64: what is left is not rounding
    python bench/ranks.py resume     a checkpoint of 2 ranks goes on on 1, 2 and 4
    python bench/ranks.py kill       a rank is killed at a random moment, ten times, and the run goes on each time

Every rank is a process with one thread on the CPU; they talk through gloo. Exit code 0 if all is as it should be.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from steadyrl.core.metrics import repeatable
from steadyrl.core.rundir import RunDir

# Relative where a number is above 1. Norms of whole gradients and KLs of whole sequences round coarser than the loss.
TOLERANCE, OF_SUMS = 1e-6, 1e-5
IN_DOUBLE = 1e-10  # of everything, in float64
EXACT = ("loss/total", "reward/mean")
HURRIED = "forcefully exiting via"  # torchrun's word where a rank has not ended 30 s after another one died
# Shares of tokens beyond a limit: one that lies on the limit is counted or not, as rounding has it.
SHARES, OF_SHARES = "clip_fraction", 0.02
# At temperature 1 thousands of tokens are possible at each place, and about one draw in a thousand lies so near a bound
# between two of them that rounding decides, in one process with other micro-batches too. At 0.5 few are possible.
CONFIG = """
[run]
preflight = "off"
doctor_every = 0
rollouts_every = 1
token_details_every = 0
[backend]
device = "cpu"
[task]
name = "search"
args = { corpus = "generated" }
[rewards]
retrieval = 1.0
length = 0.1
[sampling]
max_new_tokens = 12
temperature = 0.5
[rollout]
prompts_per_step = 8
samples_per_prompt = 2
[update]
learning_rate = 1e-4
warmup_steps = 0
[evaluate]
problems = 4
"""
WAYS = {
    "ppo": ["algorithm.name=ppo"],
    "ppo, LoRA": ["algorithm.name=ppo", "model.lora_rank=8"],
    "grpo": ["algorithm.name=grpo", "algorithm.args.kl_coef=0.05"],
    "grpo, LoRA": ["algorithm.name=grpo", "algorithm.args.kl_coef=0.05", "model.lora_rank=8"],
}


def main() -> int:
    """Run one of the parts."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("part", choices=sorted(PARTS))
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--only", nargs="+", choices=WAYS, default=list(WAYS), help="of 'equal'")
    parser.add_argument("--ranks", nargs="+", type=int, default=[2, 4], help="of 'equal'")
    parser.add_argument("--double", action="store_true", help="of 'equal': compute in float64 (bench/in_double.py)")
    parser.add_argument("--kills", type=int, default=10)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "config.toml").write_text(CONFIG, encoding="utf-8")
        return PARTS[args.part](Path(folder), args)


def equal(folder: Path, args: argparse.Namespace) -> int:
    """Compare losses, gradient norms, all other metrics and the sampled texts with one process."""
    wrong = 0
    for name in args.only:
        asked = [*WAYS[name], f"run.steps={args.steps}"]
        alone = started(folder, 0, asked, args.double)
        for ranks in args.ranks:
            other = started(folder, ranks, asked, args.double)
            wrong += not compared(f"{name}, {ranks} ranks", alone, other, IN_DOUBLE if args.double else OF_SUMS)
    return 1 if wrong else 0


def resume(folder: Path, args: argparse.Namespace) -> int:
    """Go on from a checkpoint of 2 ranks on other numbers, and compare with the run that nothing disturbed."""
    half = ["run.checkpoint_every=1"]
    whole = started(folder, 2, [*half, f"run.steps={2 * args.steps}"])
    first = started(folder, 2, [*half, f"run.steps={args.steps}"])
    wrong = 0
    for ranks in (1, 2, 4):
        copy = folder / f"on-{ranks}"
        shutil.copytree(first.path, copy)
        done = subprocess.run(
            [*launcher(ranks), "--resume", str(copy), f"run.steps={2 * args.steps}"],
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        if done.returncode:
            print(f"resumed on {ranks}: {done.stderr[-2000:]}")
            wrong += 1
            continue
        wrong += not compared(f"2 ranks, then {ranks}", whole, RunDir.open(copy))
    return 1 if wrong else 0


def kill(folder: Path, args: argparse.Namespace) -> int:
    """Kill a random rank at random moments; each time an error names it, and the run goes on from its checkpoint."""
    generator = random.Random(args.seed)
    overrides = ["run.checkpoint_every=1", f"run.steps={args.steps}", f"run.folder={folder / 'killed'}"]
    began = time.monotonic()
    whole = started(folder, 2, overrides[:2])
    duration = time.monotonic() - began
    command = [*launcher(2), str(folder / "config.toml"), "backend.name=fsdp", *overrides]
    wrong = kills = 0
    while kills < args.kills:
        if (folder / "killed").is_dir() and finished(folder / "killed"):  # it got through before the kill
            wrong += not compared("killed and resumed", whole, RunDir.open(next((folder / "killed").iterdir())))
            shutil.rmtree(folder / "killed")
            command = [*launcher(2), str(folder / "config.toml"), "backend.name=fsdp", *overrides]
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        rank = generator.randrange(2)
        after = generator.uniform(0.2, 1.0) * duration
        struck = strike(process, rank, after)
        error = process.communicate(timeout=300)[1]
        if struck:
            kills += 1
            said = [line for line in error.splitlines() if line.startswith("error:")]
            complete = (folder / "killed").is_dir() and finished(folder / "killed")
            silent = "rank 0 was killed by torchrun" if HURRIED in error else "nothing said"
            silent = "the run was complete" if complete else silent
            print(
                f"kill {kills}: rank {rank} after {after:.1f} s, exit code {process.returncode}, {said or silent}",
                flush=True,
            )
            named = rank == 0 or any("rank 1" in line for line in said)
            wrong += process.returncode == 0 or not (named or complete)
        runs = sorted((folder / "killed").glob("*/run.json")) if (folder / "killed").is_dir() else []
        command = [*launcher(2), "--resume", str(runs[0].parent)] if runs else command
    if not finished(folder / "killed"):
        subprocess.run(command, check=True, capture_output=True)
    wrong += not compared("killed and resumed", whole, RunDir.open(next((folder / "killed").iterdir())))
    return 1 if wrong else 0


def strike(process: subprocess.Popen[str], rank: int, after: float) -> bool:
    """Kill one rank of a run after a time; False if the run was over."""
    until = time.monotonic() + after
    while time.monotonic() < until:
        if process.poll() is not None:
            return False
        time.sleep(0.05)
    for child in children(process.pid):
        try:
            environment = Path(f"/proc/{child}/environ").read_bytes().split(b"\0")
        except (ProcessLookupError, FileNotFoundError):  # it ended meanwhile
            continue
        if f"RANK={rank}".encode() in environment:
            os.kill(child, signal.SIGKILL)
            return True
    return False


def children(parent: int) -> Iterator[int]:
    """Yield the processes that a process has started."""
    listed = Path(f"/proc/{parent}/task/{parent}/children").read_text(encoding="utf-8")
    yield from map(int, listed.split())


def launcher(ranks: int, double: bool = False) -> list[str]:
    """Return the command that trains on so many ranks; 0 is plain Python."""
    what = [str(Path(__file__).with_name("in_double.py"))] if double else ["-m", "steadyrl"]
    if ranks == 0:
        return [sys.executable, *what, "train"]
    run = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}"]
    return [*run, *what, "train"]


def started(folder: Path, ranks: int, overrides: list[str], double: bool = False) -> RunDir:
    """Make a run, on one process with the backend torch or on several ranks."""
    runs = Path(tempfile.mkdtemp(dir=folder))
    name = "fsdp" if ranks else "torch"
    asked = [str(folder / "config.toml"), f"backend.name={name}", f"run.folder={runs}", *overrides]
    command = [*launcher(ranks, double), *asked]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"{' '.join(command)} failed: {done.stderr[-3000:]}")
    return RunDir.open(next(runs.iterdir()))


def finished(folder: Path) -> bool:
    """Return whether a run of a folder has ended well."""
    return any(RunDir.open(path.parent).status == "finished" for path in folder.glob("*/run.json"))


def compared(name: str, one: RunDir, other: RunDir, limit: float = OF_SUMS) -> bool:
    """Print how far two runs are apart, and return whether they are the same but for rounding."""
    far: dict[str, float] = {}
    lines = list(zip(one.metrics(), other.metrics(), strict=True))
    for a, b in lines:
        for metric in repeatable(a):
            if a[metric] is None or b[metric] is None:
                far[metric] = 0.0 if a[metric] == b[metric] else float("inf")
                continue
            gap = abs(a[metric] - b[metric]) / max(1.0, abs(a[metric]))
            far[metric] = max(far.get(metric, 0.0), gap)
    texts = [[record["completion"] for record in records(run)] for run in (one, other)]
    differ = sum(a != b for a, b in zip(*texts, strict=True))
    shares = max((gap for metric, gap in far.items() if metric.startswith(SHARES)), default=0.0)
    far = {metric: gap for metric, gap in far.items() if not metric.startswith(SHARES)}
    worst = max(far, key=lambda metric: far[metric])
    near = far[worst] <= limit and shares <= OF_SHARES and all(far[metric] <= TOLERANCE for metric in EXACT)
    right = differ == 0 and near
    verdict = "the same" if right else "DIFFERENT"
    print(
        f"{name}: {len(lines)} steps, loss {far['loss/total']:.1e}, gradient norm {far['grad_norm']:.1e}, "
        f"worst {worst} {far[worst]:.1e}; {differ} of {len(texts[0])} completions differ: {verdict}",
        flush=True,
    )
    return right


def records(run: RunDir) -> Iterator[dict[str, object]]:
    """Yield the rollouts of all steps."""
    for file in sorted(run.rollouts_file(0).parent.glob("*.jsonl")):
        for line in file.read_text(encoding="utf-8").splitlines():
            yield json.loads(line)


PARTS = {"equal": equal, "resume": resume, "kill": kill}

if __name__ == "__main__":
    sys.exit(main())
