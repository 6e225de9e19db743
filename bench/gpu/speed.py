"""How long a step takes: beside TRL, beside the floor, and the memory beside the formula.

A further workload is a line of ``WORKLOADS``; its rows are made from what bench/side_by_side.py writes.
"""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from limits import prompt_lengths
from models import model_folder
from part import ROOT, Place, Row, environment, skipped
from peers.environments import DEFAULT_FOLDER, interpreter
from workloads import Workload, workload

from steadyrl.backends.torch.footprint import BF16, Setup, Shape, Work, micro_batch_tokens, peak

# An adapter on a large model whose weights are kept in bfloat16, and vLLM in the trainer's process.
ADAPTER = {"cuda": ("7b", 2), "cpu": ("7m:2x2x8", 1)}
COLOCATED = {"cuda": ("0.5b", 3), "cpu": ("base:2x4x16", 1)}
OURS, TRL = "steadyrl-grpo", "trl-grpo"
# By device: what a step does (see bench/workloads.py), and the counted steps after WARM_UP.
WORKLOADS = {"cuda": {"0.5b": 3, "1.5b": 3}, "cpu": {"base:2x4x16": 2}}
COMPARED = {"cuda": {"0.5b": 2}, "cpu": {"base:2x4x16": 2}}  # by TRL too; 1.5b takes it more than 80 GB
# Settings of the backend beside the defaults, by what they change; each takes some 15 s.
EXACT = {"deterministic": True}
FRUGAL = {
    "micro-batches of 8192 tokens": {"micro_batch_tokens": 8192},
    "micro-batches of 4096 tokens": {"micro_batch_tokens": 4096},
    "layer inputs offloaded": {"gradient_checkpointing": True, "activation_offload": True},
}
WARM_UP = 2
# What a row says, its key in the results, and its unit.
FIGURES = (
    ("step", "step_s", "s"),
    ("generate", "generated_tokens_per_s", "tokens/s"),
    ("score", "score_tokens_per_s", "tokens/s"),
    ("update", "update_tokens_per_s", "tokens/s"),
    ("step over its floor", "times_floor", "times"),
    ("peak memory", "peak_memory_mib", "MiB"),
)


def beside_trl(place: Place) -> Iterator[Row]:
    """Time steps of GRPO on random models, and TRL's where it is installed, which takes longest."""
    for name, steps in WORKLOADS[place.device].items():
        result = _measured(place, name, OURS, steps)
        yield from _figures(name, result)
        yield _beside_formula(place, workload(name), result)
        if name in COMPARED[place.device] and not place.small:  # a CPU is deterministic in any case
            exact = _measured(place, name, OURS, steps, EXACT)
            yield Row(f"{name}, steadyrl: step if deterministic", exact["step_s"] / result["step_s"], "times as long")
            yield from _frugal(place, name, steps, result)
    for name, steps in COMPARED[place.device].items():
        if place.small:
            yield skipped(f"{name}, {TRL}", "make bench compares with it on a CPU")
        elif interpreter(DEFAULT_FOLDER, TRL) is None:
            yield skipped(f"{name}, {TRL}", "TRL is not installed; see docs/gpu.md")
        else:
            yield from _figures(name, _measured(place, name, TRL, steps))


def _frugal(place: Place, name: str, steps: int, whole: Mapping[str, Any]) -> Iterator[Row]:
    """Compare steps that save memory with those of the defaults, which take what is there."""
    for how, args in FRUGAL.items():
        result = _measured(place, name, OURS, steps, args)
        yield Row(f"{name}, steadyrl, {how}: step", result["step_s"] / whole["step_s"], "times as long")
        yield Row(f"{name}, steadyrl, {how}: peak memory", float(result["peak_memory_mib"]), "MiB")


def adapter_of_7b(place: Place) -> Iterator[Row]:
    """Time steps of GRPO on an adapter of rank 16."""
    name, steps = ADAPTER[place.device]
    model_folder(workload(name).model)
    yield from _figures(f"{name} LoRA", _measured(place, name, OURS, steps, {"weights": "bf16"}, LORA="16"))


def colocated(place: Place) -> Iterator[Row]:
    """Time steps of GRPO whose completions come from vLLM in the same process."""
    name, steps = COLOCATED[place.device]
    if importlib.util.find_spec("vllm") is None:
        yield skipped(f"{name}, vLLM in the same process", "vLLM is not installed; see docs/vllm.md")
    else:
        yield from _figures(
            f"{name}, vLLM in the same process", _measured(place, name, OURS, steps, SAMPLER="colocate")
        )


def _figures(name: str, result: Mapping[str, Any]) -> Iterator[Row]:
    for what, key, unit in FIGURES:
        yield Row(f"{name}, {result['who']}: {what}", float(result[key]), unit)


def _measured(
    place: Place, name: str, system: str, steps: int, args: Mapping[str, object] | None = None, **more: str
) -> dict[str, Any]:
    """Run bench/side_by_side.py for one system, and return its record; ``args`` are ours, ``more`` its variables."""
    variables = {
        "PRECISION": "fp32" if place.small else "bf16",
        "WARM_UP": str(WARM_UP),
        "MEASURE_S": "0.1",
        "BACKEND_ARGS": json.dumps(args or {}),
        **more,
    }
    command = [sys.executable, str(ROOT / "bench" / "side_by_side.py"), "--workloads", name, "--rounds", "1"]
    command += ["--steps", str(steps), "--systems", system, "--results", str(place.folder), "--name", "speed"]
    subprocess.run(command, check=True, env=environment(variables))
    (result,) = json.loads((place.folder / "speed.json").read_text(encoding="utf-8"))["results"]
    return {**result, "score_tokens_per_s": workload(name).tokens / result["score_s"]}


def _beside_formula(place: Place, work: Workload, result: Mapping[str, Any]) -> Row:
    """Return measured memory over that of the formula of docs/scaling.md."""
    what = f"{work.name}, steadyrl: peak memory over the formula's"
    if place.small:
        return skipped(what, "on a CPU it is measured by: python scripts/memory.py measure")
    shape = Shape.of_config(json.loads((Path(work.folder) / "config.json").read_text(encoding="utf-8")))
    prompt = max(prompt_lengths(work))
    length = prompt + work.new_tokens
    setup = Setup(reference=True, products=BF16, device=place.device)
    tokens = micro_batch_tokens(shape, setup, torch.cuda.get_device_properties(0).total_memory)
    rows = min(work.samples, max(1, tokens // length))
    prompts = -(-rows // work.group)
    alone = prompts * prompt + rows * work.new_tokens
    doing = Work(alone, prompts * prompt + rows * length, rows * work.new_tokens, work.samples, length)
    ratio = result["peak_memory_mib"] * 2**20 / peak(shape, setup, doing)
    return Row(what, ratio, "times", "0.5 to 1.1", 0.5 <= ratio <= 1.1)
