"""Acts on a run that goes on: a learning rate that holds the KL of a step in a band, and one bounded move per finding.

Whatever it decides follows from the metrics on disk and from the numbers in ``State.autopilot``, so that a resumed run
decides the same. In mode "advise" it writes what it would do and changes nothing; in mode "off" it does nothing.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from steadyrl import checkpoint, kl
from steadyrl.autopilot.controller import (
    LEAP,
    LEAST_SHARE,
    WINDOW,
    Band,
    clearly_rising,
    coefficient_after,
    hold_factor,
    scale_after,
    search_factor,
)
from steadyrl.autopilot.knobs import (
    EASE,
    KL_COEF,
    SCALE,
    Turn,
    adjust,
    choose,
    configured,
    failed_key,
    read_knob,
    write_knob,
)
from steadyrl.batch import take_rows
from steadyrl.checkpoint import State
from steadyrl.config import Config, dump
from steadyrl.doctor.live import LiveDoctor
from steadyrl.doctor.readers.spelling import flat_settings
from steadyrl.errors import DivergedError
from steadyrl.protocols import Backend
from steadyrl.rundir import RunDir, append_line
from steadyrl.types import Batch, Finding, Sampling

KL_STEP = "kl_step_k3"
MEASURED_ROWS = 64  # rollouts on which the KL of a step is measured: some hundred tokens tell it to a fifth
SEARCH_STEPS, INSIDE = 20, 3  # the search for a rate ends after so many steps, or so many in a row inside the band
TAKEN_BACK_AT_MOST = 6  # steps of the search: each divides the rate by up to 10
ROLLBACKS_AT_MOST = 2  # of the run: a third says that the autopilot does not know what is wrong
WORTH_SAYING = 1.5  # a factor since the last line: smaller moves of the rate are in the metrics only
OUTSIDE = 5  # steps in a row outside the band before an advice
FOUND, INSIDE_SO_FAR, TAKEN_BACK, ROLLBACKS, SINCE = "found", "inside", "taken_back", "rollbacks", "since"
SAID = "said"  # the scale of the rate that the last line about it ended with
ACTED = ("acted_at", "acted_check", "acted_cause", "acted_move", "acted_knob", "acted_before")

Line = dict[str, Any]


def step_kl(backend: Backend, batch: Batch, sampling: Sampling) -> float | None:
    """Return the KL of the policy before a step's updates to that after them, k3, nats per token.

    It is measured after the last update, so that a step of a single update has one too.

    Args:
        backend: After the updates.
        batch: What trained, with ``old`` scores; evenly spaced rows of it are measured again.
        sampling: As it was drawn.
    """
    written = np.flatnonzero(batch.completion_mask.any(axis=1))  # an episode may have ended before its first turn
    if not written.size:
        return None
    places = np.linspace(0, len(written) - 1, min(len(written), MEASURED_ROWS)).astype(int)
    part = take_rows(batch, written[np.unique(places)])
    after = backend.score(part, sampling, frozenset())
    assert part.old is not None, "score the batch before its updates"
    mask = part.completion_mask if after.audited is None else part.completion_mask & after.audited[:, None]
    if not mask.any():
        return None
    with np.errstate(over="ignore", invalid="ignore"):  # a policy that is gone: infinite says so
        return float(kl.k3(np, part.old.logprobs, after.logprobs)[mask].mean())


def pilot_metrics(
    backend: Backend, batch: Batch, sampling: Sampling, config: Config, state: State
) -> dict[str, float | None]:
    """Return what the autopilot measures of a step's updates, and the numbers that it set; nothing in mode "off"."""
    if config.autopilot.mode == "off":
        return {}
    numbers = {f"autopilot/{name}": float(state.autopilot[name]) for name in (SCALE, EASE) if name in state.autopilot}
    return {KL_STEP: step_kl(backend, batch, sampling), **numbers}


