"""Hidden states of a batch's rows: packed where the model's attention goes through ours, else padded."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.autograd.graph import save_on_cpu
from torch.utils.checkpoint import checkpoint

from steadyrl.backends.torch.device import to_device
from steadyrl.backends.torch.load.model import SplitModel
from steadyrl.backends.torch.read.attention import in_this_view, viewing
from steadyrl.backends.torch.read.packed import Packed, PackedView, pack
from steadyrl.core.types import Batch


class Reader:
    """Reads rows with one model, in a lower type if given.

    ``recompute`` keeps only each layer's input for the way back, ``offload`` in the memory of the machine.
    """

    def __init__(
        self, model: Any, split: SplitModel, lower: torch.dtype | None, recompute: bool = False, offload: bool = False
    ):
        self._split, self._lower, self._offload = split, lower, offload
        self._checkpointed: list[Any] = []
        if recompute:
            # transformers has renamed it
            new = getattr(model, "activation_checkpointing_enable", None)
            (new or model.gradient_checkpointing_enable)({"use_reentrant": False})
            self._checkpointed = [m for m in split.body.modules() if getattr(m, "gradient_checkpointing", False)]
            for module in self._checkpointed:
                module._gradient_checkpointing_func = _computed_again

    def __call__(self, batch: Batch) -> torch.Tensor:
        """Return the hidden states [N, H] float32 from which the completion tokens were drawn, row-major."""
        for module in self._checkpointed:  # transformers recomputes in training mode only; dropout must stay off
            module.training = torch.is_grad_enabled()
        try:
            away = self._offload and torch.is_grad_enabled() and self._device.type != "cpu"
            with self.autocast(), save_on_cpu(pin_memory=self._device.type == "cuda") if away else nullcontext():
                hidden = (
                    read_packed(self._split.body, pack(batch, self._device))
                    if self._split.ours
                    else self._padded(batch)
                )
        finally:
            for module in self._checkpointed:
                module.training = False
        hidden = hidden.float()
        return hidden if self._split.scale == 1.0 else hidden * self._split.scale

    def autocast(self) -> AbstractContextManager[object]:
        """Return a context in which matrices are multiplied in the lower precision."""
        return nullcontext() if self._lower is None else torch.autocast(self._device.type, self._lower)

    @property
    def _device(self) -> torch.device:
        return next(self._split.body.parameters()).device

    def _padded(self, batch: Batch) -> torch.Tensor:
        """Read rows that are padded on the right.

        Under causal attention padding cannot reach what stands before it, so that no attention mask is needed.
        """
        ids = to_device(batch.tokens.astype(np.int64), self._device)  # [B, T]
        chosen = to_device(np.flatnonzero(batch.completion_mask[:, 1:]), self._device)
        hidden: torch.Tensor = self._split.body(input_ids=ids[:, :-1], use_cache=False).last_hidden_state
        # Row by row, completion by completion; unlike indexing it adds gradients in one order.
        return hidden.flatten(0, 1).index_select(0, chosen)


def read_packed(body: nn.Module, packed: Packed) -> torch.Tensor:
    """Return the hidden states [N, H] from which the completion tokens of packed rows were drawn."""
    ids = packed.ids[None]
    with viewing(PackedView(packed)):
        # With a mask of ones transformers does not look for several texts in the positions, which the view knows.
        hidden: torch.Tensor = body(
            input_ids=ids, position_ids=packed.positions[None], attention_mask=torch.ones_like(ids), use_cache=False
        ).last_hidden_state
    # Indexing adds the gradients of a token that is taken twice in any order on several threads; index_select in one.
    return hidden.squeeze(0).index_select(0, packed.chosen)


def _computed_again(layer: Any, *args: Any, **kwargs: Any) -> Any:
    # Computed again in the view of then; without the state of random numbers, for with dropout off none is drawn.
    return checkpoint(in_this_view(partial(layer, **kwargs)), *args, use_reentrant=False, preserve_rng_state=False)
