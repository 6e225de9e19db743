"""The front door: one function starts a run or goes on with one. The command line, studies and benchmarks use it.

run = steadyrl.run("examples/search.toml", ["run.steps=20"])
run.metrics()[-1]["reward/mean"]
steadyrl.sample(run, "a request")[0].text
"""

from __future__ import annotations

import hashlib
import json
import math
import os
from collections.abc import Iterable, Mapping, Sequence
from contextlib import chdir
from dataclasses import dataclass
from datetime import date, time, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any
from uuid import UUID

from pydantic import BaseModel

from steadyrl.backends.fsdp.plugin import meet
from steadyrl.backends.fsdp.torchrun import require_ranks
from steadyrl.core import config as configs
from steadyrl.core import plugins
from steadyrl.core.arguments import checked
from steadyrl.core.config import Config, Overrides
from steadyrl.core.counting.count import begin
from steadyrl.core.counting.interrupts import ending_signals
from steadyrl.core.errors import CheckpointError, ConfigError, DataError, RunError, users_errors
from steadyrl.core.plugins import require_members
from steadyrl.core.protocols import Identified, Referring, Task
from steadyrl.core.rundir import RunDir, file_digests
from steadyrl.core.types import Problem
from steadyrl.core.words import counted
from steadyrl.integrations.trackers.tracked import require_trackers, tracked
from steadyrl.loop import checkpoint, record
from steadyrl.loop.evaluate import greedy_sampling, out_of_patience
from steadyrl.loop.preflight.run import fails, finding_lines, preflight, summary_line
from steadyrl.loop.rollout.collect import collect
from steadyrl.loop.rollout.episode import require_room
from steadyrl.loop.tasks.data_line import data_counts, data_line
from steadyrl.loop.tasks.jsonl import checked_text
from steadyrl.loop.train import Session, Watch, open_session, target_held, train

_SAME_RATE = 0.01  # relative
# What parquet files hold beside the kinds of JSON; a datetime is a date. Their texts are the same in every process.
_SPELLED = (bytes, Decimal, date, time, timedelta, UUID)
_FROM_PYTHON = "# These settings came from Python or a pipe. resolved.json holds every value, defaults included.\n"
_CODE_CHANGED = "the code in '{name}' changed since the run began: rewards before and after may not be comparable"
_FILE_CHANGED = {
    "config.toml": "config.toml changed since the run began, and a resume does not read it: the run goes on with "
    "resolved.json; give what may change behind --resume, as section.key=value",
    "resolved.json": "resolved.json was edited since the run last began or went on: the next steps have its settings",
}
_SESSION_FUNCTION = """# '{name}' is a function of the Python session that started the run. To repeat the run from this
# file, put the function into a module, such as my_rewards.py, and write "my_rewards:{function}" in its place.
"""


@dataclass(frozen=True)
class Answer:
    """What a policy answered to a request."""

    text: str
    """The answer."""
    shows: tuple[str, ...]
    """What it does, a line each, where the task can show that (the documents that a query finds, ...)."""


