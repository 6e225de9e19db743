"""Whole runs: killed and resumed beside each other, learning, exported, checked beforehand."""

from __future__ import annotations

import json
import math
import signal
import subprocess
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
from agreement import CONFIG
from part import ROOT, Place, Row, at_most, finished, steadyrl, stopwatch

from steadyrl.core.metrics import repeatable
from steadyrl.core.rundir import RunDir

EXAMPLE = "examples/search-grpo.toml"
CHECKED = {"cuda": (EXAMPLE, "examples/search.toml"), "cpu": ("examples/search.toml",)}  # by the preflight
STEPS, EVALUATED = {"cuda": 30, "cpu": 8}, {"cuda": 60, "cpu": 30}  # of the example that learns
QUICK = ("run.preflight=off", "evaluate.problems=8")


def kill_and_resume(place: Place) -> Iterator[Row]:
    """Kill runs and resume them, with and without the setting; compare with runs left alone, all on one device.

    A CPU computes alike with and without it.
    """
    with ThreadPoolExecutor(2) as both:
        for rows in both.map(lambda on: list(_killed(place, on)), (False,) if place.small else (False, True)):
            yield from rows


def _killed(place: Place, setting: bool) -> Iterator[Row]:
    name, folders = f"deterministic = {str(setting).lower()}", [place.folder / f"{which}-{setting}" for which in "ab"]
    options = (f"backend.args.deterministic={str(setting).lower()}", "run.steps=4", "run.checkpoint_every=2", *QUICK)
    whole, cut = (steadyrl(*_train(place, folder, *options), stdout=subprocess.DEVNULL) for folder in folders)
    while cut.poll() is None and len(_metrics(folders[1])) < 3:
        time.sleep(0.02)
    cut.kill()
    if cut.wait() != -signal.SIGKILL or whole.wait():
        raise RuntimeError(f"{name}: a run ended by itself, with {cut.returncode} and {whole.returncode}")
    before = _metrics(folders[1])
    with stopwatch() as seconds:
        finished("train", "--resume", str(_run(folders[1])))
    expected, after = (_metrics(folder) for folder in folders)
    yield Row(f"{name}: resumed", seconds[0], "s", "all 4 steps", list(after) == list(expected) == list(range(4)))
    promised = setting or place.small
    for what, steps in (("same seed twice", before), ("resumed", after)):
        far = max((_far(expected[step], line) for step, line in steps.items()), default=math.inf)
        row = at_most(f"{name}: {what}, largest difference", far, 0.0, "of a metric")
        yield row if promised else Row(row.what, far, row.unit, note="equality is not promised")
    said = _run_info(folders[1])["policy"]["deterministic"]
    yield Row(f"{name}: run.json", f"deterministic: {str(said).lower()}", ok=said is promised)


def learning(place: Place) -> Iterator[Row]:
    """Train the example by GRPO for some steps, and see whether it learns."""
    from steadyrl.show.report.write import read_report  # after the run, whose memory is its own

    folder, steps = place.folder / "learning", STEPS[place.device]
    with stopwatch() as seconds:
        options = (f"run.steps={steps}", "run.preflight=off", f"evaluate.problems={EVALUATED[place.device]}")
        finished(*_train(place, folder, *options, config=ROOT / EXAMPLE))
    score = read_report(_run(folder)).summary["greedy"]
    before, after = score["before"], score["after"]
    yield Row(f"search-grpo, {steps} steps: greedy F1 before", before)
    yield Row(f"search-grpo, {steps} steps: greedy F1 after", after, bound=f"> {before:.3f}", ok=after > before)
    seconds_each = [line["time/step"] for line in RunDir(_run(folder)).metrics()]
    yield Row("search-grpo: first step", seconds_each[0], "s")
    yield Row("search-grpo: median step", float(np.median(seconds_each)), "s")
    yield Row("search-grpo: whole command", seconds[0], "s")


def exported(place: Place) -> Iterator[Row]:
    """Train an adapter, export it merged, and let transformers read the folder: its log-probs are the policy's."""
    import torch
    from transformers import AutoModelForCausalLM

    from steadyrl.core.config import resolve
    from steadyrl.loop import checkpoint
    from steadyrl.loop.train import open_session

    folder, policy = place.folder / "exported", place.folder / "policy"
    finished(*_train(place, folder, "run.steps=1", "model.lora_rank=4", "update.learning_rate=1e-2", *QUICK))
    finished("export", str(_run(folder)), "--merge", "--to", str(policy))
    run = RunDir(_run(folder))
    backend: Any = open_session(resolve(run.resolved(), ["backend.precision=fp32"])).backend
    checkpoint.load(run, backend)
    base, merged = (
        AutoModelForCausalLM.from_pretrained(path).to(place.device).eval()
        for path in (ROOT / "steadyrl" / "backends" / "base-model", policy)
    )
    ids = backend.tokenizer.encode_prompt("put an item into the queue without blocking").astype(np.int64)
    tokens = torch.from_numpy(ids)[None].to(place.device)
    with torch.inference_mode():
        ours, theirs, start = (
            model(input_ids=tokens).logits.float().log_softmax(-1) for model in (backend.model, merged, base)
        )
    # Products in float32; two orders of sums over some hundred of them.
    yield at_most("merged export in transformers", (ours - theirs).abs().max().item(), 1e-4, "nats")
    moved = (theirs - start).abs().max().item()
    yield Row("what the training has changed", moved, "nats", "> 0.0001", moved > 1e-4)


def preflight(place: Place) -> Iterator[Row]:
    """Run the preflight of the main examples."""
    for example in CHECKED[place.device]:
        with stopwatch() as seconds:
            both = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
            process = steadyrl("preflight", example, f"backend.device={place.device}", "--json", **both)
            output, errors = process.communicate()
        found = json.loads(output)["findings"] if output else []
        bad = [f"{each['check']}: {each['message']}" for each in found if each["state"] == "found"]
        note = "; ".join(bad) if found else errors.strip()[-300:]
        yield Row(f"preflight of {example}", seconds[0], "s", "exit code 0", process.returncode == 0, note[:300])


def _train(place: Place, folder: Path, *overrides: str, config: Path | None = None) -> list[str]:
    """Return the command that trains in a folder of its own, by a config or by the small one."""
    folder.mkdir()
    if config is None:
        config = folder / "config.toml"
        config.write_text(CONFIG, encoding="utf-8")
    return ["train", str(config), f"run.folder={folder / 'runs'}", f"backend.device={place.device}", *overrides]


def _run(folder: Path) -> Path:
    """Return the run directory below a folder."""
    return next(folder.glob("runs/*/run.json")).parent


def _run_info(folder: Path) -> dict[str, Any]:
    return RunDir(_run(folder)).info()


def _metrics(folder: Path) -> dict[int, dict[str, Any]]:
    """Return the newest line of each step; empty before a run has begun."""
    files = list(folder.glob("runs/*/metrics.jsonl"))
    return {line["step"]: line for line in RunDir(files[0].parent).metrics()} if files else {}


def _far(one: dict[str, Any], other: dict[str, Any]) -> float:
    """Return the largest relative difference of two lines of metrics."""
    one, other = repeatable(one), repeatable(other)
    return max(_apart(one.get(name), other.get(name)) for name in {**one, **other})


def _apart(one: Any, other: Any) -> float:
    if one == other:
        return 0.0
    if not isinstance(one, float | int) or not isinstance(other, float | int):
        return math.inf
    return abs(one - other) / max(abs(one), abs(other))
