"""Write docs/config.md and docs/metrics.md from the code: `make docs`. A test holds page and code equal."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pydantic import BaseModel
from pydantic_core import PydanticUndefined

from steadyrl import plugins
from steadyrl.config import Config
from steadyrl.metrics import CATALOGUE

DOCS = Path(__file__).parent.parent / "docs"


def main() -> None:
    """Write both pages."""
    (DOCS / "config.md").write_text(config_page(), encoding="utf-8")
    (DOCS / "metrics.md").write_text(metrics_page(), encoding="utf-8")


def config_page() -> str:
    """Return the page of all settings."""
    parts = [
        "# Settings\n",
        "Generated from the code by `make docs`. A config is a TOML file with these sections; any value can be changed",
        "on the command line as `section.key=value`. What a run used, defaults included, is in its `resolved.json`.\n",
    ]
    for name, field in Config.model_fields.items():
        if name == "rewards":
            parts.append(_rewards())
        else:
            parts.append(_section(f"[{name}]", field.annotation))
    for kind in ("algorithm", "task"):
        for name in plugins.BUILT_IN[kind]:
            settings = plugins.load(kind, name).Settings
            parts.append(_section(f'{kind}.args of {kind}.name = "{name}"', settings))
    return "\n".join(parts).rstrip() + "\n"


def metrics_page() -> str:
    """Return the page of all metrics."""
    lines = [
        "# Metrics\n",
        "Generated from the catalogue in `steadyrl/metrics.py` by `make docs`. Every line of `metrics.jsonl` holds the",
        "step, the attempt (0, and one more for every resume), the time, and these. A metric that a run could not",
        "measure is missing or null, never 0.\n",
        "| metric | unit | better | meaning |",
        "|---|---|---|---|",
    ]
    lines += [f"| `{m.name}` | {m.unit} | {m.better} | {m.meaning.replace('|', chr(92) + '|')} |" for m in CATALOGUE]
    return "\n".join(lines) + "\n"


def _section(title: str, model: Any) -> str:
    assert issubclass(model, BaseModel)
    lines = [
        f"## {title}\n",
        f"{(model.__doc__ or '').strip().splitlines()[0]}\n",
        "| key | default | limits | meaning |",
    ]
    lines.append("|---|---|---|---|")
    for name, field in model.model_fields.items():
        default = "required" if field.default is PydanticUndefined and not field.default_factory else _default(field)
        lines.append(f"| `{name}` | {default} | {_limits(field)} | {field.description} |")
    return "\n".join(lines) + "\n"


def _default(field: Any) -> str:
    value = field.default_factory() if field.default_factory else field.default
    return f"`{value!r}`" if not isinstance(value, str) else f'`"{value}"`'.replace("\n", "\\n")


def _limits(field: Any) -> str:
    words = {"ge": ">=", "gt": ">", "le": "<=", "lt": "<"}
    found = [f"{words[key]} {getattr(m, key)}" for m in field.metadata for key in words if hasattr(m, key)]
    choices = getattr(field.annotation, "__args__", ())
    if choices and all(isinstance(choice, str) for choice in choices):
        found.append(" or ".join(f"`{choice}`" for choice in choices))
    return ", ".join(found)


def _rewards() -> str:
    return (
        "## [rewards]\n\nA weight for every reward by name: a reward of the task (search: `retrieval`, `recall`, "
        "`precision`, `bits`,\n`structure`, `parseable`), a built-in (`length`, `boolean_format`), or an import path "
        'in quotes (`"my_rewards:brevity" = 0.5`).\nThe total is the weighted sum. A reward that cannot be had leaves '
        "the rollout unscored. The task's own metric is\nmeasured even where it has no weight.\n"
    )


if __name__ == "__main__":
    main()
