"""`steadyrl export` and `steadyrl serve`: a policy as a plain model folder, and the commands that serve it."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from steadyrl.cli.activity import following
from steadyrl.cli.metrics import TABLES, metrics_command
from steadyrl.cli.terminal import printable
from steadyrl.core import plugins
from steadyrl.core.errors import ConfigError
from steadyrl.core.rundir import RunDir

RunPath = Annotated[Path, typer.Argument(help="a run directory")]


def export_command(
    runs: Annotated[
        list[Path], typer.Argument(help="a run directory; several of one start model are joined into one policy")
    ],
    to: Annotated[
        Path | None,
        typer.Option(
            help="an empty or new folder (RUN/export if not given); gguf for RUN/gguf with a GGUF file; or what "
            "`steadyrl metrics` writes to: csv, parquet, wandb, ..."
        ),
    ] = None,
    checkpoint: Annotated[
        str | None,
        typer.Option(help="best, last or a step; the best by held-out score if the run kept one, else the last"),
    ] = None,
    merge: Annotated[bool, typer.Option("--merge", help="merge a LoRA adapter into the weights")] = False,
    gguf: Annotated[
        bool, typer.Option("--to-gguf", help="also write model.gguf and a Modelfile, for llama.cpp and Ollama; merges")
    ] = False,
    push_to_hub: Annotated[
        str | None,
        typer.Option(
            metavar="OWNER/NAME", help="upload the folder to the Hugging Face hub; a new repository is private"
        ),
    ] = None,
) -> None:
    """Write a policy as a Hugging Face folder with tokenizer, generation config and model card, or a run's metrics.

    Of several runs the policies are joined into one, as WARP does (arXiv:2406.16768).
    """
    if str(to) in {*TABLES, *plugins.BUILT_IN["tracker"]}:
        for run in runs:
            metrics_command(run, str(to))
        return
    from steadyrl.integrations.export.hub import open_hub, push
    from steadyrl.integrations.export.joined import export_joined
    from steadyrl.integrations.export.model import DEFAULT_FOLDER, export

    opened = [RunDir.open(run) for run in runs]
    named = to is not None and str(to) != "gguf"
    gguf = gguf or str(to) == "gguf"
    if len(opened) > 1 and not named:
        raise ConfigError("several runs are joined into a folder of their own; give it with --to FOLDER")
    folder = Path(os.path.expanduser(to)) if named and to else opened[0].path / ("gguf" if to else DEFAULT_FOLDER)
    client = None if push_to_hub is None else open_hub(push_to_hub)
    if gguf:
        plugins.require("gguf")
    with following() as activity:
        if len(opened) > 1:
            export_joined(opened, folder, checkpoint, merge or gguf, activity.phase, gguf)
        else:
            export(opened[0], folder, checkpoint, merge or gguf, activity.phase, gguf)
        print(printable(f"exported: {folder}"))
        if client is not None:
            print(printable(f"uploaded: {push(client, folder, push_to_hub or '', activity.phase)}"))


def serve_command(
    run: RunPath,
    folder: Annotated[Path | None, typer.Option(help="where the policy was exported; RUN/export if not given")] = None,
) -> None:
    """Print the commands that serve an exported policy with vLLM, transformers or llama.cpp."""
    from steadyrl.integrations.export.serve import serve_lines

    for line in serve_lines(RunDir.open(run), None if folder is None else Path(os.path.expanduser(folder))):
        print(printable(line))
