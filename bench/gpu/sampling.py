"""What is drawn: tokens as often as their probabilities say, and the gap between sampler and trainer."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from agreement import CONFIG, SIZES
from models import model_folder
from part import Place, Row, at_most
from scipy.stats import chi2

from steadyrl.backends.torch.draw.sampler import warp
from steadyrl.core.config import resolve
from steadyrl.core.types import Sampling
from steadyrl.loop.checkpoint import State
from steadyrl.loop.preflight.parity import TOLERANCES
from steadyrl.loop.train import Session, one_step, open_session

REQUEST = "put an item into the queue without blocking"
DRAWS = {"cuda": 16384, "cpu": 4096}
EXPECTED = 10.0  # draws in a bin, at least
PRECISIONS = ("fp32", "bf16")
# How far rounding may move the sum of probabilities at which top-p cuts: what lies nearer may be drawn, or may not.
NEAR_THE_CUT = {"fp32": 1e-4, "bf16": 0.02}
UNLIKELY = 1e-4  # chance of a fault that is none
SAMPLINGS = {
    "temperature 1": Sampling(max_new_tokens=2),
    "temperature 0.7, top-p 0.9, top-k 50": Sampling(max_new_tokens=2, temperature=0.7, top_p=0.9, top_k=50),
}


def chosen_as_often_as_likely(place: Place) -> Iterator[Row]:
    """Draw first and second tokens of one prompt many times, and compare with the probabilities of transformers."""
    exact = _session(place, "backend.precision=fp32", "backend.device=cpu").backend
    for precision in PRECISIONS:
        backend = _session(place, f"backend.precision={precision}", "backend.args.generate_rows=4096").backend
        prompt = backend.tokenizer.encode_prompt(REQUEST)
        for name, sampling in SAMPLINGS.items():
            drawn = backend.generate([prompt] * DRAWS[place.device], sampling, range(DRAWS[place.device]))
            rows = [completion.ids for completion in drawn]
            first = np.array([ids[0] for ids in rows])
            near, of_first = NEAR_THE_CUT[precision], _probabilities(exact, prompt, sampling)
            yield _fits(f"first token, {precision}, {name}", first, of_first, sampling.top_p, near)
            most = np.bincount(first[[len(ids) > 1 for ids in rows]]).argmax()
            second = np.array([ids[1] for ids in rows if len(ids) > 1 and ids[0] == most])
            after = _probabilities(exact, np.append(prompt, most).astype(np.int32), sampling)
            yield _fits(f"second token, {precision}, {name}", second, after, sampling.top_p, near)


def gap_by_precision(place: Place) -> Iterator[Row]:
    """Draw and score with every precision; the mean difference of log-probs of one token."""
    models = {"base": "base", SIZES[place.device]: str(model_folder(SIZES[place.device]) / "own")}
    ways = {
        "fp32": ("backend.precision=fp32",),
        "bf16": ("backend.precision=bf16",),
        "weights in bf16": ("backend.args.weights=bf16",),
    }
    for model, path in models.items():
        for name, overrides in ways.items():
            session = _session(place, f"model.path={path}", *overrides)
            metrics = one_step(session, State(algorithm=dict(session.algorithm.state)))[1]
            bound = TOLERANCES["fp32" if name == "fp32" else "bf16"][0]
            yield at_most(f"gap, {model}, {name}", float(metrics["sampler_gap"] or 0.0), bound, "nats")


def _session(place: Place, *overrides: str) -> Session:
    return open_session(
        resolve(tomllib.loads(CONFIG), [f"backend.device={place.device}", "algorithm.name=grpo", *overrides])
    )


@torch.inference_mode()
def _probabilities(backend: Any, ids: np.ndarray, sampling: Sampling) -> np.ndarray:
    """Return what the next token is drawn from, [V]; top-p cuts nothing of it yet."""
    logits = backend.model(input_ids=torch.from_numpy(ids.astype(np.int64))[None]).logits[:, -1].float()
    p: np.ndarray = warp(logits, replace(sampling, top_p=1.0)).double().softmax(-1)[0].numpy()
    return p


def _fits(what: str, drawn: np.ndarray, p: np.ndarray, top_p: float, near: float) -> Row:
    """Return the chance of counts as far from the expected ones as these, by a chi-square test.

    Args:
        what: Is drawn.
        drawn: Ids [N].
        p: [V], before top-p cuts.
        top_p: See Sampling.
        near: Tokens that stand so near to its cut are not counted.
    """
    order = np.argsort(-p)
    before = np.empty_like(p)
    before[order] = np.cumsum(p[order]) - p[order]  # of what is more likely
    open_end = top_p == 1.0
    drawn = drawn[open_end | (abs(before[drawn] - top_p) > near)]
    p = np.where(open_end | (before < top_p - near), p, 0.0)
    p = p / p.sum()
    expected, counts = p * len(drawn), np.bincount(drawn, minlength=len(p)).astype(float)
    often = expected >= EXPECTED
    bins = [(counts[often], expected[often]), (counts[~often].sum(keepdims=True), expected[~often].sum(keepdims=True))]
    found, wanted = (np.concatenate(side) for side in zip(*bins, strict=True))
    found, wanted = found[wanted > 0], wanted[wanted > 0]
    distance = float(((found - wanted) ** 2 / wanted).sum())
    chance = float(chi2.sf(distance, len(wanted) - 1)) if len(wanted) > 1 else 1.0
    never = int(counts[p == 0].sum())
    note = f"{len(drawn)} draws in {len(wanted)} bins" + (f"; {never} tokens that truncation cut" if never else "")
    return Row(what, chance, "chance", f">= {UNLIKELY:g}", chance >= UNLIKELY and not never, note)
