"""What is drawn: tokens as often as their probabilities say, and the gap between sampler and trainer."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from agreement import CONFIG, SIZES
from models import model_folder
from part import Place, Row, at_most, possible
from scipy.stats import chi2

from steadyrl.backends.torch.sampler import warp
from steadyrl.core.config import resolve
from steadyrl.core.types import Sampling
from steadyrl.loop.checkpoint import State
from steadyrl.loop.preflight.parity import TOLERANCES
from steadyrl.loop.train import Session, one_step, open_session

REQUEST = "put an item into the queue without blocking"
DRAWS = {"cuda": 16384, "cpu": 4096}
EXPECTED = 10.0  # draws in a bin, at least
DRAWN = {
    "fp32": ("backend.precision=fp32",),
    "bf16": ("backend.precision=bf16",),
    "bf16, fused": ("backend.precision=bf16", "backend.args.fused=true"),
}
UNLIKELY = 1e-4  # chance of a fault that is none
SAMPLINGS = {
    "temperature 1": Sampling(max_new_tokens=2),
    "temperature 0.7, top-p 0.9, top-k 50": Sampling(max_new_tokens=2, temperature=0.7, top_p=0.9, top_k=50),
}


def chosen_as_often_as_likely(place: Place) -> Iterator[Row]:
    """Draw first and second tokens of one prompt many times, and compare with the probabilities of transformers."""
    exact = _session(place, "backend.precision=fp32", "backend.device=cpu").backend
    for way, overrides in possible(place, DRAWN).items():
        backend = _session(place, *overrides, "backend.args.generate_rows=4096").backend
        prompt = backend.tokenizer.encode_prompt(REQUEST)
        for name, sampling in SAMPLINGS.items():
            drawn = backend.generate([prompt] * DRAWS[place.device], sampling, range(DRAWS[place.device]))
            rows = [completion.ids for completion in drawn]
            first = np.array([ids[0] for ids in rows])
            yield _fits(f"first token, {way}, {name}", first, _probabilities(exact, prompt, sampling))
            most = np.bincount(first[[len(ids) > 1 for ids in rows]]).argmax()
            second = np.array([ids[1] for ids in rows if len(ids) > 1 and ids[0] == most])
            after = _probabilities(exact, np.append(prompt, most).astype(np.int32), sampling)
            yield _fits(f"second token, {way}, {name}", second, after)


def gap_by_precision(place: Place) -> Iterator[Row]:
    """Draw and score with every precision; the mean difference of log-probs of one token."""
    models = {"base": "base", SIZES[place.device]: str(model_folder(SIZES[place.device]) / "own")}
    ways = {
        "fp32": ("backend.precision=fp32",),
        "bf16": ("backend.precision=bf16",),
        "bf16, fused": ("backend.precision=bf16", "backend.args.fused=true"),
        "weights in bf16": ("backend.args.weights=bf16",),
    }
    for model, path in models.items():
        for name, overrides in possible(place, ways).items():
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
    """Return what the next token is drawn from, [V]."""
    logits = backend.model(input_ids=torch.from_numpy(ids.astype(np.int64))[None]).logits[:, -1].float()
    p: np.ndarray = warp(logits, sampling).double().softmax(-1)[0].numpy()
    return p


def _fits(what: str, drawn: np.ndarray, p: np.ndarray) -> Row:
    """Return the chance of counts as far from the expected ones as these, by a chi-square test."""
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
