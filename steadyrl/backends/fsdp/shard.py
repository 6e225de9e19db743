"""Weights that are shared out among the ranks: a layer's are put together when it is computed, and all to sample.

An update goes layer by layer: each gathers its weights, and leaves every rank its share of the summed gradients. To
sample and to score without gradients all weights are gathered once, so that ranks need not keep step with each other.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import CPUOffloadPolicy, FSDPModule, MixedPrecisionPolicy, OffloadPolicy, fully_shard

Result = TypeVar("Result")


class Root(nn.Module):
    """All that is trained, its value head in float32; whatever computes with gradients is done inside its forward."""

    def __init__(self, model: nn.Module, value_head: nn.Module | None):
        super().__init__()
        self.model, self.value_head = model, value_head

    def forward(self, work: Callable[[], Result]) -> Result:
        """Do the work; the tensors of its result must stand in a tuple, where FSDP finds them."""
        return work()


class Sharding:
    """How modules are shared out; a layer is gathered in the lower type if given, gradients are summed in float32."""

    def __init__(self, mesh: DeviceMesh, lower: torch.dtype | None, offload: bool):
        self._mesh = mesh
        self._policy = MixedPrecisionPolicy(param_dtype=lower, reduce_dtype=torch.float32)
        self._exact = MixedPrecisionPolicy()
        self._offload = CPUOffloadPolicy(pin_memory=mesh.device_type == "cuda") if offload else OffloadPolicy()

    def of_policy(self, root: Root, inner: Any) -> None:
        """Share out all that is trained; ``inner`` is the bare model, without an adapter's wrapper."""
        if root.value_head is not None:
            self._shard(root.value_head, self._exact)
        self._shard_blocks(inner)
        self._shard(root, self._policy)

    def of_reference(self, frozen: Any) -> None:
        """Share out a model that is never trained."""
        self._shard_blocks(frozen)
        self._shard(frozen, self._policy)

    def _shard_blocks(self, inner: Any) -> None:
        kinds = set(inner._no_split_modules or ())
        for module in [m for m in inner.modules() if type(m).__name__ in kinds]:
            self._shard(module, self._policy)

    def _shard(self, module: nn.Module, policy: MixedPrecisionPolicy) -> None:
        sharded = fully_shard(module, mesh=self._mesh, mp_policy=policy, offload_policy=self._offload)
        # Losses are divided by the count of the whole minibatch already, so that gradients are summed.
        sharded.set_gradient_divide_factor(1.0)
        sharded.set_force_sum_reduction_for_comms(True)


@contextmanager
def gathered(roots: Sequence[nn.Module]) -> Iterator[None]:
    """Put all weights together on every rank; inside, ranks may compute whatever they like."""
    modules = [module for root in roots for module in root.modules() if isinstance(module, FSDPModule)]
    for module in modules:
        module.set_reshard_after_forward(False, recurse=False)
        module.unshard()
    try:
        yield
    finally:
        for module in modules:
            module.reshard()
            module.set_reshard_after_forward(True, recurse=False)
