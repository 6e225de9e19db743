"""The one way in for user code: an import path ``"package.module:name"``, or the short name of a built-in.

An algorithm and a curriculum are modules with a section ``Settings`` and a function ``build``: for them the path of the
module will do. Built-ins are listed here by kind; an installed package can add its own with an entry point in the group
``steadyrl.<kind>``. Nothing is imported before it is asked for.
"""

from __future__ import annotations

import difflib
import importlib
import sys
from importlib.machinery import PathFinder
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

from steadyrl.errors import ConfigError, MissingExtraError, SteadyError

BUILT_IN: dict[str, dict[str, str]] = {
    "algorithm": {
        "ppo": "steadyrl.algorithms.ppo",
        "grpo": "steadyrl.algorithms.grpo",
        "rloo": "steadyrl.algorithms.rloo",
        "reinforce": "steadyrl.algorithms.reinforce",
        "trpo": "steadyrl.algorithms.trpo",
        "rlaif": "steadyrl.algorithms.rlaif",
        "raft": "steadyrl.algorithms.raft",
        "rwr": "steadyrl.algorithms.rwr",
        "sft": "steadyrl.algorithms.sft",
    },
    "curriculum": {
        "uniform": "steadyrl.curriculum.passes",
        "learnability": "steadyrl.curriculum.learnability",
        "plr": "steadyrl.curriculum.level_replay",
        "accel": "steadyrl.curriculum.accel",
        "bandit": "steadyrl.curriculum.bandit",
        "stages": "steadyrl.curriculum.stages",
    },
    "task": {
        "search": "steadyrl.tasks.search.task:SearchTask",
        "code": "steadyrl.tasks.code.task:CodeTask",
        "browse": "steadyrl.tasks.browse.task:BrowseTask",
        "math": "steadyrl.tasks.math.task:MathTask",
        "prompts": "steadyrl.tasks.prompts:PromptsTask",
    },
    "reward": {
        "length": "steadyrl.rewards.length:length",
        "boolean_format": "steadyrl.rewards.boolean_format:boolean_format",
        "cut_off": "steadyrl.rewards.cut_off",
        "judge": "steadyrl.rewards.judge.plugin",
    },
    "judge": {
        "likelihood": "steadyrl.backends.torch.likelihood:LikelihoodRatio",
    },
    "sampler": {
        "vllm": "steadyrl.backends.vllm.plugin",
    },
    "tracker": {
        "wandb": "steadyrl.trackers.wandb:WandbTracker",
        "tensorboard": "steadyrl.trackers.tensorboard:TensorBoardTracker",
        "trackio": "steadyrl.trackers.trackio:TrackioTracker",
        "mlflow": "steadyrl.trackers.mlflow:MLflowTracker",
    },
    "backend": {
        "toy": "steadyrl.backends.toy:ToyBackend",
        "torch": "steadyrl.backends.torch.plugin",
        "mlx": "steadyrl.backends.mlx.plugin",
        "fsdp": "steadyrl.backends.fsdp.plugin",
    },
    "launcher": {
        "processes": "steadyrl.launchers.processes",
        "ray": "steadyrl.launchers.ray",
        "slurm": "steadyrl.launchers.slurm",
    },
    # By the name of the backend whose checkpoints it reads.
    "exporter": {
        "torch": "steadyrl.backends.torch.export:export_policy",
        "fsdp": "steadyrl.backends.torch.export:export_policy",
        "mlx": "steadyrl.backends.mlx.export:export_policy",
    },
}
MODULES = ("algorithm", "curriculum", "sampler", "launcher")  # kinds whose plug-ins are modules
# Which extra brings a package that a built-in needs.
_EXTRA_OF = {
    **dict.fromkeys(("torch", "transformers", "peft", "safetensors", "tokenizers"), "torch"),
    "pyarrow": "data",
    **dict.fromkeys(("bitsandbytes", "accelerate"), "quantized"),
    **dict.fromkeys(("mlx", "mlx_lm"), "mlx"),
    "playwright": "browse",
    "miniwob": "miniwob",
    "optuna": "tune",
    "ray": "ray",
    **dict.fromkeys(("starlette", "uvicorn"), "web"),
    **{name: name for name in ("wandb", "tensorboard", "trackio", "mlflow")},
}


