"""Hidden states of a batch's rows: by the model's plan where it fits, else by transformers' own forward."""

from __future__ import annotations

import logging
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import numpy as np
import torch
from torch import nn

from steadyrl.backends.torch.model import Parts
from steadyrl.backends.torch.packed import pack
from steadyrl.backends.torch.plan import Plan
from steadyrl.backends.torch.recording import GAP, Recording
from steadyrl.backends.torch.trunk import fits, hidden_states
from steadyrl.types import Batch

log = logging.getLogger(__name__)


class Reader:
    """Reads rows with one model.

    Args:
        model: A transformers causal model, perhaps under an adapter.
        parts: Of the model.
        plan: How to read it packed, or None.
        lower: Type that matrices are multiplied in; None for that of the weights.
        recompute: Keep only each layer's input for the way back.
    """

    def __init__(self, model: Any, parts: Parts, plan: Plan | None, lower: torch.dtype | None, recompute: bool):
        body = parts.body
        self._body, self._scale, self._lower, self._recompute = body, parts.scale, lower, recompute
        self._plan = plan if fits(plan, body) else None
        self._checkpointed: list[nn.Module] = []
        if recompute and (self._plan is None or self._plan.reach is not None):
            # transformers has renamed it
            new = getattr(model, "activation_checkpointing_enable", None)
            (new or model.gradient_checkpointing_enable)({"use_reentrant": False})
            self._checkpointed = [m for m in body.modules() if getattr(m, "gradient_checkpointing", False)]

    def __call__(self, part: Batch) -> torch.Tensor:
        """Return the hidden states [N, H] float32 from which the completion tokens were drawn, row-major."""
        with self.autocast():
            if self._plan is not None and self._plan.reaches(part.tokens.shape[1]):
                return hidden_states(self._plan, pack(part, self._device), self._recompute).float()
            return self._plain(part).float() * self._scale

    def of_recording(self, part: Batch, recording: Recording, head: nn.Module) -> tuple[torch.Tensor, Any] | None:
        """Return what ``__call__`` does and the head's outputs [N, V] or None, from the products of a recording.

        Return None where it holds other rows, or where its products are not those of the weights.
        """
        assert self._plan is not None, "only the plan's decoder keeps its products"
        packed = pack(part, self._device)
        recorded = recording.of(part, packed)
        if recorded is None:
            return None
        hidden = hidden_states(self._plan, packed, recorded=recorded)
        logits = recorded.logits(head, hidden.detach())
        if recorded.gap <= GAP:
            return hidden, logits
        log.warning("the sampler's products are not those of the weights (gap %.1e); rows are read again", recorded.gap)
        return None

    @property
    def _device(self) -> torch.device:
        return next(self._body.parameters()).device

    def autocast(self) -> AbstractContextManager[object]:
        """Return a context in which matrices are multiplied in the lower precision."""
        return nullcontext() if self._lower is None else torch.autocast(self._device.type, self._lower)

    def _plain(self, part: Batch) -> torch.Tensor:
        """Read by transformers' forward.

        Rows are padded on the right: under causal attention padding cannot reach what stands before it, so that no
        attention mask is needed.
        """
        ids = torch.from_numpy(part.tokens.astype(np.int64)).to(self._device)
        mask = torch.from_numpy(part.completion_mask[:, 1:]).to(self._device)
        for module in self._checkpointed:  # transformers recomputes in training mode only; dropout must stay off
            module.training = torch.is_grad_enabled()
        hidden: torch.Tensor = self._body(input_ids=ids[:, :-1], use_cache=False).last_hidden_state
        for module in self._checkpointed:
            module.training = False
        # Row by row, completion by completion; unlike indexing it adds gradients in one order.
        return hidden.flatten(0, 1).index_select(0, mask.flatten().nonzero()[:, 0])
