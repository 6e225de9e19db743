"""Log-likelihood ratios of texts under frozen Hugging Face models, for the judge that needs no server."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from steadyrl.backends.huggingface.folder import context_length
from steadyrl.backends.torch.arithmetic import full_float32
from steadyrl.backends.torch.device import to_device
from steadyrl.backends.torch.load.model import load_model, split_head
from steadyrl.backends.torch.read.head import chosen_logprobs
from steadyrl.core.counting.count import tell
from steadyrl.core.sections import ModelSection

_BATCH_TOKENS = 4096  # in one forward pass, padding included


class LikelihoodRatio:
    """How much likelier texts are given their requests than without, or to one model than to another."""

    def __init__(self, folder: str, baseline: str = ""):
        """Load the models, on a GPU where there is one; "" as the baseline compares with no request.

        Raises:
            ModelError: One of them cannot be loaded.
        """
        self._model = _FrozenModel(folder)
        self._baseline = _FrozenModel(baseline) if baseline else None

    def __call__(self, pairs: Sequence[tuple[str, str]]) -> list[float | None]:
        """Return the ratio of each (request, text) in nats per token; None for texts too long, or of no tokens."""
        conditional = self._model.mean_logprobs(pairs)
        baseline = self._baseline or self._model
        compared = baseline.mean_logprobs(pairs if self._baseline else [("", text) for _, text in pairs])
        return [None if a is None or b is None else a - b for a, b in zip(conditional, compared, strict=True)]


@dataclass(frozen=True)
class _Row:
    index: int
    ids: np.ndarray  # [P + T]
    prompt: int  # P


class _FrozenModel:
    def __init__(self, path: str):
        self._device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        model, self._tokenizer = load_model(ModelSection(path=path), self._device)
        model.requires_grad_(False)
        self._split = split_head(model)
        self._longest = context_length(model.config) or 1 << 30

    def mean_logprobs(self, pairs: Sequence[tuple[str, str]]) -> list[float | None]:
        """Return the mean log-prob of each text's tokens after its request."""
        rows = [self._row(index, request, text) for index, (request, text) in enumerate(pairs)]
        readable = sorted(
            (row for row in rows if row.prompt < len(row.ids) <= self._longest), key=lambda row: len(row.ids)
        )
        means: list[float | None] = [None] * len(pairs)
        while readable:
            width = len(readable[-1].ids)
            count = max(1, _BATCH_TOKENS // width)
            readable, batch = readable[:-count], readable[-count:]
            for row, value in zip(batch, self._read(batch, width), strict=True):
                means[row.index] = value
            tell("texts of the judge", len(rows) - len(readable), len(rows))
        return means

    def _row(self, index: int, request: str, text: str) -> _Row:
        prompt = self._tokenizer.encode_prompt(request)
        written: Any = self._tokenizer.hf(text, add_special_tokens=False)["input_ids"]
        return _Row(index, np.concatenate([prompt, np.array(written, np.int32)]), len(prompt))

    @torch.no_grad()
    @full_float32()
    def _read(self, rows: Sequence[_Row], width: int) -> list[float]:
        ids = np.zeros((len(rows), width), np.int64)
        mask = np.zeros((len(rows), width), bool)  # [B, T], True on the texts
        for i, row in enumerate(rows):
            ids[i, : len(row.ids)] = row.ids
            mask[i, row.prompt : len(row.ids)] = True
        tokens = to_device(ids, self._device)  # [B, T]
        chosen = to_device(np.flatnonzero(mask[:, 1:]), self._device)
        # Padded on the right: under causal attention padding cannot reach what stands before it.
        hidden = self._split.body(input_ids=tokens[:, :-1], use_cache=False).last_hidden_state
        hidden, written = hidden.flatten(0, 1)[chosen] * self._split.scale, tokens[:, 1:].flatten()[chosen]
        logprobs, _ = chosen_logprobs(hidden, self._split.head, written, 1.0, None, entropy=False)
        by_text = np.split(logprobs.cpu().numpy().astype(np.float64), np.cumsum(mask.sum(axis=1))[:-1])
        return [float(logprobs_of_text.mean()) for logprobs_of_text in by_text]
