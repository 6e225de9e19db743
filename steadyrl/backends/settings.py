"""The settings that the backends with gradients of their own have, beside those of every backend."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from steadyrl.core.sections import Section

MICRO_BATCH_TOKENS = 8192  # where nothing else is set or known


class GradientSettings(Section):
    """How weights are kept, and what the backward pass needs of the forward pass."""

    # They change no number.
    free_on_resume = frozenset({"gradient_checkpointing", "micro_batch_tokens", "generate_rows"})

    weights: Literal["fp32", "bf16"] = Field("fp32")
    """'bf16' keeps the model's weights in bfloat16. The optimizer then updates float32 copies of them."""
    gradient_checkpointing: bool = Field(False)
    """Store only each layer's input and recompute its activations in the backward pass. This saves memory and costs
    time."""
    micro_batch_tokens: int | None = Field(None, ge=1)
    """Maximum tokens per forward and backward pass, padding included. Without a number it is 8192, and on a CUDA device
    up to 32768 if its memory has room for them (see gpu.md). It is halved when memory runs out."""
    generate_rows: int = Field(256, ge=1)
    """Maximum number of completions sampled at the same time. It is halved when memory runs out."""
