"""Joins the policies of several runs of one start model into one, and exports it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

from steadyrl.core import config as configs
from steadyrl.core import plugins
from steadyrl.core.config import Config
from steadyrl.core.errors import ConfigError, RunError
from steadyrl.core.rundir import RunDir
from steadyrl.integrations.export.folder import whole_folder
from steadyrl.integrations.export.model import choose, complete, exporter_of
from steadyrl.show.report.card import write_joined_card

_TOKENIZER = "tokenizer.json"
_OWN = {"lora_rank", "lora_alpha"}  # of a run's model section, what another run may have set otherwise


def export_joined(
    runs: Sequence[RunDir],
    to: Path,
    checkpoint: str | None = None,
    merge: bool = False,
    phase: Callable[[str], None] = print,
    gguf: bool = False,
) -> None:
    """Write one policy made of those of several runs into a folder, whole or not at all; arguments as of ``deliver``.

    Adapters are joined by spherical interpolation, whole weights by their mean (see ``backends.torch.joined``). What is
    not weights, such as the sampling, is that of the first run.

    Raises:
        SteadyError: The runs cannot be joined, a checkpoint is missing, or the folder cannot be written.
    """
    settings = [configs.of_run(run) for run in runs]
    exporter, *_ = [exporter_of(config) for config in settings]
    _require_one_start(runs, settings)
    choices = [choose(run, checkpoint) for run in runs]
    folders = [run.checkpoint_folder(choice.step) for run, choice in zip(runs, choices, strict=True)]
    plugins.require("torch")
    from steadyrl.backends.torch.save.joined import join_adapters, join_weights

    with whole_folder(to) as folder, TemporaryDirectory(dir=folder) as scratch:
        for run, choice in zip(runs, choices, strict=True):
            phase(f"joining the policy of {choice.words} of '{run.path}'")
        files = [path / "policy" / _TOKENIZER for path in folders]
        texts = [file.read_bytes() if file.is_file() else None for file in files]
        if odd := [file for file, text in zip(files, texts, strict=True) if text != texts[0]]:
            raise ConfigError(
                f"'{odd[0]}' is another tokenizer than '{files[0]}'; expected runs of one start model, for joined "
                "weights read one kind of tokens"
            )
        config = settings[0]
        if config.model.lora_rank:
            rank = join_adapters(folders, Path(scratch))
            config = configs.of_run(runs[0], [f"model.lora_rank={rank}", f"model.lora_alpha={rank}"])
        else:
            join_weights(folders, Path(scratch))
        identity = {"run": f"joined-{runs[0].path.resolve().name}", "joined": [
            {"run": run.path.resolve().name, "path": str(run.path), "step": choice.step, "best": choice.best}
            for run, choice in zip(runs, choices, strict=True)
        ]}  # fmt: skip
        exported = exporter(config, Path(scratch), folder, merge)
        record = complete(folder, {**exported, **identity}, config, runs, phase if gguf else None)
        write_joined_card(folder / "README.md", [run.path for run in runs], record)


def _require_one_start(runs: Sequence[RunDir], settings: Sequence[Config]) -> None:
    paths = [run.path.resolve() for run in runs]
    for path in paths:
        if paths.count(path) > 1:
            raise RunError(f"'{path}' is given {paths.count(path)} times; give each run once")
    sections = []  # what the runs have to agree on
    for config in settings:
        model = config.model
        model_path = str(Path(model.path).resolve()) if Path(model.path).is_dir() else model.path
        rank = "above 0" if model.lora_rank else 0
        sections.append({"path": model_path, "lora_rank": rank, **model.model_dump(exclude={"path", *_OWN})})
    first = sections[0]
    for run, section in zip(runs[1:], sections[1:], strict=True):
        for key in first:
            if section[key] != first[key]:
                raise ConfigError(
                    f"'{runs[0].path}' and '{run.path}' cannot be joined: model.{key} is {first[key]!r:.100} in one "
                    f"and {section[key]!r:.100} in the other; expected runs of one start model with the same prompts, "
                    "which all train an adapter or all train all weights"
                )
