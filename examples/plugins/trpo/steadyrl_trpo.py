"""Trust region policy optimisation for steadyrl: an algorithm that makes its own updates.

There is no critic: the other rollouts of a problem are the baseline. An update is a natural gradient by conjugate
gradients, then a line search that holds the KL:

    F x = -g,   step = sqrt(2 * max_kl / (x F x)) * x,   halved until the surrogate improves and the KL is within bounds

F is the Fisher matrix of the batch's tokens, the curvature of the KL at the present policy. Its products with vectors
are differences of gradients of (log p - log p_old)^2 / 2 at two points close by: second derivatives of fused attention
kernels do not exist.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from pydantic import Field

from steadyrl.algorithms.rloo import prepare
from steadyrl.core.config import Config
from steadyrl.core.protocols import Algorithm, LossFn, Stats, Update
from steadyrl.core.sections import Section
from steadyrl.core.types import Array, Batch, TokenScores
from steadyrl.maths import kl, losses
from steadyrl.maths.select import drop_unscored

PROBE = 0.01  # length of the step that curvature is measured over: far above rounding, far below where it changes
ENOUGH = 1e-10  # of the squared residual, as a share of the first

Vector = Any  # [P], a torch tensor


class Settings(Section):
    """TRPO's own settings. It needs rollout.samples_per_prompt of at least 2.

    update.learning_rate and update.max_grad_norm have no effect: max_kl says how far a step goes.
    """

    max_kl: float = Field(0.01, gt=0, description="Maximum KL of an update to the policy before it, nats per token.")
    iterations: int = Field(
        10, ge=1, le=1000, description="Iterations of conjugate gradients. Each computes the batch's gradient twice."
    )
    damping: float = Field(
        0.1, gt=0, description="Added to the curvature, as a share of the curvature along the gradient."
    )
    halvings: int = Field(8, ge=0, le=50, description="How many times the line search halves a step at most.")
    kl_coef: float = Field(
        0.0, ge=0, description="Penalty in the reward per nat of KL to the reference. 0 needs no reference."
    )


def check(config: Config, settings: Settings) -> list[str]:
    """Return what is wrong with a config, a line each."""
    problems = []
    if config.backend.name != "torch":
        problems.append(
            f"backend.name: got '{config.backend.name}'; TRPO moves the weights of 'torch' itself, set that"
        )
    if config.autopilot.mode != "off":
        problems.append(
            f"autopilot.mode is '{config.autopilot.mode}', but update.learning_rate has no effect with TRPO, where "
            "algorithm.args.max_kl says how far a step goes; set autopilot.mode to 'off'"
        )
    return problems


def build(settings: Settings) -> Algorithm:
    """Return TRPO as a record of functions."""
    return Algorithm(
        needs=frozenset({"ref_logprobs"} if settings.kl_coef else ()),
        select=drop_unscored,
        prepare=lambda batch, numbers: prepare(batch, settings.kl_coef),
        loss=surrogate_loss,
        update=partial(trust_region_step, settings=settings),
        compares=True,
    )


def surrogate_loss(
    xp: Any, new: TokenScores, arrays: Mapping[str, Array], count: float
) -> tuple[Array, dict[str, Array]]:
    """Compute -A * ratio: what the trust region, and no clip, bounds.

    Source: Schulman et al., "Trust Region Policy Optimization" (arXiv 1502.05477), equation 14, negated.
    """
    mask = arrays["mask"]
    log_ratio = losses.token_log_ratio(xp, new.logprobs, arrays["old_logprobs"], mask)
    ratio = xp.exp(xp.clip(log_ratio, -losses.MAX_LOG_RATIO, losses.MAX_LOG_RATIO))
    policy = -arrays["advantages"] * ratio
    sums = {"loss/policy": (policy * mask).sum(), **losses.kl_old_sums(xp, new.logprobs, arrays)}
    return losses.reduce(xp, policy, mask, count), sums


def curvature_loss(
    xp: Any, new: TokenScores, arrays: Mapping[str, Array], count: float
) -> tuple[Array, dict[str, Array]]:
    """Return a loss whose second derivative at the old policy is the Fisher matrix of the batch's tokens."""
    per_token = kl.k2(xp, new.logprobs, arrays["old_logprobs"])
    return losses.reduce(xp, per_token, arrays["mask"], count), {}


