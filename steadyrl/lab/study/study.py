"""Runs a study: what is missing is started, what was cut is resumed, and what is done is left alone.

FOLDER/plan.json               the rule by which the study is judged, as it was before the first run, and its titles
FOLDER/runs/ARM-sSEED-DIGEST/  holds the run directory; the digest is of every setting
FOLDER/logs/                   what the commands of a launcher printed

A run that a launcher makes and that was cut while nobody asked for it (a preemption, a time limit, a lost machine) is
started again if it has saved a checkpoint since it was started; without one it would only be cut again.
"""

from __future__ import annotations

import platform
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Literal

from steadyrl.core import config as configs
from steadyrl.core.config import Config
from steadyrl.core.errors import ConfigError, RunError, SteadyError
from steadyrl.core.rundir import RunDir, read_json, write_json
from steadyrl.lab.launchers.command import Command, Ended, Launcher
from steadyrl.lab.launchers.wait import wait
from steadyrl.lab.measure import ended_by
from steadyrl.lab.study.file import Stop
from steadyrl.lab.study.followed import Followed
from steadyrl.lab.study.longer import copied, shorter
from steadyrl.lab.study.plan import Job, Study, jobs
from steadyrl.loop import launch
from steadyrl.loop.train import Watch

PLAN = "plan.json"
State = Literal["missing", "cut", "failed", "finished", "ended by a rule"]
DONE: tuple[State, ...] = ("finished", "ended by a rule")
# What a run says: its key, what happened ("begin", "step", "note", "end", "failed"), and a number or a text.
Event = tuple[str, str, Any]
Tell = Callable[[Event], None]


@dataclass(frozen=True)
class Follow:
    """How a user interface follows a study.

    Attributes:
        begin: Called with all runs, and those that are to be made.
        event: Called with what the runs say.
        stop: Asked after every step; True ends the study, and the present runs are saved.
    """

    begin: Callable[[Sequence[Job], Sequence[Job]], None] = field(default=lambda every, now: None)
    event: Tell = field(default=lambda event: None)
    stop: Callable[[], bool] = field(default=lambda: False)


def folder_of(study: Study, root: Path) -> Path:
    """Return the folder of a study: its file's name, the quick version apart from the whole one."""
    return root.absolute() / (f"{study.path.stem}-quick" if study.quick else study.path.stem)


def find_run(folder: Path, job: Job) -> RunDir | None:
    """Return the newest run of a job, or None."""
    return _newest(folder / "runs" / job.key)


def _newest(place: Path) -> RunDir | None:
    folders = sorted(path for path in place.iterdir() if (path / "run.json").is_file()) if place.is_dir() else []
    return RunDir(folders[-1]) if folders else None


def state_of(run: RunDir | None, rules: Sequence[Stop]) -> State:
    """Return how far a job is."""
    if run is None:
        return "missing"
    if ended_by(rules, run.metrics()):
        return "ended by a rule"
    return {"finished": "finished", "failed": "failed"}.get(run.status, "cut")  # type: ignore[return-value]


def run_study(
    study: Study, root: Path, launcher: Launcher | None = None, follow: Follow | None = None
) -> dict[str, str]:
    """Make every run of a study that is not done.

    Args:
        study: See ``read_study``.
        root: Its folder is made here.
        launcher: Makes the runs; None makes one after the other in this process.
        follow: Follows it, and may stop it.

    Returns:
        What ended in an error, by the job's key: the study goes on with the others.

    Raises:
        RunError: The rule by which the study is judged is another one than before its first run.
        ConfigError: The launcher cannot start the runs.
        EngineError: The launcher's scheduler does not answer any more.
    """
    follow = follow or Follow()
    folder = folder_of(study, root)
    every = jobs(study)
    _keep_plan(study, folder, every)
    now = [job for job in every if state_of(find_run(folder, job), study.file.stop) not in DONE]
    now.sort(key=lambda job: shorter(study, job) is not None)  # last: what goes on from others comes after them
    first = study.warm if study.warm and state_of(find_run(folder, study.warm), ()) not in DONE else None
    follow.begin([*([study.warm] if study.warm else []), *every], [*([first] if first else []), *now])
    enough = _enough(study, follow)

    def make(some: Sequence[Job]) -> dict[str, str]:
        if launcher is None:
            return _in_turn(study, folder, some, follow, enough)
        return _spread(study, root, some, launcher, follow, enough) if some else {}

    if first is not None and ((failed := make([first])) or enough()):
        return failed
    return make(now)