def run(
    config: Config | Mapping[str, Any] | Path | str | None = None,
    overrides: Overrides = (),
    resume: RunDir | Path | str | None = None,
    watch: Watch | None = None,
    accept_changed_data: bool = False,
) -> RunDir:
    """Start a run or go on with one: see ``steadyrl.run``, which shows it too.

    Whatever ends a run after its first step, the last whole step is saved, and a resume goes on behind it.

    Raises:
        ConfigError: A setting is wrong, cannot change on resuming, or the preflight failed.
        RunError: The run to resume is finished, its data changed, or another process writes it.
        SteadyError: Whatever else a user can fix; the run directory says so too.
        KeyboardInterrupt: Ctrl-C, a notebook's stop button, SIGTERM or SIGHUP.
    """
    watch, texts = watch or Watch(), configs.override_texts(overrides)
    with chdir("."):  # at the end it is the current folder again, which a reward may have changed
        # The session comes first: a config that cannot be run leaves no run directory, and an old run as it was.
        if resume is not None:
            if config is not None:
                raise ConfigError(
                    "a run is resumed with its own config; give either a config or a run to resume, not both, and what "
                    "may change as section.key=value"
                )
            return _resume(_open_run(resume), texts, watch, accept_changed_data)
        if config is None:
            raise ConfigError("give a config file, as `steadyrl new` writes one, or a run directory to resume")
        settings, text = _read_config(config, texts)
        session = _session(settings)
        summary = _run_preflight(session, watch)
        begin("recording settings, code and data")
        directory = record.begin(session.config, text)
        with record.recording_end(directory), directory.writing():
            watch.note(summary)
            data = _data(session)
            watch.note(data_line(data))
            record.add_origin(directory, data, _tokenizer(session), _code(session.config, directory))
            return _train(session, directory, 0, watch)


def _session(settings: Config) -> Session:
    require_ranks(settings)
    require_trackers(settings.run.trackers)
    meet()
    return open_session(settings)


@checked
def sample(
    run: RunDir | Path | str, request: str, samples: int = 3, greedy: bool = False, seed: int = 0
) -> list[Answer]:
    """Ask a run's newest policy.

    Args:
        run: A run directory.
        request: What to ask, as the task's prompts put it.
        samples: How many answers to draw; with ``greedy`` there is one.
        greedy: Take the likeliest token each time.
        seed: Equal seeds give equal answers.

    Raises:
        RunError: The run has no checkpoint yet.
        DataError: The request is empty, no valid text, or leaves no room for a turn.
    """
    if not checked_text(request, "the request").strip():
        raise DataError("the request is empty; say what to ask the policy")
    for name, number, minimum in (("samples", samples, 1), ("seed", seed, 0)):
        if number < minimum:
            raise ConfigError(f"{name}: got {number}; expected {minimum} or more")
    directory = _open_run(run)
    settings = configs.of_run(directory)
    # Answers are not scored: a judge's key, its model and the user's own rewards need not be there.
    evaluate = settings.evaluate.model_copy(update={"sets": {}})
    session = open_session(settings.model_copy(update={"rewards": {}, "evaluate": evaluate}))
    if checkpoint.load(directory, session.backend) is None:
        raise RunError(
            f"'{directory.path}' has no checkpoint yet; the first comes after "
            f"{counted(settings.run.checkpoint_every, 'step')}"
        )
    require_members(f"the task '{settings.task.name}'", session.task, Task)
    if not isinstance(problem := session.task.ask(request), Problem):
        raise DataError(f"the task '{settings.task.name}': ask returned {problem!r:.60}; expected a Problem")
    sampling = greedy_sampling(session.sampling) if greedy else session.sampling
    count = 1 if greedy else samples
    (group,) = collect(session.backend, [problem], count, sampling, (seed,), environment=session.environment)
    require_room(group.rollouts, session.environment)
    return [Answer(rollout.text, tuple(map(str, session.task.show(rollout.text) or ()))) for rollout in group.rollouts]


def _open_run(run: RunDir | Path | str) -> RunDir:
    """Return a run directory whose path stays true where a reward changes the current folder."""
    return RunDir((run if isinstance(run, RunDir) else RunDir.open(os.path.expanduser(run))).path.absolute())


def _read_config(config: Config | Mapping[str, Any] | Path | str, overrides: Sequence[str]) -> tuple[Config, str]:
    """Return the resolved settings, and the text that the run directory keeps of them."""
    if isinstance(config, Config | Mapping):
        settings = configs.resolve(configs.dump(config) if isinstance(config, Config) else config, overrides)
    else:
        path = Path(os.path.expanduser(config))
        settings = configs.load(path, overrides)
        if path.is_file():  # a pipe, as of `steadyrl train <(...)`, cannot be read twice
            return settings, path.read_text(encoding="utf-8")
    session_rewards = filter(plugins.of_session, settings.rewards)
    notes = [_SESSION_FUNCTION.format(name=name, function=name.partition(":")[2]) for name in session_rewards]
    explicit_settings = configs.to_toml(settings.model_dump(mode="json", exclude_unset=True))
    return settings, "\n".join(["".join([_FROM_PYTHON, *notes]), explicit_settings])


