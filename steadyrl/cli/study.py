"""`steadyrl study`: runs the experiments of a study file, and writes what they answer."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn

from steadyrl.cli.activity import drawing_console
from steadyrl.cli.groups import Group
from steadyrl.cli.interrupts import interruptible
from steadyrl.cli.launcher import LAUNCHER, LAUNCHER_ARGS, open_launcher
from steadyrl.cli.terminal import near, note, printable
from steadyrl.core.config import Config, in_steps
from steadyrl.core.words import counted
from steadyrl.lab.jobs import Event, Follow
from steadyrl.lab.study.plan import Job, read_study, unnamed_rewards
from steadyrl.lab.study.study import make_one, run_study

app = typer.Typer(
    cls=Group,
    help="Run a study: experiments with one changed setting each, and their answers.",
    no_args_is_help=True,
    add_completion=False,
)
_FILE = typer.Argument(help="a study file; see studies/", metavar="STUDY.toml")
_QUICK = typer.Option("--quick", help="the study's quick version: fewer seeds and steps")
_SEEDS = typer.Option("--seeds", min=1, help="how many of the file's seeds; by default as many as the version has")
_FOLDER = typer.Option(help="where the runs of all studies are")
_ACCEPT = typer.Option(
    "--accept-changed-data", help="make what is missing although data or code changed; the report says so"
)
_RUNS = Path("runs/studies")
SOON = 0.05  # of the steps of a command, before which its first runs have mostly started and not stepped


@app.command("run")
def run_command(
    study: Annotated[Path, _FILE],
    processes: Annotated[int, typer.Option("--jobs", min=1, help="runs at the same time")] = 1,
    quick: Annotated[bool, _QUICK] = False,
    seeds: Annotated[int | None, _SEEDS] = None,
    folder: Annotated[Path, _FOLDER] = _RUNS,
    launcher: Annotated[str, LAUNCHER] = "",
    launcher_args: Annotated[list[str] | None, LAUNCHER_ARGS] = None,
    accept_changed_data: Annotated[bool, _ACCEPT] = False,
) -> None:
    """Make all missing runs, resume interrupted runs, and write the report."""
    plan = replace(read_study(study, quick, seeds), accepts_changes=accept_changed_data)
    job_launcher = open_launcher(launcher, launcher_args or [], processes, plan.file.launcher)
    for text in unnamed_rewards(plan):
        note(f"note: {text}; correct it before the first run, or under another name of the file")
    with _Display() as display, interruptible() as interrupts, interrupts.within_steps():
        follow = Follow(begin=display.begin, event=display.event, note=note, stop=lambda: interrupts.stop_requested)
        failed = run_study(plan, folder, job_launcher, follow)
    for key, error in failed.items():
        note(f"{key} failed: {error}")
    if interrupts.stop_requested:
        note("stopped and saved; go on with the same command")
        raise typer.Exit(130)
    report_command(study, quick, seeds, folder)
    if failed:
        raise typer.Exit(1)


@app.command("make", hidden=True)
def make_command(
    study: Annotated[Path, _FILE],
    key: Annotated[str, typer.Argument(help="the name of the run's folder")],
    quick: Annotated[bool, _QUICK] = False,
    seeds: Annotated[int | None, _SEEDS] = None,
    folder: Annotated[Path, _FOLDER] = _RUNS,
    accept_changed_data: Annotated[bool, _ACCEPT] = False,
) -> None:
    """Make a single run of a study, for use by a launcher."""
    plan = replace(read_study(study, quick, seeds), accepts_changes=accept_changed_data)
    with interruptible() as interrupts, interrupts.within_steps():
        make_one(plan, folder, key, lambda: interrupts.stop_requested)
    if interrupts.stop_requested:
        raise typer.Exit(130)


@app.command("report")
def report_command(
    study: Annotated[Path, _FILE],
    quick: Annotated[bool, _QUICK] = False,
    seeds: Annotated[int | None, _SEEDS] = None,
    folder: Annotated[Path, _FOLDER] = _RUNS,
    to: Annotated[Path | None, typer.Option(help="folder of the report; the study's folder by default")] = None,
) -> None:
    """Write report.md, pictures and a page of curves from the existing runs; print the verdicts."""
    from steadyrl.show.report.study import write_study  # matplotlib takes a second to load

    page, summary = write_study(read_study(study, quick, seeds), folder, to)
    for name, arm in summary.items():
        print(printable(f"{arm['verdict']:10}  {name}: {arm['finding']}"))
    print(f"report: {near(page)}")


class _Display:
    """One display over all runs of a study: bars in a terminal, lines elsewhere, and the time left."""

    def __init__(self) -> None:
        columns = (
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[more]}"),
        )
        console = drawing_console(stderr=True)
        self._terminal = console.is_terminal
        self._progress = Progress(*columns, console=console, transient=True, disable=not self._terminal)
        self._run_bars: dict[str, TaskID] = {}
        self._waiting: dict[str, Config] = {}  # runs that have not begun
        self._total_steps: dict[str, int] = {}
        self._done_steps: dict[str, int] = {}
        self._own_steps = 0  # steps of this command
        self._started = time.monotonic()
        self._total_bar: TaskID | None = None

    def __enter__(self) -> _Display:
        self._progress.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._progress.stop()

    def begin(self, jobs: Sequence[Job], missing: Sequence[Job]) -> None:
        """Show how many runs there are to make."""
        note(f"{counted(len(jobs), 'run')}; {len(jobs) - len(missing)} done, {len(missing)} to make")
        self._waiting = {job.key: job.config for job in missing}
        self._total_steps = {job.key: job.config.run.steps for job in missing}
        self._done_steps = dict.fromkeys(self._total_steps, 0)
        self._total_bar = self._progress.add_task("all runs", total=sum(self._total_steps.values()), more="")

    def event(self, event: Event) -> None:
        """Show what a run says."""
        key, kind, value = event
        if kind == "begin":
            done, total = value
            self._total_steps[key], self._done_steps[key] = total, done
            if key in self._waiting:
                started = self._waiting.pop(key)
                if started.run.epochs:  # its steps say how many problems an epoch of its task has
                    problems = total * started.rollout.prompts_per_step // started.run.epochs
                    self._total_steps |= {
                        name: in_steps(config, problems).run.steps
                        for name, config in self._waiting.items()
                        if config.task == started.task
                    }
            self._run_bars[key] = self._progress.add_task(key, total=total, completed=done, more="")
            if not self._terminal:
                note(f"{key}: {counted(total, 'step')}{f', {done} of them done' if done else ''}{self._time_left()}")
        elif kind == "step":
            self._own_steps += 1
            self._done_steps[key] = value
            self._progress.update(self._run_bars[key], completed=value)
        else:
            if key in self._run_bars:
                self._progress.remove_task(self._run_bars.pop(key))
            self._total_steps[key] = self._done_steps.get(key, 0)
            note(f"{key}: {value}{self._time_left()}")
        assert self._total_bar is not None, "the study has begun"
        total, completed = sum(self._total_steps.values()), sum(self._done_steps.values())
        self._progress.update(self._total_bar, total=total, completed=completed, more=self._time_left())

    def _time_left(self) -> str:
        steps = sum(self._total_steps.values()) - sum(self._done_steps.values())
        if self._own_steps <= SOON * (self._own_steps + steps) or not steps:
            return ""
        minutes = steps * (time.monotonic() - self._started) / self._own_steps / 60
        return f"; about {minutes:.0f} min left" if minutes >= 1 else "; less than a minute left"
