"""What the doctor looks at: named series of numbers with their units, and the settings they came from.

A reader gives a ``RawLog``: the trainer's own names. ``names.identify`` turns it into a ``Run``: quantities with unit
and estimator. Checks see only a ``Run``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy as np

from steadyrl.core.types import Finding
from steadyrl.core.words import counted

FROM_SOURCE = "settings are those that the source of the notebook gives to the config of the trainer"
NUMBERED = "the rows name no step and are numbered from 1 in the order of writing"
ENDED = 0.9  # of the planned steps, before which a log is of a run that has not ended
MOST_UNKNOWN = 5  # names shown of those that could not be placed


@dataclass(frozen=True)
class Written:
    """One completion as a log holds it."""

    step: int
    """At which it was sampled."""
    prompt: str
    """Text put in; "" where the log does not say."""
    completion: str
    """Text that the policy wrote."""
    reward: float | None = None
    """Of the whole completion; None where it is unknown."""


@dataclass(frozen=True)
class Traits:
    """What kind of training a run is: what decides which checks apply; no check asks for the name of an algorithm."""

    critic: bool | None = None
    """Whether values are learned; None where the log does not say."""
    grouped: bool | None = None
    """Whether the baseline is made of the other completions of the same prompt; None where it is unknown."""
    kl_place: Literal["reward", "loss", "none", ""] = ""
    """Where the KL to the reference is paid: in the "reward", in the "loss", or "none"; "" if unknown."""
    trains_on: Literal["sampled", "best", "given"] = "sampled"
    """"sampled" completions, all of them; the "best" of them; or "given" texts (supervised training)."""
    clips_by_design: bool = False
    """Whether it clips so much in a healthy run that its clip fraction says nothing."""
    distils: bool = False
    """Whether a teacher is all that it learns from: its KL is logged, and there is no reward but 0."""


@dataclass(frozen=True)
class Column:
    """One metric as a trainer logged it."""

    steps: np.ndarray
    """[n] int64, strictly increasing."""
    values: np.ndarray
    """[n] float64; what was logged as NaN, Infinity or null is NaN or infinite here. A step at which the metric was not
    logged has no entry."""


STAYED = ("stays", "stays")  # the stages of a metric of which a sentence says a level alone


@dataclass(frozen=True)
class Evaluation:
    """A score before and after training, as a write-up states it."""

    name: str
    """Of what was measured, or of the problems."""
    before: float
    after: float
    """Both in the same unit."""
    answers: int = 0
    """Of which each is a mean; 0 where that is not said."""
    stages: tuple[str, str] = ("before", "after")
    """What the write-up calls them."""
    problems: str = ""
    """What it says of the problems, if anything."""
    from_training: bool = False
    """Whether the first stage is a checkpoint of the training, too."""
    arm: bool = False
    """Whether the second stage is an arm of experiments, of which the write-up does not say that it was trained."""
    course: bool = False
    """Whether it is no score of two stages, but where a sentence says that a metric began and ended in training."""


@dataclass(frozen=True)
class RawLog:
    """A log as it was read, under the trainer's own names."""

    path: str
    """As the user gave it."""
    format: str
    """Which reader read it: "steadyrl", "trainer_state", "tensorboard", "wandb", "trackio", "mlflow", "verl_file",
    "verl_console", "printed", "jsonl" or "csv"."""
    columns: Mapping[str, Column]
    """By the trainer's name."""
    settings: Mapping[str, Any] = field(default_factory=dict)
    """The trainer's config where the log holds one, nested keys joined with dots."""
    notes: tuple[str, ...] = ()
    """What was repaired or left out while reading, a sentence each."""
    completions: Iterable[Written] = ()
    """What the policy wrote, where the log or its neighbours hold it. Read anew by each loop over it, one file at a
    time."""
    gains: Mapping[str, np.ndarray] = field(default_factory=dict)
    """By way of decoding, [n]: the reward of each held-out problem after training less that before it, where both were
    measured."""
    scores: Mapping[str, np.ndarray] = field(default_factory=dict)
    """By way of decoding, [2, n]: the task's metric of each held-out problem before and after training, where both were
    measured. A run is judged by it."""
    evaluations: tuple[Evaluation, ...] = ()
    """Scores that the text around the log states."""
    chart_of: str = ""
    """The name of the run, in a file that holds charts of some of its metrics."""
    names: Mapping[str, str] = field(default_factory=dict)
    """What the user says that metrics are: our name, or a common one, by the trainer's."""


