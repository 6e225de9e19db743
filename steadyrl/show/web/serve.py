"""Serves the pages until somebody stops them (``steadyrl web`` is made of this), to those who may see them.

That is whoever knows the token, from this machine's own pages only. Every answer forbids scripts and styles that do not
come from this server, frames, and requests to anywhere else. Names of the server are checked, for another site can let
its own name point to 127.0.0.1 (DNS rebinding). What another site's page asks for is refused, whatever it knows.
"""

from __future__ import annotations

import errno
import hmac
import ipaddress
import logging
import os
import platform
import secrets
import socket
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from urllib.parse import parse_qsl, quote, urlencode, urlsplit

import uvicorn
from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import PlainTextResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from steadyrl.core.errors import AccessError
from steadyrl.show.web.app import create

TRIED_PORTS = 20
# Bytes: a browser sends the cookies of all programs of the machine to each of them, 180 of 4 KiB at most.
MOST_HEADERS = 1 << 20
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
HEADERS = {
    "content-security-policy": POLICY,
    "x-content-type-options": "nosniff",
    "referrer-policy": "same-origin",  # under "no-referrer" a form of our own pages would come from the origin "null"
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "permissions-policy": "camera=(), geolocation=(), microphone=()",
    "x-frame-options": "DENY",
}
NO_TOKEN = "This page needs the token of its address. Open the address that `steadyrl web` printed.\n"
OTHER_NAME = "This server has another name. Open the address that `steadyrl web` printed.\n"
_LONGEST = 16_384  # characters of an address


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
    listening = listen(host, port)
    with listening:
        address, bound_port = listening.getsockname()[:2]
        token = secrets.token_urlsafe(24) if with_token else ""
        settings = uvicorn.Config(
            Guard(create(root), address, bound_port, token, host),
            log_level="error",  # a request that is none is no news
            access_log=False,
            server_header=False,
            timeout_graceful_shutdown=1,
            lifespan="off",
            proxy_headers=False,
            h11_max_incomplete_event_size=MOST_HEADERS,
        )
        is_ipv6 = ":" in address
        visible = ("::1" if is_ipv6 else "127.0.0.1") if is_wildcard(address) else address
        url = f"http://{f'[{visible}]' if is_ipv6 else visible}:{bound_port}/"
        server = _Server(settings)
        ready(f"{url}?token={quote(token)}" if token else url)
        server.run(sockets=[listening])


class _Server(uvicorn.Server):
    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        # The requests that it cancels at its end are no errors.
        logging.getLogger("uvicorn.error").setLevel(logging.CRITICAL)
        super().handle_exit(sig, frame)


def listen(host: str, port: int) -> socket.socket:
    """Return a socket that listens on a free port, ``port`` or one of the next; see ``serve``."""
    if not host.strip():
        raise AccessError("--host is empty; give an address such as 127.0.0.1, or 0.0.0.0 for all of this machine's")
    try:
        addresses = socket.getaddrinfo(host.strip("[]"), 0, type=socket.SOCK_STREAM)
    except (OSError, ValueError) as error:  # of names that can be none: UnicodeError
        raise AccessError(
            f"--host is '{host}', which is no address of this machine ({error}); give one such as 127.0.0.1"
        ) from error
    family, _, _, _, address = min(addresses, key=lambda entry: entry[0] != socket.AF_INET)
    last = min(port + TRIED_PORTS, 1 << 16) if port else 1
    for candidate in range(port, last):
        dual = family == socket.AF_INET6 and socket.has_dualstack_ipv6()
        try:
            return socket.create_server(
                (address[0], candidate, *address[2:]), family=family, backlog=128, dualstack_ipv6=dual
            )
        except OSError as error:
            if error.errno != errno.EADDRINUSE:
                reason = f"cannot listen on {host}:{candidate}: {os.strerror(error.errno or 0)}"
                raise AccessError(f"{reason}; choose another --host or --port") from error
    raise AccessError(f"the ports {port} to {last - 1} of {host} are taken; choose another --port")


class Guard:
    """Refuses requests without the token, of other names and of other origins, before anything else sees them."""

    def __init__(self, app: ASGIApp, address: str, port: int, token: str, host: str = ""):
        """Set what is allowed.

        Args:
            app: Answers what is let through.
            address: The IP address that the server listens on.
            port: Its port.
            token: What a visitor has to know; "" lets everybody in who reaches the port.
            host: The name that was given for the address; "" for none.
        """
        self.app, self.token = app, token
        self.names = {"127.0.0.1", "localhost", "::1", address, host.lower()} - {""}
        self.everywhere = is_wildcard(address)
        self.cookie = f"steadyrl-{port}"  # cookies are shared by all ports of a host

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request."""
        if scope["type"] == "lifespan":
            await self.app(scope, receive, send)
            return
        if scope["type"] != "http":
            return  # no WebSocket is served

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    headers[name] = value
                if "cache-control" not in headers:
                    headers["cache-control"] = "no-store"
            await send(message)

        answer = self._refusal(scope)
        await (answer or self.app)(scope, receive, send_with_headers)

    def _refusal(self, scope: Scope) -> Response | None:
        """Return the answer to a request that goes no further, or None."""
        headers = Headers(scope=scope)
        host = headers.get("host", "")
        if not self._is_own_name(host):
            return PlainTextResponse(OTHER_NAME, 421)
        origin = headers.get("origin")
        if origin is not None and origin.partition("://")[2] != host:
            return PlainTextResponse("Pages of other origins get nothing here.\n", 403)
        opened = headers.get("sec-fetch-mode") == "navigate" and scope["method"] == "GET"
        if headers.get("sec-fetch-site") in ("cross-site", "same-site") and not opened:
            return PlainTextResponse("Pages of other sites get nothing here.\n", 403)
        query = scope["query_string"].decode("latin-1")
        if len(query) + len(scope["path"]) > _LONGEST:
            return PlainTextResponse("The address is too long.\n", 414)
        if not self.token:
            return None
        query_items = parse_qsl(query, keep_blank_values=True)
        tokens = [value for name, value in query_items if name == "token"]
        if not (tokens and self._is_token(tokens[-1])):
            # Other programs of the machine may have set cookies of any form.
            pairs = (pair.partition("=") for header in headers.getlist("cookie") for pair in header.split(";"))
            cookies = [value.strip(' \t"') for name, _, value in pairs if name.strip() == self.cookie]
            return None if any(map(self._is_token, cookies)) else PlainTextResponse(NO_TOKEN, 403)
        if scope["method"] != "GET":
            return None
        params = urlencode([item for item in query_items if item[0] != "token"])
        address = f"{scope['path']}{'?' if params else ''}{params}".lstrip("/\\")
        answer = RedirectResponse(f"/{address}", status_code=303)
        # A cookie keeps the token, so that it stands in no further address.
        answer.set_cookie(self.cookie, self.token, httponly=True, samesite="strict", path="/")
        return answer

    def _is_token(self, token: str) -> bool:
        return hmac.compare_digest(token.encode(), self.token.encode())

    def _is_own_name(self, host: str) -> bool:
        try:
            name = urlsplit(f"//{host}").hostname or ""
            if self.everywhere and name not in {*self.names, platform.node().lower()}:
                ipaddress.ip_address(name)
        except ValueError:
            return False
        return self.everywhere or name in self.names


def is_wildcard(address: str) -> bool:
    """Return whether an IP address stands for all addresses of the machine, as 0.0.0.0 and :: do."""
    ip = ipaddress.ip_address(address.partition("%")[0])
    return (getattr(ip, "ipv4_mapped", None) or ip).is_unspecified
