"""A chat endpoint as OpenAI has it: messages in, text out; tries again what may succeed, within one deadline.

The key comes from the environment, goes into the header of requests, and nowhere else: all that leaves the client,
answers and errors, passes ``ask``, which hides the key in it.
"""

from __future__ import annotations

import email.utils
import http.client
import json
import os
import random
import ssl
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from steadyrl.core.errors import ConfigError
from steadyrl.core.rundir import error_message, parse_json
from steadyrl.loop.rewards.judge.settings import JudgeSettings, Secret
from steadyrl.loop.rewards.judge.transport import Answer, DeadlineError, post

_FIRST_WAIT_S, _LONGEST_WAIT_S = 0.5, 30.0  # each wait is twice the one before, and jittered down to half of it
_TRY_AGAIN = frozenset({408, 425, 429})  # and everything from 500 on
_LONGEST_MESSAGE = 200  # characters of what a server says of its refusal
_MOST_TOKENS = 10**12  # of one request; a larger count is no count
_KEY_HINT = "; look at the key in the variable that rewards.judge.key_env names"
_HINTS = {401: _KEY_HINT, 403: _KEY_HINT, 404: "; look at rewards.judge.base_url and rewards.judge.model"}
_CUT = "; the answer was cut off at its length limit: raise rewards.judge.request.max_tokens"

Message = dict[str, str]


@dataclass(frozen=True)
class Reply:
    """What the endpoint answered."""

    text: str
    """The assistant's message."""
    tokens: tuple[int, int] | None
    """(read, written) as the endpoint counts them, None where it does not tell."""
    requests: int
    """How many it took."""
    hint: str
    """What to do if the text is no verdict, "" where the endpoint says nothing of it."""


class NoReplyError(Exception):
    """No answer could be had; ``requests`` were made for it."""

    def __init__(self, reason: str, requests: int):
        super().__init__(reason)
        self.requests = requests


class _RefusedError(Exception):
    """One request failed; ``again_after_s`` is None where it would fail again. ``message`` are words of the server."""

    def __init__(self, reason: str, again_after_s: float | None, message: str | None = None, hint: str = ""):
        super().__init__(reason)
        self.again_after_s, self.message, self.hint = again_after_s, message, hint


class ChatClient:
    """One endpoint and model; to be shared by threads."""

    def __init__(self, section: JudgeSettings):
        """Take the settings, and the key from the environment.

        Raises:
            ConfigError: The environment variable is not set, or holds what no header can.
        """
        self._section, self._key = section, _read_key(section.key_env)
        self._secret = Secret(self._key)
        self._url = os.path.expandvars(section.base_url).rstrip("/") + "/chat/completions"
        # Reads the system's certificates, once, which takes 50 ms.
        self._tls = ssl.create_default_context() if self._url.lower().startswith("https:") else None
        self._stop = threading.Event()
        self._lock = threading.Lock()
        self._not_before = 0.0  # on the monotonic clock; what one request is told by Retry-After holds for all
        # Of the system: two runs that ask one server must not wait in step, whatever their seeds.
        self._jitter = random.SystemRandom()

    def stop(self) -> None:
        """Let requests that wait for their next try fail now, and all later ones at once."""
        self._stop.set()

    def ask(self, messages: Sequence[Message], until: float) -> Reply:
        """Send messages until there is an answer.

        Args:
            messages: With role and content.
            until: On the monotonic clock; no try begins or goes on after it.

        Raises:
            NoReplyError: Refused, or not answered within the tries and the time.
        """
        body = json.dumps({**self._section.request, "model": self._section.model, "messages": list(messages)}).encode()
        for tries in range(1, self._section.retries + 2):
            self._wait_for_turn(until, tries - 1)
            try:
                text, tokens, hint = self._once(body, until)
                return Reply(self._secret.hide(text), tokens, tries, hint)
            except _RefusedError as error:
                # The server's words are cleaned before they are cut: a part of a key is too much.
                words = None if error.message is None else " ".join(self._secret.hide(error.message).split())
                detail = "" if words is None else f": {words[:_LONGEST_MESSAGE] or 'nothing'}"
                reason, wait_s = f"{error}{detail}{error.hint}", error.again_after_s
                if wait_s is None or tries > self._section.retries:
                    raise NoReplyError(reason, tries) from error
                longest = min(_LONGEST_WAIT_S, _FIRST_WAIT_S * 2.0 ** (tries - 1))
                pause = max(wait_s, longest * self._jitter.uniform(0.5, 1.0))
                if time.monotonic() + pause >= until:
                    reason = f"{reason}; a further try after {pause:.0f} s would come after rewards.judge.deadline_s"
                    raise NoReplyError(reason, tries) from error
                if self._stop.wait(pause):
                    raise NoReplyError(f"{reason}; the run stopped asking", tries) from error
        raise AssertionError("the last try returns or raises")

    def _wait_for_turn(self, until: float, requests: int) -> None:
        """Wait until the server wants to be asked again, if it told one of us to wait."""
        with self._lock:
            pause = self._not_before - time.monotonic()
        if pause > 0 and time.monotonic() + pause >= until:
            raise NoReplyError(
                f"the server asks all to wait {pause:.0f} s more, past rewards.judge.deadline_s", requests
            )
        if self._stop.wait(max(0.0, pause)):
            raise NoReplyError("the run stopped asking", requests)

    def _once(self, body: bytes, until: float) -> tuple[str, tuple[int, int] | None, str]:
        section = self._section
        headers = {"Content-Type": "application/json", "Accept": "application/json"}
        if self._key:
            headers["Authorization"] = f"Bearer {self._key}"
        left_s = until - time.monotonic()
        if left_s <= 0:
            raise _RefusedError("rewards.judge.deadline_s was over", None)
        request = urllib.request.Request(self._url, body, headers)
        try:
            answer = post(
                request, min(section.connect_s, left_s), section.read_s, min(section.request_s, left_s), self._tls
            )
        except (OSError, http.client.HTTPException) as error:
            raise _broken(error, section) from error
        if not 200 <= answer.status < 300:
            raise self._refusal(answer)
        return self._read(answer.body)

    def _refusal(self, answer: Answer) -> _RefusedError:
        """Return why a request failed, from a status; a server may ask for a wait before the next try."""
        hint, reason = _HINTS.get(answer.status, ""), f"it answers {answer.status}"
        message = error_message(answer.body.decode(errors="replace"))
        if answer.status not in _TRY_AGAIN and answer.status < 500:
            return _RefusedError(reason, None, message, hint)
        wait = retry_after(answer.headers.get("Retry-After"), time.time())
        with self._lock:
            self._not_before = max(self._not_before, time.monotonic() + wait)
        return _RefusedError(reason, wait, message, hint)

    def _read(self, raw: bytes) -> tuple[str, tuple[int, int] | None, str]:
        try:
            reply = parse_json(raw.decode("utf-8-sig"))
            choice = reply["choices"][0]
            text, hint = choice["message"]["content"], _CUT if choice.get("finish_reason") == "length" else ""
        except (ValueError, KeyError, IndexError, TypeError) as error:
            message = raw.decode(errors="replace")
            raise _RefusedError("what it answers is no chat completion", 0.0, message) from error
        if not isinstance(text, str):
            raise _RefusedError("its message has no text", 0.0, hint=hint)
        return text, _tokens(reply.get("usage")), hint


