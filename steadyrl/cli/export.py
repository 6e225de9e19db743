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


def export_command(
    runs: Annotated[list[Path], typer.Argument(help="a run directory; several runs of one start model are joined")],
    to: Annotated[
        Path | None,
        typer.Option(
            help="an empty or new folder (RUN/export if not given); gguf, as --to-gguf, for a GGUF file in RUN/gguf; "
            "or a target of `steadyrl metrics`: csv, parquet, wandb, ..."
        ),
    ] = None,
    checkpoint: Annotated[
        str | None,
        typer.Option(help="best, last or a step; by default the best by held-out score if kept, else the last"),
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

    The policies of several runs are joined into a single policy, as in WARP (arXiv:2406.16768).
    """
    if str(to) in {*TABLES, *plugins.BUILT_IN["tracker"]}:
        policy_options = {"checkpoint": checkpoint, "merge": merge, "to-gguf": gguf, "push-to-hub": push_to_hub}
        if ignored := ", ".join(f"--{name}" for name, value in policy_options.items() if value):
            raise ConfigError(f"--to {to} writes metrics, and {ignored} says how to write a policy; leave it away")
        for run in runs:
            metrics_command(run, str(to))
        return
    from steadyrl.integrations.export.deliver import deliver

    run_dirs = [RunDir.open(run) for run in runs]
    to_gguf = str(to) == "gguf"
    folder = None if to is None or to_gguf else Path(os.path.expanduser(to))
    with following() as activity:
        exported, address = deliver(run_dirs, folder, checkpoint, merge, gguf or to_gguf, push_to_hub, activity.phase)
    print(printable(f"exported: {exported}"))
    if address:
        print(printable(f"uploaded: {address}"))


def serve_command(
    run: Annotated[Path, typer.Argument(help="a run directory")],
    folder: Annotated[Path | None, typer.Option(help="where the policy was exported; RUN/export if not given")] = None,
) -> None:
    """Print the commands to serve an exported policy with vLLM, transformers or llama.cpp."""
    from steadyrl.integrations.export.serve import serve_lines

    for line in serve_lines(RunDir.open(run), None if folder is None else Path(os.path.expanduser(folder))):
        print(printable(line))
