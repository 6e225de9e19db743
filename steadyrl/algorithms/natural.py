"""A trust-region step: the natural gradient by conjugate gradients, then a line search that holds the KL.

    F x = -g,   step = sqrt(2 * max_kl / (x F x)) * x,   halved until the surrogate improves and the KL is within bounds

F is the Fisher matrix of the batch's tokens, the curvature of the KL at the present policy. Its products with vectors
are differences of gradients of (log p - log p_old)^2 / 2 at two points close by, so that a backend has to offer
gradients only: second derivatives of fused attention kernels do not exist.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from steadyrl.core.errors import ConfigError
from steadyrl.core.protocols import Algorithm, Backend, Differentiable
from steadyrl.core.types import Array, Batch, Sampling, TokenScores
from steadyrl.maths import kl, losses

PROBE = 0.01  # length of the step that curvature is measured over: far above rounding, far below where it changes
ENOUGH = 1e-10  # of the squared residual, as a share of the first

Product = Callable[[np.ndarray], np.ndarray]


@dataclass(frozen=True)
class Region:
    """The settings of a trust-region step.

    Attributes:
        max_kl: Bound of the KL to the policy before the step, nats per token.
        iterations: Of conjugate gradients.
        damping: Added to the curvature, as a share of that along the gradient.
        halvings: Of the step, at most.
    """

    max_kl: float
    iterations: int
    damping: float
    halvings: int


def conjugate_gradient(product: Product, wanted: np.ndarray, iterations: int) -> np.ndarray:
    """Solve A x = wanted for a symmetric positive matrix that is known by its products alone.

    Args:
        product: Returns A v.
        wanted: [P].
        iterations: At most; P of them solve it exactly, but for rounding.

    Source:
        Hestenes and Stiefel, "Methods of Conjugate Gradients for Solving Linear Systems" (1952), section 3.
    """
    x = np.zeros_like(wanted)
    residual, direction = wanted.copy(), wanted.copy()
    square = first = float(residual @ residual)
    for _ in range(iterations):
        if square <= ENOUGH * first:
            break
        along = product(direction)
        curvature = float(direction @ along)
        if curvature <= 0:  # noise of the differences; what was found so far is a descent direction
            break
        length = square / curvature
        x = x + length * direction
        residual = residual - length * along
        square, before = float(residual @ residual), square
        direction = residual + (square / before) * direction
    return x


def curvature_loss(
    xp: Any, new: TokenScores, arrays: Mapping[str, Array], count: float
) -> tuple[Array, dict[str, Array]]:
    """Return a loss whose second derivative at the old policy is the Fisher matrix of the batch's tokens."""
    per_token = kl.k2(xp, new.logprobs, arrays["old_logprobs"])
    return losses.reduce(xp, per_token, arrays["mask"], count), {}


def natural_step(
    backend: Backend,
    batch: Batch,
    algorithm: Algorithm,
    sampling: Sampling,
    region: Region,
) -> dict[str, tuple[float, float]]:
    """Make one trust-region step; return (sum, count) pairs as ``Backend.step`` does.

    Raises:
        ConfigError: The backend gives no gradients.
    """
    if not isinstance(backend, Differentiable):
        raise ConfigError(
            "a trust-region step needs the backend's gradients, and this backend gives none; use backend.name = "
            "'torch' or 'toy'"
        )
    start = backend.weights()
    gradient, stats = backend.gradient(batch, algorithm.loss, sampling, algorithm.needs)
    norm = float(np.linalg.norm(gradient))
    stats |= {"grad_norm": (norm, 1.0), "trust_region/scale": (0.0, 1.0)}
    if norm == 0 or not math.isfinite(norm):
        return stats

    def curvature(vector: np.ndarray) -> np.ndarray:
        length = PROBE / float(np.linalg.norm(vector))
        sides = []
        for sign in (1.0, -1.0):
            backend.set_weights(start + sign * length * vector)
            sides.append(backend.gradient(batch, curvature_loss, sampling, frozenset())[0])
        curvature_vector: np.ndarray = (sides[0] - sides[1]) / (2.0 * length)
        return curvature_vector

    damping = region.damping * float(gradient @ curvature(gradient)) / norm**2

    def product(vector: np.ndarray) -> np.ndarray:
        return curvature(vector) + damping * vector

    direction = conjugate_gradient(product, -gradient, region.iterations)
    bend = float(direction @ product(direction))
    if bend <= 0:
        backend.set_weights(start)
        return stats
    full = math.sqrt(2.0 * region.max_kl / bend) * direction
    return _search(backend, batch, algorithm, sampling, (start, full), stats, region)


def _search(
    backend: Differentiable,
    batch: Batch,
    algorithm: Algorithm,
    sampling: Sampling,
    line: tuple[np.ndarray, np.ndarray],
    before: dict[str, tuple[float, float]],
    region: Region,
) -> dict[str, tuple[float, float]]:
    """Take the longest of the halved steps that improves the surrogate within the KL's bound, or none."""
    start, full = line
    for halving in range(region.halvings + 1):
        scale = 0.5**halving
        backend.set_weights(start + scale * full)
        _, after = backend.gradient(batch, algorithm.loss, sampling, algorithm.needs)
        total, count = after["kl_old_k3"]
        if after["loss/total"][0] < before["loss/total"][0] and total / count <= region.max_kl:
            return {**after, "grad_norm": before["grad_norm"], "trust_region/scale": (scale, 1.0)}
    backend.set_weights(start)
    return before
