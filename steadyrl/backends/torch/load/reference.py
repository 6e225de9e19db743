"""The frozen reference of a policy whose weights are all trained: a copy of the model as it began."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, Literal

import torch
from torch import nn

from steadyrl.backends.torch.load.model import SplitModel, split_head
from steadyrl.backends.torch.read.reader import Reader


class Reference:
    """A copy of a model, never trained; ``kept_on`` says where its weights are while nothing is scored.

    Attributes:
        model: The copy.
        read: Reads rows with it.
        head: Hidden states to logits.
    """

    def __init__(self, model: Any, split: SplitModel, lower: torch.dtype | None, kept_on: Literal["device", "cpu"]):
        self.model = copy.deepcopy(model).requires_grad_(False)
        split_copy = replace(split_head(self.model), ours=split.ours)  # the copy is registered as the model is
        self.read = Reader(self.model, split_copy, lower)
        self.head, self._moves = split_copy.head, kept_on == "cpu"
        if self._moves:
            _move_to(self.model, torch.device("cpu"))

    @contextmanager
    def on(self, device: torch.device) -> Iterator[None]:
        """Have the weights on the policy's device; weights kept on the CPU are copied there, and dropped at the end.

        They are copied as a whole: scoring holds no gradients, which take at least as much room.
        """
        home = _move_to(self.model, device) if self._moves else []
        try:
            yield
        finally:
            for module, name, weight in home:
                setattr(module, name, weight)


def _move_to(model: nn.Module, device: torch.device) -> list[tuple[nn.Module, str, nn.Parameter]]:
    """Move frozen weights, tied ones once; return (module, name, weight) as they were."""
    weights = [
        (module, name, weight)
        for module in model.modules()
        for name, weight in module.named_parameters(recurse=False, remove_duplicate=False)
    ]
    moved = {weight: nn.Parameter(weight.to(device), requires_grad=False) for _, _, weight in weights}
    for module, name, weight in weights:
        setattr(module, name, moved[weight])
    return weights
