"""`steadyrl train` and `steadyrl sample`."""

from __future__ import annotations

import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer

from steadyrl import checkpoint, record
from steadyrl import config as configs
from steadyrl.cli.preflight import verdict_lines
from steadyrl.cli.progress import Progress, note
from steadyrl.config import Config
from steadyrl.errors import ConfigError, RunError
from steadyrl.evaluate import greedy_sampling
from steadyrl.preflight.run import preflight, summary_line
from steadyrl.rollout.collect import collect
from steadyrl.rundir import RunDir
from steadyrl.train import Session, Watch, open_session, train

# What a run may change on its way without becoming another one.
_FREE_ON_RESUME = (
    *("run.steps", "run.epochs", "run.checkpoint_every", "run.keep_checkpoints", "run.rollouts_every"),
    *("judge.base_url", "judge.key_env", "judge.workers", "judge.retries", "judge.max_failed"),  # the server may move
)


def train_command(
    config: Annotated[Path | None, typer.Argument(help="a TOML file; see examples/")] = None,
    overrides: Annotated[list[str] | None, typer.Argument(help="section.key=value, as many as you like")] = None,
    resume: Annotated[Path | None, typer.Option(help="a run directory to go on with")] = None,
) -> None:
    """Train a policy, evaluate it on held-out problems before and after, and write the report."""
    overrides = overrides or []
    # The session comes first: a config that cannot be run leaves no run directory, and an old run as it was.
    if resume is not None:
        # With --resume there is no config file: whatever stands in its place is an override.
        run, settings = _reopen(resume, [*([str(config)] if config else []), *overrides])
        session = open_session(settings)
        _refuse_finished(run, session.config)
        attempt = record.begin_again(run, session.config)
    elif config is None:
        raise ConfigError("give a config file (steadyrl train examples/search.toml) or --resume with a run directory")
    else:
        settings = configs.load(config, overrides)
        session = open_session(settings)
        checked = _check_before(session)
        run, attempt = record.begin(session.config, config.read_text(encoding="utf-8")), 0
        note(checked)
        note(f"run directory: {run.path}")
    with record.outcome(run):
        record.add_model(run, session)
        status = _train(session, run, attempt)
        record.close(run, status)
    if status == "interrupted":
        note(f"stopped and saved; go on with: steadyrl train --resume {run.path}")
        raise typer.Exit(130)
    _report(run)


def sample_command(
    run: Annotated[Path, typer.Argument(help="a run directory")],
    request: Annotated[str, typer.Argument(help="what to ask the policy")],
    samples: Annotated[int, typer.Option(min=1, help="how many answers")] = 3,
    greedy: Annotated[bool, typer.Option(help="the likeliest answer instead of samples")] = False,
    seed: Annotated[int, typer.Option(min=0)] = 0,
) -> None:
    """Ask a run's newest policy, and show what its answers do."""
    directory = RunDir.open(run)
    settings = configs.resolve(directory.resolved())
    session = open_session(settings)
    if checkpoint.load(directory, session.backend) is None:
        raise RunError(f"'{run}' has no checkpoint yet; the first comes after {settings.run.checkpoint_every} steps")
    problem = session.task.ask(request)
    sampling = session.sampling
    if greedy:
        samples, sampling = 1, greedy_sampling(sampling)
    (group,) = collect(session.backend, [problem], samples, sampling, (seed,), environment=session.environment)
    for rollout in group.rollouts:
        print(rollout.text or "(nothing)")
        for line in session.task.show(rollout.text):
            print(f"    {line}")


def _reopen(path: Path, overrides: list[str]) -> tuple[RunDir, Config]:
    run = RunDir.open(path)
    for override in overrides:
        if override.partition("=")[0].strip() not in _FREE_ON_RESUME:
            raise ConfigError(
                f"'{override}' cannot change on resuming; only {', '.join(_FREE_ON_RESUME)} can: run.steps=N trains to "
                "step N. For anything else start a new run"
            )
    return run, configs.resolve(run.resolved(), overrides)


def _refuse_finished(run: RunDir, settings: Config) -> None:
    done = run.checkpoints()
    if done and done[-1] >= settings.run.steps and run.info().get("status") == "finished":
        more = "run.epochs=N" if settings.run.epochs else "run.steps=N"
        raise RunError(
            f"'{run.path}' is finished: {done[-1]} of {settings.run.steps} steps; add {more} to train longer"
        )


def _train(session: Session, run: RunDir, attempt: int) -> str:
    with Progress(session.config.run.steps) as progress, _interruptible() as stop:
        watch = Watch(
            phase=progress.phase, step=progress.step, finding=progress.finding, action=progress.action, stop=stop
        )
        return train(session, run, attempt, watch)


def _check_before(session: Session) -> str:
    """Make the preflight, stop or warn where something is wrong, and return its summary.

    Raises:
        ConfigError: Something is wrong, and the config says to stop.
    """
    wanted = session.config.run.preflight
    if wanted == "off":
        return "preflight: off"
    verdicts = preflight(session)
    failed = [verdict for verdict in verdicts if verdict.passed is False]
    for line in verdict_lines(failed)[:-1]:
        note(line)
    if failed and wanted == "stop":
        names = ", ".join(verdict.name for verdict in failed)
        raise ConfigError(
            f"the preflight failed: {names} ({failed[0].message}); mend what it says above, or set run.preflight=warn "
            "to train all the same"
        )
    return summary_line(verdicts)


@contextmanager
def _interruptible() -> Iterator[Callable[[], bool]]:
    """Make the first Ctrl-C a request to stop after the step, the second an interrupt at once."""
    asked: list[float] = []

    def handle(number: int, frame: object) -> None:
        if asked:
            raise KeyboardInterrupt
        asked.append(time.monotonic())
        note("stopping after this step and saving; press Ctrl-C again to stop at once")

    before = signal.signal(signal.SIGINT, handle)
    try:
        yield lambda: bool(asked)
    finally:
        signal.signal(signal.SIGINT, before)


def _report(run: RunDir) -> None:
    from steadyrl.cli.report import show_report

    show_report(run)
    sys.stdout.flush()
