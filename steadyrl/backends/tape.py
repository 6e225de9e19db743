"""Reverse-mode differentiation over numpy float64, of exactly the operations that losses may use.

A loss written for ``xp`` (exp, log, clip, minimum, maximum, where, ``.sum()`` and operators) runs on it unchanged,
so that the toy backend has exact gradients, and a loss that uses anything else fails at once. Broadcast are scalars and
single columns [B, 1]: losses are elementwise over [B, T], but for numbers of a whole row, and then summed.

At ties and at the bounds of ``clip`` the gradient flows as in torch: through both sides of a tie by half, and through
a bound as if it were inside.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

Number = float | int


class Tensor:
    """A numpy array that remembers how it was made, as far as that leads to tensors that gradients are wanted of."""

    __array_ufunc__ = None  # numpy operands defer to our operators
    constant: bool  # whether no gradient reaches it: it was made of numbers alone

    def __init__(
        self,
        data: Any,
        parents: tuple[tuple[Tensor, Callable[[np.ndarray], np.ndarray]], ...] = (),
        constant: bool = False,
    ):
        self.data = np.asarray(data, np.float64)
        self._parents = tuple(edge for edge in parents if not edge[0].constant)
        self.constant = constant or len(parents) > len(self._parents) == 0
        # A leaf that no loss reaches keeps a gradient of its shape; inner nodes get theirs by the first addition.
        self.grad = np.zeros(() if self._parents or self.constant else self.data.shape)

    def backward(self) -> None:
        """Add d self / d x to ``x.grad`` for every tensor x that self was made of; self must be a scalar."""
        assert self.data.ndim == 0, f"backward starts at a scalar, got shape {self.data.shape}"
        self.grad = np.ones_like(self.data)
        for node in reversed(self._order()):
            for parent, pull in node._parents:
                parent.grad = parent.grad + pull(node.grad)

    def _order(self) -> list[Tensor]:
        order: list[Tensor] = []
        visited: set[int] = set()
        stack: list[tuple[Tensor, bool]] = [(self, False)]
        while stack:
            node, done = stack.pop()
            if done:
                order.append(node)
            elif id(node) not in visited:
                visited.add(id(node))
                stack.append((node, True))
                stack.extend((parent, False) for parent, _ in node._parents)
        return order

    def sum(self, axis: int | None = None, keepdims: bool = False) -> Tensor:
        """Return the sum of all elements, or of each row (axis=1, keepdims=True)."""
        data = self.data.sum(axis=axis, keepdims=keepdims)
        return Tensor(data, ((self, lambda g: np.broadcast_to(g, self.data.shape)),))

    def __add__(self, operand: Any) -> Tensor:
        b = _tensor(operand)
        return Tensor(self.data + b.data, ((self, _fit(self)), (b, _fit(b))))

    def __mul__(self, operand: Any) -> Tensor:
        b = _tensor(operand)
        return Tensor(
            self.data * b.data,
            ((self, lambda g: _fit(self)(g * b.data)), (b, lambda g: _fit(b)(g * self.data))),
        )

    def __truediv__(self, operand: Any) -> Tensor:
        b = _tensor(operand)
        return Tensor(
            self.data / b.data,
            ((self, lambda g: _fit(self)(g / b.data)), (b, lambda g: _fit(b)(-g * self.data / b.data**2))),
        )

    def __pow__(self, power: Number) -> Tensor:
        return Tensor(self.data**power, ((self, lambda g: g * power * self.data ** (power - 1)),))

    def __neg__(self) -> Tensor:
        return self * -1.0

    def __sub__(self, operand: Any) -> Tensor:
        return self + -_tensor(operand)

    def __rsub__(self, operand: Any) -> Tensor:
        return _tensor(operand) + -self

    def __rtruediv__(self, operand: Any) -> Tensor:
        return _tensor(operand) / self

    __radd__ = __add__
    __rmul__ = __mul__

    # Comparisons give plain boolean arrays: they carry no gradient.
    def __gt__(self, operand: Any) -> np.ndarray:
        return self.data > _tensor(operand).data

    def __lt__(self, operand: Any) -> np.ndarray:
        return self.data < _tensor(operand).data

    def __ge__(self, operand: Any) -> np.ndarray:
        return self.data >= _tensor(operand).data

    def __le__(self, operand: Any) -> np.ndarray:
        return self.data <= _tensor(operand).data


def exp(x: Any) -> Tensor:
    """Elementwise exponential."""
    x = _tensor(x)
    y = np.exp(x.data)
    return Tensor(y, ((x, lambda g: g * y),))


def log(x: Any) -> Tensor:
    """Elementwise natural logarithm."""
    x = _tensor(x)
    return Tensor(np.log(x.data), ((x, lambda g: g / x.data),))


def clip(x: Any, low: Number | None, high: Number | None) -> Tensor:
    """Elementwise restriction to [low, high]; None leaves a side open."""
    x = _tensor(x)
    y = np.clip(x.data, low, high)
    inside = y == x.data
    return Tensor(y, ((x, lambda g: g * inside),))


def minimum(a: Any, b: Any) -> Tensor:
    """Elementwise smaller of two."""
    a, b = _tensor(a), _tensor(b)
    return _choose(a, b, np.where(a.data == b.data, 0.5, a.data < b.data))


def maximum(a: Any, b: Any) -> Tensor:
    """Elementwise larger of two."""
    a, b = _tensor(a), _tensor(b)
    return _choose(a, b, np.where(a.data == b.data, 0.5, a.data > b.data))


def where(condition: np.ndarray, a: Any, b: Any) -> Tensor:
    """Elementwise choice by a boolean array."""
    return _choose(_tensor(a), _tensor(b), np.asarray(condition, np.float64))


def _choose(a: Tensor, b: Tensor, share: np.ndarray) -> Tensor:
    data = np.where(share == 1, a.data, np.where(share == 0, b.data, a.data))
    return Tensor(data, ((a, lambda g: _fit(a)(g * share)), (b, lambda g: _fit(b)(g * (1 - share)))))


def _tensor(value: Any) -> Tensor:
    return value if isinstance(value, Tensor) else Tensor(value, constant=True)


def _fit(x: Tensor) -> Callable[[np.ndarray], np.ndarray]:
    """Sum a gradient back to the shape of a scalar operand, or of one with a single column."""

    def fit(g: np.ndarray) -> np.ndarray:
        if x.data.shape == g.shape:
            return g
        summed: np.ndarray = g.sum(axis=1, keepdims=True) if x.data.ndim else np.asarray(g.sum())
        return summed

    return fit
