"""`steadyrl task check`: is a task sound before anyone trains on it?"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from steadyrl.cli.terminal import printable
from steadyrl.core import config as configs
from steadyrl.core import plugins
from steadyrl.core.metrics import answer_means
from steadyrl.core.protocols import Task
from steadyrl.loop.evaluate import evaluate_rules, pick_heldout
from steadyrl.loop.preflight.run import finding_lines
from steadyrl.loop.tasks.check import check_task, terms_to_check

_RULE_WIDTH = 16  # characters of a rule's name in a line

app = typer.Typer(help="Look at a task before training on it.", no_args_is_help=True)


@app.callback()
def task_commands() -> None:
    """Look at a task before training on it."""


@app.command("check")
def check_command(
    config: Annotated[Path, typer.Argument(help="a TOML file; see examples/")],
    overrides: Annotated[list[str] | None, typer.Argument(help="section.key=value")] = None,
) -> None:
    """Check that gold answers score high, empty and wrong ones low, and that scoring repeats. Exit code 1 if not."""
    settings = configs.load(config, overrides or [])
    console = Console()
    console.width = max(console.width, 130)  # a table of numbers is unreadable when wrapped
    findings = check_task(settings)
    for line in finding_lines(findings):
        console.print(printable(line), highlight=False, markup=False)  # names and texts of problems are not markup
    _baselines(settings, console)
    if any(finding.state == "found" for finding in findings):
        raise typer.Exit(1)


def _baselines(settings: configs.Config, console: Console) -> None:
    """Show the scores of answers that need no model."""
    task = plugins.open_task(settings.task.name, settings.task.args, settings.run.seed)
    plugins.require_members(f"the task '{settings.task.name}'", task, Task, later=("ask", "show"))
    rules = plugins.functions_of(task, "baselines")
    if not rules:
        return
    problems = pick_heldout(plugins.problems_of(task, "heldout"), settings.evaluate.problems)
    records = evaluate_rules(rules, problems, terms_to_check(settings, task), task.metric)
    by_rule = {name: answer_means(records, name) for name in rules}
    measured = [
        task.metric,
        *sorted({part for rule_means in by_rule.values() for part in rule_means} - {task.metric, "reward"}),
    ]
    table = Table(title=f"answers without a model, {len(problems)} held-out problems", title_justify="left", box=None)
    table.add_column("", no_wrap=True)
    ranked = sorted(by_rule.items(), key=lambda item: item[1].get(task.metric, 0.0))
    for name, _ in ranked:
        table.add_column(name, justify="right", max_width=_RULE_WIDTH)  # a row per rule would be too wide
    for part in measured:
        values = (f"{rule_means[part]:.3f}" if part in rule_means else "-" for _, rule_means in ranked)
        table.add_row(part.replace("_", " "), *values)
    console.print(table)
