"""A few updates on saved state: gradients, what an update does, and whether saving and loading is exact.

The backend is saved before the first update and loaded after the last, so that it ends as it was; that it does is one
of the things looked at.
"""

from __future__ import annotations

import math
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from steadyrl.core.config import dump
from steadyrl.core.counting.count import tell
from steadyrl.core.errors import AccessError
from steadyrl.core.protocols import Repeatable
from steadyrl.core.scratch import scratch_folder
from steadyrl.core.sections import UpdateSection
from steadyrl.core.types import Array, Batch, Finding, TokenScores
from steadyrl.core.words import counted
from steadyrl.doctor.check import Check, Found, Passed, Result, Unknown, judged
from steadyrl.doctor.checks.gradient import ZERO
from steadyrl.doctor.checks.learning_rate import KL_REF_NONE
from steadyrl.doctor.checks.limits import limit_too_narrow
from steadyrl.doctor.checks.plan import LEAST, UNLIMITED
from steadyrl.doctor.names.identify import identify
from steadyrl.doctor.readers.spelling import flat_settings
from steadyrl.doctor.remedies import AMPLE_UPDATE
from steadyrl.doctor.series import Column, RawLog
from steadyrl.loop.preflight.trial import Timed, Trial, check, more_signal, silent
from steadyrl.loop.train import Session
from steadyrl.maths import kl
from steadyrl.maths.batch import take_rows

EXACT = 1e-6  # relative for metrics, nats for log-probs
_SLOWER = (1e-1, 1e-2, 1e-3, 1e-4, 1e-5, 1e-6)  # of the learning rate, tried where the whole of it does harm
# Where sums are added in another order every time (GPUs), gradients change in their last digits, and Adam makes
# steps of those that are almost 0; dropout changes much more.
_REORDERED, _DROPOUT = 1e-3, 3e-3
# Of what a step changes: below, a difference is of rounding (threads that share their work in another way, arrays that
# lie elsewhere in memory); what a checkpoint loses changes a step by a tenth of itself and more.
_ROUNDING = 1e-4
_ERRORS = 2.0  # standard errors: a gain within them may be rounding
_FAR_ABOVE = 10.0  # times update.kl_old_limit
_TRUSTED = 1e3  # times the rate: so far its square is trusted, for rounding takes part of the smallest updates away
_LEAP = 1.0  # nats/token (k3): an update that goes further leaves what its gradient was taken of
_BYTES_PER_PARAMETER = 12  # of what is trained: weight and Adam's two moments, float32
_UPDATES = 4


@dataclass(frozen=True)
class TrialUpdates:
    """What the updates told."""

    findings: Sequence[Finding]
    """"gradient", "limits", "update" and "continuation"."""
    updates: tuple[Timed, Timed] | None = None
    """What one optimizer step took, on a part of the rows and on all; None where none was made."""
    saved_bytes: int | None = None
    """Size of a checkpoint with the optimizer's state; None likewise."""


@dataclass(frozen=True)
class _Step:
    """One optimizer step: its statistics (means), scores after it, and its seconds."""

    stats: Mapping[str, float]
    after: TokenScores
    seconds: float


@dataclass(frozen=True)
class _LaterSteps:
    """What followed the first update."""

    after_first: TokenScores
    """Scores of all rows after the first update."""
    second: _Step
    """The second update, on a part of the rows."""
    second_reloaded: _Step
    """The second update once more, after loading what was saved before it."""
    first_reloaded: _Step
    """The first update once more, after loading the start."""


@dataclass(frozen=True)
class _Attempt:
    """The updates, while what was saved between them can still be loaded."""

    trial: Trial
    """Where the rows come from."""
    batch: Batch
    """The rows that train."""
    sample: Batch
    """Some of them."""
    rate: float
    """The learning rate of the run's first step."""
    before: TokenScores
    """Scores of the rows before the first update."""
    first: _Step
    """The first update, on all rows, with scores of a part."""
    start: Path
    """The folder of the state before the first update."""
    saved: Path
    """That of the state after it."""
    later: _LaterSteps | None
    """What followed; None where the gradient is not finite."""

    @property
    def session(self) -> Session:
        return self.trial.session