def _keep_plan(study: Study, folder: Path, every: Sequence[Job]) -> None:
    """Keep the rule before the first run, and refuse another one once there are runs; titles may change."""
    file, wanted, described = folder / PLAN, study.judged_by(), {"study": study.described()}
    changed = _changed(study, folder)
    if changed and any(find_run(folder, job) for job in every):
        raise _other_plan(study, file, changed)
    written = read_json(file).get("written") if file.is_file() and not changed else time.time()
    write_json(file, {"written": written, **wanted, **described})


def _changed(study: Study, folder: Path) -> list[str]:
    """Return what decides the study otherwise than the plan that was kept; nothing where none was."""
    file = folder / PLAN
    before = read_json(file) if file.is_file() else study.judged_by()
    return [name for name, value in study.judged_by().items() if before.get(name) != value]


def _other_plan(study: Study, file: Path, changed: Sequence[str]) -> RunError:
    return RunError(
        f"{study.path}: {', '.join(changed)} differ from {file}, which was written before the first run; what "
        "decides a study is not changed afterwards. Restore the file, or start a new study under another name"
    )


def _in_turn(
    study: Study, folder: Path, now: Sequence[Job], follow: Follow, enough: Callable[[], bool]
) -> dict[str, str]:
    failed: dict[str, str] = {}
    for job in now:
        if enough():
            break
        error = make_run(job, folder, _rules(study, job), follow.event, enough, shorter(study, job))
        if error is not None:
            failed[job.key] = error
    return failed


def _rules(study: Study, job: Job) -> Sequence[Stop]:
    return () if job is study.warm else study.file.stop


def make_run(
    job: Job,
    folder: Path,
    rules: Sequence[Stop],
    tell: Tell,
    stop: Callable[[], bool] = lambda: False,
    base: Job | None = None,
) -> str | None:
    """Make a run, or go on with it or with a copy of the shorter ``base``; return the error that ended it, or None."""
    place = RunDir(folder / "runs" / job.key)
    place.path.mkdir(parents=True, exist_ok=True)
    records: list[Mapping[str, Any]] = []

    @contextmanager
    def steps(total: int) -> Iterator[None]:
        tell((job.key, "begin", (len(records), total)))
        yield

    def step(record: Mapping[str, Any]) -> None:
        records.append(record)
        tell((job.key, "step", record["step"] + 1))

    watch = Watch(steps=steps, step=step, stop=lambda: stop() or ended_by(rules, records) is not None)
    try:
        with place.writing():  # two processes that find no run must not begin one each
            before = find_run(folder, job)
            if before is None and base is not None and (shorter_one := find_run(folder, base)) is not None:
                before = copied(shorter_one, _placed(job, folder), place.path)
            if before is not None:
                records += before.metrics()
                run = launch.run(resume=before, watch=watch)
            else:
                run = launch.run(_placed(job, folder), watch=watch)
    except SteadyError as error:
        tell((job.key, "failed", str(error)))
        return str(error)
    state = state_of(run, rules)
    tell((job.key, "end", state if state in DONE else run.status))
    return None


def _placed(job: Job, folder: Path) -> Config:
    """Return the settings of a run that is started: its folder, and the policy that it starts from."""
    plain = configs.dump(job.config)
    plain["run"]["folder"] = str(folder / "runs" / job.key)
    if job.start:
        warm = _newest(folder / "runs" / job.start)
        done = warm.checkpoints() if warm else []
        if warm is None or not done:
            raise RunError(f"'{folder / 'runs' / job.start}' holds no finished warm start; run the study again")
        plain["model"]["path"] = str(warm.checkpoint_folder(done[-1]) / "policy")
    return configs.resolve(plain)


def _enough(study: Study, follow: Follow) -> Callable[[], bool]:
    """Return what says that the study ends now: the user, or its budget."""
    hours = study.file.budget.hours
    until = time.monotonic() + 3600 * hours if hours else float("inf")
    return lambda: follow.stop() or time.monotonic() > until


