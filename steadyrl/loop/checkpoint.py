"""All mutable state of a run on disk: the backend's weights and optimizer, and one small ``State``.

``Safeguard`` writes it whatever ends a run.

A checkpoint is a folder with a marker in it, and the marker is written last. A folder without the marker is no
checkpoint. A checkpoint that is written again is complete beside the old one before the old one goes, so that at every
moment one of them can be read.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Annotated, Any

from pydantic import AfterValidator, ConfigDict, PlainValidator, TypeAdapter, ValidationError, with_config

from steadyrl.core.config import Config
from steadyrl.core.counting.interrupts import deferred
from steadyrl.core.errors import AccessError, CheckpointError, RankError
from steadyrl.core.plugins import of_session
from steadyrl.core.protocols import Backend, Reversible
from steadyrl.core.rundir import DONE, RunDir, append_line, not_written, readable_as_usual
from steadyrl.core.types import Drawn
from steadyrl.core.words import counted, shell_command
from steadyrl.loop.curriculum.memory import checked
from steadyrl.maths.batch import plain_drawn, recall_drawn

_STATE = "state.json"
_PART = ".part"
_REQUIRED = ("step", "updates", "problems_drawn", "algorithm")  # a resume without one of them would be wrong
_STRICT = ConfigDict(extra="forbid", strict=True)


@with_config(_STRICT)
@dataclass(frozen=True)
class LastMove:
    """A move of the autopilot that is not judged yet."""

    step: int
    """Steps that were finished when it was made."""
    check: str
    """The doctor's check that found something."""
    cause: str
    """The cause that the check named."""
    move: str
    """Its name, one of ``knobs.MOVES``."""
    knob: str
    """What was changed, see ``knobs.Move``."""
    before: int | float
    """The knob's value before it."""


@with_config(_STRICT)
@dataclass(frozen=True)
class PilotState:
    """What the autopilot has set and what it remembers."""

    scale: float = 1.0
    """Factor of the learning rate; it holds the KL of a step in its band."""
    rate_multiplier: float = 1.0
    """Factor of the learning rate, in (0, 1]; findings lower it, and the band of the KL with it."""
    settings: Mapping[str, int | float] = field(default_factory=dict)
    """The settings that were changed, by name ("update.epochs")."""
    found_scale: float | None = None
    """The scale at the end of the search for a rate; None while the search lasts."""
    steps_inside: int = 0
    """Steps in a row whose KL was in the band."""
    steps_outside: int = 0
    """Steps in a row whose KL was outside the band, for advice; negative where it was above the band."""
    reported_scale: float = 1.0
    """The scale that the last line about the learning rate ended with."""
    reported_coef: float | None = None
    """The KL coefficient that the last line about it ended with; None before the first."""
    steps_taken_back: int = 0
    """Steps of the search that were taken back."""
    rollbacks: int = 0
    """Other returns to an earlier checkpoint."""
    agreement: float | None = None
    """Mean cosine of the last steps' gradients with those before them; None before the first."""
    narrowing: float = 1.0
    """Share of the band of the KL of a step, in (0, 1]; gradients that disagree lower it."""
    first_entropy: float | None = None
    """Entropy of the first step, nats per token; None before it."""
    held_by: str | None = None
    """What keeps the rate from rising: "entropy", or the check of a finding; None where nothing does."""
    last_move: LastMove | None = None
    """The move that is not judged yet."""
    findings_since: int | None = None
    """The step of the last move or undo: findings from before it are answered."""
    failed_moves: tuple[tuple[str, str, str], ...] = ()
    """(check, cause, move) of moves that did not help and are not made again."""


@with_config(_STRICT)
@dataclass(frozen=True)
class Best:
    """The best held-out score so far."""

    step: int
    """Steps that were finished when it was measured; the checkpoint of that step is kept."""
    score: float
    """Mean of the task's metric over the held-out problems, sampled as in training."""
    low: float | None
    high: float | None
    """Bounds of its 95 % confidence interval over problems; None where only one could be scored."""
    problems: int
    """Held-out problems that could be scored."""


@with_config(_STRICT)
@dataclass
class State:
    """What the loop needs to go on."""

    step: int = 0
    """Steps that are finished."""
    updates: int = 0
    """Optimizer steps so far: the policy's version."""
    problems_drawn: int = 0
    """Problems drawn so far: the place in the order of problems."""
    algorithm: dict[str, float] = field(default_factory=dict)
    """The algorithm's numbers."""
    curriculum: Annotated[dict[str, Any], AfterValidator(checked)] = field(default_factory=dict)
    """What the curriculum remembers, see ``curriculum.Memory.plain``."""
    autopilot: PilotState = field(default_factory=PilotState)
    """What the autopilot has set and remembers."""
    best: Best | None = None
    """The best held-out score so far; None before the first evaluation during training."""
    evaluations_since_best: int = 0
    """Evaluations in a row whose score was not better."""
    in_flight: list[Annotated[Drawn, PlainValidator(recall_drawn)]] = field(default_factory=list)
    """Rollouts that wait for their step, the next one first; curriculum and problems_drawn include them."""
    correcting: bool = False
    """True from the step on at which update.correction = "auto" measured that sampler and trainer differ."""
    steps_uncompared: int = 0
    """Steps in a row, up to the last, in which no problem had two scored rollouts to compare, where the algorithm
    compares them."""


