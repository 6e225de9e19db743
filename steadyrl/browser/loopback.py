"""Pages for a browser of this machine: a server on 127.0.0.1, on a free port, in a thread of its own."""

from __future__ import annotations

import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


class Loopback:
    """Serves until it is closed.

    Attributes:
        origin: Where, such as "http://127.0.0.1:8000".
    """

    def __init__(self, handler: Callable[..., BaseHTTPRequestHandler]):
        """Start to serve.

        Args:
            handler: Called for every connection, as ThreadingHTTPServer calls it.
        """
        self._http = _Server(("127.0.0.1", 0), handler)
        self.origin = f"http://127.0.0.1:{self._http.server_port}"
        self._thread = threading.Thread(target=self._http.serve_forever, name="loopback server", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop serving."""
        self._http.shutdown()
        self._http.server_close()
        self._thread.join()


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False  # a browser keeps connections open

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Say nothing where a browser was killed in the midst of an answer."""
