"""The reward ``judge``: AI feedback on a step's rollouts, all of them in one call.

A rollout without a verdict is unscored, never 0. Rollouts without text, and those that fail the judge's ``gate``, get 0
unasked: where tests can tell, they have the first word, and the judge grades what they let pass.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence

from steadyrl.core import plugins
from steadyrl.core.config import Config
from steadyrl.core.errors import ConfigError
from steadyrl.core.protocols import RewardFn, Task
from steadyrl.core.types import Problem, Rollout, Score, encodable
from steadyrl.loop.rewards.functions import BatchReward, Pairs, per_rollout
from steadyrl.loop.rewards.judge.modes import Contest, Opinion
from steadyrl.loop.rewards.judge.panel import Panel
from steadyrl.loop.rewards.judge.settings import JudgeSettings, problems

NAME = "judge"
_LONGEST_NOTE = 300  # characters of the judge's sentence that a rollout keeps

Settings = JudgeSettings


def check(config: Config, settings: JudgeSettings) -> list[str]:
    """Return what is wrong with the settings of a judge."""
    return problems(settings)


def build(settings: JudgeSettings, task: Task, own: Mapping[str, RewardFn]) -> Judge:
    """Return the judge of a task's rollouts.

    Raises:
        ConfigError: A setting is missing or wrong, the task has no reward named like the gate, or there is no key.
        MissingExtraError: The offline judge needs torch.
    """
    if defects := problems(settings):
        raise ConfigError("; ".join(defects))
    require_gate(settings, own)
    gate = per_rollout(settings.gate, own[settings.gate]) if settings.gate else None
    return Judge(settings, task.gold, gate)


def require_gate(settings: JudgeSettings, task_rewards: Mapping[str, RewardFn]) -> None:
    """Refuse a judge's gate that the task does not have; an empty one asks for none."""
    if settings.gate and settings.gate not in task_rewards:
        names = ", ".join(sorted(task_rewards))
        raise ConfigError(
            f"rewards.judge.gate: '{settings.gate}' is no reward of the task; "
            f"{f'expected one of {names}' if names else 'the task has none, so leave the gate out'}"
        )


class Judge:
    """See the module. Call it with all rollouts of a step."""

    def __init__(self, section: JudgeSettings, gold: Callable[[Problem], str | None], gate: BatchReward | None):
        """Take the settings, the task's known good answers, and the reward behind ``rewards.judge.gate``."""
        self._gold, self._gate = gold, gate
        self._panel = LikelihoodPanel(section) if section.mode == "likelihood" else Panel(section)

    def __call__(self, pairs: Pairs) -> list[Score]:
        """Return a score for each rollout, in order.

        Raises:
            EngineError: Too many verdicts failed, lately.
        """
        gated = self._gate(pairs) if self._gate else [Score(1.0)] * len(pairs)
        eligible = [
            bool(_answer(rollout)) and gate.value is not None and gate.value >= 1.0
            for (_, rollout), gate in zip(pairs, gated, strict=True)
        ]
        by_problem: dict[str, tuple[Problem, dict[str, None]]] = {}
        for (problem, rollout), is_asked in zip(pairs, eligible, strict=True):
            if is_asked:
                by_problem.setdefault(problem.id, (problem, {}))[1][_answer(rollout)] = None
        contests = [
            Contest(problem.id, problem.prompt, tuple(texts), self._gold(problem))
            for problem, texts in by_problem.values()
        ]
        opinions = dict(zip(by_problem, self._panel.opinions(contests), strict=True))
        scores = []
        for (problem, rollout), gate, is_asked in zip(pairs, gated, eligible, strict=True):
            if is_asked:
                scores.append(_score(opinions[problem.id][_answer(rollout)]))
            elif _answer(rollout) and gate.value is None:  # what the gate does not know the judge does not either
                scores.append(Score(None, unscored=f"{NAME}: its gate is unknown ({gate.unscored})"))
            else:
                scores.append(Score(0.0))
        return scores

    def metrics(self) -> dict[str, float]:
        """Return judge/* of what was asked since the last call."""
        return self._panel.drain()


def _answer(rollout: Rollout) -> str:
    """Return what a judge reads: space around an answer makes it no other one."""
    return rollout.text.strip()


def _score(opinion: Opinion) -> Score:
    if opinion.value is None:
        return Score(None, unscored=f"{NAME}: {opinion.reason}")
    measurements: Mapping[str, float] = {f"{NAME}_{name}": value for name, value in opinion.measurements.items()}
    reason = " ".join(opinion.reason.split())[:_LONGEST_NOTE]
    return Score(opinion.value, measurements, note=f"{NAME}: {reason}" if reason else "")


class LikelihoodPanel:
    """A judge that needs no server: how much likelier a frozen model finds a text given the request.

    The score is 1 / (1 + exp(-ratio / nats)), where ratio is the mean over the text's tokens of
    log p(token | request, text so far) - log p(token | text so far), or, with a second model, of the difference between
    the log-probs of the two, both given the request. It says how typical a text is of what follows such a request, in
    that model's eyes. It is no opinion on whether the text is right: a likely wrong answer beats an unlikely right one.
    `steadyrl judge` measures how far it agrees with tests.

    Opinions are deterministic, so that nothing is asked twice or kept.
    """

    def __init__(self, section: JudgeSettings):
        """Load the frozen model.

        Raises:
            MissingExtraError: torch is not installed.
            ModelError: There is no such model.
        """
        build = plugins.load("judge", "likelihood")
        # Nats per token for each (request, text); None where a text is longer than the model can read.
        self._ratios: Callable[[Sequence[tuple[str, str]]], list[float | None]] = build(section.model, section.baseline)
        self._nats = section.nats
        self._texts, self._seconds = 0, 0.0

    def opinions(self, contests: Sequence[Contest]) -> list[dict[str, Opinion]]:
        """Return for each contest an opinion by text."""
        began = time.monotonic()
        pairs = [(encodable(contest.request), encodable(text)) for contest in contests for text in contest.texts]
        ratios = iter(self._ratios(pairs))
        opinions = [{text: self._opinion(next(ratios)) for text in contest.texts} for contest in contests]
        self._texts += len(pairs)
        self._seconds += time.monotonic() - began
        return opinions

    def drain(self) -> dict[str, float]:
        """Return how many texts were read since the last call, and how long each took."""
        texts, seconds, self._texts, self._seconds = self._texts, self._seconds, 0, 0.0
        return {"judge/verdicts": float(texts), "judge/latency": seconds / texts} if texts else {}

    def _opinion(self, ratio: float | None) -> Opinion:
        if ratio is None:
            return Opinion(None, reason="the text is longer than the judge's model can read")
        return Opinion(score_of(ratio, self._nats), {"ratio": ratio})


def score_of(ratio: float, nats: float) -> float:
    """Map a ratio in nats per token to (0, 1): 0 nats to a half."""
    return 0.5 * (1.0 + math.tanh(ratio / (2.0 * nats)))
