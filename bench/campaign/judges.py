"""Hostile judge servers: a definite failure or a clean answer, in time, and never the key."""

from __future__ import annotations

import base64
import json
import os
import random
import socket
import threading
import time
from contextlib import closing
from pathlib import Path
from urllib.parse import quote

from bench.campaign.trial import STRANGE, Failure, changed_value
from steadyrl.loop.rewards.judge.client import ChatClient, NoReplyError
from steadyrl.loop.rewards.judge.settings import JudgeSettings

KEY = "sk-campaign-0123456789abcdefXYZ"
VARIABLE = "STEADYRL_CAMPAIGN_KEY"
LIMIT_S = 3.0  # for one request; the client is told a third of it
PIECE = 10  # letters of a key that are too many to be seen
GOOD = {
    "choices": [{"message": {"content": '{"winner": "a"}'}}],
    "usage": {"prompt_tokens": 5, "completion_tokens": 7},
}
HEADERS = (
    "Location: http://[bad", "Location: //", "Location: file:///etc/passwd", "Retry-After: -1", "Retry-After: 1e400",
    "Retry-After: Mon, 99 Foo 9999999 99:99:99", "Transfer-Encoding: chunked", "Content-Length: -7",
    "Content-Length: 99999999999999", "Content-Length: x", "Content-Encoding: gzip", "Set-Cookie: a=b", ": x",
    "no colon", "WWW-Authenticate: Basic realm=x", "Connection: upgrade", "X: " + "y" * 70_000,
)  # fmt: skip


def attack(rng: random.Random, folder: Path) -> Failure:
    """Ask one server that answers with random lines, headers and bodies, the key in many forms among them."""
    os.environ[VARIABLE] = KEY
    answer, drips = _answer(rng), rng.random() < 0.05
    began = time.monotonic()
    with closing(socket.create_server(("127.0.0.1", 0))) as listener:
        threading.Thread(target=_serve, args=(listener, answer, drips), daemon=True).start()
        address = f"http://127.0.0.1:{listener.getsockname()[1]}/v1"
        section = JudgeSettings(
            base_url=address, model="m", key_env=VARIABLE, retries=0, request_s=LIMIT_S / 3, read_s=LIMIT_S / 3
        )
        try:
            reply = ChatClient(section).ask([{"role": "user", "content": "x"}], began + LIMIT_S / 2)
            said = f"{reply.text} {reply.tokens}"
        except NoReplyError as error:
            said = str(error)
        except Exception as error:  # what no caller expects is what the campaign looks for
            return f"{type(error).__name__}: {str(error)[:200]!r} | {answer[:200]!r}"
    if time.monotonic() - began > 5 * LIMIT_S:  # the machine may be busy; a client that waits for ever is not over
        return f"not over after {5 * LIMIT_S:g} s | {answer[:200]!r}"
    shown = [form for form in _forms() if any(form[i : i + PIECE] in said for i in range(len(form) - PIECE + 1))]
    return f"the key is shown: {said[:300]!r}" if shown else ""


def _serve(listener: socket.socket, answer: bytes, drips: bool) -> None:
    try:
        connection, _ = listener.accept()
        with closing(connection):
            connection.recv(1 << 16)
            pieces = [answer[i : i + 1] for i in range(len(answer))] if drips else [answer]
            for piece in pieces:
                connection.sendall(piece)
                time.sleep(0.02 if drips else 0)
    except OSError:
        return  # the client went away, as it may


def _forms() -> tuple[str, ...]:
    data = KEY.encode()
    return (
        KEY,
        quote(KEY, safe=""),
        "".join(f"%{byte:02x}" for byte in data),
        "".join(f"\\u{byte:04x}" for byte in data),
        "".join(f"&#{byte};" for byte in data),
        base64.b64encode(data).decode(),
        base64.b64encode(data + b":").decode(),
        data.hex(),
    )


def _answer(rng: random.Random) -> bytes:
    echo = rng.choice(_forms()) if rng.random() < 0.6 else ""
    padding = "x" * rng.choice((0, 0, 5, 150, 190, 5000))
    body = json.loads(json.dumps(GOOD))
    body["choices"][0]["message"]["content"] += padding + echo
    for _ in range(rng.choice((0, 1, 1, 3))):
        body = changed_value(body, rng)
    if rng.random() < 0.2:
        body = {"error": {"message": f"{padding}{echo}"}}
    data = json.dumps(body).encode()
    if rng.random() < 0.2:
        data = rng.choice((b"", b"[" * 100_000, f"{padding}{echo}".encode(), bytes(rng.randbytes(300)), data[:-3]))
    status = rng.choice(
        ("200 OK",) * 6 + ("302 Found", "307 T", "308 P", "400 No", "401 No", "429 Wait", "500 E", "599 X")
    )
    line = rng.choice(("HTTP/1.1 ",) * 8 + ("HTTP/9.9 ", "", f"{padding}{echo} ", "\0\xff "))
    if rng.random() < 0.1:
        status = f"{status} {padding}{echo}" if rng.random() < 0.5 else str(rng.choice(STRANGE)).replace("\ud800", "")
    headers = rng.sample(HEADERS, rng.choice((0, 0, 1, 2)))
    if rng.random() < 0.1:
        headers.append(f"X-Echo: {echo}")
    if rng.random() < 0.5:
        headers.append(f"Content-Length: {len(data)}")
    head = "".join(f"{text}\r\n" for text in (f"{line}{status}", *headers))
    return head.encode("utf-8", "replace") + b"\r\n" + data
