"""`steadyrl web`: the pages of a folder of runs."""

from __future__ import annotations

import os
import signal
import sys
import webbrowser
from pathlib import Path
from typing import Annotated

import typer

from steadyrl.cli.terminal import note, printable
from steadyrl.core import plugins

LOCAL = "127.0.0.1"


def web_command(
    folder: Annotated[Path, typer.Argument(help="a folder of runs and logs, or a run directory")] = Path("runs"),
    host: Annotated[str, typer.Option(help="the address to listen on")] = LOCAL,
    port: Annotated[int, typer.Option(min=0, max=65535, help="the first port to try; 0 takes any")] = 8765,
    token: Annotated[bool, typer.Option(help="whether the page asks for the token in its address")] = True,
    open_page: Annotated[bool, typer.Option("--open/--no-open", help="open the page in your browser")] = False,
) -> None:
    """Show runs, rollouts and findings in the browser, live during a run. Ctrl-C ends the server."""
    for package in ("starlette", "uvicorn"):
        plugins.require(package)
    from steadyrl.show.web.serve import serve  # needs the extra

    if host != LOCAL and not token:
        note(f"anybody who reaches {host} can read these runs: the page asks for no token")

    def ready(address: str) -> None:
        print(printable(f"the runs in '{folder}': {address}"), flush=True)
        if open_page:
            webbrowser.open(address)

    try:
        serve(folder, host, port, token, ready)
    except KeyboardInterrupt:
        # The interpreter would wait for threads that read for pages which nobody waits for. They write one
        # file, which is renamed into its place.
        sys.stdout.flush()
        os._exit(128 + signal.SIGINT)
