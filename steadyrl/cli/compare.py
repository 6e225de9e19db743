"""`steadyrl compare`: is one model better than another, and could this set of problems have shown it?"""

from __future__ import annotations

import json
import math
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from steadyrl.cli.activity import following
from steadyrl.cli.terminal import note
from steadyrl.core import config as configs
from steadyrl.core.errors import ConfigError
from steadyrl.core.rundir import RunDir
from steadyrl.lab.compare.compare import Options, compare
from steadyrl.lab.jobs import Follow
from steadyrl.show.page.terminal import show
from steadyrl.show.report.compare import comparison_view, write_comparison

EXAMPLES = 2  # wins shown, and losses; the report has more


class Decoding(StrEnum):
    """How answers are sampled."""

    sampled = "sampled"
    greedy = "greedy"


def compare_command(
    first: Annotated[
        str, typer.Argument(help="A: 'base', a run, RUN@STEP, a checkpoint or a model folder", metavar="A")
    ],
    second: Annotated[str, typer.Argument(help="B: like A; the verdict is about B", metavar="B")],
    overrides: Annotated[list[str] | None, typer.Argument(help="section.key=value, as many as you like")] = None,
    task: Annotated[
        Path | None,
        typer.Option(help="a TOML file or a run with the task, rewards, sampling and seed to use; by default B or A"),
    ] = None,
    samples: Annotated[
        int | None, typer.Option(min=1, help="number of answers to each problem; 4, or 1 if greedy")
    ] = None,
    problems: Annotated[int | None, typer.Option(min=0, help="number of held-out problems; 0 for all")] = None,
    decoding: Annotated[Decoding | None, typer.Option(help="the answers to judge; evaluate.deploy if left out")] = None,
    metric: Annotated[str | None, typer.Option(help="a reward part, or 'reward' for the total")] = None,
    margin: Annotated[float | None, typer.Option(help="largest difference that does not matter")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="print a JSON object instead of text")] = False,
    report: Annotated[
        Path | None,
        typer.Option(help="also write comparison.html here, and save each answer at once", file_okay=False),
    ] = None,
) -> None:
    """Compare two models on the same held-out problems with the same seeds. Exit code 0: compared, 2: could not."""
    if margin is not None and not 0 < margin < math.inf:
        raise ConfigError(f"--margin is {margin:g}; expected a finite number above 0, in units of the metric")
    if extra_models := [word for word in overrides or () if "=" not in word]:
        raise ConfigError(
            f"got a third model, '{extra_models[0]}'; expected two, A and B. `steadyrl report RUN RUN RUN` draws the "
            "curves of more runs together, and `steadyrl web` compares the marked ones"
        )
    source = task or _run_of(second) or _run_of(first)
    if source is None:
        raise ConfigError(
            f"neither '{first}' nor '{second}' is a run directory, so the problems are unknown; check the paths, or "
            "give --task with a config or a run. Two logs are compared by `steadyrl doctor A B`"
        )
    if source.is_dir():
        config = configs.of_run(RunDir.open(source), overrides or [])
    else:
        config = configs.load(source, overrides or [])
    deploy = config.evaluate.deploy if decoding is None else decoding.value
    if deploy == "greedy" and samples is not None and samples > 1:
        raise ConfigError(f"--samples is {samples}, but greedy answers are all the same; leave it out, or sample")
    options = Options(samples, problems, deploy, metric, margin)
    with following() as activity:
        record = compare((first, second), config, options, report, Follow(note=activity.phase))
    if as_json:
        print(json.dumps(record, indent=2))
    else:
        show(comparison_view(record, examples=EXAMPLES))
    if report is not None:
        with following() as activity:
            activity.begin("writing the report")
            path = write_comparison(report)
        note(f"report: {path}")


def _run_of(subject: str) -> Path | None:
    run_path, _, step = subject.rpartition("@")
    paths = [Path(name) for name in (subject, run_path if step.isdecimal() else "") if name]
    return next((run.path for path in paths if (run := RunDir.find(path))), None)
