"""A trainer's config file as the flat settings that a log would have held."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path
from typing import Any

from steadyrl.config import Config, dump, resolve
from steadyrl.doctor.readers.spelling import flat_settings
from steadyrl.errors import ConfigError


def read_settings(path: Path) -> dict[str, Any]:
    """Return the settings of a TOML or JSON file, nested keys joined with dots.

    A config of steadyrl is completed with the defaults of what it leaves out; another trainer's is taken as it is.

    Raises:
        ConfigError: It cannot be read, or is neither TOML nor JSON with settings by name.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"cannot read the config '{path}': {error}; give a TOML or JSON file") from error
    data = _parsed(path, text)
    ours = path.suffix != ".json" and "task" in data and set(data) <= set(Config.model_fields)
    return flat_settings(dump(resolve(data)) if ours else data)


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
