"""`steadyrl task check`: is a task sound before anyone trains on it?"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from steadyrl.cli.activity import following
from steadyrl.cli.groups import Group
from steadyrl.cli.terminal import show_text
from steadyrl.core import config as configs
from steadyrl.core import plugins
from steadyrl.core.counting.count import begin
from steadyrl.core.metrics import answer_means
from steadyrl.core.protocols import Task
from steadyrl.core.words import counted
from steadyrl.loop.evaluate import evaluate_rules, pick_heldout
from steadyrl.loop.preflight.run import finding_lines
from steadyrl.loop.tasks.check import check_task
from steadyrl.loop.tasks.checked import open_to_check
from steadyrl.show.page.records import Note, Record, Table, numbers
from steadyrl.show.page.terminal import show

app = typer.Typer(cls=Group, help="Look at a task before training.", no_args_is_help=True, add_completion=False)


@app.callback()
def task_commands() -> None:
    """Look at a task before training."""


@app.command("check")
def check_command(
    config: Annotated[Path, typer.Argument(help="a TOML file; see `steadyrl examples`")],
    overrides: Annotated[list[str] | None, typer.Argument(help="section.key=value")] = None,
) -> None:
    """Check that gold answers score high, empty and wrong answers low, and that scoring repeats.

    Exit code 1 if a check fails. A scripted, an empty and a looping policy play an environment; three episodes of the
    scripted policy are shown.
    """
    settings = configs.load(config, overrides or [])
    with following():
        findings = check_task(settings)
        baselines = _baselines(settings)
    for line in finding_lines(findings):
        show_text(line)
    for line in (line for finding in findings for line in finding.evidence):
        show_text(line)
    show(baselines)
    if any(finding.state == "found" for finding in findings):
        raise typer.Exit(1)


def _baselines(settings: configs.Config) -> list[Record]:
    """Return the scores of answers that need no model, nothing where the task has none."""
    task, terms = open_to_check(settings)
    plugins.require_members(f"the task '{settings.task.name}'", task, Task, later=("ask", "show"))
    rules = plugins.functions_of(task, "baselines")
    if not rules:
        return []
    problems = pick_heldout(plugins.problems_of(task, "heldout"), settings.evaluate.problems)
    begin(f"scoring answers without a model to {counted(len(problems), 'problem')}")
    records = evaluate_rules(rules, problems, terms, task.metric)
    by_rule = {name: answer_means(records, name) for name in rules}
    rewards = [name.rpartition(":")[2] for name in settings.rewards]
    metrics = [
        name for name in dict.fromkeys([task.metric or "reward", *rewards]) if any(name in m for m in by_rule.values())
    ]
    rows = [
        (rule, *(f"{rule_means[name]:.3f}" if name in rule_means else "-" for name in metrics))
        for rule, rule_means in sorted(by_rule.items(), key=lambda item: item[1].get(task.metric, 0.0))
    ]
    title = f"answers without a model, {counted(len(problems), 'held-out problem')}"
    return [Note(title), Table(("", *numbers(*(name.replace("_", " ") for name in metrics))), rows)]
