"""Float32 copies of weights that are kept in bfloat16.

A bfloat16 number has eight significant bits: an update of 1e-6 to a weight of 0.01 is rounded away, every time. So the
optimizer moves float32 copies, and the weights are these copies, rounded.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import torch
from torch import nn
from torch.distributed.tensor import DTensor

from steadyrl.backends.torch.kernels.fused import layer_kernels
from steadyrl.backends.torch.save.state import load_tensors, save_tensors
from steadyrl.core.errors import CheckpointError

FILE = "masters.safetensors"
BLOCK = 2**20  # numbers; three passes over two of them stay in the last cache


@torch.no_grad()
def products_with_momentum(weights: Iterable[nn.Parameter], optimizer: torch.optim.Optimizer) -> list[float]:
    """Return gradients times Adam's mean of those before them, and each of the two times itself; of this rank's share.

    The mean is part of the optimizer's state, so that a resumed run measures the same.
    """
    pairs = []
    for weight in weights:
        if weight.grad is None or "exp_avg" not in optimizer.state.get(weight, {}):
            continue
        new, mean = weight.grad, optimizer.state[weight]["exp_avg"]
        if isinstance(new, DTensor):
            new, mean = new.to_local(), mean.to_local()
        pairs.append((new.flatten(), mean.flatten()))
    if not pairs:
        return [0.0, 0.0, 0.0]
    kernels = layer_kernels(pairs[0][0].device)
    if kernels is not None and all(x.dtype == torch.float32 for pair in pairs for x in pair):
        sums = kernels.products(pairs)
    else:
        pieces = [piece for pair in pairs for piece in _pieces(*pair)]
        sums = torch.stack([torch.stack([a.dot(b), a.dot(a), b.dot(b)]) for a, b in pieces]).sum(0)
    products: list[float] = sums.tolist()
    return products


def cosine_of(products: Sequence[float]) -> dict[str, tuple[float, float]]:
    """Return the cosine of ``products_with_momentum`` as a statistic; empty where there is no mean yet."""
    dot, new, mean = products
    return {"grad_cosine": (dot / math.sqrt(new * mean), 1.0)} if new * mean > 0 else {}


def numbers_of(scalars: Sequence[torch.Tensor]) -> list[float]:
    """Return scalars as numbers: one wait for the device, when all of them are done."""
    numbers = [scalar.detach().float() for scalar in scalars]
    return torch.stack(numbers).tolist() if numbers else []


class Masters:
    """What the optimizer moves.

    Attributes:
        named: By the same names: a float32 copy of each parameter that is coarser, else the parameter itself.
    """

    def __init__(self, trained: Mapping[str, nn.Parameter]):
        self._trained = dict(trained)
        self.named = {
            name: p if p.dtype == torch.float32 else nn.Parameter(p.detach().float()) for name, p in trained.items()
        }

    def forget_gradients(self) -> None:
        """Drop all gradients."""
        for parameter in (*self._trained.values(), *self.named.values()):
            parameter.grad = None

    def take_gradients(self) -> None:
        """Add the gradients of one micro-batch to those of the copies, in float32."""
        for name, parameter in self._trained.items():
            master = self.named[name]
            if master is parameter or parameter.grad is None:
                continue
            gradient = parameter.grad.float()
            master.grad = gradient if master.grad is None else master.grad.add_(gradient)
            parameter.grad = None

    @torch.no_grad()
    def write(self) -> None:
        """Round the copies into the model's weights."""
        for name, parameter in self._trained.items():
            if self.named[name] is not parameter:
                parameter.copy_(self.named[name])

    def save(self, folder: Path) -> None:
        """Write the copies, if there are any."""
        save_tensors(folder / FILE, self._copies())

    @torch.no_grad()
    def load(self, folder: Path) -> None:
        """Read the copies, if there are any, and round them into the weights.

        Raises:
            CheckpointError: They are missing, damaged, or of another model.
        """
        copies = self._copies()
        if not copies:
            return
        saved = load_tensors(folder / FILE)
        if set(saved) != set(copies):
            raise CheckpointError(f"'{folder / FILE}' does not fit the model: it has other weights")
        for name, copy in copies.items():
            copy.copy_(saved[name])
        self.write()

    def _copies(self) -> dict[str, nn.Parameter]:
        return {name: master for name, master in self.named.items() if master is not self._trained[name]}


def _pieces(left: torch.Tensor, right: torch.Tensor) -> Iterable[tuple[torch.Tensor, torch.Tensor]]:
    # On a CPU pieces stay in a cache for three products. Cutting what fits takes as long.
    if left.device.type != "cpu" or left.numel() <= BLOCK:
        return [(left, right)]
    return zip(torch.split(left, BLOCK), torch.split(right, BLOCK), strict=True)
