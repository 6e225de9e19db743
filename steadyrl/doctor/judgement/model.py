"""The judgement of a run whose log no check can decide: how often labelled logs like it were sick, and of what.

Two logistic regressions over ordered bins of few quantities, whose weights stand in weights.toml. A judgement is no
finding: it names no remedy, but what measurement would decide.
"""

from __future__ import annotations

import math
import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Literal

import numpy as np

from steadyrl.doctor.judgement.quantities import LEAST_KL, quantities
from steadyrl.doctor.readers.source import PAIRS_KEY
from steadyrl.doctor.series import FROM_SOURCE, Run
from steadyrl.doctor.statistics.levels import measure
from steadyrl.doctor.statistics.readings import goals

FOLDER = Path(__file__).parent
SPEAKING, MOST = 0.1, 4  # log-odds from which on a quantity is named, and how many of them
NEGATIVE_ZERO = re.compile(r"[-+](?=0(?:\.0*)?%)")  # rounded, of a share
DOUBT = 0.3  # probability of being sick, above which nothing is called healthy
# Of whatever training.
OF_ALL = {
    "loss",
    "grad_norm",
    "learning_rate",
    "data_epoch",
    "token_accuracy",
    "heldout/loss",
    "heldout/accuracy",
    "reward_part/accuracy",
}
FEW_STEPS = 10  # in fewer steps a rise shows no health yet
LONG = 25  # rows: of the labelled logs with as many that look sick none was healthy, and of shorter ones some were


@dataclass(frozen=True)
class Family:
    """A kind of fault."""

    title: str
    """What is wrong, in a sentence."""
    decide: str
    """What measurement would decide it."""
    measured: str = ""
    """The quantity that it is: where the log has it, more of it would decide."""
    steps: int = 1
    """Of a log that covers fewer, no verdict is that it is sick of this."""
    course: bool = False
    """Whether it is a course, which takes a log with ``LONG`` rows."""


@dataclass(frozen=True)
class Quantity:
    """What a judgement says of a quantity."""

    family: str
    """The kind of fault that it points to; "" for none."""
    text: str
    """A sentence with its {value}."""
    transform: str = ""
    """How its value follows from it: "" as it is, "negative", "power" of 10, "negative power"."""

    def sentence(self, value: float) -> str:
        """Return the sentence with a value."""
        signed = 0.0 - value if "negative" in self.transform else value  # never -0
        if "power" in self.transform:
            signed = 10.0 ** min(signed, 308.0)  # of the largest numbers there are
            if signed <= LEAST_KL:
                return re.sub(r"{value[^}]*}", "0 or less", self.text)
        return NEGATIVE_ZERO.sub("", self.text.format(value=signed)).replace("in 0% of", "in next to none of")


_WORDS = tomllib.loads((FOLDER / "families.toml").read_text(encoding="utf-8"))
FAMILIES: Mapping[str, Family] = {name: Family(**entry) for name, entry in _WORDS["families"].items()}
JUDGED: Mapping[str, str] = _WORDS["judged"]
HIDDEN: Mapping[str, str] = _WORDS["hidden"]
QUANTITIES: Mapping[str, Quantity] = {name: Quantity(**entry) for name, entry in _WORDS["quantities"].items()}


@dataclass(frozen=True)
class Judgement:
    """What labelled logs like that of a run were."""

    verdict: Literal["sick", "healthy", ""]
    """What is likely enough to be said; "" for neither."""
    sick: float
    """Probability that the run is sick, 0 to 1."""
    healthy: float
    """Probability that it is healthy, 0 to 1; it may be too short for either."""
    cause: str
    """The likeliest fault, by the name of the check that would confirm it; "" where nothing points to any."""
    fault: str
    """The same in a sentence."""
    decide: str
    """What measurement would decide whether it is so; "" where nothing is suspected."""
    alike: str
    """How many labelled logs of that probability were so, such as "31 of 40 labelled logs like this one"."""
    speaks_for: tuple[str, ...]
    """The numbers that point to a fault most, a sentence each."""
    speaks_against: tuple[str, ...]
    """Those that point away from one."""
    supervised: str = ""
    """What shows that the rows are of supervised training, as no labelled log is; "" where it samples."""

    @property
    def likely(self) -> str:
        """How sure the verdict is, by the labelled logs: of two of three and more that were so it is probable."""
        right, every = map(int, self.alike.split()[:3:2])
        return "probably" if 3 * right >= 2 * every else "perhaps"

    @property
    def sentence(self) -> str:
        """The verdict with its odds and the likeliest fault, or what to look for first."""
        if self.supervised:
            return f"too little to judge: {self.supervised}; losses, gradients and settings show no harm"
        if self.verdict == "healthy":
            return f"healthy, {self.likely} ({self.alike} were healthy)"
        odds = f"{self.alike} were sick"
        if self.verdict == "sick":
            return f"sick, {self.likely} ({odds}): {self.fault}"
        suspected = f"look first whether {self.fault}" if self.cause else "nothing points to a fault"
        return f"too little to judge ({odds}): {suspected}"

    @property
    def reasons(self) -> Mapping[str, str]:
        """What the sentence rests on, each with its heading."""
        listed = {
            "speaks for a fault": "; ".join(self.speaks_for),
            "speaks against one": "; ".join(self.speaks_against),
            "would decide": self.decide if self.verdict != "healthy" else "",
        }
        return {heading: text for heading, text in listed.items() if text and not self.supervised}


