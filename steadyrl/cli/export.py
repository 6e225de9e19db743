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
            help="an empty or new folder (RUN/export if not given), or what `steadyrl metrics` writes to: csv, "
            "parquet, wandb, ..."
        ),
    ] = None,
    checkpoint: Annotated[
        str | None,
        typer.Option(help="best, last or a step; the best by held-out score if the run kept one, else the last"),
    ] = None,
    merge: Annotated[bool, typer.Option("--merge", help="merge a LoRA adapter into the weights")] = False,
) -> None:
    """Write a policy as a Hugging Face folder with tokenizer, generation config and model card, or a run's metrics.

    Of several runs the policies are joined into one, as WARP does (arXiv:2406.16768).
    """
    if str(to) in {*TABLES, *plugins.BUILT_IN["tracker"]}:
        for run in runs:
            metrics_command(run, str(to))
        return
    from steadyrl.integrations.export.joined import export_joined
    from steadyrl.integrations.export.model import DEFAULT_FOLDER, export

    opened = [RunDir.open(run) for run in runs]
    if len(opened) > 1 and to is None:
        raise ConfigError("several runs are joined into a folder of their own; give it with --to FOLDER")
    folder = opened[0].path / DEFAULT_FOLDER if to is None else Path(os.path.expanduser(to))
    with following() as activity:
        if len(opened) > 1:
            export_joined(opened, folder, checkpoint, merge, activity.phase)
        else:
            export(opened[0], folder, checkpoint, merge, activity.phase)
    print(printable(f"exported: {folder}"))


def serve_command(
    run: RunPath,
    folder: Annotated[Path | None, typer.Option(help="where the policy was exported; RUN/export if not given")] = None,
) -> None:
    """Print the commands that serve an exported policy with vLLM, transformers or llama.cpp."""
    from steadyrl.integrations.export.serve import serve_lines

    for line in serve_lines(RunDir.open(run), None if folder is None else Path(os.path.expanduser(folder))):
        print(printable(line))
