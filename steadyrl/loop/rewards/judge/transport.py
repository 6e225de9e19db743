"""One POST over HTTP with a deadline for all of it: headers, body, and a server that sends a byte at a time.

Of the timeouts that Python's and most other clients know, each is for one read of the socket; a server that drips
never meets one. Here every read is given what is left of the whole. Looking up a host's name is not under the deadline:
the system's resolver cannot be interrupted.
"""

from __future__ import annotations

import contextlib
import functools
import http.client
import io
import socket
import ssl
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import IO, Any

_LARGEST_ANSWER = 4 << 20  # bytes: a verdict is some hundred, and an endless answer must not fill the memory


class DeadlineError(TimeoutError):
    """The whole took too long, though no single read did."""


@dataclass(frozen=True)
class Times:
    """Limits in seconds: of connecting, of each read, and of the whole."""

    connect_s: float
    read_s: float
    whole_s: float


def post(url: str, body: bytes, headers: Mapping[str, str], times: Times, tls: ssl.SSLContext | None) -> bytes:
    """Send a body and return the answer's; without ``tls`` a connection that needs TLS makes its own.

    Redirects are not followed: the key would go with them to whoever they name. Proxies are those of the environment.

    Raises:
        urllib.error.HTTPError: The status is not 200-299; its body is still to be read.
        OSError: No connection, a broken one, or a time-out (TimeoutError, DeadlineError).
        http.client.HTTPException: What came is not HTTP, or ended early.
    """
    deadline = time.monotonic() + times.whole_s
    opener = urllib.request.build_opener(_Handler(times, deadline, tls), _NoRedirect())
    request = urllib.request.Request(url, body, dict(headers))
    with _readable(), opener.open(request, timeout=times.connect_s) as answer:
        return read_body(answer)


@contextlib.contextmanager
def _readable() -> Iterator[None]:
    """Name what Python's reader of HTTP could not make sense of, such as a chunk of a negative size."""
    try:
        yield
    except ValueError as error:
        raise http.client.HTTPException(f"it is no HTTP ({error})") from error


def read_body(answer: IO[bytes]) -> bytes:
    """Return a body that is not endless.

    Raises:
        OSError, http.client.HTTPException: It breaks off, takes too long, or is far larger than a verdict.
    """
    with _readable():
        body = answer.read(_LARGEST_ANSWER + 1)
    if len(body) > _LARGEST_ANSWER:
        raise http.client.HTTPException(f"an answer of more than {_LARGEST_ANSWER >> 20} MiB")
    return body


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    def http_error_302(self, *_: Any) -> None:
        """Leave the answer an error, unread: its address need not even be one."""

    http_error_301 = http_error_303 = http_error_307 = http_error_308 = http_error_302  # type: ignore[assignment]  # None too


class _Handler(urllib.request.HTTPHandler, urllib.request.HTTPSHandler):
    def __init__(self, times: Times, deadline: float, tls: ssl.SSLContext | None):
        urllib.request.AbstractHTTPHandler.__init__(self)  # that of HTTPS makes a context, whatever is opened
        self._tls = tls
        self._limits: dict[str, Any] = {"times": times, "deadline": deadline}

    def http_open(self, req: urllib.request.Request) -> http.client.HTTPResponse:
        make: Any = functools.partial(_Connection, **self._limits)
        return self.do_open(make, req)

    def https_open(self, req: urllib.request.Request) -> http.client.HTTPResponse:
        make: Any = functools.partial(_TlsConnection, **self._limits)
        return self.do_open(make, req, context=self._tls)


class _Connection(http.client.HTTPConnection):
    def __init__(self, *args: Any, times: Times, deadline: float, **kwargs: Any):
        super().__init__(*args, **kwargs)
        self._deadline = deadline
        self.response_class: Any = functools.partial(_Response, read_s=times.read_s, deadline=deadline)

    def connect(self) -> None:
        super().connect()
        self.sock.settimeout(_left(self._deadline))  # for sending


class _TlsConnection(_Connection, http.client.HTTPSConnection):
    pass


class _Response(http.client.HTTPResponse):
    def __init__(self, sock: socket.socket, *args: Any, read_s: float, deadline: float, **kwargs: Any):
        super().__init__(sock, *args, **kwargs)
        raw = self.fp.detach()
        self.fp = io.BufferedReader(_Timed(raw, sock, read_s, deadline))


class _Timed(io.RawIOBase):
    """A socket's bytes; before each read the socket is told how long it may take."""

    def __init__(self, raw: io.RawIOBase, sock: socket.socket, read_s: float, deadline: float):
        self._raw, self._sock, self._read_s, self._deadline = raw, sock, read_s, deadline

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int | None:
        self._sock.settimeout(min(self._read_s, _left(self._deadline)))
        try:
            count: int | None = self._raw.readinto(buffer)
        except TimeoutError:
            _left(self._deadline)
            raise
        return count

    def close(self) -> None:
        self._raw.close()
        super().close()


def _left(deadline: float) -> float:
    """Return the seconds that are left, or raise DeadlineError."""
    left = deadline - time.monotonic()
    if left <= 0:
        raise DeadlineError("the answer took too long as a whole")
    return left
