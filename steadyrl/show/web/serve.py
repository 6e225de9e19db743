"""Serves the pages until somebody stops them: ``steadyrl web`` is made of this."""

from __future__ import annotations

import errno
import logging
import secrets
import socket
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any
from urllib.parse import quote

import uvicorn

from steadyrl.core.errors import AccessError
from steadyrl.show.web.app import create
from steadyrl.show.web.guard import Guard, is_every_address

TRIED_PORTS = 20
# Bytes: a browser sends the cookies of all programs of the machine to each of them, 180 of 4 KiB at most.
MOST_HEADERS = 1 << 20


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
        address, bound_port = listening.getsockname()[:2]
        token = secrets.token_urlsafe(24) if with_token else ""
        settings = uvicorn.Config(
            Guard(app, address, bound_port, token, host),
            log_level="error",  # a request that is none is no news
            access_log=False,
            server_header=False,
            timeout_graceful_shutdown=1,
            lifespan="off",
            proxy_headers=False,
            h11_max_incomplete_event_size=MOST_HEADERS,
        )
        every, boxed = is_every_address(address), ":" in address
        shown = ("::1" if boxed else "127.0.0.1") if every else address
        server = _Server(settings)
        ready(f"http://{f'[{shown}]' if boxed else shown}:{bound_port}/{f'?token={quote(token)}' if token else ''}")
        server.run(sockets=[listening])


class _Server(uvicorn.Server):
    """Ends without a word: the requests that it cancels then are no errors."""

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        logging.getLogger("uvicorn.error").setLevel(logging.CRITICAL)
        super().handle_exit(sig, frame)


def listen(host: str, port: int) -> socket.socket:
    """Return a socket that listens on a free port, ``port`` or one of the next; see ``serve``."""
    family, address = _address(host)
    last = min(port + TRIED_PORTS, 1 << 16) if port else 1
    for tried in range(port, last):
        listening = socket.socket(family, socket.SOCK_STREAM)
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listening.bind((address[0], tried, *address[2:]))
            listening.listen(128)
        except OSError as error:
            listening.close()
            if error.errno != errno.EADDRINUSE:
                raise AccessError(
                    f"cannot listen on {host}:{tried}: {error.strerror}; choose another --host or --port"
                ) from error
            continue
        return listening
    raise AccessError(f"the ports {port} to {last - 1} of {host} are taken; choose another --port")


def _address(host: str) -> tuple[socket.AddressFamily, tuple[Any, ...]]:
    """Return the address of a host, one of IPv4 if there is one. There may be several ways to write an address."""
    if not host.strip():
        raise AccessError("--host is empty; give an address such as 127.0.0.1, or 0.0.0.0 for all of this machine's")
    try:
        addresses = socket.getaddrinfo(host.strip("[]"), 0, type=socket.SOCK_STREAM)
    except (OSError, ValueError) as error:  # of names that can be none: UnicodeError
        raise AccessError(
            f"--host is '{host}', which is no address of this machine ({error}); give one such as 127.0.0.1"
        ) from error
    family, _, _, _, address = min(addresses, key=lambda entry: entry[0] != socket.AF_INET)
    return family, address
