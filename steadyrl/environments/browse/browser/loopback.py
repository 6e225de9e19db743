"""Pages for a browser of this machine: a server on 127.0.0.1, on a free port, in a thread of its own.

The server is also the only proxy that the browser uses. Whatever a page asks for therefore arrives here, and a request
for anything but a page of this server is refused: a worker's, a redirected one, one that is sent as the page is left.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


class Loopback:
    """Serves at ``origin``, such as "http://127.0.0.1:8000", until it is closed."""

    def __init__(self, handler: Callable[..., SiteRequest]):
        """Start to serve; the handler is called for every connection, as ThreadingHTTPServer calls it."""
        self._http = _Server(("127.0.0.1", 0), handler)
        self.origin = f"http://127.0.0.1:{self._http.server_port}"
        self._thread = threading.Thread(target=self._http.serve_forever, name="loopback server", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop serving."""
        self._http.shutdown()
        self._http.server_close()
        self._thread.join()


class SiteRequest(BaseHTTPRequestHandler):
    """A request to a Loopback, made to it directly or as to a proxy. Subclasses answer those for its own pages."""

    def parse_request(self) -> bool:
        """Read the request; refuse it, and return False, where it is for anything but a page of this server."""
        if not super().parse_request():
            return False
        assert isinstance(self.server, ThreadingHTTPServer), "a Loopback makes the requests"
        self.path = self.path.removeprefix(f"http://127.0.0.1:{self.server.server_port}")
        if self.command != "CONNECT" and self.path.startswith("/"):
            return True
        # The body, if there is one, is not read, so that this connection cannot be used again.
        self.close_connection = True
        # After a 204 the page that asked is still shown, as after a request that the browser itself aborts.
        self.send_response(403 if self.command == "CONNECT" else 204)
        self.send_header("Connection", "close")
        self.end_headers()
        return False

    def log_message(self, format: str, *args: object) -> None:
        """Keep quiet."""


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False  # a browser keeps connections open

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Say nothing where a browser was killed in the midst of an answer."""
