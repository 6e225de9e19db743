"""One POST over HTTP with a deadline for all of it: headers, body, and a server that sends a byte at a time.

Of the timeouts that Python's and most other clients know, each is for one read of the socket; a server that drips
never meets one. Here the connection is cut when the time of the whole is over. Looking up a host's name is not under
the deadline: the system's resolver cannot be interrupted.
"""

from __future__ import annotations

import contextlib
import functools
import http.client
import socket
import ssl
import threading
import urllib.error
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass
from email.message import Message
from typing import Any

_LARGEST_ANSWER = 4 << 20  # bytes: a verdict is some hundred, and an endless answer must not fill the memory


class DeadlineError(TimeoutError):
    """The whole took too long, though no single read did."""


@dataclass(frozen=True)
class Answer:
    """What a server answers, with whatever status."""

    status: int
    headers: Message
    body: bytes


def post(
    request: urllib.request.Request, connect_s: float, read_s: float, whole_s: float, tls: ssl.SSLContext | None
) -> Answer:
    """Send a request, for so many seconds at most: of connecting, of each read, and of the whole.

    Without ``tls`` a connection that needs TLS makes its own. Redirects are not followed: the key would go with them
    to whoever they name. Proxies are those of the environment.

    Raises:
        OSError: No connection, a broken one, or a time-out (TimeoutError, DeadlineError).
        http.client.HTTPException: What came is not HTTP, ended early, or is far larger than a verdict.
    """
    sockets: list[socket.socket] = []
    late = threading.Event()

    def cut() -> None:
        late.set()
        for sock in sockets:
            with contextlib.suppress(OSError):  # closed already
                sock.shutdown(socket.SHUT_RDWR)

    def connected(sock: socket.socket) -> None:
        sock.settimeout(read_s)
        sockets.append(sock)
        if late.is_set():  # to connect took all the time
            cut()

    opener = urllib.request.build_opener(_Handler(connected, tls), _NoRedirect())
    timer = threading.Timer(whole_s, cut)
    timer.daemon = True
    timer.start()
    try:
        return _answer(opener, request, connect_s)
    except ValueError as error:  # of Python's reader of HTTP, such as for a chunk of a negative size
        raise http.client.HTTPException(f"it is no HTTP ({error})") from error
    finally:
        timer.cancel()
        if late.is_set():  # and an answer without a length ends where it was cut
            raise DeadlineError("the answer took too long as a whole")


def _answer(opener: urllib.request.OpenerDirector, request: urllib.request.Request, connect_s: float) -> Answer:
    try:
        answer: Any = opener.open(request, timeout=connect_s)
    except urllib.error.HTTPError as refusal:
        answer = refusal
    with answer:
        body = answer.read(_LARGEST_ANSWER + 1)
    if len(body) > _LARGEST_ANSWER:
        raise http.client.HTTPException(f"an answer of more than {_LARGEST_ANSWER >> 20} MiB")
    return Answer(answer.status, answer.headers, body)


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    def http_error_302(self, *_: Any) -> None:
        """Leave the answer an error, unread: its address need not even be one."""

    http_error_301 = http_error_303 = http_error_307 = http_error_308 = http_error_302  # type: ignore[assignment]  # None too


class _Handler(urllib.request.HTTPHandler, urllib.request.HTTPSHandler):
    def __init__(self, connected: Callable[[socket.socket], None], tls: ssl.SSLContext | None):
        urllib.request.AbstractHTTPHandler.__init__(self)  # that of HTTPS makes a context, whatever is opened
        self._connected, self._tls = connected, tls

    def http_open(self, req: urllib.request.Request) -> http.client.HTTPResponse:
        make: Any = functools.partial(_Connection, connected=self._connected)
        return self.do_open(make, req)

    def https_open(self, req: urllib.request.Request) -> http.client.HTTPResponse:
        make: Any = functools.partial(_TlsConnection, connected=self._connected)
        return self.do_open(make, req, context=self._tls)


class _Connection(http.client.HTTPConnection):
    def __init__(self, *args: Any, connected: Callable[[socket.socket], None], **kwargs: Any):
        super().__init__(*args, **kwargs)
        self._connected = connected

    def connect(self) -> None:
        super().connect()
        self._connected(self.sock)


class _TlsConnection(_Connection, http.client.HTTPSConnection):
    pass
