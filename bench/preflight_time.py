"""What a preflight costs beside two steps and the loading: python bench/preflight_time.py [--models base smollm2+lora].

Processor seconds of processes of their own: a preflight, loading and two steps, and loading, a preflight and two steps,
as a training run makes them. What the system spends in them is told apart: it hands out memory that is touched for the
first time, of the process and of files, which on a virtual machine costs more than its use. A name that ends in "+lora"
trains an adapter, else all weights. Writes bench/results/preflight_time.md. --forecast NAME prints what a preflight
forecasts of a step beside three real steps, in processor seconds, and the memory likewise. Give it one thread:
OMP_NUM_THREADS=1.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from models import model_folder
from real_model import CONFIG, OWN_REWARD, QUESTIONS, REWARD
from rlaif_table import machine

HERE = Path(__file__).parent
RESULTS = HERE / "results" / "preflight_time.md"
SETTINGS = [
    "algorithm.name=grpo", OWN_REWARD, "rollout.prompts_per_step=4", "rollout.samples_per_prompt=4",
    "sampling.max_new_tokens=24", "update.learning_rate=1e-6",
]  # fmt: skip
ADAPTER = "+lora"


def main() -> None:
    """Measure each model and write the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--models", nargs="+", default=["base", "30m", f"smollm2{ADAPTER}", "smollm2"])
    parser.add_argument("--forecast", metavar="NAME", help="one of the models")
    parser.add_argument("--steps", nargs="+", help=argparse.SUPPRESS)
    parser.add_argument("--preflight-first", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.steps:
        load_and_step(args.steps, args.preflight_first)
        return
    if args.forecast:
        forecast_and_steps(args.forecast)
        return
    lines = [
        "# What a preflight costs",
        "",
        f"`python bench/preflight_time.py`, one thread of an {machine()['processor']} that others shared, processor "
        "seconds, in parentheses",
        "those of the system, which hands out memory on its first use and writes files. Each figure but the last is of",
        "a process of its own, the start of Python included. A step is 4 prompts x 4 answers of up to 24 tokens, GRPO",
        f"in float32 on all weights, or on an adapter of rank 16 ({ADAPTER}).",
        "",
        "| model | preflight | loading and two steps | loading, a preflight and two steps | what the preflight adds | "
        "preflight passed |",
        "|---|--:|--:|--:|--:|---|",
    ]
    for name in args.models:
        lines.append(line_of(name, model_folder(name.removesuffix(ADAPTER)) / "own"))
        print(lines[-1], flush=True)
    RESULTS.write_text("\n".join(lines) + "\n", encoding="utf-8")


def line_of(name: str, model: Path) -> str:
    """Return a model's line of the table."""
    settings = settings_of(name)
    steps = [str(Path(__file__).resolve()), "--steps", *settings]
    with tempfile.TemporaryDirectory() as folder:
        write_task(folder, model)
        alone, said = timed(["-m", "steadyrl", "preflight", "config.toml", *settings], folder)
        without, _ = timed(steps, folder)
        both, _ = timed([*steps, "--preflight-first"], folder)
    passed = next((line for line in said.splitlines() if line.startswith("preflight:")), "no")
    figures = [f"{user + system:.1f} ({system:.1f})" for user, system in (alone, without, both)]
    return f"| {name} | {' | '.join(figures)} | {sum(both) - sum(without):.1f} | {passed} |"


def settings_of(name: str) -> list[str]:
    """Return a model's overrides."""
    return [*SETTINGS, f"model.lora_rank={16 if name.endswith(ADAPTER) else 0}"]


def write_task(folder: str, model: Path) -> None:
    """Write config, questions and reward."""
    (Path(folder) / "questions.jsonl").write_text(
        "".join(json.dumps({"prompt": q, "gold": a}) + "\n" for q, a in QUESTIONS.items())
    )
    (Path(folder) / "one_word.py").write_text(REWARD)
    (Path(folder) / "config.toml").write_text(CONFIG.format(model=model))


def timed(command: Sequence[str], folder: str) -> tuple[tuple[float, float], str]:
    """Return the processor seconds of a Python process, its own and the system's, and what it printed."""
    paths = f"{HERE.parent}{os.pathsep}{HERE}"
    with tempfile.TemporaryFile("w+") as out:
        process = subprocess.Popen(
            [sys.executable, *command], cwd=folder, env={**os.environ, "PYTHONPATH": paths}, stdout=out
        )
        _, status, used = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        out.seek(0)
        text = out.read()
    if process.returncode not in (0, 1):  # 1: a check failed, as for a random model, whose answers never end
        sys.exit(f"{' '.join(command)} ended with {process.returncode}:\n{text[-2000:]}")
    return (used.ru_utime, used.ru_stime), text


def load_and_step(settings: list[str], preflight_first: bool) -> None:
    """Open the session of config.toml here, look at it before if asked to, and make two steps."""
    from steadyrl.core.config import load
    from steadyrl.loop.checkpoint import State
    from steadyrl.loop.preflight.run import preflight
    from steadyrl.loop.train import one_step, open_session

    session = open_session(load(Path("config.toml"), settings))
    if preflight_first:
        preflight(session)
    state = State(algorithm=dict(session.algorithm.state))
    for _ in range(2):
        one_step(session, state)


def forecast_and_steps(name: str) -> None:
    """Print the forecasts of a preflight and what three steps took; both measure processor time here."""
    from steadyrl.backends.torch.device_memory import memory_now
    from steadyrl.core.config import load
    from steadyrl.loop.checkpoint import State
    from steadyrl.loop.preflight.run import preflight
    from steadyrl.loop.train import one_step, open_session

    time.perf_counter = time.process_time
    model = (model_folder(name.removesuffix(ADAPTER)) / "own").resolve()
    with tempfile.TemporaryDirectory() as folder:
        write_task(folder, model)
        os.chdir(folder)
        session = open_session(load(Path("config.toml"), settings_of(name)))
        print(*(found.message for found in preflight(session) if found.check in ("time", "memory")), sep="\n")
        state = State(algorithm=dict(session.algorithm.state))
        for _ in range(3):
            began = time.process_time()
            one_step(session, state)
            print(f"a step: {time.process_time() - began:.1f} s; peak {memory_now().peak / 2**30:.2f} GiB", flush=True)
        os.chdir("/")


if __name__ == "__main__":
    main()
