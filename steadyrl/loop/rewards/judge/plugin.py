"""The reward ``judge`` as the core sees it: its settings, what is wrong with them, and how it is built."""

from __future__ import annotations

from collections.abc import Mapping

from steadyrl.core.config import Config
from steadyrl.core.errors import ConfigError
from steadyrl.core.protocols import RewardFn, Task
from steadyrl.loop.rewards.functions import per_rollout
from steadyrl.loop.rewards.judge.judge import Judge
from steadyrl.loop.rewards.judge.settings import JudgeSettings, problems

Settings = JudgeSettings


def check(config: Config, settings: JudgeSettings) -> list[str]:
    """Return what is wrong with the settings of a judge."""
    return problems(settings)


def build(settings: JudgeSettings, task: Task, own: Mapping[str, RewardFn]) -> Judge:
    """Return the judge of a task's rollouts.

    Args:
        settings: The judge's.
        task: Knows good answers, perhaps.
        own: The task's rewards, of which the gate is one.

    Raises:
        ConfigError: A setting is missing or wrong, the task has no reward named like the gate, or there is no key.
        MissingExtraError: The offline judge needs torch.
    """
    if defects := problems(settings):
        raise ConfigError("; ".join(defects))
    require_gate(settings, own)
    gate = per_rollout(settings.gate, own[settings.gate]) if settings.gate else None
    return Judge(settings, task.gold, gate)


def require_gate(settings: JudgeSettings, own: Mapping[str, RewardFn]) -> None:
    """Refuse a judge's gate that the task does not have.

    Args:
        settings: The judge's; an empty gate asks for none.
        own: The task's rewards by name.

    Raises:
        ConfigError: With those that it has.
    """
    if settings.gate and settings.gate not in own:
        raise ConfigError(
            f"rewards.judge.gate: '{settings.gate}' is no reward of the task; expected one of "
            f"{', '.join(sorted(own)) or 'none'}"
        )
