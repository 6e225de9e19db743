"""A trainer's config file as the flat settings that a log would have held."""

from __future__ import annotations

import json
import math
import re
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from steadyrl.core.config import Config, dump, resolve
from steadyrl.core.errors import ConfigError
from steadyrl.doctor.readers.spelling import flat_settings, typed


@dataclass(frozen=True)
class _Range:
    """The range of a setting, and the words for it."""

    words: str
    low: float = -math.inf
    high: float = math.inf
    open_low: bool = False

    def holds(self, value: float) -> bool:
        return self.low <= value <= self.high and not (self.open_low and value == self.low)


_NUMBER, _NOT_NEGATIVE = _Range("a number"), _Range("0 or more", 0.0)
# By the last part of a setting's name, whatever the trainer.
_RANGES = {
    "temperature": _Range("more than 0", 0.0, open_low=True),
    "top_p": _Range("more than 0 and at most 1", 0.0, 1.0, open_low=True),
    "top_k": _NUMBER,
    **dict.fromkeys(("beta", "kl_coef", "init_kl_coef", "kl_loss_coef", "kl_penalty_coef"), _NOT_NEGATIVE),
    **dict.fromkeys(("learning_rate", "lr", "max_grad_norm", "max_new_tokens"), _NOT_NEGATIVE),
}
# An evaluation or a judge may be greedy, at temperature 0; a value that a launcher fills in is not a number yet.
_NOT_THE_POLICY = re.compile(r"(^|\.)(val|eval|test|judge|reward)")
_LEFT_OPEN = re.compile(r"auto|\$\{.*")


def read_settings(path: Path) -> dict[str, Any]:
    """Return the settings of a TOML or JSON file, nested keys joined with dots.

    A config of steadyrl is completed with defaults. The config of another trainer is used as it is.

    Raises:
        ConfigError: It cannot be read, is neither TOML nor JSON with settings by name, or has a known setting that is
            no number or out of range.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"cannot read the config '{path}': {error}; give a TOML or JSON file") from error
    data = _parsed(path, text)
    ours = path.suffix != ".json" and "task" in data and set(data) <= set(Config.model_fields)
    if ours:
        return flat_settings(dump(resolve(data)))
    settings = flat_settings(data)
    problems = [problem for name, value in settings.items() if (problem := _problem(name, value))]
    if problems:
        raise ConfigError(f"the config '{path}' cannot be right: {'; '.join(problems)}")
    return settings


def _problem(name: str, value: Any) -> str:
    """Return what is wrong with the value of a setting, "" for nothing; of a list every item is checked."""
    allowed = _RANGES.get(name.rpartition(".")[2])
    if allowed is None or _NOT_THE_POLICY.search(name):
        return ""
    for item in value if isinstance(value, list) else [value]:
        number = typed(item)
        if number is None or (isinstance(number, str) and _LEFT_OPEN.fullmatch(number)):
            continue
        if not isinstance(number, int | float) or isinstance(number, bool) or not math.isfinite(number):
            return f"{name} is {item!r}; expected a number"
        if not allowed.holds(number):
            return f"{name} is {item!r}; expected {allowed.words}"
    return ""


def _parsed(path: Path, text: str) -> dict[str, Any]:
    try:
        data = json.loads(text)
    except (ValueError, RecursionError):
        try:
            return tomllib.loads(text)
        except (tomllib.TOMLDecodeError, RecursionError) as error:
            raise ConfigError(
                f"'{path}' is neither JSON nor TOML ({error}); write a YAML config as JSON and name that file"
            ) from error
    if not isinstance(data, dict):
        raise ConfigError(f"'{path}' holds {type(data).__name__}; expected a JSON object of settings by name")
    return data
