"""The site for a browser: served on loopback, one state per session, separated by an unguessable cookie."""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from functools import partial
from http.cookies import CookieError, SimpleCookie
from urllib.parse import parse_qsl, quote

from steadyrl.environments.browse.browser.loopback import Loopback, SiteRequest
from steadyrl.environments.browse.inprocess import split_address
from steadyrl.environments.browse.pages import page_html
from steadyrl.environments.browse.site import change, show
from steadyrl.environments.browse.world import World

_COOKIE = "session"
_MOST_SENT = 100_000  # bytes of a form
_ENTER = "/enter/"
_HEADERS = {
    "Content-Type": "text/html; charset=utf-8",
    "Cache-Control": "no-store",  # a page that is returned to is asked for again, as in-process
    "Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'; img-src data:; form-action 'self'",
}


class SiteServer:
    """Serves the site at ``origin``, on 127.0.0.1, in a state of its own for every session."""

    def __init__(self) -> None:
        self._worlds: dict[str, World] = {}  # threads share it; each call does one thing to it, which none interrupts
        self._server = Loopback(partial(_Request, self))
        self.origin = self._server.origin

    def admit(self, world: World, start: str) -> tuple[str, str]:
        """Serve a state of the site at the address returned; return the session's name as well."""
        session = secrets.token_urlsafe(16)
        self._worlds[session] = world
        return session, f"{self.origin}{_ENTER}{session}?to={quote(start, safe='')}"

    def dismiss(self, session: str) -> None:
        """Serve a session no longer."""
        self._worlds.pop(session, None)

    def world(self, session: str) -> World | None:
        """Return the state of the site in a session."""
        return self._worlds.get(session)

    def close(self) -> None:
        """Stop serving."""
        self._server.close()


class _Request(SiteRequest):
    protocol_version = "HTTP/1.1"
    timeout = 60  # seconds after which a silent connection is closed

    def __init__(self, server: SiteServer, *args: object):
        self._site = server
        super().__init__(*args)  # type: ignore[arg-type]  # what ThreadingHTTPServer passes

    def do_GET(self) -> None:
        """Show a page, or begin a session."""
        path, fields = split_address(self.path)
        if path.startswith(_ENTER):
            session = path.removeprefix(_ENTER)
            self._redirect(
                fields.get("to", "/"), {"Set-Cookie": f"{_COOKIE}={session}; Path=/; HttpOnly; SameSite=Strict"}
            )
            return
        world = self._world()
        if world is None:
            self._send(403, "there is no such session", {})
            return
        self._send(200, page_html(show(world, path, fields)), {})

    def do_POST(self) -> None:
        """Change the site's state, then show where that leads."""
        world, length = self._world(), self.headers.get("Content-Length", "0")
        if world is None or not length.isdigit() or int(length) > _MOST_SENT:
            self.close_connection = True
            self._send(403, "there is no such session", {})
            return
        body = self.rfile.read(int(length)).decode("utf-8", "replace")
        fields = dict(parse_qsl(body, keep_blank_values=True))
        self._redirect(change(world, split_address(self.path)[0], fields), {})

    def _world(self) -> World | None:
        try:
            cookie = SimpleCookie(self.headers.get("Cookie", ""))
        except CookieError:
            return None
        return self._site.world(cookie[_COOKIE].value) if _COOKIE in cookie else None

    def _redirect(self, path: str, headers: Mapping[str, str]) -> None:
        self._send(303, "", {"Location": path, **headers})

    def _send(self, status: int, text: str, headers: Mapping[str, str]) -> None:
        body = text.encode()
        self.send_response(status)
        for name, value in {**_HEADERS, **headers, "Content-Length": str(len(body))}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)
