"""Exports the policy of a run: a plain model folder with tokenizer, generation config and model card."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from steadyrl.backends.huggingface.gguf import write_gguf
from steadyrl.core import config as configs
from steadyrl.core import plugins
from steadyrl.core.config import Config
from steadyrl.core.errors import ConfigError, RunError
from steadyrl.core.rundir import RunDir, write_json
from steadyrl.integrations.export.folder import whole_folder
from steadyrl.integrations.export.ollama import write_modelfile
from steadyrl.loop import checkpoint
from steadyrl.show.report.card import copy_licences, write_card

GGUF = "model.gguf"
HUB_DATA = re.compile(r"(?:hf://datasets/|huggingface\.co/datasets/)([\w.-]+/[\w.-]+?)(?:@[\w./-]+)?(?=/|$)")
RECORD = "export.json"  # what was exported, and how a server must treat it
DEFAULT_FOLDER = "export"  # in the run directory
BEST, LAST = "best", "last"


@dataclass(frozen=True)
class Choice:
    """The checkpoint that is exported."""

    step: int  # steps that were finished
    best: bool  # it has the best held-out score of the run
    last: bool  # it is the newest one

    @property
    def words(self) -> str:
        """Say which one it is."""
        names = [
            name for name, applies in (("the best by held-out score", self.best), ("the last", self.last)) if applies
        ]
        return f"step {self.step}" + (f" ({' and '.join(names)})" if names else "")


def choose(run: RunDir, checkpoint_name: str | None) -> Choice:
    """Return the checkpoint of a word from the command line; None is the best where a run kept one, else the last.

    Raises:
        RunError: There is no such checkpoint.
    """
    steps = run.checkpoints()
    if not steps:
        raise RunError(f"'{run.path}' has no checkpoint yet; export it when the first one is written")
    best = checkpoint.read_state(run, steps[-1]).best
    if checkpoint_name is None:
        checkpoint_name = LAST if best is None else BEST
    if checkpoint_name == BEST:
        if best is None:
            raise RunError(
                f"'{run.path}' chose no best checkpoint: it was trained with evaluate.every = 0; give --checkpoint "
                f"last, or one of {', '.join(map(str, steps))}"
            )
        step = best.step
    elif checkpoint_name == LAST:
        step = steps[-1]
    elif checkpoint_name.isascii() and checkpoint_name.isdecimal():
        step = int(checkpoint_name)
    else:
        raise RunError(f"--checkpoint is '{checkpoint_name:.40}'; expected best, last or a step")
    if step not in steps:
        raise RunError(f"'{run.path}' has no checkpoint after step {step}; it has {', '.join(map(str, steps))}")
    return Choice(step, best is not None and best.step == step, step == steps[-1])


def export(
    run: RunDir,
    to: Path,
    checkpoint_name: str | None = None,
    merge: bool = False,
    phase: Callable[[str], None] = print,
    gguf: bool = False,
) -> Choice:
    """Write the policy of a run into a folder, whole or not at all; see ``deliver`` for the arguments.

    Raises:
        SteadyError: The run has no such checkpoint, its backend has no model folder, or the folder cannot be written.
    """
    config, choice = configs.of_run(run), choose(run, checkpoint_name)
    exporter = exporter_of(config)
    with whole_folder(to) as folder:
        phase(f"exporting the policy of {choice.words} of '{run.path}'")
        identity = {"run": run.path.resolve().name, "step": choice.step, "best": choice.best, "last": choice.last}
        exported = exporter(config, run.checkpoint_folder(choice.step), folder, merge)
        record = complete(folder, {**exported, **identity}, config, [run], phase if gguf else None)
        write_card(folder / "README.md", run.path, record)
    return choice


def complete(
    folder: Path,
    exported: Mapping[str, Any],
    config: Config,
    runs: Sequence[RunDir],
    phase: Callable[[str], None] | None,
) -> dict[str, Any]:
    """Write and return the record of an export, with licences and, where ``phase`` is there to be told, a GGUF file."""
    splits = [split for run in runs for split in (run.info().get("data") or {}).values()]
    sources = [str(split.get("source", "")) for split in splits if isinstance(split, Mapping)]
    record = {
        **exported,
        "licence": copy_licences(exported["base_folder"], folder),
        "lora_rank": config.model.lora_rank,
        "prompt": getattr(config.task.args, "prompt", None),  # the template that the task puts a request into
        # Of the weights that were trained, or beside which an adapter was, as torch names it.
        "precision": "bfloat16" if getattr(config.backend.args, "weights", "fp32") == "bf16" else "float32",
        "gguf": phase is not None,
        "datasets": sorted({match[1] for source in sources if (match := HUB_DATA.search(source))}),  # on the hub
    }
    if phase is not None:
        phase(f"writing {GGUF}")
        write_gguf(folder, folder / GGUF, str(record["run"]))
        write_modelfile(folder, GGUF, record)
    write_json(folder / RECORD, record)
    return record


def exporter_of(config: Config) -> Any:
    """Return what exports the checkpoints of a run's backend.

    Raises:
        ConfigError: The backend's policy is no model folder.
    """
    require_exportable(config.backend.name)
    return plugins.load("exporter", config.backend.name)


def require_exportable(name: str) -> None:
    """Refuse (ConfigError) a backend whose policy is no model folder."""
    if ":" in name or name not in plugins.BUILT_IN["exporter"]:
        backends = ", ".join(f"'{backend}'" for backend in plugins.BUILT_IN["exporter"])
        raise ConfigError(
            f"the run was trained with backend.name = '{name}', whose policy is no model folder; expected {backends}"
        )
