"""Rollouts drawn ahead of the step that trains on them (``rollout.ahead``).

Step s trains on what the policy of step s - ahead drew; the first steps train on what the first policy drew. Every step
begins the rollouts of the step that lies ``ahead`` steps later, with the policy as it is then, so that the staleness is
known beforehand and does not depend on how fast anything is. Where the sampler is a program of its own, it draws
while this process trains; at the end of the step the two wait for each other. One step ahead is then all that can be
gained in time; further ones only make rollouts older.

Rollouts that wait are part of the state: a checkpoint holds them, so that a resumed run trains on the same ones. Those
that are drawn when a process dies are drawn again from the checkpoint's policy, which began them.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from dataclasses import replace

from steadyrl.core.counting.interrupts import at_once
from steadyrl.core.errors import EngineError
from steadyrl.core.metrics import Clock
from steadyrl.core.protocols import Backend, Detached
from steadyrl.core.types import Drawn, Group
from steadyrl.loop.checkpoint import State
from steadyrl.loop.curriculum.memory import Memory

log = logging.getLogger(__name__)

# Draws and scores the rollouts of ``state.step`` with the present policy: groups, the curriculum's memory, metrics.
Draw = Callable[[State, Clock], tuple[list[Group], Memory, dict[str, float]]]


@contextmanager
def rollouts_of_step(state: State, ahead: int, draw: Draw, backend: Backend, clock: Clock) -> Iterator[Drawn]:
    """Yield the rollouts that this step trains on, and have later ones drawn before or during it.

    The state takes in what was drawn when the step is over. If the step fails, it stays as it was.

    Args:
        state: The state before the step; afterwards its rollouts in flight are those of the steps to come.
        ahead: Steps between drawing and training, see ``rollout.ahead``.
        draw: Draws and scores the rollouts of a step.
        backend: Holds the policy.
        clock: Books the time that the step spends on rollouts, or waits for them.
    """
    while len(state.in_flight) < ahead:  # before the first step, and after the sampler failed
        drawing_state = _drawing_state(state)
        _add_rollouts(state, drawing_state, draw(drawing_state, clock))
    drawing_state = _drawing_state(state)
    with backend.sampler_apart() if ahead and isinstance(backend, Detached) else nullcontext(False) as is_detached:
        if is_detached:
            yield from _draw_during_update(state, drawing_state, ahead, draw, clock)
            return
    next_state = replace(state)
    _add_rollouts(next_state, drawing_state, draw(drawing_state, clock))
    yield _rollouts_to_train(next_state, ahead)
    # Only now: a step that fails inside of the yield leaves the state as it was.
    state.in_flight, state.problems_drawn = next_state.in_flight[1:], next_state.problems_drawn
    state.curriculum = next_state.curriculum


def _draw_during_update(state: State, drawing_state: State, ahead: int, draw: Draw, clock: Clock) -> Iterator[Drawn]:
    """Yield the rollouts of this step, and have those of ``drawing_state`` drawn by another thread meanwhile."""
    pool = ThreadPoolExecutor(1)
    future = pool.submit(draw, drawing_state, Clock())
    interrupted = False
    try:
        yield _rollouts_to_train(state, ahead)
        clock.lap("update")
        state.in_flight = state.in_flight[1:]
        try:
            with at_once():  # a reward may hang
                collected = future.result()
            _add_rollouts(state, drawing_state, collected)
        except EngineError as error:  # the next step draws them first, and ends the run if it cannot
            log.warning("the rollouts of step %d were not drawn beside the update: %s", drawing_state.step, error)
        clock.lap("rollout")
    except KeyboardInterrupt:  # it does not wait for what is drawn, which a resume draws again
        interrupted = True
        raise
    finally:
        pool.shutdown(wait=not interrupted)


def _drawing_state(state: State) -> State:
    """Return the state with which the next rollouts are drawn: as it is, but for the step that they are for."""
    return replace(state, step=state.step + len(state.in_flight))


def _add_rollouts(state: State, drawing_state: State, collected: tuple[list[Group], Memory, dict[str, float]]) -> None:
    groups, memory, metrics = collected
    state.in_flight = [*state.in_flight, Drawn(drawing_state.updates, tuple(groups), metrics)]
    state.curriculum = memory.plain()
    state.problems_drawn += len(groups)


def _rollouts_to_train(state: State, ahead: int) -> Drawn:
    """Return the rollouts of this step, with how stale they are."""
    rollouts = state.in_flight[0]
    if not ahead:
        return rollouts
    return replace(rollouts, numbers={**rollouts.numbers, "staleness": float(state.updates - rollouts.version)})
