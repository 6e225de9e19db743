"""Write docs/config.md, docs/metrics.md and docs/doctor/* from the code: `make docs`. A test holds them equal."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pydantic import BaseModel
from pydantic_core import PydanticUndefined

from steadyrl.core import plugins
from steadyrl.core.config import Config
from steadyrl.core.metrics import CATALOGUE
from steadyrl.core.sections import FunctionSettings
from steadyrl.doctor.check import Cause, Check
from steadyrl.doctor.examine import CHECKS
from steadyrl.doctor.names.identify import COMMON, TABLES

DOCS = Path(__file__).parent.parent / "docs"
GENERATED = "Generated from the code by `make docs`."
WRITTEN = ("README.md", "quantities.md", "statistics.md")  # of docs/doctor, by hand


def main() -> None:
    """Write all generated pages; one of the doctor whose check is gone goes too."""
    (DOCS / "config.md").write_text(config_page(), encoding="utf-8")
    (DOCS / "metrics.md").write_text(metrics_page(), encoding="utf-8")
    doctor = DOCS / "doctor"
    for page in {*doctor.glob("*.md")} - {doctor / name for name in (*doctor_pages(), *WRITTEN)}:
        page.unlink()
    for name, text in doctor_pages().items():
        (doctor / name).write_text(text, encoding="utf-8")


def config_page() -> str:
    """Return the page of all settings."""
    parts = [
        "# Settings\n",
        "Generated from the code by `make docs`. A config is a TOML file with these sections. Any value can be changed",
        "on the command line as `section.key=value`. Every run writes all its settings, defaults included, to its",
        "`resolved.json`.\n",
    ]
    for name, field in Config.model_fields.items():
        if name == "rewards":
            parts.append(_rewards())
        else:
            parts.append(_section(f"[{name}]", field.annotation))
    kinds = (
        ("algorithm", "name"), ("curriculum", "name"), ("task", "name"), ("sampler", "engine"), ("backend", "name"),
    )  # fmt: skip
    for kind, key in kinds:
        for name in plugins.BUILT_IN[kind]:
            if kind == "backend" and not plugins.is_module(kind, name):
                continue
            settings = plugins.load(kind, name).Settings
            parts.append(_section(f'{kind}.args of {kind}.{key} = "{name}"', settings))
    for name in plugins.BUILT_IN["reward"]:
        settings = getattr(plugins.load("reward", name), "Settings", None)
        if settings is not None:
            parts.append(_section(f"[rewards.{name}]", settings))
    parts.append(_section('[rewards."package.module:function"], and every other reward', FunctionSettings))
    return "\n".join(parts).rstrip() + "\n"


def metrics_page() -> str:
    """Return the page of all metrics."""
    lines = [
        "# Metrics\n",
        "Generated from the catalogue in `steadyrl/core/metrics.py` by `make docs`. Every line of `metrics.jsonl`",
        "holds the step, the attempt (0 at first, one more for every resume), the time, and these metrics. A metric",
        "that a run could not measure is missing or null, never 0. A metric with the unit `share` is the share (0 to",
        "1) of what its meaning describes. Numbers per token are means over the policy's tokens; only `loss/` is",
        "averaged as the loss itself is (GRPO's `mean`), so that its parts, times their coefficients, add up to",
        "`loss/total`.\n",
        "| metric | unit | better | meaning |",
        "|---|---|---|---|",
    ]
    lines += [f"| `{m.name}` | {m.unit} | {m.better} | {m.meaning.replace('|', chr(92) + '|')} |" for m in CATALOGUE]
    return "\n".join(lines) + "\n"


def doctor_pages() -> dict[str, str]:
    """Return every generated page by its path below docs/doctor."""
    made = {f"{check.name}.md": check_page(check) for check in CHECKS}
    return {**made, "names.md": names_page()}


def check_page(check: Check) -> str:
    """Return the page of a check, made from its record."""
    looks = " and ".join(" or ".join(f"`{name}`" for name in need.split("|")) for need in check.needs)
    steps = f" It needs {check.min_steps} steps at least." if check.min_steps > 1 else ""
    needs = f"It needs {looks}, [as your trainer calls them](names.md).{steps}"
    parts = [
        f"# {check.name}",
        f"**{check.title}**",
        f"In a healthy run: {check.healthy[0].lower()}{check.healthy[1:]}",
        "## What is seen",
        check.symptom,
        needs if looks else "It looks at whatever the log holds, and says what it lacks.",
        "## What is behind it, and what to do",
        "The doctor prints the name of the cause in brackets. Here what tells it from the others follows each name.",
        "\n".join(_causes(check)),
        "## Where the rule comes from",
        f"{check.source[0].upper() if check.source.split()[0].islower() else check.source[0]}{check.source[1:]}.",
        f"{GENERATED} [All checks, and how to read these pages](README.md).",
    ]
    return "\n\n".join(part.strip() for part in parts).replace("<", "&lt;") + "\n"


def _causes(check: Check) -> Iterator[str]:
    """Yield a line for each cause, those with one remedy together, and their remedy after them."""
    for remedy in dict.fromkeys(cause.remedy for cause in check.causes):
        for cause in (cause for cause in check.causes if cause.remedy == remedy):
            yield f"- **{cause.name}**: {cause.sign}. {_known_from(cause)}"
        yield f"\n  *Do:* {remedy.strip()}\n"


def _known_from(cause: Cause) -> str:
    """Return how it is known that the cause shows so, and what brings it about."""
    reasoned = "Known from its source or from arithmetic only: it led in no run that was examined."
    known = f"Seen in: {cause.measured}." if cause.measured else reasoned
    before = ", ".join(f"[{name}]({name}.md)" for name in cause.follows)
    return known + (f" It often comes from another fault, so look first at {before}." if before else "")


def names_page() -> str:
    """Return the tables of all trainers' names."""
    lines = [
        "# What trainers call their metrics\n",
        f"{GENERATED} A `*` stands for any text. Unit and estimator decide what a number means: one nat per token is",
        "twenty nats per completion of twenty tokens, and of the estimators of a KL only k1 can be negative.",
        "[What each quantity is](quantities.md).\n",
        *(f"- [{table.trainer}](#{table.trainer})" for table in (*TABLES, COMMON)),
        "",
    ]
    for table in (*TABLES, COMMON):
        lines += [f"## {table.trainer}\n", "| its name | quantity | unit | estimator |", "|---|---|---|---|"]
        lines += [
            f"| `{theirs}` | `{name.quantity}` | {name.unit} | {name.estimator} |" for theirs, name in table.meanings()
        ]
        lines.append("")
    return "\n".join(lines).rstrip() + "\n"


