"""A range test of the learning rate: from one policy, one step at each rate, and what it did to the policy.

The policy is forked: every rate starts from the same weights and the same optimizer state, learns from the same batch,
and then answers the same problems again if the step moved it. So it costs a batch of samples for each rate above the
lowest ones.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np

from steadyrl.core.config import Config
from steadyrl.core.errors import ConfigError, DivergedError
from steadyrl.core.metrics import Clock
from steadyrl.core.scratch import scratch_folder
from steadyrl.core.types import Batch
from steadyrl.loop.checkpoint import State
from steadyrl.loop.train import Session, gather, open_session, update
from steadyrl.maths.batch import limit_rewards, make_batch
from steadyrl.maths.kl import k3

RATE = "update.learning_rate"
LOWEST, HIGHEST, PER_DECADE = 1e-7, 1.0, 2
WARM_UPDATES = 3  # at rate 0: they fill Adam's moments, without which every first step has the same length
BROKEN_ENTROPY = 1 / 3  # of that before the step
UNMOVED = 0.01  # times the lower end of the band of a step's KL: after a smaller step nobody needs to look
BROKEN_KL = 10.0  # times the upper end of the band of a step


@dataclass(frozen=True)
class Point:
    """What one step at a rate did."""

    rate: float
    kl: float | None  # of the step, to the policy before it, nats per token (k3); None where the step could not be made
    entropy: float | None  # after the step, as a share of that before; None where the step was too small to look
    reward: float | None  # mean of the answers after the step; None likewise
    broken: bool  # True if the policy was left behind: nothing is learned at this rate


@dataclass(frozen=True)
class Range:
    """The rates that a search is worth at."""

    points: tuple[Point, ...]  # what was measured, by rising rate
    centre: float  # the rate whose step moves the policy by the middle of the band
    samples: int  # completions that the test took
    before: float  # mean reward of the policy that was forked


def range_test(config: Config, tell: Callable[[Point], None] = lambda point: None) -> Range:
    """Sweep the rate upwards until a step breaks the policy, and tell every point; the config's own rate is not used.

    Raises:
        ConfigError: No step moved the policy, so no rate is better than another.
        SteadyError: The config cannot be run.
    """
    session = open_session(config)
    state = State(algorithm=dict(session.algorithm.state))
    batch, before = _batch(session, state)
    assert batch.old is not None, "the batch was scored"
    entropy = _mean(batch.old.entropy, batch)
    points: list[Point] = []
    with scratch_folder() as folder:
        for _ in range(WARM_UPDATES):
            _update(session, batch, 0.0)
        session.backend.save(folder)
        for exponent in range(round((math.log10(HIGHEST) - math.log10(LOWEST)) * PER_DECADE) + 1):
            session.backend.load(folder)
            point = _try_rate(session, state, batch, entropy, LOWEST * 10 ** (exponent / PER_DECADE))
            points.append(point)
            tell(point)
            if point.broken:
                break
    if not any(point.kl or point.broken for point in points):
        raise ConfigError(
            f"no rate up to {HIGHEST:g} moved the policy, so none can be said to be better: the {len(batch.lengths)} "
            "answers of the test have nothing to teach. `steadyrl preflight` with the same config names the cause"
        )
    samples = len(batch.lengths) * (1 + sum(point.reward is not None for point in points))
    return Range(tuple(points), centre_of(points, config), samples, before)


def centre_of(points: Sequence[Point], config: Config) -> float:
    """Return the rate at which a step's KL is in the middle of its band, between the rates that were tried."""
    target = math.log(math.sqrt(math.prod(config.autopilot.kl_band)))
    measured = [(math.log(point.rate), math.log(point.kl)) for point in points if point.kl]
    for (x, y), (x_next, y_next) in pairwise(measured):
        if y < target <= y_next:
            return math.exp(x + (x_next - x) * (target - y) / (y_next - y))
    if measured and measured[0][1] >= target:
        return math.exp(measured[0][0])
    unbroken_rates = [point.rate for point in points if not point.broken]
    return unbroken_rates[-1] if unbroken_rates else points[0].rate


def _try_rate(session: Session, state: State, batch: Batch, entropy: float, rate: float) -> Point:
    try:
        _update(session, batch, rate)
    except DivergedError:
        return Point(rate, None, None, None, True)
    after = session.backend.score(batch, session.sampling, frozenset())
    assert batch.old is not None, "the batch was scored"
    kl = _mean(k3(np, batch.old.logprobs, after.logprobs), batch)
    if not math.isfinite(kl):
        return Point(rate, None, None, None, True)
    if kl < UNMOVED * session.config.autopilot.kl_band[0]:
        return Point(rate, kl, None, None, False)
    again, reward = _batch(session, replace(state, step=1))
    assert again.old is not None, "the batch was scored"
    share = _mean(again.old.entropy, again) / entropy if entropy else None
    broken = kl > BROKEN_KL * session.config.autopilot.kl_band[1] or (share is not None and share < BROKEN_ENTROPY)
    return Point(rate, kl, share, reward, broken)


def _batch(session: Session, state: State) -> tuple[Batch, float]:
    """Return a prepared batch of the policy as it is, and its mean reward."""
    groups, _, _ = gather(session, state, Clock())
    rewards = [reward for group in groups for reward in group.rewards]
    batch = make_batch(session.algorithm.select(groups), session.backend.tokenizer.pad_id)
    batch = limit_rewards(batch, session.config.update.reward_limit)
    batch = replace(batch, old=session.backend.score(batch, session.sampling, session.algorithm.needs))
    return session.algorithm.prepare(batch, state.algorithm), float(np.mean(rewards))


def _update(session: Session, batch: Batch, rate: float) -> None:
    update(session, batch, rate, np.random.default_rng(session.config.run.seed), 0)


def _mean(values: np.ndarray | None, batch: Batch) -> float:
    assert values is not None, "every backend measures it"
    return float(values[batch.completion_mask].mean())
