"""Where memory runs out: half as much is done at once, and the gradient is the same."""

from __future__ import annotations

import ctypes
import resource
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from agreement import CONFIG
from models import model_folder
from part import Place, Row, at_most

from steadyrl.backends.torch.memory import M_MMAP_MAX
from steadyrl.core.config import resolve
from steadyrl.core.types import Batch
from steadyrl.loop.rollout.collect import collect
from steadyrl.loop.train import Session, open_session
from steadyrl.maths.batch import make_batch

MODEL = "7m"
# Rows, prompts and new tokens: activations of the whole take some gigabytes on a GPU, some hundred megabytes on a CPU.
ROWS = {"cuda": (64, 8, 256), "cpu": (32, 4, 96)}
WHOLE = 2**20  # tokens of a micro-batch: all there are
ROOM = 0.5  # of what the whole needs at once


def halved(place: Place) -> Iterator[Row]:
    """Measure a gradient and its memory, allow less than that, and measure it again."""
    rows, prompts, new = ROWS[place.device]
    overrides = [f"rollout.samples_per_prompt={rows // prompts}", f"rollout.prompts_per_step={prompts}"]
    overrides += [f"sampling.max_new_tokens={new}", f"model.path={model_folder(MODEL) / 'own'}", "algorithm.name=grpo"]
    overrides += [
        f"backend.device={place.device}",
        "backend.precision=fp32",
        f"backend.args.micro_batch_tokens={WHOLE}",
    ]
    session = open_session(resolve(tomllib.loads(CONFIG), overrides))
    backend: Any = session.backend
    batch = _batch(session)
    if place.small:
        _give_back()
    before = _in_use(place)
    expected = _gradient(session, batch)
    needed = _most(place) - before
    yield Row("activations of all rows at once", needed / 2**20, "MiB")
    # The first gradient stays, on the host, and the second needs room of its own beside what is halved.
    with _allowed(place, before + 2 * expected.nbytes + int(ROOM * needed)):
        gradient = _gradient(session, batch)
    width = backend._micro_batch.size
    yield Row("micro-batch after memory ran out", width, "tokens", f"< {WHOLE}", width < WHOLE)
    far = float(np.linalg.norm(gradient - expected) / np.linalg.norm(expected))
    # Sums of some ten thousand tokens in another order: the root of their number times 6e-8, and ten times that.
    yield at_most("gradient, halves beside the whole", far, 1e-4, "of its norm")
    if not place.small:  # a CPU moves nothing
        yield from _offloaded(place, overrides, batch, expected)


def _offloaded(place: Place, overrides: list[str], batch: Batch, expected: np.ndarray) -> Iterator[Row]:
    """Compare the gradient and the memory where layers are computed again from inputs in the machine's memory."""
    frugal = [*overrides, "backend.args.gradient_checkpointing=true", "backend.args.activation_offload=true"]
    session = open_session(resolve(tomllib.loads(CONFIG), frugal))
    before = _in_use(place)
    gradient = _gradient(session, batch)
    yield Row("activations, layer inputs in the machine's memory", (_most(place) - before) / 2**20, "MiB")
    far = float(np.linalg.norm(gradient - expected) / np.linalg.norm(expected))
    yield at_most("gradient, so computed, beside the whole", far, 1e-4, "of its norm")


def _batch(session: Session) -> Batch:
    problems = session.problems[: session.config.rollout.prompts_per_step]
    groups = collect(session.backend, problems, session.config.rollout.samples_per_prompt, session.sampling, (0, 0))
    groups = [replace(g, rollouts=tuple(replace(r, reward=float(n)) for n, r in enumerate(g.rollouts))) for g in groups]
    batch = make_batch(groups, session.backend.tokenizer.pad_id)
    scores = session.backend.score(batch, session.sampling, session.algorithm.needs)
    return session.algorithm.prepare(replace(batch, old=scores), session.algorithm.state)


def _gradient(session: Session, batch: Batch) -> np.ndarray:
    backend: Any = session.backend
    named, _ = backend.gradients(batch, session.update_at(0.0))
    return np.concatenate([gradient.flatten().cpu().numpy() for gradient in named.values()])


def _give_back() -> None:
    """Let freed memory go back to the system: the backend keeps it for the next step."""
    libc = ctypes.CDLL(None)
    libc.mallopt(M_MMAP_MAX, 65536)  # its default
    libc.malloc_trim(0)


def _in_use(place: Place) -> int:
    """Return the bytes in use now; of a GPU, those of tensors."""
    if place.small:
        return int(Path("/proc/self/statm").read_text(encoding="utf-8").split()[0]) * resource.getpagesize()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    return torch.cuda.memory_allocated()


def _most(place: Place) -> int:
    """Return the most bytes that were in use since; of a CPU, of the whole process."""
    if place.small:
        status = Path("/proc/self/status").read_text(encoding="utf-8")
        return next(int(line.split()[1]) * 1024 for line in status.splitlines() if line.startswith("VmPeak"))
    return torch.cuda.max_memory_allocated()


@contextmanager
def _allowed(place: Place, size: int) -> Iterator[None]:
    """Let an allocation fail beyond a number of bytes in use."""
    if place.small:
        limits = resource.getrlimit(resource.RLIMIT_AS)
        resource.setrlimit(resource.RLIMIT_AS, (size, limits[1]))
        yield
        resource.setrlimit(resource.RLIMIT_AS, limits)
        return
    torch.cuda.empty_cache()
    torch.cuda.set_per_process_memory_fraction(size / torch.cuda.mem_get_info()[1])
    yield
    torch.cuda.set_per_process_memory_fraction(1.0)