def _resume(directory: RunDir, overrides: Sequence[str], watch: Watch, accept_changed_data: bool) -> RunDir:
    with directory.writing():
        recorded = directory.resolved()
        before = configs.of_run(directory)
        changeable = configs.free_on_resume(before)
        for override in overrides:
            if _key(override) not in changeable:
                raise ConfigError(
                    f"'{override}' cannot change on resuming; only {', '.join(changeable)} can: run.steps=N trains to "
                    "step N. For anything else start a new run"
                )
        args, changes_backend = before.backend.args, any(_key(text) == "backend.name" for text in overrides)
        if changes_backend and isinstance(args, BaseModel):
            # The next backend need not know what a former one's own settings say by default.
            recorded["backend"]["args"] = args.model_dump(exclude_defaults=True)
        settings = configs.resolve(recorded, overrides)
        try:
            session = _session(settings)
        except DataError as error:
            if isinstance(error.__cause__, FileNotFoundError):
                raise DataError(f"{error}; if the data moved, say where to: task.args.path=PATH") from error
            raise
        _require_unfinished(directory, session.config)
        accepted = _changed_data(directory, session, accept_changed_data)
        _require_same_model(directory, session)
        _require_readable(directory, before.backend.name, session)
        done, steps_made = max(directory.checkpoints(), default=0), _steps_made(directory)
        if steps_made > done:
            newest = f"the newest checkpoint is that of step {done}" if done else "there is no checkpoint"
            watch.note(f"{newest}, and {counted(steps_made, 'step')} had been made: those behind it are made again")
        if line := rate_change(before, session.config, done):
            watch.note(line)
        begun_with = directory.info().get("code") or {}
        for name, digest_now in _code(session.config, directory).items():  # a resumed run may have a corrected one
            if begun_with.get(name, digest_now) != digest_now:
                watch.note(_FILE_CHANGED.get(name, _CODE_CHANGED.format(name=name)))
        attempt = record.begin_again(directory, session.config, accepted)
        with record.recording_end(directory):
            return _train(session, directory, attempt, watch)


def _train(session: Session, directory: RunDir, attempt: int, watch: Watch) -> RunDir:
    watch.opened(directory)
    with ending_signals(), tracked(directory, session.config.run.trackers, watch.note):
        with record.recording_end(directory) as spent:  # before the trackers close, which send how the run ended
            record.add_model(directory, session)
            record.close(directory, train(session, directory, attempt, watch), session.config, **spent())
        watch.ended(directory)
    return directory


def _run_preflight(session: Session, watch: Watch) -> str:
    """Make the preflight, stop or warn where something is wrong, and return its summary."""
    mode = session.config.run.preflight
    if mode == "off":
        return "preflight: off"
    findings = preflight(session, watch.phase)
    failed = [finding for finding in findings if fails(finding)]
    for line in finding_lines([finding for finding in findings if finding.state == "found"]):
        watch.note(line)
    if failed and mode == "stop":
        names = ", ".join(finding.check for finding in failed)
        raise ConfigError(
            f"the preflight failed: {names} ({failed[0].message}). {failed[0].remedy} Or set run.preflight=warn to "
            "train all the same"
        )
    return summary_line(findings)


def _key(override: str) -> str:
    return override.partition("=")[0].strip()


