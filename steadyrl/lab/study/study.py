"""Runs a study: what is missing is started, what was cut is resumed, and what is done is left alone.

FOLDER/plan.json               the rule by which the study is judged, as it was before the first run, and its titles
FOLDER/runs/ARM-sSEED-DIGEST/  holds the run directory; the digest is of every setting
FOLDER/logs/                   what the commands of a launcher printed

A run that differs from another in training longer, and in nothing else, goes on from a copy of it. Up to the end of the
shorter one the two are the same run, to the last bit, so that its steps need not be made again.
"""

from __future__ import annotations

import platform
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

from steadyrl.core.config import Config
from steadyrl.core.errors import AccessError, ConfigError, RunError, SteadyError
from steadyrl.core.rundir import RunDir, appended, read_json, stamp, write_json
from steadyrl.core.words import shell_command
from steadyrl.lab.elsewhere import End, run_commands
from steadyrl.lab.jobs import Follow, config_to_start, find_run, folder_of_job, run_job, share
from steadyrl.lab.launchers.command import Command, Ended, Launcher, our_command
from steadyrl.lab.measure import ended_by
from steadyrl.lab.study.file import Stop
from steadyrl.lab.study.plan import Job, Study, differences, job_of, jobs
from steadyrl.loop.launch import input_digests
from steadyrl.loop.record import write_settings

PLAN = "plan.json"
State = Literal["missing", "cut", "failed", "finished", "ended by a rule"]
DONE: tuple[State, ...] = ("finished", "ended by a rule")


def folder_of(study: Study, root: Path) -> Path:
    """Return the folder of a study: its file's name, the quick version apart from the whole one."""
    return root.absolute() / (f"{study.path.stem}-quick" if study.quick else study.path.stem)


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
    """Make every run of a study that is not done: by a launcher, or one after the other in this process.

    Returns:
        What ended in an error, by the job's key: the study goes on with the others.

    Raises:
        RunError: The rule by which the study is judged is another one than before its first run.
        ConfigError: The launcher cannot start the runs.
        EngineError: The launcher's scheduler does not answer any more.
    """
    user, hours = follow or Follow(), study.file.budget.hours
    until = time.monotonic() + 3600 * hours if hours else float("inf")
    follow = replace(user, stop=lambda: user.stop() or time.monotonic() > until)
    folder = folder_of(study, root)
    all_jobs = jobs(study)
    # The rule is kept before the first run, and refused if it is another one once there are runs; titles may change.
    plan = {"written": time.time(), "inputs": {}, **_check_plan(study, folder)}
    to_make = [job for job in all_jobs if state_of(find_run(folder, job), study.file.stop) not in DONE]
    if to_make:
        inputs, changes = _inputs(study, all_jobs, folder, plan["inputs"])
        plan["inputs"] |= inputs
        plan["accepted"] = [*plan.get("accepted", []), *([changes] if changes else [])]
    write_json(folder / PLAN, {**plan, **study.judged_by(), "study": study.described()})
    to_make.sort(key=lambda job: shorter_run(study, job) is not None)  # last: what goes on from others comes after them
    first = study.warm if study.warm and state_of(find_run(folder, study.warm), ()) not in DONE else None
    follow.begin([*([study.warm] if study.warm else []), *all_jobs], [*([first] if first else []), *to_make])

    def make(selected: Sequence[Job]) -> dict[str, str]:
        if launcher is None:
            return _make_here(study, folder, selected, follow)
        return _launch(study, root, selected, launcher, follow) if selected else {}

    if first is not None and ((failed := make([first])) or follow.stop()):
        return failed
    return make(to_make)


def _check_plan(study: Study, folder: Path) -> dict[str, Any]:
    """Return the plan of the folder; nothing where it has none, or another study's without runs.

    An experiment that the plan lacks has no runs yet, so its expectations may be added.

    Raises:
        RunError: What decides the study is not what the plan says, and the study has runs; or the plan is damaged.
    """
    file, rules = folder / PLAN, study.judged_by()
    plan = read_json(file) if file.is_file() else {}
    kinds = {"expect": dict, "inputs": dict, "accepted": list}
    if not all(isinstance(plan.get(name, kind()), kind) for name, kind in kinds.items()):
        raise RunError(
            f"'{file}' is damaged: 'expect' and 'inputs' hold entries by name, and 'accepted' a list; restore the file"
        )
    rules["expect"] = {arm: expect for arm, expect in rules["expect"].items() if arm in plan.get("expect", {})}
    changed = [name for name, value in rules.items() if plan.get(name) != value] if file.is_file() else []
    if changed and any(find_run(folder, job) for job in jobs(study)):
        raise RunError(
            f"{study.path}: {', '.join(changed)} differ from {file}, which was written before the first run; what "
            "decides a study is not changed afterwards. Restore the file, or start a new study under another name"
        )
    return {} if changed else plan


