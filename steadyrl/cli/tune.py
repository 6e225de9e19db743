"""`steadyrl tune`: the learning rate of a config, found within a budget of samples."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from steadyrl.cli.activity import following
from steadyrl.cli.interrupts import interruptible
from steadyrl.cli.launcher import LAUNCHER, LAUNCHER_ARGS, open_launcher
from steadyrl.cli.terminal import near, note
from steadyrl.core import config as configs
from steadyrl.core.errors import ConfigError
from steadyrl.lab.jobs import Event, Follow, awaited
from steadyrl.lab.tune.tune import Options, require_searchable, tune, tune_in_processes
from steadyrl.show.page import terminal


def tune_command(
    config: Annotated[Path, typer.Argument(help="a TOML file; see `steadyrl examples`")],
    overrides: Annotated[list[str] | None, typer.Argument(help="section.key=value, as many as you like")] = None,
    samples: Annotated[int, typer.Option(min=0, help="completions for the whole search; 0 for 20 runs")] = 0,
    seeds: Annotated[int, typer.Option(min=1, help="seeds of the best three")] = 3,
    also: Annotated[
        list[str] | None, typer.Option(help="another setting: algorithm.args.kl_coef=0.001:0.1, or update.epochs=1:4")
    ] = None,
    folder: Annotated[Path, typer.Option(help="folder of the search; a stopped search goes on")] = Path("runs/tune"),
    processes: Annotated[int, typer.Option("--jobs", min=1, help="number of processes for the search")] = 1,
    launcher: Annotated[str, LAUNCHER] = "",
    launcher_args: Annotated[list[str] | None, LAUNCHER_ARGS] = None,
) -> None:
    """Find the learning rate of a config: a range test, a search by Optuna, and other seeds for the best."""
    settings, folder = configs.load(config, overrides or []), folder.absolute()
    words, budget = [str(config), *(overrides or [])], samples or 20 * settings.run.steps * settings.rollout.rollouts
    options = Options(budget, seeds, dict(map(_bounds, also or [])), words)
    job_launcher = open_launcher(launcher, launcher_args or [], processes)
    require_searchable(settings, options.space)
    steps: dict[str, int] = {}  # of each run
    with following() as activity, interruptible() as interrupts, interrupts.within_steps():

        def show(event: Event) -> None:
            key, kind, value = event
            if kind == "begin":
                steps[key] = value[1]
                activity.begin(f"making the run {key}")
            elif kind == "step":
                activity.count("steps", value, steps[key])
            else:
                note(f"{key}: {value}")

        follow = Follow(event=show, note=note, stop=lambda: interrupts.stop_requested)
        if job_launcher is None:
            result = tune(settings, folder, options, follow)
        else:
            words = ["tune", *words, "--folder", str(folder), "--samples", str(budget), "--seeds", str(seeds)]
            words += [word for bounds in also or [] for word in ("--also", bounds)]
            result = tune_in_processes(job_launcher, processes, words, folder, follow)
    if result is None:
        note("stopped; go on with the same command")
        raise typer.Exit(130)
    from steadyrl.show.report.tune import tune_view, write_tune  # matplotlib takes a second to load

    terminal.show(tune_view(result))
    with awaited(folder):
        print(f"report: {near(write_tune(folder))}")


def _bounds(text: str) -> tuple[str, tuple[float, float, bool]]:
    name, sign, values = text.partition("=")
    low, colon, high = values.partition(":")
    try:
        bounds = float(low), float(high)
    except ValueError:
        bounds = (0.0, 0.0)
    if not sign or not colon or not 0 < bounds[0] < bounds[1]:
        raise ConfigError(f"--also {text}: expected NAME=LOW:HIGH with 0 < LOW < HIGH, as in update.epochs=1:4")
    return name, (*bounds, low.isdigit() and high.isdigit())
