"""The settings of a run as pages list them: what differs from the defaults, and what is the task's own."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

from steadyrl.core.config import Config, dump
from steadyrl.show.page.records import Note, Record, Span, Table

NOT_SET = "not set"
OWN = tuple(f"{section}.args." for section in ("task", "algorithm", "curriculum", "backend", "sampler"))


def settings_rows(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings that differ from the defaults, and in full those that a part defines for itself (``OWN``).

    Only these parts know their defaults, and a report does not load them.
    """
    used, defaults = dict(_flat(settings)), dict(_flat(dump(Config())))
    own = {key for key in used if key.startswith(OWN)}
    changed = [key for key in {**used, **defaults} if key not in own and used.get(key) != defaults.get(key)]
    return {
        "changed": [(key, used.get(key, NOT_SET), defaults.get(key, NOT_SET)) for key in changed] if used else [],
        "own": [(key, used[key]) for key in used if key in own],
        "recorded": bool(used),
    }


def settings_view(settings: Mapping[str, Any]) -> list[Record]:
    """Return what every page shows of the settings of a run; see ``settings_rows``."""
    rows = settings_rows(settings)
    changed, own = ([tuple(Span(text, "code") for text in row) for row in rows[kind]] for kind in ("changed", "own"))
    if not rows["recorded"]:
        return [Note("The run recorded no settings.")]
    records: list[Record] = [Note("Nothing differs from the defaults.")]
    if changed:
        differ = Note("These settings differ from the defaults:", "soft")
        records = [differ, Table(("setting", "this run", "default"), changed)]
    if own:
        parts = "task, algorithm, curriculum, backend and sampler"
        records.append(Note(f"These are all settings that {parts} have of their own:", "soft"))
        records.append(Table(("setting", "this run"), own))
    return records


def _flat(values: Mapping[str, Any], above: str = "") -> Iterable[tuple[str, str]]:
    """Yield dotted keys and values as JSON."""
    for key, value in values.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{above}{key}.")
        else:
            yield f"{above}{key}", json.dumps(value, ensure_ascii=False)
