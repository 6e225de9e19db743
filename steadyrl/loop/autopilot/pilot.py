"""The autopilot acts on a run: it changes the run's state, goes back to checkpoints, and writes what it did.

``decide`` says what to do. A decision rests on the metrics on disk and on ``State.autopilot``, so that a resumed run
decides the same. In mode "advise" the autopilot writes what it would do and changes nothing; in mode "off" it does
nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from steadyrl.core.config import Config
from steadyrl.core.errors import DivergedError
from steadyrl.core.protocols import Backend
from steadyrl.core.rundir import RunDir, append_line
from steadyrl.core.types import Batch, Finding, Sampling
from steadyrl.loop import checkpoint
from steadyrl.loop.autopilot.action import KL_STEP, Action, Context
from steadyrl.loop.autopilot.band import WINDOW
from steadyrl.loop.autopilot.decide import decide
from steadyrl.loop.autopilot.knobs import KL_COEF, configured
from steadyrl.loop.autopilot.rate import after_divergence
from steadyrl.loop.checkpoint import State
from steadyrl.maths import kl
from steadyrl.maths.batch import take_rows

MEASURED_ROWS = 64  # rollouts on which the KL of a step is measured: some hundred tokens give it to within a fifth


def step_kl(backend: Backend, batch: Batch, sampling: Sampling) -> float | None:
    """Return the KL from the policy before a step's updates to the policy after them, k3, nats per token.

    It is measured after the last update, so that a step with a single update has one too.

    Evenly spaced rows of what trained (with ``old`` scores) are measured again, by the backend after its updates.
    """
    assert batch.old is not None, "score the batch before its updates"
    # An episode may have ended before its first turn, and of demonstrations only some rows were scored.
    scored_rows = np.flatnonzero((batch.completion_mask & ~np.isnan(batch.old.logprobs)).any(axis=1))  # [n]
    if not scored_rows.size:
        return None
    # Evenly spaced and not drawn: a resumed run measures the same rows.
    indices = np.linspace(0, len(scored_rows) - 1, min(len(scored_rows), MEASURED_ROWS)).astype(int)
    sample = take_rows(batch, scored_rows[np.unique(indices)])
    after = backend.score(sample, sampling, frozenset())
    assert sample.old is not None
    with np.errstate(over="ignore", invalid="ignore"):  # the KL of a collapsed policy may be infinite
        return float(kl.k3(np, sample.old.logprobs, after.logprobs)[sample.completion_mask].mean())


def pilot_metrics(
    backend: Backend, batch: Batch, sampling: Sampling, config: Config, state: State
) -> dict[str, float | None]:
    """Return the KL of a step's updates and, in mode "act", the autopilot's factors and the KL coefficient it holds."""
    if config.autopilot.mode == "off":
        return {}
    metrics = {KL_STEP: step_kl(backend, batch, sampling)}
    if config.autopilot.mode == "advise":
        return metrics
    pilot = state.autopilot
    factors = {name: getattr(pilot, name) for name in ("scale", "rate_multiplier", "narrowing", "agreement")}
    metrics |= {f"autopilot/{name}": value for name, value in factors.items()}
    if config.autopilot.kl_ref_target and "kl_coef" not in state.algorithm:  # the algorithm would log its own number
        metrics["algorithm/kl_coef"] = configured(config, KL_COEF)
    return metrics | {"autopilot/held": float(pilot.held_by is not None)}


@dataclass
class Autopilot:
    """Follows the steps of a run and does what ``decide`` says."""

    config: Config
    """As configured; what was changed is in ``State.autopilot``."""
    run: RunDir
    """The run directory, with the checkpoints and actions.jsonl."""
    backend: Backend
    tell: Callable[[Mapping[str, Any]], None] = field(default=lambda line: None)
    """Called with every line of actions.jsonl."""
    _rewards: dict[int, float] | None = None  # mean rewards of the last steps; None until they are read

    def secure(self, state: State) -> None:
        """Save a checkpoint before a step of the search for a rate, so that the step can be taken back."""
        searching = self.config.autopilot.mode == "act" and state.autopilot.found_scale is None
        if searching and state.step not in self.run.checkpoints():
            checkpoint.save(self.run, self.backend, state, self.config.run.keep_checkpoints)

    def steer(self, state: State, record: Mapping[str, Any], findings: Sequence[Finding] | None) -> State:
        """Decide and act after a step; the state changes in place.

        ``findings``, causes first, are None where the doctor did not look.

        Returns:
            The same state, or an earlier one that the run goes on from.
        """
        mode = self.config.autopilot.mode
        if mode == "off":
            return state
        context = Context(
            config=self.config,
            step=state.step,
            numbers=state.algorithm,
            checkpoints=self.run.checkpoints(),
            rewards=self._recent_rewards(state, record),
            rows=() if findings is None else self._rows(state),
            actions=self.run.actions() if mode == "advise" else (),
        )
        return self._do(decide(state.autopilot, record, findings, context), state)

    def recover(self, state: State, error: DivergedError) -> State:
        """Return an earlier state to go on from, at a lower rate, after a gradient that is not finite.

        Raises:
            DivergedError: The autopilot may not act, has gone back often enough, or has no checkpoint.
        """
        if self.config.autopilot.mode != "act":
            raise error
        context = Context(self.config, state.step, state.algorithm, self.run.checkpoints())
        action = after_divergence(state.autopilot, error, context)
        if action is None:
            raise error
        return self._do(action, state)

    def _do(self, action: Action, state: State) -> State:
        """Change the state that the run continues from, and write what was done."""
        if action.back_to is not None:
            self._rewards = None
            earlier = checkpoint.load(self.run, self.backend, action.back_to)
            assert earlier is not None, f"checkpoint {action.back_to} is complete"
            if action.skips_problems:
                earlier.problems_drawn = state.problems_drawn  # the same ones might lead to the same finding
            state = earlier
        state.autopilot = action.pilot
        state.algorithm = {**state.algorithm, **action.numbers}
        for line in action.lines:
            append_line(self.run.actions_file, line)
            self.tell(line)
        if action.back_to is not None:  # the newest checkpoint, so that a resume starts there
            checkpoint.save(self.run, self.backend, state, self.config.run.keep_checkpoints)
            checkpoint.forget_after(self.run, state.step)
        return state

    def _recent_rewards(self, state: State, record: Mapping[str, Any]) -> list[float]:
        """Return the mean rewards of the last steps, this one included, the newest last."""
        if self._rewards is None:
            rows = self._rows(state)[-WINDOW:]
            self._rewards = {row["step"]: row["reward/mean"] for row in rows if row.get("reward/mean") is not None}
        if record.get("reward/mean") is not None:
            self._rewards[state.step - 1] = record["reward/mean"]
        last = range(state.step - WINDOW, state.step)
        self._rewards = {step: self._rewards[step] for step in last if step in self._rewards}
        return list(self._rewards.values())

    def _rows(self, state: State) -> list[dict[str, Any]]:
        return [row for row in self.run.metrics() if row["step"] < state.step]
