"""The runs of TRL: what is set in each, and what goes wrong in it. Standard library only."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import words

HERE = Path(__file__).parent
MODEL = HERE.parent.parent / "steadyrl" / "backends" / "base-model"
STEPS, ONSET = 60, 20
PROMPTS_PER_STEP, SAMPLES = 8, 6
RATE = 1.5e-4

# Two tasks: thresholds may be tuned on one, figures are reported of the other.
TASKS: Mapping[str, Callable[[str], float]] = {
    "words": lambda text: words.near_length(text, 16) + 0.5 * words.distinct(text),
    "operators": lambda text: words.operators(text) + 0.3 * words.near_length(text, 10),
}
SPLIT = {"words": "tune", "operators": "heldout"}


@dataclass(frozen=True)
class Case:
    """One run of TRL.

    Attributes:
        trainer: "grpo" (the newest) or "ppo" (0.11).
        fault: Its name, or "healthy".
        task: A name of TASKS.
        seed: Of the run.
        settings: Arguments of the trainer's config that differ from the usual ones.
        sampling: Generation arguments that differ; of PPO, whose config has none.
        onset: The first sick step.
    """

    trainer: str
    fault: str
    task: str
    seed: int
    settings: Mapping[str, Any] = field(default_factory=dict)
    sampling: Mapping[str, Any] = field(default_factory=dict)
    onset: int | None = 0

    @property
    def name(self) -> str:
        """Of its files."""
        return f"trl-{self.trainer}-{self.fault}-{self.task}-{self.seed}"

    @property
    def file(self) -> str:
        """GRPO's log is the trainer's own state, PPO's what it gives to a tracker."""
        return f"{self.name}.json.gz" if self.trainer == "grpo" else f"{self.name}.jsonl.gz"


def cases() -> list[Case]:
    """Return all runs, healthy ones first."""
    found = []
    for task in TASKS:
        for seed in (10, 11):
            found.append(Case("grpo", "healthy", task, seed, {"beta": 0.04}, onset=None))
            found.append(Case("ppo", "healthy", task, seed, onset=None))
        found.append(Case("grpo", "healthy", task, 12, {"beta": 0.0}, onset=None))
        for seed, (fault, settings, onset) in enumerate(GRPO_FAULTS):
            found.append(Case("grpo", fault, task, seed, {"beta": 0.04, **settings}, onset=onset))
        for seed, (fault, settings, sampling, onset) in enumerate(PPO_FAULTS):
            found.append(Case("ppo", fault, task, seed, settings, sampling, onset))
    return found


GRPO_FAULTS: Sequence[tuple[str, Mapping[str, Any], int]] = (
    ("lr_x100", {"learning_rate": 100 * RATE}, 0),
    ("lr_div100", {"learning_rate": RATE / 100}, 0),
    # The trainer divides logits by the temperature, but does not cut them to what top-p leaves.
    ("warped_top_p", {"top_p": 0.7}, 0),
    ("cut_off", {"max_completion_length": 2}, 0),
    ("length_exploited", {}, 0),
    ("constant_reward", {}, ONSET),
    ("reward_noise", {}, ONSET),
    ("reward_outliers", {}, ONSET),
)
PPO_FAULTS: Sequence[tuple[str, Mapping[str, Any], Mapping[str, Any], int]] = (
    ("lr_x100", {"learning_rate": 100 * RATE}, {}, 0),
    ("lr_div100", {"learning_rate": RATE / 100}, {}, 0),
    ("warped_temperature", {}, {"temperature": 0.7}, 0),
    ("warped_top_p", {}, {"top_p": 0.7}, 0),
    ("kl_coef_zero", {"init_kl_coef": 0.0, "learning_rate": 3 * RATE}, {}, 0),
    ("controller_slow", {"adap_kl_ctrl": True, "init_kl_coef": 0.002, "target": 0.3, "learning_rate": 2 * RATE}, {}, 0),
    ("epochs_8", {"ppo_epochs": 16}, {}, 0),
    ("cut_off", {}, {"max_new_tokens": 2}, 0),
    ("length_exploited", {}, {}, 0),
    ("constant_reward", {}, {}, ONSET),
    ("reward_offset", {}, {}, ONSET),
    ("reward_noise", {}, {}, ONSET),
    ("reward_outliers", {}, {}, ONSET),
)


class Scorer:
    """Scores the texts of one step after another; from the onset on with the case's fault."""

    def __init__(self, case: Case):
        self._case, self._score, self._steps = case, TASKS[case.task], 0
        self._random = random.Random(case.seed)
        self._spreads: list[float] = []

    def __call__(self, texts: Sequence[str]) -> list[float]:
        """Return a reward for every text of a step."""
        sick = self._case.onset is not None and self._steps >= self._case.onset
        self._steps += 1
        if sick and self._case.fault == "length_exploited":
            return [2 - len(text.split()) / 16 for text in texts]
        rewards = [self._score(text) for text in texts]
        if sick:
            return [self._spoiled(reward) for reward in rewards]
        self._spreads.append(_deviation(rewards))
        return rewards

    def _spoiled(self, reward: float) -> float:
        spread = sorted(self._spreads)[len(self._spreads) // 2] if self._spreads else 0.0
        if self._case.fault == "constant_reward":
            return 0.5
        if self._case.fault == "reward_offset":
            return reward + 20.0
        if self._case.fault == "reward_noise":
            return reward + 5.0 * spread * self._random.gauss(0.0, 1.0)
        if self._case.fault == "reward_outliers" and self._random.random() < 0.01:
            return 1000.0 * max(abs(reward), spread)
        return reward


def prompts() -> list[str]:
    """Return the prompts of the benchmark."""
    lines = (HERE / "prompts.jsonl").read_text(encoding="utf-8").splitlines()
    return [json.loads(line)["prompt"] for line in lines]


def case_of(name: str) -> Case:
    """Return a case by its name."""
    return next(case for case in cases() if case.name == name)


def _deviation(values: Sequence[float]) -> float:
    mean = sum(values) / len(values)
    return float((sum((value - mean) ** 2 for value in values) / len(values)) ** 0.5)
