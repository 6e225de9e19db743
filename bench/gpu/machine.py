"""The machine, and what it can do at most."""

from __future__ import annotations

import platform
from collections.abc import Iterator
from importlib.metadata import version

import torch
from limits import best_seconds
from models import model_folder
from part import Place, Row, stopwatch
from torch.nn.functional import linear

PACKAGES = ("steadyrl", "torch", "transformers", "tokenizers", "peft", "triton", "trl")
MODELS = {"cuda": ("7m", "0.5b", "1.5b"), "cpu": ("base", "7m")}
SQUARE = {"cuda": 8192, "cpu": 1024}  # rows and columns of the products
COPIED_MIB = {"cuda": 2048, "cpu": 256}


def ceilings(place: Place) -> Iterator[Row]:
    """Name the device and the packages; measure copies and products."""
    yield Row("device", name_of(place))
    yield Row("packages", ", ".join(found_versions()))
    if place.device == "cuda":
        free, total = torch.cuda.mem_get_info()
        yield Row("memory", total / 2**30, "GiB")
        yield Row("memory that others use", (total - free) / 2**30, "GiB", note="this process has a context in it")
    data = torch.ones(COPIED_MIB[place.device] * 2**18, device=place.device)
    to = torch.empty_like(data)
    yield Row("copies", 2 * data.nbytes / best_seconds(lambda: to.copy_(data)) / 1e9, "GB/s", note="read and written")
    n = SQUARE[place.device]
    for name, dtype, tf32 in (
        ("bf16", torch.bfloat16, False),
        ("TF32", torch.float32, True),
        ("fp32", torch.float32, False),
    ):
        if tf32 and place.small:
            continue
        torch.backends.cuda.matmul.allow_tf32 = tf32
        x, w = (torch.randn(n, n, device=place.device).to(dtype) for _ in range(2))
        with torch.inference_mode():
            seconds = best_seconds(lambda x=x, w=w: linear(x, w))
        yield Row(f"products in {name}", 2 * n**3 / seconds / 1e12, "TFLOP/s")


def models(place: Place) -> Iterator[Row]:
    """Make the random models of the other parts, which are kept in bench/.models."""
    for name in MODELS[place.device]:
        with stopwatch() as seconds:
            model_folder(name)
        yield Row(f"model {name}", seconds[0], "s")


def name_of(place: Place) -> str:
    """Return the name of the device."""
    if place.device == "cuda":
        return f"{torch.cuda.get_device_name()}, CUDA {torch.version.cuda}"
    return f"{platform.machine()}, {torch.get_num_threads()} threads, {torch.backends.cpu.get_cpu_capability()}"


def found_versions() -> Iterator[str]:
    """Yield the versions of the packages that are installed."""
    yield f"Python {platform.python_version()}"
    for name in PACKAGES:
        try:
            yield f"{name} {version(name)}"
        except ImportError:
            yield f"no {name}"
