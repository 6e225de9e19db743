"""Jobs of a Ray cluster, through Ray's own job client."""

from __future__ import annotations

import os
from functools import partial
from typing import Any

from pydantic import Field

from steadyrl.core import plugins
from steadyrl.core.errors import ConfigError, EngineError
from steadyrl.core.sections import Section
from steadyrl.lab.launchers.command import Command, Ended, Queue

# Ray kills a job three seconds after it was asked to stop; a run needs the time of a step and of a checkpoint.
_SAVE_S = 3600
_ENDED = ("SUCCEEDED", "FAILED", "STOPPED")


class Settings(Section):
    """What a run needs, and where the cluster is."""

    address: str = Field("")
    """The cluster's dashboard, such as 'http://head:8265'. Empty takes what RAY_ADDRESS says, or the cluster of this
    machine."""
    cpus: float = Field(1.0, ge=0, description="CPU cores of a run.")
    gpus: float = Field(0.0, ge=0, description="GPUs of a run.")


def build(settings: Settings, at_once: int) -> Queue:
    """Return the launcher, which submits so many jobs at a time: Ray fails a job that waits for 15 minutes.

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
    return Queue(at_once, partial(_Job, client, settings))


class _Job:
    """A command as a job, which Ray asks by SIGTERM to end."""

    def __init__(self, client: Any, settings: Settings, command: Command) -> None:
        self._client, self._name = client, command.name
        path = os.environ.get("PYTHONPATH")  # a job inherits nothing of this process
        self._id = self._ask(
            "submit_job",
            entrypoint=command.shell(*(["env", f"PYTHONPATH={path}"] if path else [])),
            entrypoint_num_cpus=settings.cpus,
            entrypoint_num_gpus=settings.gpus,
            runtime_env={"env_vars": {"RAY_JOB_STOP_WAIT_TIME_S": str(_SAVE_S)}},
            metadata={"steadyrl": command.name},
        )

    def poll(self) -> Ended | None:
        info = self._ask("get_job_info", self._id)
        if info.status not in _ENDED:
            return None
        code = 0 if info.status == "SUCCEEDED" else info.driver_exit_code
        # The message repeats the log of a command that failed, and says why another one could not be begun.
        return Ended(self._name, code, info.status.value if code is not None else _line(info.message or ""))

    def terminate(self) -> None:
        self._ask("stop_job", self._id)

    def _ask(self, method: str, *args: Any, **settings: Any) -> Any:
        try:
            return getattr(self._client, method)(*args, **settings)
        except (OSError, RuntimeError) as error:  # requests' errors are OSErrors
            raise EngineError(f"Ray: {_line(error)}") from error


def _line(error: object) -> str:
    return " ".join(str(error).split())[:300]