@cache
def _weights() -> Mapping[str, Any]:
    return tomllib.loads((FOLDER / "weights.toml").read_text(encoding="utf-8"))


def judge(run: Run, contradicted: bool = False, pairs: str = "") -> Judgement:
    """Return the judgement of a run.

    Args:
        run: Whose log is compared with the labelled ones.
        contradicted: Whether something that the log shows forbids to call the run healthy.
        pairs: What leaves open whether the order of given pairs is learned; "" of other training.
    """
    if run.traits.trains_on == "given" or ("loss" in run.series and run.series.keys() <= OF_ALL):
        shown = run.algorithm or ("pairs of answers" if run.traits.trains_on == "given" else "no reward is logged")
        supervised = (
            f"this looks like supervised training ({shown}), where no answers are sampled that have a reward, a "
        )
        supervised += "length or a KL"
        if pairs:
            supervised = f"this is training on given pairs, and {pairs}"
        elif FROM_SOURCE in run.notes and not run.config.get(PAIRS_KEY):
            supervised = "these rows hold no reward, though the source configures reinforcement learning: a notebook's "
            supervised += "table shows a part of trainer.state.log_history"
        return Judgement("", 0.0, 0.0, "", "", "", "", (), (), supervised)
    with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
        values = quantities(run)
    weights = _weights()
    long = is_long(values)
    limits = weights["long" if long else "short"]
    sick, shares = probability(values, "sick", weights)
    healthy, _ = probability(values, "healthy", weights)
    by_family = dict.fromkeys(FAMILIES, 0.0)
    for name, share in shares.items():
        if QUANTITIES[name].family:
            by_family[QUANTITIES[name].family] += max(share, 0.0)  # what one number clears, another may show
    cause = max(by_family, key=by_family.__getitem__)
    family = FAMILIES[cause] if by_family[cause] > 0 else Family("", "")
    verdict: Literal["sick", "healthy", ""] = ""
    covered = max(map(run.covers, run.logged), default=0)
    # A held-out score that clearly rises says that training does what it is for.
    scored = any((levels := measure(goal)) is not None and levels.rose for goal in goals(run, "heldout/").values())
    if sick >= limits["limit_sick"] and covered >= family.steps and (long or not family.course) and not scored:
        verdict = "sick"
    elif healthy >= limits["limit_healthy"] and sick <= DOUBT and covered >= FEW_STEPS and not contradicted:
        verdict = "healthy"
    state = verdict or "sick"
    unsaid = {name for name, quantity in QUANTITIES.items() if not quantity.family}  # such as how many rows there are
    if values.get("kl_most", 0.0) - values.get("kl_spike", 0.0) <= math.log10(LEAST_KL):
        unsaid.add("kl_spike")  # times what is usual, which is 0 or less
    ordered = sorted(shares.keys() - unsaid, key=lambda name: (-abs(shares[name]), name))
    sentences = {name: QUANTITIES[name].sentence(values[name]) for name in ordered}
    speaks_for = dict.fromkeys(sentences[name] for name in ordered if shares[name] >= SPEAKING)
    against = dict.fromkeys(sentences[name] for name in ordered if shares[name] <= -SPEAKING)
    return Judgement(
        verdict=verdict,
        sick=sick,
        healthy=healthy,
        cause=cause if family.title else "",
        fault=family.title,
        decide="more steps" if family.measured and run.get(family.measured) else family.decide,
        alike=_alike(limits[f"labelled_{state}"], healthy if state == "healthy" else sick),
        speaks_for=tuple(speaks_for)[:MOST],
        speaks_against=tuple(sentence for sentence in against if sentence not in speaks_for)[:MOST],
    )


def is_long(values: Mapping[str, float]) -> bool:
    """Return True if the quantities are of a log with ``LONG`` rows."""
    return bool(10.0 ** -values["few_rows"] > LONG - 0.5)  # of a rounded logarithm


def probability(
    values: Mapping[str, float], state: str, weights: Mapping[str, Any]
) -> tuple[float, Mapping[str, float]]:
    """Return the probability of a state, 0 to 1, and what each logged quantity adds to its log-odds beyond the usual.

    Args:
        values: Of the quantities that a log holds.
        state: "sick" or "healthy".
        weights: As weights.toml holds them.
    """
    odds, shares = float(weights[f"base_{state}"]), {}
    for name in QUANTITIES:
        entry = weights[name]
        odds += sum(usual * weight for usual, weight in zip(entry["usual"], entry[state], strict=True))
        if name in values and entry["above"]:
            steps = zip(entry["above"], entry["usual"], entry[state], strict=True)
            shares[name] = sum(((values[name] > end) - usual) * weight for end, usual, weight in steps)
    return 1.0 / (1.0 + math.exp(-odds - sum(shares.values()))), shares


def _alike(bands: Sequence[Sequence[float]], probability: float) -> str:
    """Return how many labelled logs of such a probability were so; each was judged by a fit that left it out."""
    right, total = next((right, total) for low, high, right, total in bands if probability < high or high == 1.0)
    return f"{right:.0f} of {total:.0f} labelled logs like this one"
