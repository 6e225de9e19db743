"""Which device a run computes on, and in which precision."""

from __future__ import annotations

import torch

from steadyrl.errors import ConfigError


def lower_precision(name: str, device: torch.device) -> torch.dtype | None:
    """Return the type that matrices are multiplied in, or None for that of the weights."""
    if name == "auto":
        name = "bf16" if device.type == "cuda" and torch.cuda.is_bf16_supported() else "fp32"
    return torch.bfloat16 if name == "bf16" else None


def chosen_device(name: str) -> torch.device:
    """Return the device that a setting names.

    Raises:
        ConfigError: There is none of that name here.
    """
    if name != "auto":
        try:
            probe = torch.zeros(1, device=name)
            probe.item()  # a device such as 'meta' holds shapes and no numbers
            return probe.device
        except (RuntimeError, AssertionError) as error:
            first = str(error).splitlines()[0]
            raise ConfigError(f"backend.device = '{name}' cannot be used: {first}; try 'auto' or 'cpu'") from error
    if torch.cuda.is_available():
        return torch.device("cuda")
    return torch.device("mps" if torch.backends.mps.is_available() else "cpu")