def _section(title: str, model: Any) -> str:
    assert issubclass(model, BaseModel)
    lines = [
        f"## {title}\n",
        f"{(model.__doc__ or '').strip().splitlines()[0]}\n",
        "| key | default | limits | meaning |",
    ]
    lines.append("|---|---|---|---|")
    return "\n".join([*lines, *_rows(model)]) + "\n"


def _rows(model: type[BaseModel], prefix: str = "") -> list[str]:
    """Return a line per setting; those of a section inside a section have dotted names."""
    rows = []
    for name, field in model.model_fields.items():
        if isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel):
            rows += _rows(field.annotation, f"{prefix}{name}.")
            continue
        default = "required" if field.default is PydanticUndefined and not field.default_factory else _default(field)
        rows.append(f"| `{prefix}{name}` | {default} | {_limits(field)} | {field.description} |")
    return rows


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
        "## [rewards]\n\nThe weight of every reward, by name. A name is a reward of the task (search: `retrieval`, "
        "`recall`, `precision`,\n`bits`, `worth`, `joint`, `structure`, `parseable`; code: `tests`, `compiles`, "
        "`quality`, `brevity`), a built-in reward (`length`,\n`boolean_format`, `judge`), or an import path "
        'in quotes (`"my_rewards:brevity" = 0.5`). The total reward is the\n'
        "weighted sum. If a reward cannot be computed, the rollout stays unscored. The task's own metric is measured "
        "even\nif it has no weight.\n"
    )


if __name__ == "__main__":
    main()
