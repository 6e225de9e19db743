"""Settings as keyword arguments: ``learning_rate=1e-4`` is ``update.learning_rate``."""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping
from typing import Any

from pydantic import BaseModel

from steadyrl.core import plugins
from steadyrl.core.config import Config
from steadyrl.core.errors import ConfigError

_SECTIONS = {
    name: field.annotation
    for name, field in Config.model_fields.items()
    if isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel)
}
# Of the sections whose plug-in has settings of its own: the setting that names the plug-in.
_NAMES = {"algorithm": "name", "task": "name", "backend": "name", "curriculum": "name", "sampler": "engine"}
_FIRST = "run"  # its settings go before others of the same name: epochs are passes over the prompts


def nested(keywords: Mapping[str, Any], names: Mapping[str, str]) -> dict[str, Any]:
    """Return keyword arguments as nested settings; those that are None are left out.

    Args:
        keywords: A section with a table of its settings, or with the name of its plug-in
            (``algorithm="ppo"``); or a setting of a section or of a plug-in.
        names: The plug-in of each section where the keywords name none.

    Raises:
        ConfigError: No setting has the name, or more than one has.
    """
    remaining = {keyword: value for keyword, value in keywords.items() if value is not None}
    settings: dict[str, dict[str, Any]] = {}
    for keyword in [keyword for keyword in remaining if keyword in _SECTIONS]:
        value = remaining.pop(keyword)
        if not isinstance(value, Mapping) and keyword not in _NAMES:
            raise ConfigError(f"{keyword}: got {value!r:.80}; expected a dict of its settings")
        settings[keyword] = dict(value) if isinstance(value, Mapping) else {_NAMES[keyword]: value}
    plugin_settings = {
        section: _of_plugin(section, settings.get(section, {}).get(_NAMES[section], name))
        for section, name in names.items()
    }
    for keyword, value in remaining.items():
        section, *inner = _place(keyword, plugin_settings)
        table = settings.setdefault(section, {})
        for key in inner:
            table = table.setdefault(key, {})
        table[keyword] = value
    return settings


def _of_plugin(section: str, name: Any) -> type[BaseModel] | None:
    settings = getattr(plugins.load(section, str(name)), "Settings", None)
    return settings if isinstance(settings, type) and issubclass(settings, BaseModel) else None


def _place(keyword: str, plugin_settings: Mapping[str, type[BaseModel] | None]) -> tuple[str, ...]:
    """Return the keys of the table that holds a setting."""
    homes: list[tuple[str, ...]] = [
        (section,) for section, fields in _SECTIONS.items() if keyword in fields.model_fields
    ]
    homes = [home for home in homes if home == (_FIRST,)] or homes
    homes = homes or [
        (section, "args") for section, fields in plugin_settings.items() if fields and keyword in fields.model_fields
    ]
    if len(homes) == 1:
        return homes[0]
    if homes:
        choices = " or ".join(f"{'.'.join(home)}.{keyword}" for home in homes)
        raise ConfigError(
            f"{keyword} may be {choices}; say which one: overrides={{'{'.'.join(homes[0])}.{keyword}': ...}}"
        )
    if answer := plugins.of_peers("settings").get(keyword):
        raise ConfigError(f"no setting is called {keyword}; it is {answer} here")
    names = sorted({*_SECTIONS, *_all_names(plugin_settings)})
    close = difflib.get_close_matches(keyword, names, n=1)
    hint = f"did you mean {close[0]}?" if close else "docs/config.md lists all settings"
    raise ConfigError(f"no setting is called {keyword}; {hint}")


def _all_names(plugin_settings: Mapping[str, type[BaseModel] | None]) -> Iterator[str]:
    for fields in (*_SECTIONS.values(), *plugin_settings.values()):
        yield from fields.model_fields if fields else ()
