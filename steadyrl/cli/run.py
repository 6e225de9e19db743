"""`steadyrl train` and `steadyrl sample`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from steadyrl.backends.fsdp import torchrun
from steadyrl.backends.fsdp.plugin import follow
from steadyrl.cli.activity import following
from steadyrl.cli.forecast import Outlook
from steadyrl.cli.interrupts import interruptible
from steadyrl.cli.progress import Progress
from steadyrl.cli.report import show, write
from steadyrl.cli.terminal import near, note, printable
from steadyrl.core.counting.count import heard_by
from steadyrl.core.errors import ConfigError
from steadyrl.core.rundir import RunDir
from steadyrl.core.words import shell_command
from steadyrl.loop import launch
from steadyrl.loop.train import Watch, joined


def train_command(
    config: Annotated[Path | None, typer.Argument(help="a TOML file; see `steadyrl examples`")] = None,
    overrides: Annotated[list[str] | None, typer.Argument(help="section.key=value, as many as you like")] = None,
    resume: Annotated[Path | None, typer.Option(help="a run directory to go on with")] = None,
    accept_changed_data: Annotated[
        bool, typer.Option("--accept-changed-data", help="resume although the problems changed; once for the same ones")
    ] = False,
) -> None:
    """Train a policy, evaluate on held-out problems before and after training, and write the report."""
    if torchrun.place().rank > 0:  # rank 0 alone reads the config and writes the run directory
        raise typer.Exit(follow())
    if resume is not None:
        # With --resume there is no config file: an override may stand in its place.
        if config is not None and "=" in str(config):
            overrides, config = [str(config), *(overrides or [])], None
        earlier = None if config or overrides else RunDir.find(resume)
        if earlier and earlier.status == "finished" and not (earlier.report_folder / "report.html").is_file():
            note(f"'{resume}' is finished, but its report is not written; writing it")
            write(earlier)
            show(earlier)
            return
    with Progress() as progress, heard_by(progress.count, progress.begin), interruptible() as interrupts:
        if torchrun.place().ranks > 1:
            torchrun.noted()  # until all ranks have met

        outlook = Outlook(progress.forecast, progress.note)
        opened_runs: list[RunDir] = []

        def opened(run: RunDir) -> None:
            opened_runs.append(run)
            if resume is None:  # otherwise it was named
                progress.note(f"run directory: {near(run.path)}")
            outlook.opened(run)

        cli_watch = Watch(
            opened=opened,
            steps=lambda total: interrupts.within_steps(),
            step=outlook.look,
            ended=lambda run: write(run) if run.status == "finished" else None,
            stop=lambda: interrupts.stop_requested,
        )
        watch = joined(progress.watch, cli_watch)
        try:
            run = launch.run(config, overrides or [], resume, watch, accept_changed_data)
        except KeyboardInterrupt:
            if opened_runs and not interrupts.cut_steps:  # an evaluation before or after the steps was cut
                progress.note(f"go on with: {shell_command('train', '--resume', near(opened_runs[0].path))}")
            raise
    if run.status == "interrupted":  # the command ends as by Ctrl-C
        note(f"stopped and saved; go on with: {shell_command('train', '--resume', near(run.path))}")
        raise typer.Exit(130)
    if sys.stdout.closed:  # a reward may do that
        sys.stdout = sys.stderr
    show(run)


def sample_command(
    run: Annotated[Path, typer.Argument(help="a run directory")],
    request: Annotated[str, typer.Argument(help="the request to the policy")],
    samples: Annotated[int | None, typer.Option(min=1, help="how many answers; 3, or 1 if greedy")] = None,
    greedy: Annotated[bool, typer.Option(help="the likeliest answer instead of samples")] = False,
    seed: Annotated[int, typer.Option(min=0)] = 0,
) -> None:
    """Query a run's newest policy, and show the answers and their results."""
    if greedy and samples is not None and samples > 1:
        raise ConfigError(f"--samples is {samples}, but greedy answers are all the same; leave it out, or sample")
    with following():
        answers = launch.sample(run, request, samples or 3, greedy, seed)
    for answer in answers:
        print(printable(answer.text.strip()) or "(nothing)")
        for line in answer.shows:
            print(f"    {printable(line)}")