def _require_readable(directory: RunDir, former: str, session: Session) -> None:
    """Refuse a change of the backend to one that cannot go on, before the run's settings name it."""
    name = session.config.backend.name
    if name == former:
        return
    try:
        checkpoint.load(directory, session.backend)
    except CheckpointError as error:
        raise ConfigError(
            f"backend.name={name} does not read the checkpoints of '{directory.path}', which backend.name={former} "
            f"wrote; resume with backend.name={former}, or start a new run with backend.name={name}"
        ) from error


def rate_change(before: Config, after: Config, start: int) -> str:
    """Say how the rate jumps where a run goes on at the step ``start`` with another length; "" where it does not."""
    if not start:
        return ""
    last, planned = (before.update.rate(step, before.run.steps) for step in (start - 1, start))
    new = after.update.rate(start, after.run.steps)
    if math.isclose(new, planned, rel_tol=_SAME_RATE):
        return ""
    return (
        f"the learning rate goes from {last:.3g} (step {start - 1}) to {new:.3g} (step {start}), for update.schedule = "
        f"'{after.update.schedule}' now falls over {after.update.schedule_steps or after.run.steps} steps; to keep the "
        f"rate as it was, resume with update.schedule_steps={before.update.schedule_steps or before.run.steps}"
    )


def _require_unfinished(directory: RunDir, settings: Config) -> None:
    checkpoints, planned = directory.checkpoints(), counted(settings.run.steps, "step")
    longer = "run.epochs=N" if settings.run.epochs else "run.steps=N"
    is_finished = bool(checkpoints) and directory.status == "finished"
    if is_finished and checkpoints[-1] == settings.run.steps:
        raise RunError(
            f"'{directory.path}' is finished: {checkpoints[-1]} of {planned}; add {longer} to train longer, or "
            "`steadyrl report` to write its report again"
        )
    records, steps_made = directory.metrics(), _steps_made(directory)
    if settings.run.steps < steps_made:
        raise RunError(
            f"'{directory.path}' has made {counted(steps_made, 'step')}, and with these settings it would have "
            f"{settings.run.steps}: its curves would show steps that its policy has not seen; give {longer} for at "
            f"least {counted(steps_made, 'step')}"
        )
    if is_finished and directory.info().get("stopped_early"):
        if target_held(settings, checkpoints[-1], {record["step"]: record.get("reward/mean") for record in records}):
            raise RunError(
                f"'{directory.path}' reached run.target = {settings.run.target:g} after {checkpoints[-1]} of "
                f"{planned}; add a higher run.target=N to train longer"
            )
        patience = settings.evaluate.patience
        if out_of_patience(patience, checkpoint.read_state(directory, checkpoints[-1])):
            raise RunError(
                f"'{directory.path}' stopped early after {checkpoints[-1]} of {planned}, with evaluate.patience = "
                f"{patience}; add a larger evaluate.patience=N, or 0 for none, to train longer"
            )


def _steps_made(directory: RunDir) -> int:
    return 1 + max((record["step"] for record in directory.metrics()), default=-1)


def _changed_data(directory: RunDir, session: Session, accepts: bool) -> dict[str, Any] | None:
    """Return the data where they are new to the run and accepted, or refuse them: curves would mix two tasks.

    None for those that the run began with, or that an earlier resume accepted.
    """
    info, now = directory.info(), _data(session)
    if info.get("data") is None:
        return None  # a run that was killed before it was recorded
    earlier = [info["data"], *(acceptance["data"] for acceptance in info.get("accepted_data") or ())]
    if not all(isinstance(recorded, Mapping) for data in earlier for recorded in data.values()):
        raise RunError(f"'{directory.info_file}' is damaged: its 'data' holds no counts and digests; restore the file")
    changes = [[split for split in now if _fixed(data.get(split, {})) != _fixed(now[split])] for data in earlier]
    if not all(changes):
        return None
    if accepts:
        return now
    counts = ", ".join(
        f"{split}: {earlier[-1].get(split, {}).get('problems', 'unknown')} problems then, {now[split]['problems']} now"
        for split in changes[-1]
    )
    event = "they were accepted" if earlier[1:] else "it began"
    raise RunError(
        f"the data of '{directory.path}' changed since {event} ({counts}; texts or columns differ); restore the data, "
        "start a new run, or add --accept-changed-data to go on with what is there"
    )


