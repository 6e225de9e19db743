"""Runs a study: what is missing is started, what was cut is resumed, and what is done is left alone.

FOLDER/plan.json               the rule by which the study is judged, as it was before the first run, and its titles
FOLDER/runs/ARM-sSEED-DIGEST/  holds the run directory; the digest is of every setting
"""

from __future__ import annotations

import multiprocessing
import signal
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from queue import Empty
from typing import Any, Literal

from steadyrl import config as configs
from steadyrl import launch
from steadyrl.config import Config
from steadyrl.errors import ConfigError, RunError, SteadyError
from steadyrl.rundir import RunDir, read_json, write_json
from steadyrl.studies.measure import ended_by
from steadyrl.studies.plan import Job, Stop, Study, jobs
from steadyrl.train import Watch

PLAN = "plan.json"
_POLL_S = 0.5
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
    return root / (f"{study.path.stem}-quick" if study.quick else study.path.stem)


def find_run(folder: Path, job: Job) -> RunDir | None:
    """Return the newest run of a job, or None."""
    return _newest(folder / "runs" / job.key)


def _newest(place: Path) -> RunDir | None:
    found = sorted(path for path in place.iterdir() if (path / "run.json").is_file()) if place.is_dir() else []
    return RunDir(found[-1]) if found else None


def state_of(run: RunDir | None, rules: Sequence[Stop]) -> State:
    """Return how far a job is."""
    if run is None:
        return "missing"
    if ended_by(rules, run.metrics()):
        return "ended by a rule"
    return {"finished": "finished", "failed": "failed"}.get(run.status, "cut")  # type: ignore[return-value]


def run_study(study: Study, root: Path, processes: int = 1, follow: Follow | None = None) -> dict[str, str]:
    """Make every run of a study that is not done.

    Args:
        study: See ``read_study``.
        root: Its folder is made here.
        processes: Runs at the same time.
        follow: Follows it, and may stop it.

    Returns:
        What ended in an error, by the job's key: the study goes on with the others.

    Raises:
        RunError: The rule by which the study is judged is another one than before its first run.
    """
    follow = follow or Follow()
    folder = folder_of(study, root)
    every = jobs(study)
    _keep_plan(study, folder, every)
    now = [job for job in every if state_of(find_run(folder, job), study.file.stop) not in DONE]
    first = study.warm if study.warm and state_of(find_run(folder, study.warm), ()) not in DONE else None
    follow.begin(every, [*([first] if first else []), *now])
    if first is not None:
        error = make_run(first, folder, (), follow.event, follow.stop)
        if error is not None or follow.stop():
            return {first.key: error} if error else {}
    if processes == 1:
        return _in_turn(study, folder, now, follow)
    return _at_once(study, folder, now, processes, follow)


def _keep_plan(study: Study, folder: Path, every: Sequence[Job]) -> None:
    """Keep the rule before the first run, and refuse another one once there are runs; titles may change."""
    file, wanted, described = folder / PLAN, study.judged_by(), {"study": study.described()}
    if not file.is_file():
        write_json(file, {"written": time.time(), **wanted, **described})
        return
    before = read_json(file)
    changed = [name for name in wanted if before.get(name) != wanted[name]]
    if changed and any(find_run(folder, job) for job in every):
        raise RunError(
            f"{study.path}: {', '.join(changed)} differ from {file}, which was written before the first run; what "
            "decides a study is not changed afterwards. Restore the file, or start a new study under another name"
        )
    written = time.time() if changed else before.get("written")
    write_json(file, {"written": written, **wanted, **described})


def _in_turn(study: Study, folder: Path, now: Sequence[Job], follow: Follow) -> dict[str, str]:
    failed: dict[str, str] = {}
    enough = _enough(study, follow)
    for job in now:
        if enough():
            break
        error = make_run(job, folder, study.file.stop, follow.event, enough)
        if error is not None:
            failed[job.key] = error
    return failed


def make_run(
    job: Job, folder: Path, rules: Sequence[Stop], tell: Tell, asked: Callable[[], bool] = lambda: False
) -> str | None:
    """Make a run, or go on with it; return the error that ended it, or None."""
    before = find_run(folder, job)
    records: list[Mapping[str, Any]] = list(before.metrics()) if before else []

    @contextmanager
    def steps(total: int) -> Iterator[None]:
        tell((job.key, "begin", (len(records), total)))
        yield

    def step(record: Mapping[str, Any]) -> None:
        records.append(record)
        tell((job.key, "step", record["step"] + 1))

    watch = Watch(steps=steps, step=step, stop=lambda: asked() or ended_by(rules, records) is not None)
    try:
        if before is not None:
            run = launch.run(resume=before, watch=watch)
        else:
            run = launch.run(_placed(job, folder), watch=watch)
    except SteadyError as error:
        tell((job.key, "failed", str(error)))
        return str(error)
    tell((job.key, "end", run.status))
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


def _at_once(study: Study, folder: Path, now: Sequence[Job], processes: int, follow: Follow) -> dict[str, str]:
    """Make several runs at a time, each in a process of its own."""
    context = multiprocessing.get_context("spawn")
    failed: dict[str, str] = {}
    with context.Manager() as manager:
        events, stop = manager.Queue(), manager.Event()

        def drain() -> None:
            while True:
                try:
                    follow.event(events.get_nowait())
                except Empty:
                    return

        enough = _enough(study, follow)
        with ProcessPoolExecutor(processes, mp_context=context, initializer=_ignore_interrupts) as pool:
            pending = {pool.submit(_make_apart, job, folder, study.file.stop, events, stop): job for job in now}
            while pending:
                if enough():
                    stop.set()
                try:
                    done = next(as_completed(pending, timeout=_POLL_S))
                except TimeoutError:
                    drain()
                    continue
                error = done.result()
                if error is not None:
                    failed[pending[done].key] = error
                del pending[done]
            drain()
    return failed


def _ignore_interrupts() -> None:
    """Leave Ctrl-C to the process that the user sees; it asks the runs to stop after their step."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def _make_apart(job: Job, folder: Path, rules: Sequence[Stop], events: Any, stop: Any) -> str | None:
    return None if stop.is_set() else make_run(job, folder, rules, events.put, stop.is_set)


def require_runs(study: Study, root: Path) -> Path:
    """Return the folder of a study that has runs.

    Raises:
        ConfigError: It has none.
    """
    folder = folder_of(study, root)
    if not any(find_run(folder, job) for job in jobs(study)):
        quick = " --quick" if study.quick else ""
        raise ConfigError(
            f"'{folder}' has no run of this study; make them with: steadyrl study run {study.path}{quick}"
        )
    return folder
