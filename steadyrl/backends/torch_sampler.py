"""Batched sampling from a causal model, with the log-probability of what was sampled.

Prompts are padded on the left; finished rows leave the batch, so that one long completion does not make all others
wait. Each row draws from its own seed, one uniform number a token, so that what a row becomes does not depend on its
neighbours.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from steadyrl.types import Completion, Sampling


@torch.inference_mode()
def sample(
    model: Any,
    prompts: Sequence[np.ndarray],
    sampling: Sampling,
    seeds: Sequence[int],
    eos_id: int,
    pad_id: int,
) -> list[Completion]:
    """Sample one completion per prompt.

    Args:
        model: A transformers causal model in eval mode.
        prompts: Token ids, at least one each.
        sampling: How to draw.
        seeds: One per prompt.
        eos_id: Ends a completion.
        pad_id: Fills the left of short prompts.
    """
    ids, attention = _left_pad(prompts, pad_id, model.device)
    uniforms = _uniforms(seeds, sampling.max_new_tokens, model.device)  # [B, max_new_tokens]
    drawn = torch.full_like(uniforms, -1, dtype=torch.long)  # [B, max_new_tokens], -1 after the end
    logprobs = torch.zeros_like(uniforms)
    kept: list[list[np.ndarray]] = [[] for _ in prompts]
    alive = torch.arange(len(prompts), device=model.device)
    cache = None
    positions = (attention.cumsum(1) - 1).clamp(min=0)
    for t in range(sampling.max_new_tokens):
        out = model(
            input_ids=ids, attention_mask=attention, position_ids=positions, past_key_values=cache, use_cache=True,
            logits_to_keep=1,
        )  # fmt: skip
        cache, logits = out.past_key_values, out.logits[:, -1].float()
        logp = warp(logits, sampling)  # [b, V]
        token = draw(logp, uniforms[alive, t])  # [b]
        measured = logp if sampling.logprobs == "sampled" else logits.log_softmax(-1)
        drawn[alive, t] = token
        logprobs[alive, t] = measured.gather(1, token[:, None])[:, 0]
        if sampling.truncates:
            for row, line in zip(alive.tolist(), (logp > -torch.inf).cpu().numpy(), strict=True):
                kept[row].append(np.flatnonzero(line).astype(np.int32))
        going = token != eos_id
        if not going.any():
            break
        ids, positions = token[:, None], positions[:, -1:] + 1
        attention = torch.cat([attention, attention.new_ones(len(attention), 1)], dim=1)
        if not going.all():
            rows = going.nonzero()[:, 0]
            cache.batch_select_indices(rows)
            ids, positions, attention, alive = ids[rows], positions[rows], attention[rows], alive[rows]
    return _completions(drawn.cpu().numpy(), logprobs.cpu().numpy(), kept if sampling.truncates else None, eos_id)


def _completions(
    drawn: np.ndarray, logprobs: np.ndarray, kept: list[list[np.ndarray]] | None, eos_id: int
) -> list[Completion]:
    completions = []
    for row, length in enumerate((drawn >= 0).sum(axis=1).tolist()):
        ids = drawn[row, :length].astype(np.int32)
        stopped = ids[-1] == eos_id
        kept_ids = None if kept is None else tuple(kept[row])
        completions.append(Completion(ids, logprobs[row, :length].copy(), "stop" if stopped else "length", kept_ids))
    return completions


def warp(logits: torch.Tensor, sampling: Sampling) -> torch.Tensor:
    """Return the log-probabilities that tokens are drawn from: temperature first, then top-k, then top-p.

    Args:
        logits: [N, V] float32.
        sampling: temperature, top_k and top_p are used.

    Returns:
        [N, V]; -inf for tokens that truncation cut, the others normalised among themselves.
    """
    logits = logits / sampling.temperature
    if sampling.top_k > 0:
        least = logits.topk(min(sampling.top_k, logits.shape[-1]), dim=-1).values[:, -1:]
        logits = logits.masked_fill(logits < least, -torch.inf)
    if sampling.top_p < 1.0:
        ordered, order = logits.sort(dim=-1, descending=True)
        p = ordered.softmax(-1)
        cut = p.cumsum(-1) - p >= sampling.top_p  # the token that reaches top_p stays
        logits = logits.masked_fill(cut.scatter(1, order, cut), -torch.inf)
    return logits.log_softmax(-1)


def draw(logp: torch.Tensor, uniform: torch.Tensor) -> torch.Tensor:
    """Invert the cumulative distribution at given uniform numbers.

    Args:
        logp: [N, V].
        uniform: [N] in [0, 1).

    Returns:
        [N] token ids; never one of probability 0.
    """
    wide = torch.float32 if logp.device.type == "mps" else torch.float64
    cumulative = logp.to(wide).exp().cumsum(-1)
    aim = uniform.to(wide)[:, None] * cumulative[:, -1:]
    return torch.searchsorted(cumulative, aim, right=True)[:, 0].clamp(max=logp.shape[-1] - 1)


def _left_pad(prompts: Sequence[np.ndarray], pad_id: int, device: Any) -> tuple[torch.Tensor, torch.Tensor]:
    width = max(len(p) for p in prompts)
    ids = np.full((len(prompts), width), pad_id, np.int64)
    attention = np.zeros((len(prompts), width), np.int64)
    for row, prompt in enumerate(prompts):
        ids[row, width - len(prompt) :] = prompt
        attention[row, width - len(prompt) :] = 1
    return torch.from_numpy(ids).to(device), torch.from_numpy(attention).to(device)


def _uniforms(seeds: Sequence[int], count: int, device: Any) -> torch.Tensor:
    numbers = np.stack([np.random.default_rng(seed).random(count) for seed in seeds])
    numbers = np.minimum(numbers, 1 - 2.0**-24).astype(np.float32)  # float32 would round the largest to 1
    return torch.from_numpy(numbers).to(device)
