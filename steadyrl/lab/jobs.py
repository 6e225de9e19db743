"""How the runs of studies and of searches are made: a job has a folder, and whoever holds its lock makes it.

    FOLDER/runs/KEY/    the run directory of a job, and what a search measured of it

Several processes may work on one study or search, also on several machines that share its folder. The system lets go of
a lock when its process ends, however that happens, so what a lost process had begun is free for the others.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from steadyrl.core import config as configs
from steadyrl.core.config import Config
from steadyrl.core.errors import RunError
from steadyrl.core.rundir import JOBS, RunDir
from steadyrl.lab.study.plan import Job
from steadyrl.loop import launch
from steadyrl.loop.train import Watch

POLL_S = 0.5  # between looks at what other processes have done

# What a run says: its key, what happened ("begin", "step", "cut", "end", "failed"), and a number or a text.
Event = tuple[str, str, Any]
Records = Sequence[Mapping[str, Any]]


@dataclass(frozen=True)
class Follow:
    """How a user interface follows a study or a search."""

    begin: Callable[[Sequence[Job], Sequence[Job]], None] = field(default=lambda all_jobs, to_make: None)
    """Called with all runs of a study, and those that are to be made."""
    event: Callable[[Event], None] = field(default=lambda event: None)
    """Called with what the runs say."""
    note: Callable[[str], None] = field(default=lambda text: None)
    """Called with a line that is worth keeping."""
    stop: Callable[[], bool] = field(default=lambda: False)
    """Asked after every step; True ends the study or search, and the present runs are saved."""


@contextmanager
def claimed(folder: Path) -> Iterator[bool]:
    """Hold a folder if no other process does; yield whether this one holds it now.

    Raises:
        AccessError: The folder cannot be written.
    """
    if RunDir(folder).info_file.is_file():
        raise RunError(f"'{folder}' is a run directory; give another --folder")
    with ExitStack() as stack:
        try:
            stack.enter_context(RunDir(folder).writing())
            acquired = True
        except RunError:
            acquired = False
        yield acquired


@contextmanager
def awaited(folder: Path) -> Iterator[None]:
    """Hold a folder, once no other process does."""
    while True:
        with claimed(folder) as acquired:
            if acquired:
                yield
                return
        time.sleep(POLL_S)


def share(
    folders: Mapping[str, Path], is_done: Callable[[str], bool], make: Callable[[str], None], follow: Follow
) -> bool:
    """Make jobs in their order, each once at most, beside other processes; wait for those that others make.

    Returns:
        Whether every job is done; False where ``stop`` ended it.
    """
    remaining, is_waiting = dict(folders), False
    while remaining := {key: folder for key, folder in remaining.items() if not is_done(key)}:
        before = len(remaining)
        for key, folder in list(remaining.items()):
            if follow.stop():
                return False
            with claimed(folder) as acquired:
                if acquired:
                    del remaining[key]
                    if not is_done(key):  # another process may have made it before this one held the folder
                        make(key)
        if len(remaining) == before:
            if not is_waiting:
                follow.note(f"waiting for other processes, which make what is missing ({before})")
            is_waiting = True
            time.sleep(POLL_S)
    return not follow.stop()


def folder_of_job(folder: Path, job: Job) -> Path:
    """Return the folder of a job in that of its study or search."""
    return folder / JOBS / job.key


def find_run(folder: Path, job: Job) -> RunDir | None:
    """Return the newest run of a job, or None."""
    return newest_run(folder_of_job(folder, job))


def newest_run(folder: Path) -> RunDir | None:
    """Return the newest run directory in a folder, or None."""
    folders = sorted(path for path in folder.iterdir() if (path / "run.json").is_file()) if folder.is_dir() else []
    return RunDir(folders[-1]) if folders else None


def run_job(
    job: Job,
    folder: Path,
    before: RunDir | None,
    event: Callable[[Event], None],
    stop: Callable[[Records], bool],
    accept_changed_data: bool = False,
) -> RunDir:
    """Make the run of a job in this process, or go on with ``before``; ``stop`` is asked after every step.

    Raises:
        SteadyError: The run failed, or cannot be begun.
    """
    records: list[Mapping[str, Any]] = [*before.metrics()] if before is not None else []

    def step(record: Mapping[str, Any]) -> None:
        records[record["step"] :] = [record]  # what was made after the last checkpoint is made again
        event((job.key, "step", record["step"] + 1))

    watch = Watch(
        steps=lambda total: event((job.key, "begin", (len(records), total))), step=step, stop=lambda: stop(records)
    )
    config = None if before is not None else config_to_start(job, folder)
    return launch.run(config, (), before, watch, accept_changed_data)


def config_to_start(job: Job, folder: Path) -> Config:
    """Return the settings of a run that is started: its folder, and the policy that it starts from."""
    plain = configs.dump(job.config)
    plain["run"]["folder"] = str(folder_of_job(folder, job))
    if job.start:
        start = folder / JOBS / job.start
        warm = newest_run(start)
        done = warm.checkpoints() if warm else []
        if warm is None or not done:
            raise RunError(f"'{start}' holds no finished warm start; run the study again")
        plain["model"]["path"] = str(warm.checkpoint_folder(done[-1]) / "policy")
    return configs.resolve(plain)
