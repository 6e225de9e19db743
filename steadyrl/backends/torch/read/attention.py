"""Attention through one function that is registered with transformers, so that a model's own modules read our layouts.

A model's modules compute everything but attention. There transformers calls what is registered under ``NAME``, with
queries, keys and values, and before the layers it asks what tokens may see: as a function of positions, whether that is
a causal mask, a window or a chunk. A ``View`` answers both for the rows that are being read. Outside of a view the
function is transformers' own of PyTorch, so that a registered model can be called as any other.

Not every family goes through this: ``fits`` tries a model before it is read so.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, Protocol

import torch
from torch import nn
from transformers import AttentionInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import AttentionMaskInterface, causal_mask_function, sdpa_mask

from steadyrl.core.errors import ModelError

NAME = "steadyrl"
# What a few families hand to attention beside its usual inputs, and what would change its result: caps and sinks in the
# softmax, biases of positions, and choices among the keys.
OTHER_INPUTS = ("softcap", "s_aux", "sinks", "position_bias", "head_mask", "indices", "block_indices")

# (batch, head, position of the query, of the key) -> whether it is seen, all tensors that broadcast.
Visibility = Callable[[Any, Any, Any, Any], Any]
CAUSAL: Visibility = causal_mask_function
# From queries, keys, cosines and sines [B or 1, T, D]: queries and keys turned by their positions.
Rotation = Callable[[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor], tuple[torch.Tensor, torch.Tensor]]


class View(Protocol):
    """Rows as they are laid out for one pass through a model."""

    def mask(self, visibility: Visibility) -> Any:
        """Return what ``attend`` is given back in every layer of the kind that asks."""

    def rotate(
        self, layer: int, rotation: Rotation, q: torch.Tensor, k: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return queries and keys turned by their positions; a view may leave that to its ``attend``."""
        return rotation(q, k, cos, sin)

    def attend(
        self, layer: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: Any, scale: float | None
    ) -> torch.Tensor:
        """Return [B, T, heads, D] for queries [B, heads, T, D], keys and values [B, kv_heads, T, D].

        Args:
            layer: Number of the layer.
            q: Queries, turned by their positions already.
            k: Keys.
            v: Values.
            mask: What ``mask`` has made for this kind of layer.
            scale: What products of queries and keys are multiplied by; None for one over the root of D.
        """


_view: ContextVar[View | None] = ContextVar("view", default=None)


@contextmanager
def viewing(view: View) -> Iterator[None]:
    """Let registered models read by a view."""
    token = _view.set(view)
    try:
        yield
    finally:
        _view.reset(token)


def in_this_view(work: Callable[..., Any]) -> Callable[..., Any]:
    """Return the work bound to the present view: the way back computes layers again on a thread of its own."""
    view = _view.get()
    if view is None:
        return work

    def bound(*args: Any, **kwargs: Any) -> Any:
        with viewing(view):
            return work(*args, **kwargs)

    return bound


def rotated(
    layer: int, rotation: Rotation, q: torch.Tensor, k: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Rotate as the present view does, and without one at once."""
    view = _view.get()
    return rotation(q, k, cos, sin) if view is None else view.rotate(layer, rotation, q, k, cos, sin)


def register(model: Any) -> None:
    """Let the modules of a transformers model call our function.

    Raises:
        ModelError: Its family chooses attention in another way.
    """
    model.set_attn_implementation(NAME)
    if model.config.get_text_config()._attn_implementation != NAME:
        raise ModelError(f"the model type '{model.config.model_type}' does not let others compute its attention")


def causal_within(visibility: Visibility, length: int, device: torch.device) -> bool:
    """Return whether tokens of rows up to a length see all that stands before them.

    Windows and chunks hide what is far away first, so that the last token and the first one tell.
    """
    if visibility is CAUSAL:
        return True
    position = torch.arange(length, device=device)
    return bool((visible(visibility, position[-1:], position) & visible(visibility, position, position[:1])).all())


def visible(visibility: Visibility, query: torch.Tensor, key: torch.Tensor) -> torch.Tensor:
    """Return bool of the shape that positions of queries and keys broadcast to."""
    nothing = query.new_zeros(())  # of one batch and one head: no family tells them apart where nothing is padded
    mask: torch.Tensor = visibility(nothing, nothing, query, key)
    return mask


def closed(mask: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Return 0 where something is seen and -inf elsewhere: what attention would make of a mask in every layer anew."""
    return torch.zeros(mask.shape, dtype=dtype, device=mask.device).masked_fill_(~mask, -torch.inf)


def _mask(**arguments: Any) -> Any:
    view = _view.get()
    return sdpa_mask(**arguments) if view is None else view.mask(arguments["mask_function"])


def attend(
    module: nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: Any,
    scaling: float | None = None,
    **kwargs: Any,
) -> tuple[torch.Tensor, None]:
    """Attend as the present view does; without one as transformers does. Registered with transformers."""
    view = _view.get()
    if view is None:
        attended: tuple[torch.Tensor, None] = sdpa_attention_forward(
            module, query, key, value, attention_mask, scaling=scaling, **kwargs
        )
        return attended
    if unsupported := [name for name in OTHER_INPUTS if kwargs.get(name) is not None]:
        raise ModelError(f"attention with {', '.join(unsupported)} is transformers' own alone")
    number: Any = module.layer_idx
    return view.attend(number, query, key, value, attention_mask, scaling), None


AttentionInterface.register(NAME, attend)
AttentionMaskInterface.register(NAME, _mask)
