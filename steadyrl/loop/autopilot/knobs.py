"""What the autopilot may change: which knob for which cause, how far, and how it changes a config."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from steadyrl.core.config import Config, SectionType
from steadyrl.core.protocols import Numbers
from steadyrl.core.types import Finding
from steadyrl.doctor.examine import CHECKS
from steadyrl.loop.checkpoint import PilotState

Rows = Sequence[Mapping[str, Any]]
Step = Callable[[float, float, Rows], float]

RATE_MULTIPLIER, KL_COEF = "rate_multiplier", "algorithm.args.kl_coef"
LEAST_MULTIPLIER = 0.1
LIMIT_DEVIATIONS = 4.0  # of the rewards, beyond which they are cut
COEF_PER_SPREAD = 0.5  # of the rewards: at it, reward and penalty balance 2 nats from the reference


@dataclass(frozen=True)
class Move:
    """One way of changing one knob."""

    knob: str
    """"rate_multiplier", or a setting's name."""
    step: Step
    """(present value, configured value, lines of metrics) -> next value, within its bounds."""
    meaning: str
    """For the table in the documents."""


@dataclass(frozen=True)
class Adjustment:
    """A move that was chosen: from which value to which, and for which finding."""

    move: str
    knob: str
    before: float
    after: float
    finding: Finding


def _less_coef(now: float, start: float, rows: Rows) -> float:
    spread = _usual_spread(rows)
    return now if spread <= 0 else max(min(now, COEF_PER_SPREAD * spread), 0.1 * now)


def _reward_limit(now: float, start: float, rows: Rows) -> float:
    spread = _usual_spread(rows)
    return now if now > 0 or spread <= 0 else LIMIT_DEVIATIONS * spread


def _usual_spread(rows: Rows) -> float:
    """Return the median of the steps' standard deviations of rewards, on which outliers have little effect; or 0."""
    spreads = [float(row["reward/std"]) for row in rows if isinstance(row.get("reward/std"), int | float)]
    return float(np.median(spreads)) if spreads else 0.0


MOVES: Mapping[str, Move] = {
    "learning_rate": Move(
        RATE_MULTIPLIER,
        lambda now, start, rows: max(now * 0.5, LEAST_MULTIPLIER),
        "learning rate x 0.5, down to 0.1, and the band of its KL with it",
    ),
    "epochs": Move("update.epochs", lambda now, start, rows: max(int(now) - 1, 1), "one epoch less, down to 1"),
    "entropy_up": Move(
        "algorithm.args.entropy_coef",
        lambda now, start, rows: min(max(2.0 * now, 0.005), max(4.0 * start, 0.02)),
        "x 2, from 0.005 on, up to 4 x or 0.02",
    ),
    "entropy_down": Move(
        "algorithm.args.entropy_coef", lambda now, start, rows: max(0.3 * now, 0.01 * start), "x 0.3, down to 0.01 x"
    ),
    "clip": Move("algorithm.args.clip_high", lambda now, start, rows: max(now, 0.28), "upper clip bound to 0.28"),
    # A target for the KL may have raised it further.
    "kl_coef": Move(KL_COEF, lambda now, start, rows: max(now, min(1.5 * now, 10.0 * start)), "x 1.5, up to 10 x"),
    "kl_coef_down": Move(KL_COEF, _less_coef, "to half of the usual spread of the rewards, at most to a tenth at once"),
    "temperature": Move(
        "sampling.temperature",
        lambda now, start, rows: min(1.2 * now, max(now, min(1.5 * start, 2.0))),
        "x 1.2, up to 1.5 x and 2",
    ),
    "reward_limit": Move("update.reward_limit", _reward_limit, "4 usual standard deviations from the step's median"),
}
# (check, cause) -> moves, tried in this order, as the checks' records have them. What has none is not for the
# autopilot to fix: faults of the reward, of the data, of units and logs, of sampler and reference.
FIXES: Mapping[tuple[str, str], tuple[str, ...]] = {
    (check.name, cause.name): cause.moves for check in CHECKS for cause in check.causes if cause.moves
}


def adjust(config: Config, pilot: PilotState) -> Config:
    """Return the config with the autopilot's changes; the same object if there are none."""
    for name, value in pilot.settings.items():
        config = _with_setting(config, name.split("."), value)
    rate = pilot.scale * pilot.rate_multiplier
    if rate == 1.0:
        return config
    return _with_setting(config, ["update", "learning_rate"], config.update.learning_rate * rate)


def read_knob(config: Config, pilot: PilotState, numbers: Numbers, knob: str) -> float | None:
    """Return the present value of a knob, or None where the algorithm has no such setting.

    A KL coefficient among the algorithm's ``numbers`` is the one in force.
    """
    if knob == RATE_MULTIPLIER:
        return pilot.rate_multiplier
    if knob == KL_COEF and "kl_coef" in numbers:
        return numbers["kl_coef"]
    return pilot.settings[knob] if knob in pilot.settings else configured(config, knob)


def configured(config: Config, knob: str) -> float | None:
    """Return a setting as it was configured; 1 for the rate multiplier, None where there is no such setting."""
    if knob == RATE_MULTIPLIER:
        return 1.0
    setting: Any = config.model_dump()
    for part in knob.split("."):
        setting = setting.get(part) if isinstance(setting, Mapping) else None
    return setting if isinstance(setting, int | float) else None


def set_knob(pilot: PilotState, numbers: Numbers, knob: str, value: float) -> tuple[PilotState, dict[str, float]]:
    """Return the autopilot's state with a knob at a value, and the algorithm's numbers that change with it."""
    if knob == RATE_MULTIPLIER:
        return replace(pilot, rate_multiplier=value), {}
    if knob == KL_COEF and "kl_coef" in numbers:
        return pilot, {"kl_coef": value}
    return replace(pilot, settings={**pilot.settings, knob: value}), {}


def choose(
    config: Config, pilot: PilotState, numbers: Numbers, findings: Sequence[Finding], rows: Rows
) -> Adjustment | None:
    """Return the adjustment for the first finding that a move can answer, or None.

    A move that did not help against a cause is not made against it again.
    """
    for finding in findings:
        if finding.severity == "info":
            continue
        for name in FIXES.get((finding.check, finding.cause), ()):
            if (finding.check, finding.cause, name) in pilot.failed_moves:
                continue
            move = MOVES[name]
            now, start = read_knob(config, pilot, numbers, move.knob), configured(config, move.knob)
            if now is None or start is None:
                continue
            after = move.step(now, start, rows)
            if after != now:
                return Adjustment(name, move.knob, now, after, finding)
    return None


def _with_setting(section: SectionType, path: Sequence[str], value: float) -> SectionType:
    """Return a section with one setting changed; the move has already bounded the value."""
    changed = value if len(path) == 1 else _with_setting(getattr(section, path[0]), path[1:], value)
    return section.model_copy(update={path[0]: changed})