def make_trial_updates(trial: Trial, phase: Callable[[str], None] = silent) -> TrialUpdates:
    """Make a few updates and take them back.

    Raises:
        AccessError: There is no room for the state in the folder for temporary files.
    """
    if trial.training is None:
        reason = "the algorithm kept no rollout to train on"
        return TrialUpdates([Finding(c.name, state="unknown", message=reason) for c in UPDATE_CHECKS])
    with scratch_folder() as folder:
        _require_room(trial.session, folder)
        start, saved = folder / "start", folder / "middle"
        _save(trial.session, start)
        backend, rows, trial_updates = trial.session.backend, trial.training, None
        try:
            if isinstance(backend, Repeatable) and not backend.describe().get("deterministic"):
                try:
                    with backend.repeating():
                        trial_updates = _updates(trial, rows, start, saved, phase)
                except RuntimeError as error:
                    if "deterministic" not in str(error):
                        raise
                    backend.load(start)  # an operation of the model has no way to repeat: sums may come in any order
            if trial_updates is None:
                trial_updates = _updates(trial, rows, start, saved, phase)
            elif trial_updates.updates is not None:  # a run is quicker than what repeats
                backend.load(start)
                sample, rate = _sample_rows(rows), trial.session.config.update.rate(0, trial.session.config.run.steps)
                steps = [(len(b.lengths), _take(trial.session, b, sample, rate).seconds) for b in (sample, rows)]
                trial_updates = replace(trial_updates, updates=(Timed(*steps[0]), Timed(*steps[1])))
            return trial_updates
        finally:
            backend.load(start)


def _updates(trial: Trial, batch: Batch, start: Path, saved: Path, phase: Callable[[str], None]) -> TrialUpdates:
    session, backend = trial.session, trial.session.backend
    rate, sample = session.config.update.rate(0, session.config.run.steps), _sample_rows(batch)
    phase(f"preflight: two updates on {counted(len(batch.lengths), 'completion')}")
    arrays = ((batch.tokens, trial.batch.tokens), (batch.completion_mask, trial.batch.completion_mask))
    all_train = all(np.array_equal(*pair) for pair in arrays)
    before = trial.scores if all_train else _measure(session, batch)
    first = _take(session, batch, sample, rate)
    tell("trial updates", 1, _UPDATES)
    attempt = _Attempt(trial, batch, sample, rate, before, first, start, saved, None)
    if not math.isfinite(first.stats["grad_norm"]):
        return TrialUpdates(judged(UPDATE_CHECKS, attempt))
    after = _measure(session, batch)
    phase("preflight: saving, loading, and the same updates again")
    _save(session, saved)
    saved_bytes = sum(file.stat().st_size for file in saved.rglob("*") if file.is_file())
    second = _take(session, sample, sample, rate)
    tell("trial updates", 2, _UPDATES)
    backend.load(saved)
    second_reloaded = _take(session, sample, sample, rate)
    tell("trial updates", 3, _UPDATES)
    backend.load(start)
    first_reloaded = _take(session, batch, sample, rate)
    tell("trial updates", 4, _UPDATES)
    later = _LaterSteps(after, second, second_reloaded, first_reloaded)
    findings = judged(UPDATE_CHECKS, replace(attempt, later=later))
    timed = (Timed(len(sample.lengths), second_reloaded.seconds), Timed(len(batch.lengths), first_reloaded.seconds))
    return TrialUpdates(findings, timed, saved_bytes)


def _sample_rows(batch: Batch) -> Batch:
    """Return a part of the rows: two sizes tell what of an update's time grows with them."""
    return take_rows(batch, np.arange(0, len(batch.lengths), 4))


