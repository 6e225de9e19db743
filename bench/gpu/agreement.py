"""Three steps of training on the device beside the same steps in float32 on the CPU.

The CPU draws the completions, and the device trains on them: a token that is drawn otherwise by a rounding would make
two runs of it. Bounds are for rounding. In float32 a log-prob of a few nats is sums of some hundred products at 6e-8
each, through some layers: 1e-5 nats, and 1e-3 is allowed, since Adam's steps make a weight of next to no gradient go
either way. Bfloat16 rounds at 4e-3: the bounds are those of the preflight, 0.03 nats in the mean.
"""

from __future__ import annotations

import gc
import tomllib
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from models import model_folder
from part import Place, Row, at_most, skipped

from steadyrl.core.config import resolve
from steadyrl.loop.checkpoint import State
from steadyrl.loop.train import Session, one_step, open_session

STEPS = {"cuda": 3, "cpu": 1}
# What all small runs of the check have in common.
CONFIG = """
[run]
steps = 3
[task]
name = "search"
args = { corpus = "generated" }
[rewards]
retrieval = 1.0
length = 0.1
[rollout]
prompts_per_step = 4
samples_per_prompt = 4
[sampling]
max_new_tokens = 12
[update]
learning_rate = 1e-4
epochs = 2
minibatches = 1
kl_old_limit = 1e9
"""
ALGORITHMS = ("grpo", "ppo", "rloo", "reinforce", "rlaif", "raft", "rwr", "sft")
NATS = {"fp32": 1e-3, "bf16": 3e-2}  # of mean entropy, KL and loss
SHARE = {"fp32": 1e-2, "bf16": 0.1}  # of the gradient's norm
IN_NATS = ("entropy", "kl_ref_exact", "kl_ref_k3", "kl_old_k3", "loss/total")
GRADIENT = "grad_norm"
APART = ("update.correction=off",)  # the sampler's log-probs are the CPU's
# Of the device; the CPU computes in float32 without an adapter's or a narrower cache's ways.
WAYS = {"ppo, top-p": ("algorithm.name=ppo", "sampling.top_p=0.9", "sampling.temperature=0.7"),
        "grpo, adapter": ("algorithm.name=grpo", "model.lora_rank=8")}  # fmt: skip
ROUNDED = ("grpo", "ppo", "grpo, adapter")  # in bfloat16 too
LARGE = {
    "grpo, all weights": ("algorithm.name=grpo",),
    "grpo, adapter": ("algorithm.name=grpo", "model.lora_rank=16"),
    "ppo, all weights": ("algorithm.name=ppo",),
    "ppo, adapter": ("algorithm.name=ppo", "model.lora_rank=16"),
}
SIZES = {"cuda": "0.5b", "cpu": "7m"}


def every_algorithm(place: Place) -> Iterator[Row]:
    """Train the base model by every algorithm in float32, and by some in bfloat16."""
    ways = {name: (f"algorithm.name={name}",) for name in ALGORITHMS} | WAYS
    for precision in ("fp32", "bf16"):
        for name, overrides in ways.items():
            if precision == "bf16" and name not in ROUNDED:
                continue
            yield from _compared(f"{name}, {precision}", place, precision, overrides)


def large_models(place: Place) -> Iterator[Row]:
    """Train a larger random model by GRPO and PPO, all weights and an adapter, in the precision of the device."""
    size, precision = SIZES[place.device], "fp32" if place.small else "bf16"
    less = ("rollout.prompts_per_step=2", "rollout.samples_per_prompt=2", "sampling.max_new_tokens=8")
    less += ("update.epochs=1", "update.minibatches=1", f"model.path={model_folder(size) / 'own'}")
    for name, overrides in LARGE.items():
        yield from _compared(f"{size}, {name}, {precision}", place, precision, (*less, *overrides))


def _compared(what: str, place: Place, precision: str, overrides: tuple[str, ...]) -> Iterator[Row]:
    """Yield how far the device's metrics are from the CPU's at most, over all steps."""
    try:
        here = _opened("cpu", "fp32", (*APART, *overrides))
        other_sums = ("backend.args.micro_batch_tokens=256",) if place.small else ()  # lest a CPU does the same twice
        there = _opened(place.device, precision, (*APART, *other_sums, *overrides))
        states = [State(algorithm=dict(session.algorithm.state)) for session in (here, there)]
        drawn: list[Any] = []
        here.backend.generate = _recorded(here.backend.generate, drawn)
        there.backend.generate = lambda *_: drawn.pop(0)
        steps = [(one_step(here, states[0])[1], one_step(there, states[1])[1]) for _ in range(STEPS[place.device])]
        expected, found = steps[-1]
        nats = max(_far(*step, name) for step in steps for name in IN_NATS)
        # Of the largest: where all answers earned the same, a gradient is nothing but rounding.
        largest = max(step[0].get(GRADIENT) or 0.0 for step in steps) or 1.0
        share = max(_far(*step, GRADIENT) for step in steps) / largest
    except Exception as error:  # the others are tried all the same, and the row says what happened
        yield Row(what, f"{type(error).__name__}: {error}"[:300], ok=False)
        return
    finally:
        gc.collect()
    yield at_most(f"{what}: entropy, KL, loss", nats, NATS[precision], "nats")
    if any(GRADIENT in m for m in (expected, found)):
        yield at_most(f"{what}: norm of the gradient", share, SHARE[precision])
    else:
        yield skipped(f"{what}: norm of the gradient", "the algorithm has none")


def _opened(device: str, precision: str, overrides: tuple[str, ...]) -> Session:
    return open_session(
        resolve(tomllib.loads(CONFIG), [f"backend.device={device}", f"backend.precision={precision}", *overrides])
    )


def _recorded(generate: Callable[..., Any], drawn: list[Any]) -> Callable[..., Any]:
    def recording(*args: Any) -> Any:
        completions = generate(*args)
        drawn.append(completions)
        return completions

    return recording


def _far(expected: Mapping[str, float | None], found: Mapping[str, float | None], name: str) -> float:
    """Return the difference of a metric; infinite where one of the two lacks it."""
    one, other = expected.get(name), found.get(name)
    if one is None and other is None:
        return 0.0
    return float("inf") if one is None or other is None else abs(one - other)
