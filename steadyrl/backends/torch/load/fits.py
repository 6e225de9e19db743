"""May a model's attention go through ours? Tried on the model itself, against transformers' own way through it.

Most families hand all that attention depends on to a registered function. Some do not: those with states of
convolutions or recurrences, with sinks or caps in the softmax, or with code of their own. They are read padded, and
decoded by transformers' cache.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch.nn import functional as F

from steadyrl.backends.huggingface.folder import READING_ERRORS
from steadyrl.backends.torch.arithmetic import full_float32
from steadyrl.backends.torch.draw.decoder import Decoder
from steadyrl.backends.torch.load.agree import agree
from steadyrl.backends.torch.load.model import SplitModel
from steadyrl.backends.torch.read.attention import register
from steadyrl.backends.torch.read.head import logits_of
from steadyrl.backends.torch.read.packed import pack
from steadyrl.backends.torch.read.reader import read_packed
from steadyrl.core.errors import ModelError
from steadyrl.core.types import Batch

# Relative to the largest number: hidden states further from those of transformers' forward are wrong, not rounded.
PARITY = {torch.float32: 1e-3, torch.bfloat16: 0.1, torch.float16: 2e-2}
PROMPT, ANSWER, ROWS = 7, 4, 3  # tokens of the longest ones, and rows of which two share a prompt


@torch.no_grad()
@full_float32()
def through_ours(model: Any, split: SplitModel) -> SplitModel:
    """Return a split model as it is to be read, and register its attention where ours fits it."""
    inner = model.get_base_model() if hasattr(model, "get_base_model") else model
    before = inner.config.get_text_config()._attn_implementation
    batch = _batch(split)
    try:
        ids = torch.from_numpy(batch.tokens.astype(np.int64)).to(inner.device)
        expected = split.body(input_ids=ids, use_cache=False).last_hidden_state.float()
        register(inner)
        # Packed rows must have the hidden states of whole ones.
        hidden = read_packed(split.body, pack(batch, expected.device)).float()
        expected_chosen = expected[:, :-1][torch.from_numpy(batch.completion_mask[:, 1:]).to(expected.device)]  # [N, H]
        gap = (hidden - expected_chosen).abs().max() / expected_chosen.abs().max()
        allowed = PARITY.get(next(split.body.parameters()).dtype, 0.0)
        if bool(gap <= allowed) and _decodes(split, ids, expected):
            return replace(split, ours=True)
    except (ModelError, *READING_ERRORS):  # whatever a family's code makes of masks and positions that it does not know
        pass
    inner.set_attn_implementation(before)
    return split


def _batch(split: SplitModel) -> Batch:
    """Return rows of several lengths, of which two share a prompt."""
    shape = (ROWS, PROMPT + ANSWER)
    # Steps of a prime: tokens from all over the vocabulary.
    tokens = (np.arange(shape[0] * shape[1]).reshape(shape) * 7919 + 3) % split.head.out_features
    tokens[1, :PROMPT] = tokens[0, :PROMPT]
    mask = np.zeros(shape, bool)  # [B, T]
    mask[0, PROMPT:] = mask[1, PROMPT:-1] = mask[2, PROMPT - 2 :] = True
    nothing = np.zeros(shape, np.float32)
    return Batch(
        tokens=tokens.astype(np.int32), lengths=np.full(ROWS, shape[1]), completion_mask=mask,
        sampling_logprobs=nothing, rewards=np.zeros(ROWS), groups=np.arange(ROWS),
    )  # fmt: skip


def _decodes(split: SplitModel, ids: torch.Tensor, expected: torch.Tensor) -> bool:
    """Return whether rows that are padded and decoded token by token have the log-probs of whole ones."""
    begun = PROMPT - 2
    padded = F.pad(ids[:2, :begun], (2, 0))  # [2, begun + 2]
    padded[1] = ids[1, : begun + 2]
    visible = torch.ones_like(padded, dtype=torch.bool)
    visible[0, :2] = False
    decoder = Decoder(split, 2, padded.shape[1] + 2)
    first, cache = decoder.prefill(padded, visible)
    steps = [first]
    for number in range(2):
        steps.append(decoder.step(torch.stack([ids[0, begun + number], ids[1, begun + 2 + number]]), cache))
    ends = torch.stack([expected[0, begun - 1 : begun + 2], expected[1, begun + 1 : begun + 4]])  # [2, 3, H]
    expected_logits = logits_of(split.head)(ends.flatten(0, 1) * split.scale).view(2, 3, -1)
    return agree(torch.stack(steps, dim=1), expected_logits, next(split.body.parameters()).dtype)[0]