def retry_after(value: str | None, now: float) -> float:
    """Return the seconds that a Retry-After header asks for, as a number or a date; 0 where it says nothing.

    Source:
        RFC 9110, section 10.2.3.
    """
    if not value:
        return 0.0
    try:
        seconds = float(value)
    except ValueError:
        try:
            seconds = email.utils.parsedate_to_datetime(value).timestamp() - now
        except (ValueError, OverflowError):
            return 0.0
    return max(0.0, seconds) if seconds < float("inf") else 0.0


def _read_key(variable: str) -> str:
    if not variable:
        return ""
    key = os.environ.get(variable, "").strip()
    if not key:
        raise ConfigError(
            f"rewards.judge.key_env: the environment variable {variable} is not set; export it, or set "
            "rewards.judge.key_env='' for a server that wants no key"
        )
    if not key.isascii() or not key.isprintable() or " " in key:
        raise ConfigError(
            f"rewards.judge.key_env: {variable} holds spaces or characters that no header can carry; fix it"
        )
    return key


def _broken(error: OSError | http.client.HTTPException, section: JudgeSettings) -> _RefusedError:
    """Return why there was no answer at all; it may be had at the next try."""
    cause = error.reason if isinstance(error, urllib.error.URLError) else error
    if isinstance(cause, DeadlineError):
        reason = f"its answer was not complete after rewards.judge.request_s = {section.request_s:g} s"
        return _RefusedError(reason, 0.0)
    if isinstance(cause, TimeoutError):
        waited = f"rewards.judge.connect_s = {section.connect_s:g} s or rewards.judge.read_s = {section.read_s:g} s"
        return _RefusedError(f"no answer within {waited}", 0.0)
    if isinstance(cause, ConnectionRefusedError):
        return _RefusedError(f"no server answers at {section.base_url} (connection refused)", 0.0)
    # A malformed status line is part of the error's text, and the server may have written the key into it.
    return _RefusedError("the connection broke", 0.0, f"{type(cause).__name__}: {cause}")


def _tokens(usage: Any) -> tuple[int, int] | None:
    if not isinstance(usage, dict):
        return None
    counts = usage.get("prompt_tokens"), usage.get("completion_tokens")
    if not all(isinstance(n, int) and not isinstance(n, bool) and 0 <= n <= _MOST_TOKENS for n in counts):
        return None
    return counts[0], counts[1]  # type: ignore[return-value]  # just checked
