"""`steadyrl judge`: how good is an AI judge, before anyone trains on its verdicts?"""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from steadyrl.cli.activity import following
from steadyrl.cli.terminal import note
from steadyrl.core import config as configs
from steadyrl.core import plugins
from steadyrl.core.errors import ConfigError
from steadyrl.core.rundir import write_json, write_text
from steadyrl.core.words import counted, percent
from steadyrl.loop.evaluate import pick_heldout
from steadyrl.loop.rewards.judge.settings import JudgeSettings
from steadyrl.show.page.markdown import page
from steadyrl.show.page.markup import interval, number
from steadyrl.show.page.records import Heading, Items, Note, Record, Table, numbers
from steadyrl.show.page.terminal import show

if TYPE_CHECKING:
    from steadyrl.loop.rewards.judge.agreement import Estimate
    from steadyrl.loop.rewards.judge.calibration import Calibration

_FEW = 20  # problems, below which the intervals are too narrow


def judge_command(
    config: Annotated[Path, typer.Argument(help="a TOML file whose section rewards.judge names the judge")],
    overrides: Annotated[list[str] | None, typer.Argument(help="section.key=value")] = None,
    problems: Annotated[int, typer.Option(min=1, help="number of training problems to use, spread over all")] = 40,
    repeats: Annotated[int, typer.Option(min=1, help="how many times every question is asked")] = 3,
    as_json: Annotated[bool, typer.Option("--json", help="print everything as JSON")] = False,
    report: Annotated[
        Path | None, typer.Option(help="also write judge.md and judge.json into a folder", file_okay=False)
    ] = None,
) -> None:
    """Compare the judge with the task's own tests on known answers; measure consistency, biases and cost."""
    from steadyrl.loop.rewards.judge.calibration import calibrate

    settings = configs.load(config, overrides or [])
    judge = settings.rewards.get("judge")
    if not isinstance(judge, JudgeSettings):
        raise ConfigError(
            "the config has no judge; expected a section [rewards.judge] with the model that judges and its address"
        )
    with following() as activity:
        task = plugins.open_task(settings.task.name, settings.task.args, settings.run.seed)
        selected = pick_heldout(plugins.problems_of(task, "train"), problems)
        activity.begin(f"asking the judge about answers to {counted(len(selected), 'problem')}, {repeats} times")
        calibration = calibrate(judge, task, selected, repeats)
    view, record = calibration_view(calibration), asdict(calibration)
    # First: what was paid for must not be lost with a report that cannot be written.
    if as_json:
        print(json.dumps(record, indent=2), flush=True)
    else:
        show(view)
    if report is not None:
        write_json(report / "judge.json", record)
        write_text(report / "judge.md", page([Heading("How good the judge is", 1), *view]))
        note(f"written: {report / 'judge.md'}")


def calibration_view(calibration: Calibration) -> list[Record]:
    """Return the results as page and terminal show them."""
    metric, items = calibration.metric, []
    items.append(
        f"agrees with {metric} on pairs of answers to one problem: {_estimate(calibration.concordance)} (chance 0.5)"
    )
    items.append(f"rank correlation with {metric}: {_estimate(calibration.rank_correlation)}")
    if calibration.same is not None:
        items.append(
            f"asked {calibration.repeats} times: {percent(calibration.same)} of the answers get the same value, "
            f"mean deviation {number(calibration.spread)}"
        )
    if calibration.orders_agree is not None:
        items.append(f"both orders of a pair agree: {_estimate(calibration.orders_agree)}")
        items.append(f"the first of two wins: {_estimate(calibration.first_place)} (0.5 means no bias)")
    if calibration.injection is not None:
        items.append(f"a sentence to the judge raises a wrong answer by {_estimate(calibration.injection)}")
    costs = [f"{name.removeprefix('judge/')} {value:g}" for name, value in calibration.costs.items()]
    items.append(f"requests and cost: {', '.join(costs)}")
    if calibration.problems < _FEW:
        items.append(f"fewer than {_FEW} problems: the intervals are too narrow")
    kinds = [(kind.name, f"{kind.answers}", number(kind.tests), number(kind.judge)) for kind in calibration.kinds]
    return [
        Note(
            f"judge: {calibration.model}, mode {calibration.mode}; {calibration.answers} known answers to "
            f"{counted(calibration.problems, 'problem')}, {calibration.unscored} without a verdict"
        ),
        Table(("answers", *numbers("n", metric, "judge")), kinds),
        Items(items),
    ]


def _estimate(estimate: Estimate | None) -> str:
    if estimate is None:
        return "cannot be determined"
    return f"{number(estimate.value)} {interval([estimate.low, estimate.high])}"