@dataclass(frozen=True)
class Series:
    """A quantity over the steps of a run."""

    quantity: str
    """A name of docs/doctor/quantities.md, such as "kl_ref"."""
    unit: str
    """"nats/token", "nats/sequence", "sqrt nats/sequence", "tokens", "share", "reward", "s", ... or ""."""
    estimator: str
    """How it was measured where that matters: "k1", "k2", "k3", "abs", "exact", "sampled", ...; or ""."""
    source: str
    """The trainer's own name of it."""
    steps: np.ndarray
    """[n] int64, strictly increasing."""
    values: np.ndarray
    """[n] float64, non-finite where the trainer logged that."""

    def __len__(self) -> int:
        return len(self.steps)

    @property
    def first(self) -> float:
        """The first value."""
        return float(self.values[0])

    @property
    def last(self) -> float:
        """The last value."""
        return float(self.values[-1])

    @property
    def least(self) -> float:
        """The least value."""
        return float(self.values.min())

    @property
    def greatest(self) -> float:
        """The greatest value."""
        return float(self.values.max())

    @property
    def median(self) -> float:
        """The median of all values."""
        return float(np.median(self.values))

    @property
    def second_half(self) -> Series:
        """The later half of its rows."""
        return self.select(slice(len(self) // 2, None))

    def finite(self) -> Series:
        """Return the series without its non-finite entries."""
        good = np.isfinite(self.values)
        return self if good.all() else self.select(good)

    def select(self, rows: np.ndarray | slice) -> Series:
        """Return some rows of a series, by indices, a slice, or [n] bool."""
        return replace(self, steps=self.steps[rows], values=self.values[rows])


@dataclass(frozen=True)
class Run:
    """A run as the checks see it."""

    path: str
    """As the user gave it."""
    trainer: str
    """"steadyrl", "trl-grpo", "trl-ppo-old", "verl", ... or "unknown"."""
    algorithm: str
    """"ppo", "grpo", "rloo", "gspo", ... or "" where the log does not say."""
    series: Mapping[str, tuple[Series, ...]]
    """By quantity; where a trainer logs one in several units or estimators, the most exact comes first."""
    settings: Mapping[str, Any] = field(default_factory=dict)
    """By their names in docs/doctor/quantities.md, only those that are known."""
    notes: tuple[str, ...] = ()
    """What was repaired or left out while reading."""
    unknown: tuple[str, ...] = ()
    """The trainer's names that could not be placed."""
    averaged_over: int = 1
    """How many steps a row averages, such as ``logging_steps`` of Hugging Face's Trainer; 1 where a row is one step, or
    where nothing tells."""
    traits: Traits = Traits()
    """What kind of training it is."""
    keys: Mapping[str, str] = field(default_factory=dict)
    """The trainer's own name of each canonical setting, also of those that the log does not hold."""
    config: Mapping[str, Any] = field(default_factory=dict)
    """All settings that the log or its neighbours hold, under the trainer's own keys."""
    completions: Iterable[Written] = ()
    """See ``RawLog``."""
    gains: Mapping[str, np.ndarray] = field(default_factory=dict)
    scores: Mapping[str, np.ndarray] = field(default_factory=dict)
    evaluations: tuple[Evaluation, ...] = ()
    """See ``RawLog``."""

    def get(self, quantity: str, unit: str = "", estimator: str = "") -> Series | None:
        """Return the first series of a quantity, with its finite entries only, or None.

        Args:
            quantity: What.
            unit: Only in this unit, if given.
            estimator: Only by this estimator, if given.
        """
        for series in self.series.get(quantity, ()):
            if unit in ("", series.unit) and estimator in ("", series.estimator):
                finite = series.finite()
                if len(finite):
                    return finite
        return None

    @property
    def logged(self) -> list[Series]:
        """All series, also those of one quantity in several units or by several estimators."""
        return [series for estimates in self.series.values() for series in estimates]

    def needed(self, quantity: str) -> Series:
        """Return the first series of a quantity that is known to be logged, as the needs of a check are."""
        series = self.get(quantity)
        assert series is not None, f"{quantity} is a need"
        return series

    def with_prefix(self, prefix: str) -> dict[str, Series]:
        """Return the series whose quantity starts with ``prefix``, such as "reward_part/", by the rest of the name."""
        names = (name for name in self.series if name.startswith(prefix))
        return {name[len(prefix) :]: series for name in names if (series := self.get(name)) is not None}

    def covers(self, series: Series) -> int:
        """Return how many steps the rows of a series stand for: each averages some, or comes some after the last."""
        apart = float(np.median(np.diff(series.steps))) if len(series) > 1 else 1.0
        return int(len(series) * max(self.averaged_over, apart))

    @property
    def facts(self) -> str:
        """Who wrote the log, and how much of it there is."""
        who = "an unknown trainer" if self.trainer == "unknown" else self.trainer
        averaged = f", {self.averaged_over} to a row" if self.averaged_over > 1 else ""
        (first, last), algorithm = self.span, f", {self.algorithm}" if self.algorithm else ""
        if not self.series:
            stated = sum(evaluation.course for evaluation in self.evaluations)
            scores = len(self.evaluations) - stated
            kinds = [f"{counted(scores, 'score')} before and after training"] if scores else []
            kinds += [f"{counted(stated, 'course')} in words"] if stated else []
            return f"{', '.join(kinds)}, and no rows"
        numbered, planned = NUMBERED in self.notes, self.settings.get("steps")
        early = isinstance(planned, int) and last < ENDED * planned and not numbered
        where = f"{'numbered ' if numbered else ''}{first} to {last}{f' of {planned} planned' if early else ''}"
        if self.steps == 1:
            where = "of no step" if numbered else f"step {first}"
        return f"{who}{algorithm}, {counted(self.steps, 'row')} ({where}{averaged})"

    @property
    def left_out(self) -> str:
        """The first of the names that could not be placed, as a sentence."""
        remainder = f" and {len(self.unknown) - MOST_UNKNOWN} more" if len(self.unknown) > MOST_UNKNOWN else ""
        return f"not read: {', '.join(self.unknown[:MOST_UNKNOWN])}{remainder}"

    def changes(self, finding: Finding) -> list[str]:
        """Return a finding's overrides with what each setting was, where that is known."""
        canonical = {key: name for name, key in self.keys.items()}
        described = []
        for text in finding.overrides:
            key, _, value = text.partition("=")
            name = canonical.get(key, "")
            old, rate = self.settings.get(name), self.get("learning_rate")
            if old is None and name == "learning_rate" and rate is not None:
                old = rate.greatest
            before = f"{old:.3g}" if isinstance(old, float) else old
            was = " (the log does not say what it is)" if old is None else f" (it is {before})"
            described.append(f"{key}={value}{was}")
        return described

    @property
    def span(self) -> tuple[int, int]:
        """The first and the last step that anything was logged at; (0, 0) for a run without any."""
        ends = [(int(series.steps[0]), int(series.steps[-1])) for series in self.logged if len(series)] or [(0, 0)]
        return min(first for first, _ in ends), max(last for _, last in ends)

    @property
    def steps(self) -> int:
        """The number of distinct steps that anything was logged at."""
        return len(distinct_steps([series.steps for series in self.logged]))


def distinct_steps(step_arrays: Sequence[np.ndarray]) -> np.ndarray:
    """Return the steps that are in any of some series [n], in their order."""
    longest = max(step_arrays, key=len, default=np.empty(0, np.int64))
    # Most series have the same steps, and finding the distinct ones among millions takes seconds.
    differing = [steps for steps in step_arrays if not np.array_equal(steps, longest)]
    return np.unique(np.concatenate([longest, *differing])) if differing else longest
