"""What a study file may say, section by section."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field, model_validator

from steadyrl.core.sections import Section

Take = Literal["last", "first", "mean", "min", "max", "gain", "ratio", "spike", "below_zero", "lowest_z"]
Relation = Literal["higher", "lower", "same", "at least", "at most"]
ABSOLUTE: tuple[Relation, ...] = ("at least", "at most")  # compared with a number, each run on its own
HELDOUT = ("before", "after")  # of evaluations: what stands before the slash in the name of a number
MINUS = " - "


class Rule(Section):
    """How the experiments are judged."""

    share: float = Field(0.2, gt=0, le=0.5, description="Share of the steps, at the end, that 'last' averages.")
    start: float = Field(0.02, gt=0, le=0.5)
    """Share of the steps that 'first' averages. It is small: a policy can change in a few steps."""
    confidence: float = Field(0.95, gt=0.5, lt=1, description="Confidence of the intervals over seeds.")


class Budget(Section):
    """What a study may cost."""

    hours: float = Field(0.0, ge=0)
    """After this time `study run` saves its runs and ends. 0 means no limit."""


class Stop(Section):
    """A reason to end a run early."""

    metric: str = Field(description="A metric of metrics.jsonl.")
    below: float | None = Field(None, description="It has to stay below this number ...")
    above: float | None = Field(None, description="... or above this one.")
    steps: int = Field(20, ge=1, description="For so many steps in a row.")
    why: str = Field(description="Why nothing is to be learned after that.")

    @model_validator(mode="after")
    def _bounded(self) -> Stop:
        if self.below is None and self.above is None:
            raise ValueError("expected 'below' or 'above', a number; without one no run would end")
        return self


class Quick(Section):
    """A smaller version of the study."""

    seeds: list[int] = Field([0], description="Seeds of the quick version.")
    settings: list[str] = Field([], description="Overrides for every run of the quick version.")


class Launch(Section):
    """Where the runs are made; `--launcher` says otherwise."""

    name: str = Field("", description="'processes', 'ray', 'slurm' or an import path. Empty makes the runs here.")
    args: dict[str, Any] = Field({}, description="The launcher's settings.")


class Warm(Section):
    """A run before all others, whose policy all experiments start from."""

    config: str = Field(description="Its config file, beside the study.")
    settings: list[str] = Field([], description="Overrides for it.")
    quick: list[str] = Field([], description="Further overrides in the quick version.")


class Expect(Section):
    """One expectation: the sentence, and the measurement that decides it."""

    says: str = Field(description="What is expected, as a sentence.")
    metric: str = Field("")
    """A metric of metrics.jsonl, 'A - B' of two, or 'after/PART' of the held-out evaluation. Empty: the study's."""
    take: Take = Field("last", description="The number that is made of a run's curve.")
    be: Relation = Field("higher", description="How it compares.")
    than: str = Field("", description="The experiment that it is compared with. Empty: the one that it changes.")
    value: float | None = Field(None, description="For 'at least' and 'at most': the number, for every seed.")
    margin: float = Field(0.0, ge=0, description="Differences smaller than this do not matter.")
    claim: str = Field("", description="The earlier conclusion that it decides, alone or together with others.")


class Experiment(Section):
    """One arm of a study."""

    name: str = Field(description="Short name: lower-case letters, digits, '.', '_' and '-'.")
    title: str = Field(description="What is tried, in a few words.")
    base: str = Field("", alias="from", description="The earlier experiment that it changes. Empty: the config.")
    change: str = Field("", description="The one override that it makes.")
    bundle: list[str] = Field([], description="Several overrides together, where no single one is asked about.")
    quick: list[str] = Field([], description="The overrides instead of these in the quick version.")
    why: str = Field("", description="Why it is tried.")
    hypothesis: str = Field("", description="What was expected before.")
    concluded: str = Field("", description="What an earlier study concluded.")
    expect: list[Expect] = Field([], description="What decides it.")
    next: str = Field("", description="What to do next.")

    def overrides(self, quick: bool) -> list[str]:
        """Return what it changes of its base."""
        if quick and self.quick:
            return list(self.quick)
        return [self.change] if self.change else list(self.bundle)


class StudyFile(Section):
    """A study file."""

    title: str = Field(description="Title of the report.")
    question: str = Field(description="What the study asks.")
    background: str = Field("", description="What a reader has to know; paragraphs of Markdown.")
    metric: str = Field("reward/mean", description="What the expectations compare unless they say otherwise.")
    config: str | dict[str, Any] = Field(description="A config file beside this one, or its sections.")
    seeds: list[int] = Field([0, 1, 2], description="Seeds; every experiment runs with each.")
    warm: Warm | None = Field(None, description="A run whose policy all experiments start from.")
    rule: Rule = Field(Rule(), description="How it is judged.")
    budget: Budget = Field(Budget(), description="What it may cost.")
    quick: Quick = Field(Quick(), description="The quick version.")
    stop: list[Stop] = Field([], description="Reasons to end a run early.")
    launcher: Launch = Field(Launch(), description="Where the runs are made.")
    experiments: list[Experiment] = Field(min_length=1, description="The arms.")
    picture: list[str] = Field([])
    """The experiments that the report's first picture compares. Empty: all, by the study's metric."""
    not_tested: list[str] = Field([], description="What the study leaves open.")
