"""Serves the pages until somebody stops them: ``steadyrl web`` is made of this."""

from __future__ import annotations

import errno
import secrets
import socket
from collections.abc import Callable
from pathlib import Path
from urllib.parse import quote

import uvicorn

from steadyrl.errors import AccessError
from steadyrl.web.app import create
from steadyrl.web.guard import Guard

TRIED_PORTS = 20


def serve(root: Path, host: str, port: int, with_token: bool, ready: Callable[[str], None]) -> None:
    """Serve a folder's runs.

    Args:
        root: The folder.
        host: The address to listen on.
        port: The first port to try; if it is taken, one of the next is used. 0 takes any.
        with_token: Whether visitors need the token that the address holds.
        ready: Called with the address once it can be opened.

    Raises:
        AccessError: No port can be had.
        RunError: There is no such folder.
    """
    app = create(root, lambda: server.should_exit)
    listening = listen(host, port)
    with listening:
        taken = listening.getsockname()[1]
        token = secrets.token_urlsafe(24) if with_token else ""
        guarded = Guard(app, host, taken, token)
        settings = uvicorn.Config(
            guarded,
            log_level="warning",
            access_log=False,
            server_header=False,
            timeout_graceful_shutdown=1,
            lifespan="off",
            proxy_headers=False,
        )
        named = f"[{host}]" if ":" in host else host
        shown = "127.0.0.1" if host == "0.0.0.0" else "[::1]" if host == "::" else named
        server = uvicorn.Server(settings)
        ready(f"http://{shown}:{taken}/{f'?token={quote(token)}' if token else ''}")
        server.run(sockets=[listening])


def listen(host: str, port: int) -> socket.socket:
    """Return a socket that listens on a free port, ``port`` or one of the next; see ``serve``."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    for tried in range(port, port + TRIED_PORTS if port else 1):
        listening = socket.socket(family, socket.SOCK_STREAM)
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listening.bind((host, tried))
            listening.listen(128)
        except OSError as error:
            listening.close()
            if error.errno != errno.EADDRINUSE:
                raise AccessError(
                    f"cannot listen on {host}:{tried}: {error.strerror}; choose another --host"
                ) from error
            continue
        except OverflowError as error:
            listening.close()
            raise AccessError(f"there is no port {tried}; choose one below 65536") from error
        return listening
    raise AccessError(f"the ports {port} to {port + TRIED_PORTS - 1} of {host} are taken; choose another --port")