@cache
def _state_adapter() -> TypeAdapter[State]:
    """Return what reads a state; pydantic takes longer to make it than to read hundreds of states with it."""
    return TypeAdapter(State)


def save(run: RunDir, backend: Backend, state: State, keep: int) -> Path:
    """Write a checkpoint and remove all but the newest ``keep`` and those that these name as the best.

    Raises:
        AccessError: The disk is full or not writable.
    """
    folder = run.checkpoint_folder(state.step)
    part = folder.with_suffix(_PART)
    try:
        _finish_swaps(run)
        part.mkdir(parents=True)
        backend.save(part)
        plain = asdict(replace(state, in_flight=[])) | {"in_flight": list(map(plain_drawn, state.in_flight))}
        (part / _STATE).write_text(json.dumps(plain), encoding="utf-8")
        readable_as_usual(part)
        (part / DONE).touch()
        _put_in_place(part)
        for step in _superfluous(run, keep):
            _remove(run.checkpoint_folder(step))
    except BaseException as error:
        if not (part / DONE).is_file():  # else it is whole, and the next start puts it in its place
            shutil.rmtree(part, ignore_errors=True)
        if not isinstance(error, OSError):
            raise
        raise AccessError(f"{not_written(folder, error)}, and resume") from error
    return folder


class Safeguard:
    """Saves the last whole step of a run, whatever ends it: an error, an interrupt, a refusal of an algorithm.

    Everything random is derived from (seed, step, index), so a checkpoint of the state before the failing step loses
    that step only, and a resume makes it again with the same numbers. A policy between two updates of a step is never
    saved: its updates are taken back where the backend remembers the weights before them (``protocols.Reversible``),
    and otherwise the newest checkpoint stays the last one.
    """

    def __init__(self, run: RunDir, backend: Backend, config: Config, note: Callable[[str], None]):
        """Take what is needed to save; ``note`` is called with a line that says what was saved."""
        self._run, self._backend, self._config, self._note = run, backend, config, note
        self._waiting = ExitStack()  # interrupts wait as long as it is open
        self.begin(State())

    @contextmanager
    def saving(self) -> Iterator[None]:
        """Save the last whole step if anything ends what is inside."""
        try:
            yield
        except BaseException as error:
            with suppress(KeyboardInterrupt):  # one that waited for the step, which ends anyway
                self._waiting.close()
            with deferred():
                self._save(error)
            raise

    def begin(self, state: State) -> None:
        """Begin a step: the weights are those of ``state``, a copy of which stays as it is."""
        self._state = replace(state, algorithm=dict(state.algorithm))
        self._consistent, self._updating = True, False
        self._record: Mapping[str, Any] | None = None
        self._undo: Callable[[], None] | None = None

    def before_updates(self) -> None:
        """Remember the weights, and let interrupts wait until the updates are over."""
        self._waiting.enter_context(deferred())
        self._undo = self._backend.remember() if isinstance(self._backend, Reversible) else None
        self._updating = True

    def moved(self) -> None:
        """Note that the weights are no longer those of any state."""
        self._consistent = False

    def after_updates(self, state: State, record: Mapping[str, Any]) -> None:
        """Note that the updates are over; evaluation, doctor and autopilot follow and belong to the step.

        Where they fail, the whole step is taken back; a backend that cannot do so is saved as it is now, for a step of
        a large model is worth more than what the autopilot would have done behind it.
        """
        if self._undo is None:
            self.begin(state)
            self._record = record
        self._updating = False
        self._waiting.close()

    def written(self) -> None:
        """Note that the metrics of the step are in metrics.jsonl."""
        self._record = None

    def take_back(self) -> None:
        """Take back the updates of a step that failed, where the backend can."""
        if self._undo is not None:
            self._undo()
            self._undo, self._consistent = None, True
        self._waiting.close()

    def _save(self, error: BaseException) -> None:
        if isinstance(error, RankError):  # the weights of the lost rank are gone
            return
        step = self._state.step
        try:
            if self._updating and self._undo is None and not isinstance(error, Exception):
                self.moved()  # an interrupt may come in the middle of an update
            self.take_back()
            if not self._consistent:
                self._note(
                    f"the step after {step} ended between two updates of the policy, which is not saved; a resume "
                    "begins at the newest checkpoint"
                )
                return
            if self._record is not None:
                append_line(self._run.metrics_file, self._record)
            if step and step not in self._run.checkpoints():
                save(self._run, self._backend, self._state, self._config.run.keep_checkpoints)
        except Exception as failed:  # what ended the run is what its user must see, whatever else fails then
            self._note(f"the policy after {counted(step, 'step')} could not be saved: {failed}")
            return
        if step:
            resume = f"with: {shell_command('train', '--resume', self._run.path)}"
            if any(map(of_session, self._config.rewards)):  # no other process has these functions
                resume = f"in this session with: steadyrl.run(resume='{self._run.path}')"
            self._note(f"the policy after {counted(step, 'step')} is saved; go on {resume}")


