"""The subjects of a comparison: the base model, a run, a checkpoint or a model folder, and how to load its policy."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from steadyrl.core import config as configs
from steadyrl.core import plugins
from steadyrl.core.algorithm import open_algorithm
from steadyrl.core.config import Config
from steadyrl.core.errors import CheckpointError, ModelError, RunError
from steadyrl.core.protocols import Backend
from steadyrl.core.rundir import DONE, RunDir

BASE = "base"
KINDS = (
    "expected 'base', a run directory, RUN@STEP, a checkpoint folder, or a model folder in Hugging Face layout "
    "(config.json and *.safetensors)"
)
_STATE = "state.json"  # every checkpoint has one


@dataclass(frozen=True)
class Subject:
    """One of the two that are compared."""

    name: str  # the name that the user gave
    kind: str  # such as "run, step 30", for people
    config: Config  # its model, with the arithmetic of the comparison
    folder: Path | None = None  # where its weights are; None if the config names them
    loads: bool = False  # True if its backend must load ``folder``; False if ``config.model.path`` is enough
    run: RunDir | None = None  # the directory of the run that it comes from; None if it comes from none

    def identity(self) -> dict[str, Any]:
        """Return what distinguishes these weights from others: where they are, and when they were written."""
        times = [file.stat().st_mtime_ns for file in self.folder.rglob("*") if file.is_file()] if self.folder else []
        model = configs.dump(self.config)["model"]
        return {"name": self.name, "model": model, "folder": str(self.folder), "written": max(times, default=0)}


def find_subject(name: str, config: Config) -> Subject:
    """Return the subject of a name from the command line.

    Args:
        name: "base" (the model that the config starts from), or the path of a run, RUN@STEP, a checkpoint or a model.
        config: The config of the comparison. Every subject uses its device and precision.

    Raises:
        SteadyError: Nothing has that name, or it is not finished.
    """
    if name == BASE:
        path = Path(config.model.path)
        model = _with_model(config, config, config.model.path)
        return Subject(name, f"base model '{path}'", model, path if path.is_dir() else None)
    path, step = Path(name), None
    if not path.exists():
        before, _, after = name.rpartition("@")
        if not before or not after.isdecimal():
            raise RunError(f"there is nothing at '{name}'; {KINDS}")
        path, step = Path(before), int(after)
    if not path.is_dir():
        raise RunError(f"'{path}' is {'a file' if path.exists() else 'not there'}; {KINDS}")
    if (path / "run.json").is_file() or step is not None:
        run = RunDir.open(path)
        steps = run.checkpoints()
        if not steps:
            raise RunError(f"the run '{run.path}' has no finished checkpoint; train it further or give another")
        if step is not None and step not in steps:
            listed = ", ".join(map(str, steps))
            raise RunError(f"the run '{run.path}' has no checkpoint after step {step}; it has {listed}")
        step = steps[-1] if step is None else step
        return _of_checkpoint(name, f"run, step {step}", run.checkpoint_folder(step), run, config)
    if path.parent.name == "checkpoints" or (path / _STATE).is_file():
        if not (path / DONE).is_file():
            raise CheckpointError(
                f"the checkpoint '{name}' is not finished: it has no file {DONE}, which is written last; give another "
                "one"
            )
        run = RunDir(path.resolve().parent.parent)
        return _of_checkpoint(name, "checkpoint", path, run if run.resolved_file.is_file() else None, config)
    if (path / "config.json").is_file():
        return Subject(name, "model folder", _with_model(config, config, str(path)), path)
    if (path / "adapter_config.json").is_file():
        raise ModelError(
            f"'{name}' is an adapter without its model; give the checkpoint folder that it is in, or RUN@STEP"
        )
    if (only := RunDir.find(path)) is not None:
        return replace(find_subject(str(only.path), config), name=name)
    raise RunError(f"'{name}' holds neither a run, nor a checkpoint, nor a model; {KINDS}")


def open_policy(subject: Subject) -> Backend:
    """Load the policy of a subject, without a reference and, if the files allow, without the optimizer's state."""
    algorithm = open_algorithm(subject.config.algorithm.name, subject.config.algorithm.args)
    # A backend that reads a whole checkpoint needs a place for everything in it, including a value head.
    needs = algorithm.needs - {"ref_logprobs"} if subject.loads else frozenset()
    backend: Backend = plugins.make(
        "backend", subject.config.backend.name, subject.config, replace(algorithm, needs=needs)
    )
    if subject.loads:
        assert subject.folder is not None, "what is loaded has a folder"
        backend.load(subject.folder)
    return backend


def _of_checkpoint(name: str, kind: str, folder: Path, run: RunDir | None, config: Config) -> Subject:
    """Return the subject of a finished checkpoint: a model folder if it contains a whole model."""
    trained = config if run is None else configs.of_run(run)
    policy = folder / "policy"
    if (policy / "config.json").is_file():  # needs neither the model that the run began from nor the optimizer
        return Subject(name, kind, _with_model(config, trained, str(policy)), folder, run=run)
    if run is None:
        raise CheckpointError(
            f"the checkpoint '{name}' holds no whole model and lies in no run directory, whose settings would say what "
            "it belongs to; put it back as RUN/checkpoints/STEP"
        )
    changes = {"model": trained.model, "algorithm": trained.algorithm, "run": trained.run, "update": trained.update}
    return Subject(
        name, kind, config.model_copy(update={**changes, "backend": _backend(config, trained)}), folder, True, run
    )


def _with_model(config: Config, trained: Config, path: str) -> Config:
    """Return the comparison's config with a whole model: no adapter, the template it was trained with."""
    model = trained.model.model_copy(update={"path": path, "lora_rank": 0})
    return config.model_copy(update={"model": model, "backend": _backend(config, trained)})


def _backend(config: Config, trained: Config) -> Any:
    """Return the comparison's device and precision with the kind of backend that the weights are for."""
    return config.backend.model_copy(update={"name": trained.backend.name, "args": trained.backend.args})