def _inputs(
    study: Study, all_jobs: Sequence[Job], folder: Path, before: Mapping[str, Any]
) -> tuple[dict[str, dict[str, str]], str]:
    """Return digests of each experiment's data and code, by the key of one run, and what of them changed.

    Runs that failed hold nothing fast: what made them fail may be mended.

    Raises:
        RunError: Something changed, and the study does not accept that.
    """
    digests, by_settings, changed = dict[str, dict[str, str]](), dict[str, dict[str, str]](), dict[str, set[str]]()
    for arm in study.arms:
        jobs_of_arm = [job for job in all_jobs if job.arm == arm.name]
        job = next((job for job in jobs_of_arm if job.key in before), jobs_of_arm[0])
        config = job.config
        settings = repr((config.task, [*config.rewards], config.curriculum.name, config.run.seed))
        with suppress(SteadyError):  # a run will say why it cannot have its data
            digests[job.key] = by_settings[settings] = by_settings.get(settings) or input_digests(config)
        recorded = before.get(job.key)
        earlier = recorded if isinstance(recorded, dict) else {}
        changes = {name for name, digest in digests.get(job.key, {}).items() if earlier.get(name, digest) != digest}
        if changes and any(_holds(find_run(folder, job)) for job in jobs_of_arm):
            changed[arm.name] = changes
    names = " and ".join(sorted(set().union(*changed.values())))
    summary = f"{names} of {', '.join(changed)}" if changed else ""
    if changed and not study.accepts_changes:
        raise RunError(
            f"{summary} changed since the first runs in '{folder}', which new runs would be compared with; restore "
            "what changed, start a new study under another name, or add --accept-changed-data to make the missing "
            "runs with it, which the report then says"
        )
    return digests, summary


def _holds(run: RunDir | None) -> bool:
    return run is not None and run.status != "failed"


def _make_here(study: Study, folder: Path, to_make: Sequence[Job], follow: Follow) -> dict[str, str]:
    """Make runs in this process, beside other processes that make runs of the same study."""
    failed: dict[str, str] = {}
    by_key = {job.key: job for job in to_make}

    def is_done(key: str) -> bool:
        return state_of(find_run(folder, by_key[key]), _rules(study, by_key[key])) in DONE

    def make(key: str) -> None:
        job = by_key[key]
        base = shorter_run(study, job)
        if error := make_run(job, folder, _rules(study, job), follow, base, study.accepts_changes):
            failed[key] = error

    share({key: folder_of_job(folder, job) for key, job in by_key.items()}, is_done, make, follow)
    return failed


def _rules(study: Study, job: Job) -> Sequence[Stop]:
    return () if job is study.warm else study.file.stop


def make_run(
    job: Job,
    folder: Path,
    rules: Sequence[Stop],
    follow: Follow,
    base: Job | None = None,
    accepts_changes: bool = False,
) -> str | None:
    """Make a run, or go on with it or with a copy of the shorter ``base``; return the error that ended it, or None."""
    try:
        before = find_run(folder, job)
        if before is None and base is not None and (made_run := find_run(folder, base)) is not None:
            before = copy_run(made_run, config_to_start(job, folder), folder_of_job(folder, job))
        run = run_job(
            job,
            folder,
            before,
            follow.event,
            lambda r: follow.stop() or ended_by(rules, r) is not None,
            accepts_changes,
        )
    except SteadyError as error:
        follow.event((job.key, "failed", str(error)))
        return str(error)
    state = state_of(run, rules)
    follow.event((job.key, "end", state if state in DONE else run.status))
    return None


def _launch(study: Study, root: Path, to_make: Sequence[Job], launcher: Launcher, follow: Follow) -> dict[str, str]:
    folder, by_key = folder_of(study, root), {job.key: job for job in to_make}
    commands = {job.key: _command(study, root, job) for job in to_make}

    def begin(key: str) -> RunProgress:
        return RunProgress(commands[key], partial(find_run, folder, by_key[key]), _rules(study, by_key[key]))

    ends = run_commands(launcher, commands, begin, follow)
    return {key: text for key, (state, text) in ends.items() if state == "failed"}