def _take(session: Session, rows: Batch, measured: Batch, rate: float) -> _Step:
    """Make one optimizer step on some rows, and measure some afterwards."""
    began = time.perf_counter()
    stats = session.algorithm.update(session.backend, rows, session.update_at(rate))
    seconds = time.perf_counter() - began
    return _Step({name: total / count for name, (total, count) in stats.items()}, _measure(session, measured), seconds)


def _measure(session: Session, rows: Batch) -> TokenScores:
    """Measure what updates change; the reference stays as it is."""
    return session.backend.score(rows, session.sampling, session.algorithm.needs - {"ref_logprobs"})


@check("gradient")
def gradient(attempt: _Attempt) -> Result:
    batch, norm = attempt.batch, attempt.first.stats["grad_norm"]
    message = f"gradient norm {norm:.3g} before clipping, {counted(len(batch.lengths), 'rollout')}"
    if math.isfinite(norm) and norm > ZERO:  # what the doctor would call no gradient in the run is none here
        return Passed(message)
    mask = batch.completion_mask
    if math.isfinite(norm):
        if batch.advantages is not None and not batch.advantages[mask].any():
            is_kept = batch.measured.get("kept")
            if is_kept is not None and not is_kept.any():
                highest = max(reward for group in attempt.trial.groups for reward in group.rewards)
                message += f"; the algorithm keeps none of the completions, which earn {highest:.3g} at most"
                return Found("nothing_kept", message=message)
            message += "; every advantage is 0: the rewards do not differ where the algorithm compares them"
            return Found("no_signal", message=message, change=more_signal(attempt.trial))
        return Found("no_gradient", message=f"{message}; advantages are not 0, but no gradient reaches the weights")
    inputs = {"log-probs": attempt.before.logprobs, "advantages": batch.advantages, "returns": batch.returns}
    not_finite = [name for name, array in inputs.items() if array is not None and not np.isfinite(array[mask]).all()]
    if not_finite:
        return Found("not_finite_inputs", message=f"{message}; not finite: {', '.join(not_finite)}")
    return Found("overflow", message=f"{message}; what goes into the loss is finite")


@check("update")
def update(attempt: _Attempt) -> Result:
    session, batch, before, rate = attempt.session, attempt.batch, attempt.before, attempt.rate
    if attempt.later is None:
        return Unknown("no update could be made")
    if not attempt.first.stats["grad_norm"] > ZERO:
        return Unknown("the gradient is 0: no update can be judged")
    if rate == 0:
        return Unknown("the learning rate of the first step is 0: no update can be judged")
    after = attempt.later.after_first
    if not _max_difference(after.logprobs, before.logprobs):
        return Found("no_update", message=f"one update at learning rate {rate:g} left every log-prob as it was")
    distance, limit = _moved(batch, before, after), max(_LEAP, session.config.update.kl_old_limit)
    message = f"one update at learning rate {rate:g} took the policy {distance:.3g} nats/token (k3) from the old one"
    if batch.advantages is None or not batch.advantages[batch.completion_mask].any():
        return Unknown(f"{message}; without advantages no direction is better than another")
    gain, error = _gain(batch, before, after)
    message += f", and the mean of advantage times log-prob changed by {gain:+.3g}"
    if session.config.run.steps >= LEAST and (reach := _reach(session, distance, rate)) < KL_REF_NONE:
        message += f"; all updates of the run in one direction, at the full rate, would come to {reach:.2g}"
        change = {} if _limit_findings(attempt) else {"update.learning_rate": _faster(session, distance, rate)}
        return Found("hardly_moves", "warning", message=message, change=change)
    if gain > 0 and distance <= limit:
        settings = session.config.update
        # The limit is there to end some steps early; so it may be passed by a little.
        if distance <= _FAR_ABOVE * settings.kl_old_limit or settings.epochs * settings.minibatches <= UNLIMITED:
            return Passed(message)
        message += (
            f"; update.kl_old_limit is {settings.kl_old_limit:g}, so that each step ends after {UNLIMITED} updates"
        )
        return Found("kl_old_limit", "warning", message=message)
    if distance <= limit and abs(gain) <= _ERRORS * error and session.backend.describe().get("precision") == "bf16":
        # Any change of the weights changes how bfloat16 rounds, and so each log-prob a little, in either direction.
        return Unknown(f"{message}, too little to tell from the rounding of bfloat16 (standard error {error:.3g})")
    return _no_gain(attempt, message, distance, limit)


