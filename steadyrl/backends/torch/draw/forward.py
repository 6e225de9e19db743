"""Decoding by transformers' own forward and the model's own cache: for every family that our attention does not fit.

Keys and values are not all that such a cache holds: hybrids keep states of convolutions and recurrences in it. Whether
it may be padded and its rows reordered is tried on the model itself, against a plain forward pass of each row.
"""

from __future__ import annotations

import inspect
from typing import Any

import torch

from steadyrl.backends.huggingface.folder import READING_ERRORS
from steadyrl.backends.torch.arithmetic import full_float32
from steadyrl.backends.torch.load.agree import agree
from steadyrl.backends.torch.load.model import SplitModel
from steadyrl.backends.torch.read.head import decoding_head, products_on
from steadyrl.core.errors import ModelError

_CACHES = ("past_key_values", "cache_params")  # what transformers calls the cache in a model's forward


class ModelCache:
    """Transformers' own cache, and what its forward wants beside it."""

    def __init__(self, past: Any, attention: torch.Tensor, positions: torch.Tensor):
        self.past, self.attention, self.positions = past, attention, positions

    def take(self, rows: torch.Tensor) -> None:
        """Keep these rows only; a row may be taken several times."""
        self.past.reorder_cache(rows)
        self.attention, self.positions = self.attention[rows], self.positions[rows]

    spread = take  # nothing is shared


class ForwardDecoder:
    """See batch.Engine."""

    def __init__(self, split: SplitModel, rows: int = 1, lower: torch.dtype | None = None):
        products = products_on(next(split.body.parameters()).device, lower)
        self._body, self.logits = split.body, decoding_head(split.head, split.scale, rows, products)
        parameters = inspect.signature(split.body.forward).parameters
        self._cache_name = next((name for name in _CACHES if name in parameters), None)
        self._takes_positions = "position_ids" in parameters

    def prefill(self, ids: torch.Tensor, visible: torch.Tensor) -> tuple[torch.Tensor, ModelCache]:
        """See Engine."""
        attention = visible.long()
        positions = (attention.cumsum(1) - 1).clamp(min=0)  # [B, P]
        hidden, past = self._last_hidden(ids, attention, positions, None)
        return self.logits(hidden), ModelCache(past, attention, positions[:, -1:] + 1)

    def step(self, tokens: torch.Tensor, cache: ModelCache) -> torch.Tensor:
        """See Engine."""
        cache.attention = torch.cat([cache.attention, cache.attention.new_ones(len(tokens), 1)], dim=1)
        hidden, cache.past = self._last_hidden(tokens[:, None], cache.attention, cache.positions, cache.past)
        cache.positions = cache.positions + 1
        return self.logits(hidden)

    def _last_hidden(
        self, ids: torch.Tensor, attention: torch.Tensor | None, positions: torch.Tensor, past: Any
    ) -> tuple[torch.Tensor, Any]:
        assert self._cache_name is not None, "a model without a cache is refused when it is loaded"
        if self._cache_name == "cache_params" and past is not None:
            attention = None  # recurrences alone: the padding is behind, and some multiply by the whole mask
        arguments = {"input_ids": ids, "attention_mask": attention, "use_cache": True, self._cache_name: past}
        if self._takes_positions:
            arguments["position_ids"] = positions
        out = self._body(**arguments)
        return out.last_hidden_state[:, -1], out[self._cache_name]


@torch.no_grad()
@full_float32()
def can_pad(split: SplitModel, kind: str) -> bool:
    """Return whether prompts of different lengths may be decoded together; if not, those of one length may.

    Raises:
        ModelError: The model's own cache gives other log-probs than its plain forward pass, or it has none.
    """
    if ForwardDecoder(split)._cache_name is None:
        raise ModelError(
            f"the model type '{kind}' keeps its cache where steadyrl does not look for it; expected one of "
            f"{', '.join(_CACHES)} in its forward (see docs/models.md for what is supported)"
        )
    problem = ""
    for padding in (3, 0):
        try:
            agrees, problem = _agrees(split, padding)
        except ModelError:
            raise
        except READING_ERRORS as error:
            problem = f"{type(error).__name__}: {str(error).strip()[:120]}"
            continue
        if agrees:
            return padding > 0
    raise ModelError(
        f"the model type '{kind}' cannot be sampled by its own cache: its log-probs are not those of a plain forward "
        f"pass ({problem}); see docs/models.md for what is supported"
    )


def _agrees(split: SplitModel, padding: int) -> tuple[bool, str]:
    """See ``agree``: with rows reordered in between, against plain passes of each row."""
    weight = next(split.body.parameters())
    device, vocabulary = weight.device, split.head.out_features
    ids = (torch.arange(2 * 9, device=device).view(2, 9) * 7919 + 3) % vocabulary
    visible = torch.ones_like(ids, dtype=torch.bool)
    visible[0, :padding] = False
    decoder, order = ForwardDecoder(split), torch.tensor([1, 0, 0], device=device)
    first, cache = decoder.prefill(ids, visible)
    cache.spread(order)
    logits = [first[order]]
    rows = [ids[i][visible[i]] for i in order.tolist()]
    for number in range(2):
        tokens = (torch.arange(3, device=device) * 13 + number) % vocabulary
        rows = [torch.cat([row, token[None]]) for row, token in zip(rows, tokens, strict=True)]
        logits.append(decoder.step(tokens, cache))
    plain = [split.body(input_ids=row[None], use_cache=False).last_hidden_state[0, -3:] for row in rows]
    return agree(torch.stack(logits, dim=1), decoder.logits(torch.stack(plain)), weight.dtype)