@dataclass
class Autopilot:
    """Follows the steps of a run and turns its knobs.

    Attributes:
        config: As configured; what was turned is in ``State.autopilot``.
        run: Where checkpoints and actions are.
        backend: Of the run.
        tell: Called with every line of actions.jsonl.
    """

    config: Config
    run: RunDir
    backend: Backend
    tell: Callable[[Mapping[str, Any]], None] = field(default=lambda line: None)
    _outside: int = 0  # steps in a row outside the band, above 0 where it lies higher
    _rewards: dict[int, float] | None = None  # by step, the last few; None until they are read

    @property
    def acts(self) -> bool:
        """True if it may change the run."""
        return self.config.autopilot.mode == "act"

    def secure(self, state: State) -> None:
        """Before a step: while the rate is searched for, make sure that this step can be taken back."""
        if self.acts and FOUND not in state.autopilot and state.step not in self.run.checkpoints():
            checkpoint.save(self.run, self.backend, state, self.config.run.keep_checkpoints)

    def steer(self, state: State, record: Mapping[str, Any], findings: Sequence[Finding] | None) -> State:
        """After a step: decide and act.

        Args:
            state: After the step; its numbers change in place.
            record: The step's line of metrics.
            findings: What the doctor found at this step, causes first; None where it did not look.

        Returns:
            The same state, or an earlier one that the run goes on from.
        """
        if self.config.autopilot.mode == "off":
            return state
        if not self.acts:
            self._advise(state, record, findings or ())
            return state
        earlier = self._hold_kl(state, record)
        if earlier is not None:
            return earlier
        self._hold_kl_ref(state, record)
        return state if findings is None else self._mend(state, findings)

    def recover(self, state: State, error: DivergedError) -> State:
        """Return an earlier state to go on from, at a lower rate, after a gradient that is not finite.

        Raises:
            DivergedError: It may not act, has gone back often enough, or has no checkpoint.
        """
        steps = self.run.checkpoints()
        searching = FOUND not in state.autopilot and int(state.autopilot.get(TAKEN_BACK, 0)) < TAKEN_BACK_AT_MOST
        if not self.acts or not steps or not (searching or self._may_go_back(state)):
            raise error
        scale = float(state.autopilot.get(SCALE, 1.0))
        factor = _factor(math.inf, self._band, None, searching)
        after = scale_after(scale, factor, None)
        changes = {SCALE: after, SAID: after, **self._counted(state, searching)}
        evidence = [str(error).partition(";")[0]]
        line = self._rate_line(state, "rollback", scale, after, "a gradient is not finite", evidence)
        return self._go_back(state, steps[-1], changes, line)

    @property
    def _band(self) -> Band:
        return Band(self.config.autopilot.kl_low, self.config.autopilot.kl_high)

    def _hold_kl(self, state: State, record: Mapping[str, Any]) -> State | None:
        """Move the learning rate by the KL of the step; return an earlier state if the step was taken back."""
        measured, numbers = record.get(KL_STEP), state.autopilot
        if measured is None:
            return None
        scale, found = float(numbers.get(SCALE, 1.0)), numbers.get(FOUND)
        ease = float(numbers.get(EASE, 1.0))
        share = record["learning_rate"] / (self.config.update.learning_rate * scale * ease)  # by warm-up and schedule
        band, searching = self._band.at(share, ease), found is None
        if not measured <= LEAP * self._band.high:  # NaN too
            earlier = self._take_back(state, measured, band, searching)
            if earlier is not None:
                return earlier
        rising = self._rising(state, record)
        aim = None if rising is None else self._band.aim(share, ease, rising)
        factor = _factor(measured, band, aim, searching)
        # Without a difference in reward a small step says nothing of the rate, and a larger one leads nowhere.
        dull = factor > 1.0 and not record.get("reward/std")
        if dull or share < LEAST_SHARE:
            factor = 1.0
        after = scale_after(scale, factor, None if found is None else float(found), bool(rising))
        inside = int(numbers.get(INSIDE_SO_FAR, 0)) + 1 if band.low <= measured <= band.high else 0
        numbers |= {SCALE: after, INSIDE_SO_FAR: inside}
        if searching and (inside >= INSIDE or state.step >= SEARCH_STEPS):
            numbers[FOUND] = after
        said = float(numbers.get(SAID, 1.0))
        if abs(math.log(after / said)) >= math.log(WORTH_SAYING):
            why = "KL of a step, and the reward clearly rises" if rising and not searching else "KL of a step"
            self._say(self._rate_line(state, "rate", said, after, why, [_kl_sentence(record, band)]))
            numbers[SAID] = after
        return None

    def _rising(self, state: State, record: Mapping[str, Any]) -> bool | None:
        """Return whether the reward clearly rose in the last steps, this one included; None where they are too few.

        With a target for the KL to the reference it never does: longer steps would leave it.
        """
        if self._rewards is None:
            self._rewards = {row["step"]: row["reward/mean"] for row in self._rows(state)[-WINDOW:]}
        self._rewards[state.step - 1] = record["reward/mean"]
        last = (self._rewards.get(step) for step in range(state.step - WINDOW, state.step))
        rising = clearly_rising([reward for reward in last if reward is not None])
        return rising and not self.config.autopilot.kl_ref_target

    def _take_back(self, state: State, measured: float, band: Band, searching: bool) -> State | None:
        """Go back to before a step that left the policy it started from; None where that may not be."""
        scale, numbers = float(state.autopilot.get(SCALE, 1.0)), state.autopilot
        searching = searching and int(numbers.get(TAKEN_BACK, 0)) < TAKEN_BACK_AT_MOST
        steps = [step for step in self.run.checkpoints() if step < state.step]
        if not steps or not (searching or self._may_go_back(state)):
            return None
        after = scale_after(scale, _factor(measured, band, None, searching), None)
        changes = {SCALE: after, SAID: after, **self._counted(state, searching)}
        evidence = [f"step {state.step - 1} moved the policy by {measured:.3g} nats/token, {LEAP:g} times what may be"]
        line = self._rate_line(state, "rollback", scale, after, "KL of a step", evidence)
        return self._go_back(state, steps[-1], changes, line)

    def _hold_kl_ref(self, state: State, record: Mapping[str, Any]) -> None:
        target = self.config.autopilot.kl_ref_target
        measured = record.get("kl_ref_exact_seq", record.get("kl_ref_k1_seq"))
        if not target or measured is None:
            return
        coef, start = read_knob(self.config, state, KL_COEF), configured(self.config, KL_COEF)
        assert coef is not None and start is not None, "the config was refused without a coefficient"
        after = coefficient_after(coef, measured, target, start)
        write_knob(state, KL_COEF, after)
        if int(math.log2(after / start)) != int(math.log2(coef / start)):  # a line per doubling or halving
            evidence = [f"KL to the reference is {measured:.3g} nats/sequence, its target {target:g}"]
            self._say(_line(state, "kl_coef", KL_COEF, coef, after, "KL to the reference", evidence))

    def _mend(self, state: State, findings: Sequence[Finding]) -> State:
        """Judge the last move where its time has come, or make one."""
        numbers = state.autopilot
        if SINCE in numbers:  # what was before the last move is answered already
            findings = self._findings_since(state, int(numbers[SINCE]))
        if "acted_at" in numbers:
            if state.step - int(numbers["acted_at"]) >= self.config.autopilot.cooldown:
                self._judge(state, findings)
            return state
        turn = choose(self.config, state, findings, self._rows(state))
        if turn is None:
            return state
        line = _line(state, "move", turn.knob, turn.before, turn.after, turn.finding.message, turn.finding.evidence)
        line |= {"check": turn.finding.check, "cause": turn.finding.cause}
        steps = [step for step in self.run.checkpoints() if step <= (turn.finding.since_step or 0)]
        if turn.finding.severity == "critical" and steps and self._may_go_back(state):
            return self._go_back(state, steps[-1], self._counted(state, False), line, turn)
        _note(state, turn)
        self._say(line)
        return state

    def _judge(self, state: State, findings: Sequence[Finding]) -> None:
        """Keep the last move if its finding does not hold since; else undo it, and remember that it did not help."""
        at, check, cause, name, knob, before = (state.autopilot.pop(key) for key in ACTED)
        now = read_knob(self.config, state, str(knob))
        same = [finding for finding in findings if (finding.check, finding.cause) == (check, cause)]
        line = _line(state, "kept", str(knob), now, now, f"{check} does not hold since step {at}", [])
        if same:
            write_knob(state, str(knob), float(before))
            state.autopilot |= {failed_key(same[0], str(name)): 1, SINCE: state.step}
            why = f"{check} still holds since step {at}"
            line = _line(state, "undo", str(knob), now, float(before), why, same[0].evidence)
        self._say({**line, "check": check, "cause": cause})

    def _go_back(
        self, state: State, step: int, changes: Mapping[str, float], line: Line, turn: Turn | None = None
    ) -> State:
        """Load a checkpoint, carry the autopilot's numbers over, and make it the newest, so that a resume starts there.

        The problems drawn since are not drawn again where the run went wrong on them for reasons unknown.
        """
        self._rewards = None
        earlier = checkpoint.load(self.run, self.backend, step)
        assert earlier is not None, f"checkpoint {step} is complete"
        earlier.autopilot = {**state.autopilot, **changes}
        if turn is not None:
            earlier.problems_drawn = state.problems_drawn
            _note(earlier, turn)
        self._say({**line, "back_to": step})
        checkpoint.save(self.run, self.backend, earlier, self.config.run.keep_checkpoints)
        checkpoint.forget_after(self.run, step)
        return earlier

    def _may_go_back(self, state: State) -> bool:
        return int(state.autopilot.get(ROLLBACKS, 0)) < ROLLBACKS_AT_MOST

    def _counted(self, state: State, searching: bool) -> dict[str, float]:
        name = TAKEN_BACK if searching else ROLLBACKS
        return {name: int(state.autopilot.get(name, 0)) + 1}

    def _rows(self, state: State, since: int = 0) -> list[dict[str, Any]]:
        return [row for row in self.run.metrics() if since <= row["step"] < state.step]

    def _findings_since(self, state: State, since: int) -> tuple[Finding, ...]:
        doctor = LiveDoctor(flat_settings(dump(adjust(self.config, state.autopilot))))
        doctor.remember(self._rows(state, since))
        doctor.look(state.step)
        return doctor.findings

    def _advise(self, state: State, record: Mapping[str, Any], findings: Sequence[Finding]) -> None:
        if record.get(KL_STEP) is not None:
            self._advise_rate(state, record)
        turn = choose(self.config, state, findings, self._rows(state)) if findings else None
        if turn is not None:
            line = _line(state, "move", turn.knob, turn.before, turn.after, turn.finding.message, turn.finding.evidence)
            self._say_once({**line, "check": turn.finding.check, "cause": turn.finding.cause})

    def _advise_rate(self, state: State, record: Mapping[str, Any]) -> None:
        """Say what the rate should be: of a step that would be taken back at once, else after some outside the band."""
        measured, share = record[KL_STEP], record["learning_rate"] / self.config.update.learning_rate
        band = self._band.at(share, ease=1.0)
        leaps = not measured <= LEAP * self._band.high  # NaN too
        factor = search_factor(measured, band) if leaps or share >= LEAST_SHARE else 1.0
        side = (factor > 1.0) - (factor < 1.0)
        self._outside = self._outside + side if side * self._outside > 0 else side
        if leaps:
            why = "the step left the policy that it started from and would be taken back"
        elif abs(self._outside) >= OUTSIDE:
            why = f"KL of a step {'below' if side > 0 else 'above'} its band"
        else:
            return
        # A policy that is gone moves no more, and neither does one without a difference in reward: no faster then.
        lowered = any(line["kind"] == "rate" and line["after"] < line["before"] for line in self.run.actions())
        if side > 0 and (lowered or not record.get("reward/std")):
            return
        self._say_once(self._rate_line(state, "rate", 1.0, factor, why, [_kl_sentence(record, band)]))

    def _rate_line(
        self, state: State, kind: str, scale: float, after: float, why: str, evidence: Sequence[str]
    ) -> Line:
        """Return a line of a learning rate that moves: by its values at the end of the warm-up."""
        full = self.config.update.learning_rate * float(state.autopilot.get(EASE, 1.0))
        return _line(state, kind, "update.learning_rate", full * scale, full * after, why, evidence)

    def _say_once(self, line: Line) -> None:
        """Write an advice unless the run has it already; its wording may hold numbers, its cause does not."""
        key = ("kind", "knob", "check", "cause") if "check" in line else ("kind", "knob", "why")
        if not any([line[name] for name in key] == [said.get(name) for name in key] for said in self.run.actions()):
            self._say({**line, "done": False})

    def _say(self, line: Line) -> None:
        append_line(self.run.actions_file, line)
        self.tell(line)


def _line(
    state: State, kind: str, knob: str, before: float | None, after: float | None, why: str, evidence: Sequence[str]
) -> Line:
    """Return a line of actions.jsonl."""
    return {
        "step": state.step - 1,
        "kind": kind,
        "knob": knob,
        "before": before,
        "after": after,
        "why": why,
        "evidence": list(evidence),
        "done": True,
    }


def _factor(measured: float, band: Band, aim: float | None, searching: bool) -> float:
    return search_factor(measured, band) if searching else hold_factor(measured, band, aim)


def _kl_sentence(record: Mapping[str, Any], band: Band) -> str:
    return (
        f"the step moved the policy by {record[KL_STEP]:.3g} nats/token at a learning rate of "
        f"{record['learning_rate']:.3g}; the band is {band.low:.3g} to {band.high:.3g}"
    )


def _note(state: State, turn: Turn) -> None:
    """Turn a knob and remember for whom, so that it can be judged and undone."""
    write_knob(state, turn.knob, turn.after)
    finding = turn.finding
    values = (state.step, finding.check, finding.cause, turn.name, turn.knob, turn.before)
    state.autopilot |= {**dict(zip(ACTED, values, strict=True)), SINCE: state.step}