class RunProgress:
    """A run that a command makes, perhaps on another machine: what is new in its run directory, all that is known."""

    def __init__(self, command: Command, find: Callable[[], RunDir | None], rules: Sequence[Stop] = ()) -> None:
        """Remember how far the run is now."""
        run = find()
        self._command, self._find, self._rules = command, find, rules
        self._reported = False
        self._before = _attempt(run)
        self._saved = _saved(run)
        self._steps = len(run.metrics()) if run else 0
        self._read = stamp(run.metrics_file)[0] if run else 0

    def report(self, follow: Follow) -> None:
        """Say what is new: that the run has begun, and each of its steps."""
        run = self._find()
        if run is None or _attempt(run) == self._before:
            return  # no process has begun the run, or has gone on with it
        if not self._reported:  # epochs have become steps, for the problems are counted
            follow.event((self._command.name, "begin", (self._steps, run.resolved()["run"]["steps"])))
            self._reported = True
        for _, end, record in appended(run.metrics_file, self._read):  # only what is new is read
            self._read, step = end, record.get("step")
            if type(step) is int and step >= self._steps:  # an earlier one is made again, from a checkpoint
                self._steps = step + 1
                follow.event((self._command.name, "step", self._steps))

    @property
    def has_saved(self) -> bool:
        """Whether it has a newer checkpoint than when this was made."""
        return _saved(self._find()) > self._saved

    def end(self, ended: Ended) -> End:
        """Return how it ended, by its run, with what to do if it does not go on."""
        run = self._find()
        state = state_of(run, self._rules)
        if state in DONE:
            return "done", state
        if run is not None and state == "failed":
            return "failed", str(run.info().get("error"))
        reason = self._command.error(ended) or f"it ended: {ended.reason}; start the study again to go on"
        if run is None and ended.code is not None and not self._command.log.is_file():
            reason = (
                f"it ended ({ended.reason}) and left neither a run nor a log in '{self._command.log.parent.parent}'; "
                "give a --folder on a file system that all machines see"
            )
        return "failed" if run is None else "cut", reason


def _attempt(run: RunDir | None) -> tuple[str, int] | None:
    return (run.path.name, run.info().get("attempt") or 0) if run else None


def _saved(run: RunDir | None) -> int:
    return max(run.checkpoints(), default=0) if run else 0


def _command(study: Study, root: Path, job: Job) -> Command:
    version = [*["--quick"] * study.quick, *["--accept-changed-data"] * study.accepts_changes]
    if study.seeds == tuple(study.file.seeds[: len(study.seeds)]):
        version += ["--seeds", str(len(study.seeds))]
    words = ("study", "make", str(study.path), job.key, "--folder", str(root), *version)
    return our_command(job.key, words, folder_of(study, root) / "logs")


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
    if failed := _make_here(study, folder, [job], Follow(stop=stop)):
        raise RunError(failed[key])


def require_runs(study: Study, root: Path) -> tuple[Path, list[str]]:
    """Return the folder of a study that has runs, and what of their data and code changed and was accepted.

    Raises:
        ConfigError: It has none.
        RunError: The rule by which the study is judged is another one than before its first run.
    """
    folder = folder_of(study, root)
    if not any(find_run(folder, job) for job in jobs(study)):
        make = shell_command("study", "run", study.path, *["--quick"] * study.quick)
        raise ConfigError(f"'{folder}' has no run of this study; make them with: {make}")
    return folder, _check_plan(study, folder).get("accepted", [])


def shorter_run(study: Study, job: Job) -> Job | None:
    """Return the run that a run goes on from, or None where it has to begin anew."""
    if job is study.warm or not (base := study.arm(job.arm).experiment.base):
        return None
    base_job = job_of(study, study.arm(base), job.config.run.seed)
    return base_job if _is_beginning(base_job.config, job.config) else None


def _is_beginning(short: Config, long: Config) -> bool:
    end = short.run.steps
    if set(differences(short, long)) != {"run.steps"} or end >= long.run.steps or short.run.epochs:
        return False
    if any(":" in name for name in long.rewards):
        return False  # a function of the user's may ask how many steps are planned
    if short.evaluate.every and end % short.evaluate.every:
        return False  # the last step of a run is evaluated
    return all(short.update.rate(n, end) == long.update.rate(n, long.run.steps) for n in range(end))


def copy_run(run: RunDir, long: Config, folder: Path) -> RunDir | None:
    """Copy a run that came to its end, with its last checkpoint, as one that was interrupted on its longer way.

    Returns:
        The copy; None where the run did not come to its end.

    Raises:
        AccessError: It cannot be written.
    """
    done = run.checkpoints()
    if run.status != "finished" or not done or done[-1] != run.resolved()["run"]["steps"]:
        return None
    copy, last = RunDir(folder / run.path.name), run.checkpoint_folder(done[-1])
    older = [checkpoint.name for checkpoint in last.parent.iterdir() if checkpoint != last]
    # Without run.json it is no run to anybody, so that a copy that was cut is made again.
    skipped = shutil.ignore_patterns(run.info_file.name, run.resolved_file.name, "writer.lock", "report*", *older)
    try:
        shutil.copytree(run.path, copy.path, ignore=skipped, dirs_exist_ok=True)
    except OSError as error:  # shutil.Error too, a list of all that failed
        raise AccessError(
            f"cannot copy the run '{run.path}' to '{folder}': {error!s:.200}; free some space, and start again"
        ) from error
    write_settings(copy, long, {**read_json(run.info_file), "status": "interrupted", "continues": str(run.path)})
    return copy
