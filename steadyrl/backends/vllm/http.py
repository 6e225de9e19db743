"""One server's HTTP: connections that are kept open, requests that are tried again, errors that name the phase."""

from __future__ import annotations

import http.client
import json
import os
import queue
import time
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

from steadyrl.core.errors import EngineError
from steadyrl.core.rundir import error_message

CONNECT_S = 10.0  # a host that is down must be found out long before a completion may be late
ATTEMPTS, FIRST_WAIT_S = 3, 0.5  # each wait is twice the one before
_BUSY = frozenset({429, 502, 503, 504})  # answers after which the same request may succeed
_LONGEST_MESSAGE = 300  # characters of what the server says


class ServerDown(EngineError):
    """A server does not answer, is too slow, or is broken. Another one may do what this one did not."""


class Absent(EngineError):
    """A server has no such endpoint."""


class Http:
    """One server; methods may be called from several threads."""

    def __init__(self, url: str, timeout_s: float, start_command: str, once: bool = False):
        self.url, self._timeout_s, self._start_command = url.rstrip("/"), timeout_s, start_command
        self._once = once  # a request must not be made twice, not even on a connection that was lost
        self._address = urlsplit(self.url)
        self._idle: queue.SimpleQueue[http.client.HTTPConnection] = queue.SimpleQueue()

    def without_retries(self) -> Http:
        """Return the same server for requests that must not be made twice."""
        return Http(self.url, self._timeout_s, self._start_command, once=True)

    def json(self, path: str, body: Mapping[str, Any] | None, phase: str, **hints: str) -> Any:
        """Return the parsed answer; see ``ask``."""
        raw = self.ask(path, body, phase, **hints)
        try:
            return json.loads(raw)
        except ValueError as error:
            raise EngineError(
                f"{self.url}{path} answers {short(raw)}; expected JSON: is this a vLLM server?"
            ) from error

    def ask(
        self, path: str, body: Mapping[str, Any] | None, phase: str, need: str = "", broken: str = "its log says why"
    ) -> bytes:
        """Return the answer to a GET, or with a body to a POST.

        Args:
            path: Of the endpoint.
            body: What is sent as JSON, or None.
            phase: What it is for, as in "drawing completions"; named by errors.
            need: What a refusal may be for want of.
            broken: What to do where the server fails at it.

        Raises:
            ServerDown: The server does not answer in time, or is broken.
            Absent: It has no such endpoint.
            EngineError: It refuses the request.
        """
        for attempt in range(1 if self._once else ATTEMPTS):
            if attempt:
                time.sleep(FIRST_WAIT_S * 2 ** (attempt - 1))
            try:
                code, raw = self._answer(path, body)
            except TimeoutError as error:
                raise ServerDown(
                    f"{self.url}{path} does not answer within {self._timeout_s:g} s while {phase}; raise "
                    "sampler.args.timeout_s or lower sampler.args.requests"
                ) from error
            except (OSError, http.client.HTTPException) as error:
                failure: EngineError = ServerDown(
                    f"no vLLM server answers at {self.url} ({error}) while {phase}; start one with "
                    f"`{self._start_command}`, or set sampler.engine = 'own'"
                )
                failure.__cause__ = error  # it is raised below, where ``from error`` no longer works
                continue
            if code < 400:
                return raw
            failure = self._refusal(path, code, short(error_message(raw.decode(errors="replace"))), phase, need, broken)
            if code not in _BUSY:
                break
        raise failure

    def close(self) -> None:
        """Close the connections that nobody uses now."""
        while not self._idle.empty():
            self._idle.get().close()

    def _answer(self, path: str, body: Mapping[str, Any] | None) -> tuple[int, bytes]:
        """Ask on a kept connection, or on a new one where there is none or the server has closed it meanwhile."""
        key = os.environ.get("VLLM_API_KEY")
        headers = {"Content-Type": "application/json"} | ({"Authorization": f"Bearer {key}"} if key else {})
        method, payload = ("GET", None) if body is None else ("POST", json.dumps(body).encode())
        while True:
            connection, reused = self._connection()
            try:
                connection.request(method, self._address.path + path, payload, headers)
                answer = connection.getresponse()
                raw = answer.read()
            except (OSError, http.client.HTTPException) as error:
                connection.close()
                if not reused or isinstance(error, TimeoutError):
                    raise
                continue
            if answer.will_close or self._once:
                connection.close()
            else:
                self._idle.put(connection)
            return answer.status, raw

    def _connection(self) -> tuple[http.client.HTTPConnection, bool]:
        """Return a connection, and whether it was used before."""
        try:
            return self._idle.get_nowait(), True
        except queue.Empty:
            address, secure = self._address, self._address.scheme == "https"
            kind = http.client.HTTPSConnection if secure else http.client.HTTPConnection
            connection = kind(address.hostname or "", address.port, timeout=CONNECT_S)
            try:
                connection.connect()
            except TimeoutError as error:  # not the time-out of an answer
                raise ConnectionError(f"no connection within {CONNECT_S:g} s") from error
            connection.sock.settimeout(self._timeout_s)
            return connection, False

    def _refusal(self, path: str, code: int, message: str, phase: str, need: str, broken: str) -> EngineError:
        refusal = f"{self.url}{path} answers {code}: {message}"
        if code == 401:
            return EngineError(f"{refusal}; set the environment variable VLLM_API_KEY to the server's key")
        hint = f"; {need}" if need else ""
        if code == 404:
            return Absent(f"{refusal}{hint}")
        if code >= 500 or code in _BUSY:
            return ServerDown(f"{refusal} while {phase}; {need or broken}")
        return EngineError(f"{refusal}{hint}")


def short(answer: object) -> str:
    """Return something that a server said in one line of bounded length."""
    text = " ".join((answer if isinstance(answer, str) else repr(answer)).split())
    return text[:_LONGEST_MESSAGE] or "nothing"
