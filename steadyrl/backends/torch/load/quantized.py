"""What bitsandbytes keeps small: the weights of a base model in 4 bits, and Adam's moments in 8.

The library was chosen by trying it beside torchao on a CPU with PyTorch 2.13. torchao's optimizer compiles its step, so
that it needs a C++ compiler, keeps its state in tensors that safetensors cannot write, and torchao 0.18 has no NF4.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from steadyrl.core.errors import ConfigError
from steadyrl.core.plugins import require

ADAM_BETAS, ADAM_EPS = (0.9, 0.95), 1e-8
DEVICES = ("cpu", "cuda", "xpu")  # of bitsandbytes


def adam(
    weights: Sequence[nn.Parameter] | Sequence[dict[str, Any]], device: torch.device, bits: int, weight_decay: float
) -> torch.optim.Optimizer:
    """Return AdamW with moments of 32 or 8 bits, of weights or of groups of them.

    Raises:
        ConfigError: The device has none of 8 bits.
        MissingExtraError: bitsandbytes is not installed.
    """
    if bits == 32:
        fused = device.type in {"cpu", "cuda", "mps"}
        return torch.optim.AdamW(weights, betas=ADAM_BETAS, eps=ADAM_EPS, weight_decay=weight_decay, fused=fused)
    _require_device(device, "backend.args.optimizer_bits = 8", "set 32")
    optimizer: torch.optim.Optimizer = require("bitsandbytes").optim.AdamW8bit(
        weights, betas=ADAM_BETAS, eps=ADAM_EPS, weight_decay=weight_decay
    )
    return optimizer


def in_four_bits(device: torch.device, dtype: torch.dtype) -> dict[str, Any]:
    """Return what transformers is told to load a model's matrices in 4 bits; the head and the embedding stay.

    Raises:
        ConfigError: The device has no such products.
        MissingExtraError: bitsandbytes or accelerate is not installed.
    """
    _require_device(device, "backend.args.quantize = 'nf4'", "set 'none'")
    require("bitsandbytes")
    require("accelerate")
    settings = require("transformers").BitsAndBytesConfig(
        load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_compute_dtype=dtype
    )
    return {"quantization_config": settings, "device_map": {"": device}}


def keep_layout(model: nn.Module) -> None:
    """Let a CPU with bfloat16 products leave 4-bit weights as they are.

    In eval mode bitsandbytes would lay them out for sampling, in place, and its backward pass could not read them.
    """
    module: Any
    for module in model.modules():
        if hasattr(module, "support_avx512bf16_for_cpu"):
            module.support_avx512bf16_for_cpu = False


def count(parameter: nn.Parameter) -> int:
    """Return how many weights a parameter holds: of 4 bits, two to a byte."""
    return parameter.numel() * (2 if parameter.dtype == torch.uint8 else 1)


def _require_device(device: torch.device, setting: str, cure: str) -> None:
    if device.type not in DEVICES:
        raise ConfigError(f"{setting} works on {', '.join(DEVICES)}; got the device '{device.type}'; {cure}")
