"""Asks the pages without a network: an ASGI request at a time."""

import asyncio
import json
from types import SimpleNamespace
from urllib.parse import urlsplit


def ask(app, address, method="GET", body=b"", **headers):
    """Return the answer to a request, once it is whole: status, headers, text and data."""
    parts = urlsplit(address)
    sent = {"host": "127.0.0.1:8765", "accept": "text/html", **{k.replace("_", "-"): v for k, v in headers.items()}}
    scope = {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": method,
        "scheme": "http",
        "path": parts.path,
        "raw_path": parts.path.encode(),
        "root_path": "",
        "query_string": parts.query.encode(),
        "headers": [(name.encode(), value.encode("latin-1", "replace")) for name, value in sent.items()],
        "client": ("127.0.0.1", 1),
        "server": ("127.0.0.1", 8765),
    }
    messages = [{"type": "http.request", "body": body, "more_body": False}, {"type": "http.disconnect"}]
    got = []

    async def receive():
        return messages.pop(0) if messages else {"type": "http.disconnect"}

    async def send(message):
        got.append(message)

    asyncio.run(app(scope, receive, send))
    data = b"".join(message.get("body", b"") for message in got[1:])
    answered = {name.decode(): value.decode() for name, value in got[0]["headers"]}
    return SimpleNamespace(status=got[0]["status"], headers=answered, data=data, text=data.decode())


def ask_json(app, address):
    return json.loads(ask(app, address, accept="application/json").data)
