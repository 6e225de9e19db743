"""Write the pages of commands, settings, metrics and checks from the code: `make docs`. Tests hold them equal."""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import typer
from pydantic import BaseModel
from pydantic_core import PydanticUndefined
from typer.cli import get_docs_for_click

from steadyrl.cli.main import COMMANDS, app
from steadyrl.core import plugins
from steadyrl.core.config import Config
from steadyrl.core.metrics import CATALOGUE
from steadyrl.core.sections import FunctionSettings
from steadyrl.doctor.check import Cause, Check
from steadyrl.doctor.examine import CHECKS
from steadyrl.doctor.names.identify import COMMON, TABLES
from steadyrl.loop.preflight.run import CHECKS as PREFLIGHT
from steadyrl.loop.tasks.check import CHECKS as OF_TASKS

DOCS = Path(__file__).parent.parent / "docs"
GENERATED = "Generated from the code by `make docs`."
WRITTEN = ("README.md", "quantities.md", "statistics.md")  # of docs/doctor, by hand


def main() -> None:
    """Write all generated pages; one of the doctor whose check is gone goes too."""
    (DOCS / "commands.md").write_text(commands_page(), encoding="utf-8")
    (DOCS / "config.md").write_text(config_page(), encoding="utf-8")
    (DOCS / "metrics.md").write_text(metrics_page(), encoding="utf-8")
    (DOCS / "preflight-checks.md").write_text(preflight_page(), encoding="utf-8")
    (DOCS / "task-checks.md").write_text(tasks_page(), encoding="utf-8")
    doctor = DOCS / "doctor"
    for page in {*doctor.glob("*.md")} - {doctor / name for name in (*doctor_pages(), *WRITTEN)}:
        page.unlink()
    for name, text in doctor_pages().items():
        (doctor / name).write_text(text, encoding="utf-8")


def commands_page() -> str:
    """Return the page of all commands: what ``--help`` says of each."""
    group = typer.main.get_command(app)
    parts = [
        "# Commands\n",
        "Generated from the code by `make docs`. `steadyrl COMMAND --help` shows the same text in a terminal.",
        "Overrides such as `run.steps=50` stand behind the config; [Settings](config.md) lists all names.\n",
    ]
    for heading in dict.fromkeys(entry.panel for entry in COMMANDS.values()):
        parts += [f"## {heading}\n"]
        for name in (name for name, entry in COMMANDS.items() if entry.panel == heading):
            context = typer.Context(group, info_name="steadyrl", **group.context_settings)
            command = group.get_command(context, name)
            parts.append(get_docs_for_click(obj=command, ctx=context, indent=2, call_prefix="steadyrl").rstrip() + "\n")
    return "\n".join(parts).rstrip() + "\n"


def config_page() -> str:
    """Return the page of all settings."""
    parts = [
        "# Settings\n",
        "Generated from the code by `make docs`. A config is a TOML file with these sections. Any value can be changed",
        "on the command line as `section.key=value`. Every run writes all its settings, defaults included, to its",
        "`resolved.json`. An empty value, as in `run.target=`, unsets a setting whose default is `None`.\n",
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
        "Generated from the catalogue `steadyrl/core/metrics.toml` by `make docs`. Each line of `metrics.jsonl` holds",
        "the step, the attempt (0 at first, plus 1 for every resume), the time, and these metrics. A missing or null",
        "metric could not be measured; 0 is always a measured value. The unit `share` means a share from 0 to 1.",
        "Numbers per token are means over the policy's tokens. Metrics under `loss/` are averaged as the loss is",
        "(GRPO's `mean`), so the parts, times their coefficients, add up to `loss/total`.\n",
        "| metric | unit | better | meaning |",
        "|---|---|---|---|",
    ]
    lines += [f"| `{m.name}` | {m.unit} | {m.better} | {m.meaning.replace('|', chr(92) + '|')} |" for m in CATALOGUE]
    return "\n".join(lines) + "\n"


def doctor_pages() -> dict[str, str]:
    """Return every generated page by its path below docs/doctor."""
    made = {f"{check.name}.md": check_page(check) for check in CHECKS}
    return {**made, "names.md": names_page()}


