"""Jobs of a Ray cluster, through Ray's own job client."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Sequence
from typing import Any

from pydantic import Field

from steadyrl.core import plugins
from steadyrl.core.errors import ConfigError, EngineError
from steadyrl.core.sections import Section
from steadyrl.lab.launchers.command import Command, Ended

# Ray kills a job three seconds after it was asked to stop; a run needs the time of a step and of a checkpoint.
_SAVE_S = 3600
_ENDED = ("SUCCEEDED", "FAILED", "STOPPED")


class Settings(Section):
    """What a run needs, and where the cluster is."""

    address: str = Field(
        "",
        description="The cluster's dashboard, such as 'http://head:8265'. Empty takes what RAY_ADDRESS says, or the "
        "cluster of this machine.",
    )
    cpus: float = Field(1.0, ge=0, description="CPU cores of a run.")
    gpus: float = Field(0.0, ge=0, description="GPUs of a run.")


def build(settings: Settings, at_once: int) -> Ray:
    """Return the launcher.

    Raises:
        ConfigError: No cluster answers.
        MissingExtraError: Ray is not installed.
    """
    plugins.require("ray")
    submission = plugins.require("ray.job_submission")
    try:
        client = submission.JobSubmissionClient(settings.address or None)
    except (ConnectionError, RuntimeError, ValueError) as error:
        raise ConfigError(
            f"no Ray cluster answers: {_line(error)}; start one with `ray start --head`, or name the dashboard of one "
            "with --launcher-args address=http://HOST:8265"
        ) from error
    return Ray(client, settings, at_once)


class Ray:
    """Starts commands as jobs of a Ray cluster, so many at a time: Ray fails a job that waits for 15 minutes."""

    def __init__(self, client: Any, settings: Settings, at_once: int) -> None:
        self._client, self._settings, self._at_once = client, settings, at_once
        self._waiting: deque[Command] = deque()
        self._jobs: dict[str, str] = {}  # names of the commands by Ray's ids
        self._not_begun: list[Ended] = []

    def start(self, commands: Sequence[Command]) -> None:
        """Queue commands, and submit as many as may run."""
        self._waiting.extend(commands)
        try:
            self._fill()
        except EngineError as error:
            raise ConfigError(f"{error}; fix what it says with --launcher-args, or look at `ray status`") from error

    def ended(self) -> list[Ended]:
        """Return what ended, and submit what waited for it."""
        ended = []
        for job, name in list(self._jobs.items()):
            info = self._ask("get_job_info", job)
            if info.status in _ENDED:
                del self._jobs[job]
                code = 0 if info.status == "SUCCEEDED" else info.driver_exit_code
                # The message repeats the log of a command that failed, and says why another one could not be begun.
                ended.append(Ended(name, code, info.status.value if code is not None else _line(info.message or "")))
        self._fill()
        ended, self._not_begun = [*ended, *self._not_begun], []
        return ended

    def stop(self) -> None:
        """Stop all jobs: Ray sends SIGTERM, and does not wait here for their end."""
        self._not_begun += [Ended(command.name, None, "was not begun") for command in self._waiting]
        self._waiting.clear()
        for job in self._jobs:
            self._ask("stop_job", job)

    def _fill(self) -> None:
        while self._waiting and len(self._jobs) < self._at_once:
            command = self._waiting[0]
            job = self._ask(
                "submit_job",
                entrypoint=command.shell(*_import_path()),
                entrypoint_num_cpus=self._settings.cpus,
                entrypoint_num_gpus=self._settings.gpus,
                runtime_env={"env_vars": {"RAY_JOB_STOP_WAIT_TIME_S": str(_SAVE_S)}},
                metadata={"steadyrl": command.name},
            )
            self._jobs[job] = self._waiting.popleft().name

    def _ask(self, method: str, *args: Any, **settings: Any) -> Any:
        try:
            return getattr(self._client, method)(*args, **settings)
        except (OSError, RuntimeError) as error:  # requests' errors are OSErrors
            raise EngineError(f"Ray: {_line(error)}") from error


def _import_path() -> list[str]:
    """Return words that hand on the import path of this process: a job inherits nothing of it."""
    path = os.environ.get("PYTHONPATH")
    return ["env", f"PYTHONPATH={path}"] if path else []


def _line(error: object) -> str:
    return " ".join(str(error).split())[:300]