class Landscape:
    """A batch's losses over the weights of the backend `torch`, all of them as one vector [P].

    Args:
        backend: A TorchBackend. Its ``gradients`` and ``moving`` are all that is used of it.
        batch: The minibatch.
        update: What the loop asks for.

    Attributes:
        start: The weights at first, [P] in float32.
    """

    def __init__(self, backend: Any, batch: Batch, update: Update):
        self._backend, self._batch, self._update = backend, batch, update
        with backend.moving() as weights:
            self._shapes = {name: weight.shape for name, weight in weights.items()}
            self.start: Vector = _joined(weights.values())

    def gradient(self, loss: LossFn) -> tuple[Vector, Stats]:
        """Return the gradient [P] of a loss where the weights are now, and what the loss measured."""
        named, stats = self._backend.gradients(self._batch, replace(self._update, loss=loss))
        unreached = self.start.new_zeros(())  # a weight that the loss does not reach has no gradient
        return _joined(named.get(name, unreached.expand(shape)) for name, shape in self._shapes.items()), stats

    def move(self, weights: Vector) -> None:
        """Put other weights [P] in the place of all."""
        with self._backend.moving() as own:
            pieces = weights.split([shape.numel() for shape in self._shapes.values()])
            for weight, piece in zip(own.values(), pieces, strict=True):
                weight.copy_(piece.view(weight.shape))
                weight.grad = None  # sampling needs the room

    def curvature(self, vector: Vector) -> Vector:
        """Return the Fisher matrix times a vector [P]; the weights end a little beside the start."""
        length, sides = PROBE / math.sqrt(float(vector @ vector)), []
        for sign in (1.0, -1.0):
            self.move(self.start + sign * length * vector)
            sides.append(self.gradient(curvature_loss)[0])
        return (sides[0] - sides[1]) / (2.0 * length)


def _joined(tensors: Any) -> Vector:
    import torch  # not before it is needed: a config is checked without it

    return torch.cat([tensor.flatten() for tensor in tensors])


def conjugate_gradient(product: Callable[[Vector], Vector], wanted: Vector, iterations: int) -> Vector:
    """Solve A x = wanted for a symmetric positive matrix that is known by its products alone.

    Args:
        product: Returns A v.
        wanted: [P].
        iterations: At most; P of them solve it exactly, but for rounding.

    Source:
        Hestenes and Stiefel, "Methods of Conjugate Gradients for Solving Linear Systems" (1952), section 3.
    """
    x, residual, direction = 0.0 * wanted, wanted, wanted
    square = first = float(residual @ residual)
    for _ in range(iterations):
        if square <= ENOUGH * first:
            break
        along = product(direction)
        curvature = float(direction @ along)
        if curvature <= 0:  # noise of the differences; x so far is a descent direction
            break
        length = square / curvature
        x = x + length * direction
        residual = residual - length * along
        square, before = float(residual @ residual), square
        direction = residual + (square / before) * direction
    return x


def trust_region_step(backend: Any, batch: Batch, update: Update, settings: Settings) -> Stats:
    """Make one trust-region step; return (sum, count) pairs as ``Backend.step`` does."""
    landscape = Landscape(backend, batch, update)
    gradient, stats = landscape.gradient(update.loss)
    norm = math.sqrt(float(gradient @ gradient))
    stats |= {"grad_norm": (norm, 1.0), "trust_region/scale": (0.0, 1.0)}
    if norm == 0 or not math.isfinite(norm):
        return stats
    weights = landscape.start  # where nothing helps, or memory runs out on the way
    try:
        damping = settings.damping * float(gradient @ landscape.curvature(gradient)) / norm**2

        def product(vector: Vector) -> Vector:
            return landscape.curvature(vector) + damping * vector

        direction = conjugate_gradient(product, -gradient, settings.iterations)
        bend = float(direction @ product(direction))
        full = math.sqrt(2.0 * settings.max_kl / bend) * direction if bend > 0 else 0.0 * direction
        for halving in range(settings.halvings + 1 if bend > 0 else 0):
            candidate = landscape.start + 0.5**halving * full
            landscape.move(candidate)
            _, after = landscape.gradient(update.loss)
            total, count = after["kl_old_k3"]
            if after["loss/total"][0] < stats["loss/total"][0] and total / count <= settings.max_kl:
                weights = candidate
                return after | {"grad_norm": (norm, 1.0), "trust_region/scale": (0.5**halving, 1.0)}
        return stats
    finally:
        landscape.move(weights)
