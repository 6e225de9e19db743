"""The gradient of an update, over micro-batches: what all backends do alike."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from steadyrl.core.protocols import LossFn
from steadyrl.core.types import Array, Batch, TokenScores
from steadyrl.maths.batch import loss_count, take_rows

Reading = tuple[Any, TokenScores, Mapping[str, Array]]  # what a loss takes of a micro-batch: xp, new scores, arrays
Measured = tuple[Any, Mapping[str, Any]]  # a loss and its sums, scalars of the backend
Objective = Callable[[], Measured]


def accumulate(
    batch: Batch,
    micro_batches: Iterable[np.ndarray],
    loss: LossFn,
    read: Callable[[Batch], Reading],
    backward: Callable[[Objective], Measured],
    numbers: Callable[[Sequence[Any]], list[float]] = lambda scalars: list(map(float, scalars)),
) -> dict[str, float]:
    """Add up the gradients of micro-batches, and what the loss measures of them.

    Args:
        batch: The whole minibatch, whose count the loss of each micro-batch is divided by.
        micro_batches: Rows of each.
        loss: See LossFn.
        read: Reads the rows of a micro-batch, with what gradients need.
        backward: Calls the objective, adds its gradient to those before it, and returns what the objective does.
        numbers: Turns scalars of the backend into numbers. It is called once, at the end: the host waits for a device.

    Returns:
        The sums by name, and the loss itself as "loss/total"; see ``loss_stats``.
    """
    count, measured = loss_count(batch), list[Mapping[str, Any]]()

    def objective(rows: np.ndarray) -> Measured:
        return loss(*read(take_rows(batch, rows)), count)

    for rows in micro_batches:
        value, sums = backward(partial(objective, rows))
        measured.append({"loss/total": value, **sums})
    scalars = iter(numbers([scalar for sums in measured for scalar in sums.values()]))
    totals: dict[str, float] = {}
    for sums in measured:
        for name in sums:
            totals[name] = totals.get(name, 0.0) + next(scalars)
    return totals


def products_of(gradients: Sequence[Mapping[str, Any]]) -> np.ndarray:
    """Return the [n, n] products of n gradients, each by the names of the weights; a weight without one has 0."""
    products = np.zeros((len(gradients), len(gradients)))
    for i, left in enumerate(gradients):
        for j, right in enumerate(gradients[: i + 1]):
            shared = [name for name in left if name in right]
            products[i, j] = products[j, i] = sum(float((left[name] * right[name]).sum()) for name in shared)
    return products