def _require_same_model(directory: RunDir, session: Session) -> None:
    """Refuse to go on with another tokenizer or another reference than the run began with.

    The weights of the policy are the checkpoint's. All else is read from model.path again, where another model may be.
    """
    checkpoints, before, current = directory.checkpoints(), directory.info().get("tokenizer"), _tokenizer(session)
    if before is not None and current is not None and before != current:
        copied = f" ('{directory.checkpoint_folder(checkpoints[-1]) / 'policy'}' has a copy)" if checkpoints else ""
        raise RunError(
            f"the tokenizer or the chat template of model.path = '{session.config.model.path}' changed since "
            f"'{directory.path}' began: prompts would get other tokens; restore its files{copied}, or start a new run"
        )
    if checkpoints and isinstance(session.backend, Referring):
        session.backend.check_reference(directory.checkpoint_folder(checkpoints[-1]))


def _tokenizer(session: Session) -> str | None:
    tokenizer = session.backend.tokenizer
    return tokenizer.identity() if isinstance(tokenizer, Identified) else None


def _code(config: Config, directory: RunDir) -> dict[str, str]:
    """Return a digest of the files of the user's own parts, by module, and of those of the run's settings."""
    settings = file_digests({file.name: file for file in (directory.config_file, directory.resolved_file)})
    return _own_code(config) | settings


def _own_code(config: Config) -> dict[str, str]:
    return plugins.own_code([*scoring_parts(config), ("curriculum", config.curriculum.name)])


def scoring_parts(config: Config) -> list[tuple[str, str]]:
    """Return the task and the rewards of a config as kinds and names, which decide what an answer is worth."""
    rewards = [("reward", name) for name in config.rewards]
    return [("task", config.task.name), *config.task.args.import_paths(), *rewards]


def _data(session: Session) -> dict[str, dict[str, Any]]:
    """Return what is trained on and what judges, and a digest of all that is in them."""
    splits = {"train": session.problems, "heldout": session.heldout}
    splits |= {f"heldout/{extra.name}": extra.problems for extra in session.sets}
    counts = data_counts(session.task, session.problems, session.heldout)
    return {
        split: counts.get(split, {"problems": len(problems)})
        | {"sha256": digest(problems), **session.long_prompts.get(split, {})}
        for split, problems in splits.items()
    }


def _fixed(split: Mapping[str, Any]) -> dict[str, Any]:
    """Return what may not change of a split while a run goes on; the folder that it is in may be another."""
    return {name: value for name, value in split.items() if name not in ("source", "prompts", "of", "trained_on_too")}


@users_errors()
def input_digests(config: Config) -> dict[str, str]:
    """Return a digest of all problems of a config's task, and of each file of the user's own code, by what they are."""
    task = plugins.open_task(config.task.name, config.task.args, config.run.seed)
    data = digest([*plugins.problems_of(task, "train"), *plugins.problems_of(task, "heldout")])
    return {"the data": data, **{f"the code in '{module}'": code for module, code in _own_code(config).items()}}


def digest(problems: Iterable[Problem]) -> str:
    """Return a digest of all that is in problems: ids, prompts, columns and messages, in their order."""
    hasher = hashlib.sha256()
    for problem in problems:
        columns = json.dumps(dict(problem.columns), sort_keys=True, default=_spelled)
        hasher.update(json.dumps([problem.id, problem.prompt, columns, *problem.messages]).encode())
    return hasher.hexdigest()


def _spelled(value: object) -> str:
    """Return what is digested of a value that JSON has no kind for; of an object of the user's own that is its type."""
    kind = type(value).__name__
    return f"{kind} {value!s}" if isinstance(value, _SPELLED) else kind