def _spread(
    study: Study, root: Path, now: Sequence[Job], launcher: Launcher, follow: Follow, enough: Callable[[], bool]
) -> dict[str, str]:
    """Make runs by a launcher: a command each, of which only the run directory is known here."""
    folder = folder_of(study, root)
    commands = {job.key: _command(study, root, job) for job in now}
    followed = {job.key: Followed(partial(find_run, folder, job)) for job in now}
    shown: set[str] = set()
    failed: dict[str, str] = {}

    def tell(job: Job) -> None:
        progress = followed[job.key]
        if job.key not in shown and progress.begun:
            follow.event((job.key, "begin", (progress.steps, progress.total)))
            shown.add(job.key)
        for step in progress.new_steps() if job.key in shown else ():
            follow.event((job.key, "step", step))

    def look() -> None:
        for job in now:
            if job.key in followed:
                tell(job)

    def again(ended: Ended) -> bool:
        job = next(job for job in now if job.key == ended.name)
        tell(job)  # what it wrote since the last look; of a run that has ended no step may be told
        before = followed.pop(job.key)
        run = find_run(folder, job)
        state = state_of(run, _rules(study, job))
        if run is not None and (state in DONE or (state == "cut" and enough())):
            follow.event((job.key, "end", state if state in DONE else "interrupted"))
            return False
        if enough():
            return False
        if state == "cut" and before.has_saved:
            follow.event((job.key, "cut", f"cut ({_reason(ended)}); it goes on from its last checkpoint"))
            shown.discard(job.key)
            followed[job.key] = Followed(partial(find_run, folder, job))
            launcher.start([commands[job.key]])
            return True
        failed[job.key] = _why(ended, commands[job.key], run, state)
        follow.event((job.key, "failed", failed[job.key]))
        return False

    launcher.start(list(commands.values()))
    wait(launcher, commands, enough, look, again)
    return failed


def _command(study: Study, root: Path, job: Job) -> Command:
    """Return the command that makes one run; it starts where this process was started."""
    log = (folder_of(study, root) / "logs" / f"{job.key}.log").absolute()
    log.parent.mkdir(parents=True, exist_ok=True)
    version = ["--quick"] if study.quick else []
    if study.seeds == tuple(study.file.seeds[: len(study.seeds)]):
        version += ["--seeds", str(len(study.seeds))]
    words = ("study", "make", str(study.path), job.key, "--folder", str(root), *version)
    return Command(job.key, (sys.executable, "-m", "steadyrl", *words), Path.cwd(), log)


def _why(ended: Ended, command: Command, run: RunDir | None, state: State) -> str:
    """Return why a command ended without a run that is done."""
    if run is not None and state == "failed":
        return str(run.info().get("error"))
    if ended.code is None:
        return f"it ended: {_reason(ended)}; start the study again to go on"
    if run is None and not command.log.is_file():
        return (
            f"it ended ({_reason(ended)}) and left neither a run nor a log in '{command.log.parent.parent}'; give a "
            "--folder on a file system that all machines see"
        )
    if ended.code < 0 or not (line := command.last_line()):
        return f"it ended: {_reason(ended)}; start the study again to go on"
    return line


def _reason(ended: Ended) -> str:
    return ended.why or f"code {ended.code}"


def make_one(study: Study, root: Path, key: str, stop: Callable[[], bool]) -> None:
    """Make one run of a study in this process, for a launcher that another process uses.

    Raises:
        ConfigError: The study has no such run, or it was not begun in this folder.
        RunError: The run failed.
    """
    folder = folder_of(study, root)
    job = next((job for job in [*jobs(study), *([study.warm] if study.warm else [])] if job.key == key), None)
    if job is None:
        raise ConfigError(f"{study.path} has no run '{key}'; it has changed since the run was queued. Start it again")
    if not (folder / PLAN).is_file():
        raise ConfigError(
            f"there is no '{folder / PLAN}' on {platform.node()}, which `steadyrl study run` has written; give a "
            "--folder on a file system that all machines see"
        )
    rules = _rules(study, job)
    if state_of(find_run(folder, job), rules) in DONE:
        return
    error = make_run(job, folder, rules, lambda event: None, stop, shorter(study, job))
    if error is not None:
        raise RunError(error)


def require_runs(study: Study, root: Path) -> Path:
    """Return the folder of a study that has runs.

    Raises:
        ConfigError: It has none.
        RunError: The rule by which the study is judged is another one than before its first run.
    """
    folder = folder_of(study, root)
    if not any(find_run(folder, job) for job in jobs(study)):
        quick = " --quick" if study.quick else ""
        raise ConfigError(
            f"'{folder}' has no run of this study; make them with: steadyrl study run {study.path}{quick}"
        )
    if changed := _changed(study, folder):
        raise _other_plan(study, folder / PLAN, changed)
    return folder