def _reach(session: Session, distance: float, rate: float) -> float:
    """Return how far the whole run could go, nats/token: the KL grows with the square of the way."""
    update = session.config.update
    updates = session.config.run.steps * update.epochs * update.minibatches
    return distance * (updates * update.learning_rate / rate) ** 2


def _faster(session: Session, distance: float, rate: float) -> float:
    """Return the learning rate at which a step moves as far as usual; the default where that is too far to tell."""
    updates = session.config.update.epochs * session.config.update.minibatches
    factor = np.sqrt(AMPLE_UPDATE / distance) / updates if distance > 0 else np.inf
    return float(f"{factor * rate:.1g}") if factor <= _TRUSTED else UpdateSection().learning_rate


@check("limits")
def limits(attempt: _Attempt) -> list[Result]:
    return [
        Found(f.cause, "warning", message=f.message, change=dict(override.split("=") for override in f.overrides))
        for f in _limit_findings(attempt)
    ]


def _limit_findings(attempt: _Attempt) -> list[Finding]:
    """Return what the doctor would say of the limits of a run with the trial's gradient and rewards."""
    rewards = [reward for group in attempt.trial.groups for reward in group.rewards]
    measured = {"grad_norm": attempt.first.stats["grad_norm"], "reward/std": float(np.std(rewards))}
    columns = {name: Column(np.zeros(1, np.int64), np.array([value])) for name, value in measured.items()}
    planned = identify(RawLog("the trial", "steadyrl", columns, flat_settings(dump(attempt.session.config))))
    return [finding for finding in limit_too_narrow(planned) if finding.state == "found"]


def _no_gain(attempt: _Attempt, message: str, distance: float, limit: float) -> Found:
    """Say why an update did not make the mean of advantage times log-prob rise: try it again at lower rates."""
    session, batch, before, rate = attempt.session, attempt.batch, attempt.before, attempt.rate
    for share in _SLOWER:
        session.backend.load(attempt.start)
        slower = _take(session, batch, batch, rate * share).after
        gain, slower_distance = _gain(batch, before, slower)[0], _moved(batch, before, slower)
        if gain > 0 and slower_distance <= limit:
            return Found(
                "learning_rate",
                "warning" if session.config.autopilot.mode == "act" else "critical",  # it looks for a lower rate itself
                message=f"{message}; at learning rate {rate * share:g} by {gain:+.3g} and {slower_distance:.3g} "
                "nats/token away: the step is too long",
                change={"update.learning_rate": f"{session.config.update.learning_rate * share:g}"},
            )
    lowest = f"no rate down to {rate * _SLOWER[-1]:g} makes"
    if not distance <= _LEAP:  # NaN is no step either
        message += f"; a step of more than {_LEAP:g} nats/token leaves what its gradient was taken of, and"
        return Found("learning_rate", message=f"{message} {lowest} the mean rise")
    return Found("loss_sign", message=f"{message}; {lowest} it rise")


def _gain(batch: Batch, before: TokenScores, after: TokenScores) -> tuple[float, float]:
    """Return the mean of advantage x change of log-prob over the completion tokens, and its standard error.

    The error is that where the changes of log-probs are independent noise of mean 0.
    """
    assert batch.advantages is not None, "asked only where there are advantages"
    gains = (batch.advantages * (after.logprobs - before.logprobs))[batch.completion_mask]
    return float(gains.mean()), float(np.sqrt(np.sum(gains**2))) / len(gains)


def _moved(batch: Batch, before: TokenScores, after: TokenScores) -> float:
    """Return the KL of the old policy to the new one, k3, mean over the completion tokens, nats."""
    return float(kl.k3(np, before.logprobs, after.logprobs)[batch.completion_mask].mean())