def check_page(check: Check[Any]) -> str:
    """Return the page of a check, made from its record."""
    looks = " and ".join(" or ".join(f"`{name}`" for name in need.split("|")) for need in check.needs)
    steps = f" The check needs at least {check.min_steps} steps." if check.min_steps > 1 else ""
    needs = f"The check needs {looks} ([names by trainer](names.md)).{steps}"
    parts = [
        f"# {check.name}",
        f"**{check.title}**",
        f"In a healthy run: {check.healthy[0].lower()}{check.healthy[1:]}",
        "## Symptoms",
        check.symptom,
        needs if looks else "The check reads all metrics of the log, and names missing metrics.",
        "## Causes and remedies",
        "The doctor prints the name of the cause in brackets. Each name is followed by the sign of the cause.",
        "\n".join(_causes(check, _known_from)),
        "## Source of the rule",
        f"{check.source[0].upper() if check.source.split()[0].islower() else check.source[0]}{check.source[1:]}.",
        f"{GENERATED} [All checks](README.md#checks).",
    ]
    return "\n\n".join(part.strip() for part in parts).replace("<", "&lt;") + "\n"


def preflight_page() -> str:
    """Return the page of the preflight's checks."""
    return room_page(
        "The checks of the preflight",
        "[The preflight](preflight.md) prints a line for each check, in this order. A failure or a warning comes with "
        "the name of its cause.",
        PREFLIGHT,
    )


def tasks_page() -> str:
    """Return the page of the checks of a task."""
    return room_page(
        "The checks of a task",
        "`steadyrl task check CONFIG` asks whether a task is sound, before training and without a model. Every "
        "finding is a failure. Rewards by an AI judge are left out unless there is no other.",
        OF_TASKS,
    )


def room_page(title: str, about: str, checks: Sequence[Check[Any]]) -> str:
    """Return a page of several checks, by topic."""
    parts = [f"# {title}", f"{about} {GENERATED}"]
    for topic in dict.fromkeys(check.topic for check in checks):
        parts.append(f"## {topic}")
        for check in (check for check in checks if check.topic == topic):
            parts += [f"### {check.name}", f"**{check.title}**", f"What must hold: {check.healthy}"]
            parts.append("\n".join(_causes(check, _settings)).strip())
    return "\n\n".join(filter(None, parts)).replace("<", "&lt;") + "\n"


def _causes(check: Check[Any], remark: Callable[[Cause], str]) -> Iterator[str]:
    """Yield a line for each cause, those with one remedy together, and their remedy after them."""
    for remedy in dict.fromkeys(cause.remedy for cause in check.causes):
        for cause in (cause for cause in check.causes if cause.remedy == remedy):
            yield f"- **{cause.name}**: {cause.sign}. {remark(cause)}".rstrip()
        yield f"\n  *Do:* {remedy.strip()}\n"


def _known_from(cause: Cause) -> str:
    """Return how it is known that the cause shows so, and what brings it about."""
    reasoned = "Reasoned from a source or from arithmetic; not seen as the leading cause of a run."
    known = f"Seen in: {cause.measured}." if cause.measured else reasoned
    names = [follows.partition(":")[0] for follows in cause.follows]
    before = ", ".join(f"[{name}]({name}.md)" for name in names)
    return known + (f" Often caused by another fault: look first at {before}." if before else "")


def _settings(cause: Cause) -> str:
    """Return the settings that the remedy sets, whatever the run."""
    return f"Change: `{' '.join(f'{name}={value}' for name, value in cause.set.items())}`." if cause.set else ""


def names_page() -> str:
    """Return the tables of all trainers' names."""
    lines = [
        "# What trainers call their metrics\n",
        f"{GENERATED} A `*` stands for any text. Unit and estimator decide the meaning of a number: a nat per token is",
        "twenty nats per completion of twenty tokens, and only the estimator k1 of a KL can be negative.",
        "[Quantities and settings](quantities.md) defines each quantity.\n",
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
    rows, below = [], meanings(model)
    for name, field in model.model_fields.items():
        if isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel):
            rows += _rows(field.annotation, f"{prefix}{name}.")
            continue
        default = "required" if field.default is PydanticUndefined and not field.default_factory else _default(field)
        rows.append(f"| `{prefix}{name}` | {default} | {_limits(field)} | {' '.join(below[name].split())} |")
    return rows


def meanings(model: type[BaseModel]) -> dict[str, str]:
    """Return what is said of each setting: the text that stands below its field, or in it."""
    found = {name: field.description for name, field in model.model_fields.items() if field.description}
    for section in reversed(model.__mro__[: model.__mro__.index(BaseModel)]):
        body = ast.parse(textwrap.dedent(inspect.getsource(section))).body[0].body
        found |= {
            field.target.id: below.value.value
            for field, below in pairwise(body)
            if isinstance(field, ast.AnnAssign) and isinstance(below, ast.Expr)
        }
    return found


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