def forget_after(run: RunDir, step: int) -> None:
    """Remove the checkpoints later than ``step``: the run went back, and a resume must not start from them."""
    for later in run.checkpoints():
        if later > step:
            _remove(run.checkpoint_folder(later))


def finish_writing(run: RunDir, keep: int) -> None:
    """Finish what an earlier process did not: put a complete checkpoint in its place, remove incomplete and old ones.

    Only the process that writes into the run may call it.

    Raises:
        AccessError: The disk is not writable.
    """
    try:
        _finish_swaps(run)
        valid_folders = {run.checkpoint_folder(step) for step in set(run.checkpoints()) - set(_superfluous(run, keep))}
        for folder in run.checkpoint_folder(0).parent.glob("[0-9]*"):
            if folder not in valid_folders and folder.is_dir():
                _remove(folder)
    except OSError as error:
        raise AccessError(f"cannot put the checkpoints of '{run.path}' in order: {error}; check permissions") from error


def load(run: RunDir, backend: Backend, step: int | None = None) -> State | None:
    """Read a complete checkpoint, the newest one by default, into the backend; return its state, or None without one.

    Raises:
        CheckpointError: It is damaged.
    """
    steps = run.checkpoints()
    if not steps:
        return None
    state = read_state(run, steps[-1] if step is None else step)
    backend.load(run.checkpoint_folder(state.step))
    return state


def read_state(run: RunDir, step: int) -> State:
    """Return the state of a complete checkpoint, without its weights.

    Raises:
        CheckpointError: It is damaged.
    """
    folder = run.checkpoint_folder(step)
    try:
        text = (folder / _STATE).read_text(encoding="utf-8")
        state = _state_adapter().validate_json(text)
        missing = [name for name in _REQUIRED if name not in json.loads(text)]
    except ValidationError as error:
        problem = error.errors()[0]
        location = ".".join(str(part) for part in problem["loc"])
        raise _damaged(run, step, f"{location}: {problem['msg']}" if location else problem["msg"]) from error
    except (OSError, ValueError, AttributeError, RecursionError) as error:
        raise _damaged(run, step, str(error)) from error
    if missing:
        raise _damaged(run, step, f"it lacks {', '.join(missing)}")
    if state.step != step:
        raise _damaged(run, step, f"it is the state after {counted(state.step, 'step')}, expected {step}")
    return state


def _superfluous(run: RunDir, keep: int) -> list[int]:
    """Return the checkpoints to remove. An earlier one of those that stay may name another best than the newest."""
    steps = run.checkpoints()
    steps_to_keep = set(steps[-keep:])
    for step in steps[-keep:]:
        try:
            text = (run.checkpoint_folder(step) / _STATE).read_text(encoding="utf-8")
            best = _state_adapter().validate_json(text).best
        except (FileNotFoundError, ValueError):  # it is damaged: nothing can go on from it, and a resume says so
            continue
        steps_to_keep |= {best.step} if best else set()
    return [step for step in steps if step not in steps_to_keep]


def _damaged(run: RunDir, step: int, defect: str) -> CheckpointError:
    folder = run.checkpoint_folder(step)
    before = [earlier for earlier in run.checkpoints() if earlier < step]
    where = (
        f"at the earlier checkpoint of step {before[-1]}" if before else "at step 0, for there is no earlier checkpoint"
    )
    return CheckpointError(
        f"the checkpoint '{folder}' is damaged ({_STATE}: {defect}); delete that folder, and a resume begins {where}"
    )


def _finish_swaps(run: RunDir) -> None:
    root = run.checkpoint_folder(0).parent
    for part in sorted(root.glob(f"*{_PART}")):
        if (part / DONE).is_file() and not (part.with_suffix("") / DONE).is_file():
            _put_in_place(part)
        else:
            _remove(part)


def _put_in_place(part: Path) -> None:
    """Rename a complete checkpoint to its name; an older one of that name goes first."""
    folder = part.with_suffix("")
    if folder.exists():
        _remove(folder)
    part.replace(folder)


def _remove(folder: Path) -> None:
    """Remove a checkpoint, its marker first: a folder that is half gone must not pass for a complete checkpoint."""
    (folder / DONE).unlink(missing_ok=True)
    shutil.rmtree(folder)