@check("continuation")
def continuation(attempt: _Attempt) -> Result:
    session, sample, saved, first, later = (
        attempt.session, attempt.sample, attempt.saved, attempt.first, attempt.later,
    )  # fmt: skip
    if later is None:
        return Unknown("no update could be made")
    differences = {
        "the step after loading": _step_difference(later.second, later.second_reloaded),
        "the first step after loading the start": _step_difference(first, later.first_reloaded),
    }
    worst = max(differences, key=lambda name: differences[name])
    if differences[worst] <= EXACT:
        return Passed(f"a step repeated after save and load differs by {differences[worst]:.2g}")
    session.backend.load(saved)
    loaded = _measure(session, sample)
    step = _max_difference(later.second.after.logprobs, loaded.logprobs)
    message = f"{worst} differs by {differences[worst]:.2g}"
    if differences[worst] <= min(_ROUNDING * step, _REORDERED):
        return Passed(f"{message}, less than 1e-4 of what a step changes: rounding")
    noise = _noise(session, sample, saved)
    if EXACT / 100 < noise <= _DROPOUT and differences[worst] <= _REORDERED:
        return Passed(
            f"{message}, as steps do here that are repeated without loading (by {noise:.2g}): sums whose order changes"
        )
    if noise > _DROPOUT:
        cause, evidence = "noise", f"steps differ by {noise:.2g} without loading too"
    elif _max_difference(loaded.logprobs, first.after.logprobs) > EXACT:
        cause, evidence = "weights", "log-probs after loading are not those before saving"
    elif "values" in session.algorithm.needs and _max_difference(loaded.values, first.after.values) > EXACT:
        cause, evidence = "value_head", "values after loading are not those before saving"
    else:
        cause, evidence = "optimizer", "weights are restored, the optimizer's state is not"
    again = "A resumed run would be another run, and this session may not be as it was"
    return Found(cause, message=f"{message}, {EXACT:g} is allowed; {evidence}. {again}")


UPDATE_CHECKS: Sequence[Check[_Attempt]] = (gradient, limits, update, continuation)


def _noise(session: Session, sample: Batch, saved: Path) -> float:
    """Return how much a step differs from itself, at rate 0, where the optimizer's state has no say."""
    session.backend.load(saved)
    once = _take(session, sample, sample, 0.0)
    session.backend.load(saved)  # a value head with a rate of its own moves at any rate
    twice = _take(session, sample, sample, 0.0)
    # The cosine is measured with Adam's moments, which may not be restored.
    stats = {name: value for name, value in once.stats.items() if name != "grad_cosine"}
    return _step_difference(replace(once, stats=stats), twice)


def _step_difference(first: _Step, second: _Step) -> float:
    """Return the greatest difference of two steps: statistics relative to their size, log-probs in nats."""
    stats = [
        abs(value - second.stats[name]) / max(1.0, abs(value))
        for name, value in first.stats.items()
        if math.isfinite(value)
    ]
    return max([*stats, _max_difference(first.after.logprobs, second.after.logprobs)])


def _max_difference(first: Array, second: Array) -> float:
    return float(np.abs(first - second).max())


def _save(session: Session, folder: Path) -> None:
    try:
        folder.mkdir()
        session.backend.save(folder)
    except OSError as error:
        raise AccessError(
            f"the preflight cannot keep the state in '{folder}': {error}; set TMPDIR to a folder with room, and see "
            "what `ulimit -f` allows"
        ) from error


def _require_room(session: Session, folder: Path) -> None:
    described = session.backend.describe()
    trained = described.get("trained", described.get("parameters", 0))
    needed = 2 * _BYTES_PER_PARAMETER * (trained if isinstance(trained, int) else 0)
    free = shutil.disk_usage(folder).free
    if free < needed:
        raise AccessError(
            f"the preflight keeps two copies of the state ({needed / 2**30:.1f} GiB) in {folder.parent}, where "
            f"{free / 2**30:.1f} GiB are free; set TMPDIR to a folder with room"
        )