def load(kind: str, name: str) -> Any:
    """Return the object behind a short name or an import path.

    Args:
        kind: "algorithm", "curriculum", "task", "reward", "judge", "sampler", "backend", "launcher" or
            "exporter".
        name: A built-in's short name, an entry point's name, or "package.module:name"; for an algorithm and a
            curriculum also "package.module".

    Raises:
        ConfigError: Nothing has that name, or what has it does not build an algorithm or a curriculum.
        MissingExtraError: It needs a package that is not installed.
    """
    found = _find(kind, name)
    if kind in MODULES and not callable(getattr(found, "build", None)):
        raise ConfigError(
            f"{kind}.name: '{name}' is no {kind}: it has no function 'build'; expected a class 'Settings' and a "
            "function build(settings)"
        )
    if kind == "backend" and not callable(getattr(found, "create", None)):
        raise ConfigError(
            f"backend.name: '{name}' is no backend: it has no function 'create'; expected a class with the methods of "
            "steadyrl.protocols.Backend and create(config, algorithm)"
        )
    return found


def is_module(kind: str, name: str) -> bool:
    """Return whether a built-in is a module, which brings settings and checks of its own; nothing is imported."""
    return name in BUILT_IN[kind] and ":" not in BUILT_IN[kind][name]


def _find(kind: str, name: str) -> Any:
    if ":" in name:
        _look_in_current_folder()
        return _import(kind, name)
    if name in BUILT_IN[kind]:
        return _import(kind, BUILT_IN[kind][name])
    points = {point.name: point for point in entry_points(group=f"steadyrl.{kind}")}
    if name in points:
        return points[name].load()
    if kind in MODULES:
        _look_in_current_folder()
        if "." in name or (name.isidentifier() and PathFinder.find_spec(name)):
            return _import(kind, name)
    known = sorted({*BUILT_IN[kind], *points})
    close = difflib.get_close_matches(name, known, n=1)
    hint = f"did you mean '{close[0]}'?" if close else f"known are {', '.join(known)}"
    raise ConfigError(f"no {kind} is called '{name:.120}'; {hint} (your own: {_expected(kind)})")


def _look_in_current_folder() -> None:
    """Let a module beside the config be found, as with `python -m`."""
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)


def _expected(kind: str) -> str:
    return "'package.module' or 'package.module:name'" if kind in MODULES else "'package.module:name'"


def require(package: str) -> Any:
    """Import an optional package or say which extra brings it."""
    try:
        return importlib.import_module(package)
    except ImportError as error:
        raise _missing(error, package) from error


def _import(kind: str, path: str) -> Any:
    module_name, colon, attribute = path.partition(":")
    if not all(part.isidentifier() for part in [*module_name.split("."), *([attribute] if colon else [])]):
        raise ConfigError(f"'{path:.120}' is no import path; expected {_expected(kind)}")
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name and (module_name == error.name or module_name.startswith(error.name + ".")):
            raise ConfigError(
                f"'{path}': there is no module '{error.name}' (looked in the current folder and in what is "
                f"installed); expected {_expected(kind)}"
            ) from error
        raise _missing(error, module_name) from error
    except SteadyError:
        raise
    except (Exception, SystemExit) as error:  # whatever a user's module does when it is imported
        what = f"{type(error).__name__}: {error}"
        raise ConfigError(f"'{path}': the module '{module_name}' cannot be imported ({what}); fix it") from error
    if not colon:
        return module
    if not hasattr(module, attribute):
        raise ConfigError(f"'{path}': module '{module_name}' has no '{attribute}'; expected 'package.module:name'")
    return getattr(module, attribute)


def _missing(error: ImportError, wanted: str) -> MissingExtraError:
    package = (error.name or wanted).partition(".")[0]
    extra = _EXTRA_OF.get(package)
    cure = f"install it with: pip install 'steadyrl[{extra}]'" if extra else f"install it with: pip install {package}"
    return MissingExtraError(f"the package '{package}' is not installed but needed here; {cure}")
