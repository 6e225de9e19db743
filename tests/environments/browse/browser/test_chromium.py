import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from http.server import ThreadingHTTPServer
from pathlib import Path

import pytest

from steadyrl.core.errors import ConfigError, EpisodeError, MissingExtraError
from steadyrl.environments.browse.browser.actions import Back, Click, Scroll, Select, Stop, Type, parse
from steadyrl.environments.browse.browser.chromium import Chromium
from steadyrl.environments.browse.browser.find import find_chromium, playwright_api
from steadyrl.environments.browse.browser.loopback import Loopback, SiteRequest
from steadyrl.environments.browse.browser.settings import BrowserSettings
from steadyrl.environments.browse.browser.snapshot import Element, Snapshot, windows
from tests import needs


@pytest.mark.parametrize(
    ("text", "action"),
    [
        ("click 7", Click(7)),
        ('type 3 "red cup"', Type(3, "red cup")),
        ('type 3 " red cup "', Type(3, "red cup")),
        ('type 3 ""', Type(3, "")),
        ('select 12 "low"', Select(12, "low")),
        ("scroll down", Scroll("down")),
        ("scroll up", Scroll("up")),
        ("back", Back()),
        ('stop "12"', Stop("12")),
        ('stop ""', Stop("")),
    ],
)
def test_the_grammar_of_actions(text, action):
    assert parse(text) == action


@pytest.mark.parametrize(
    "text",
    [
        "", "Click 7", "click", "click seven", "click 7 8", "click 1234", "click -1", "click 7\nclick 8", "click ٣",
        "type 3 red", 'type 3 "a" "b"', 'type 3 "a"b"', "type 3 'a'", 'type "a"', "scroll", "scroll left", "go back",
        "stop", "stop 12", "back back", "\ud800", "\x00", "click 7;" * 999,
    ],
)  # fmt: skip
def test_what_is_no_action_is_said_in_one_line(text):
    assert parse(text) == "that is no action"


def test_texts_that_nobody_could_type_are_refused():
    assert parse(" back\n") == Back()
    assert parse('type 3 "a\x07b"') == "a text that no keyboard writes"
    assert parse(f'type 3 "{"a" * 201}"') == "a text of 201 characters; 200 at most"


def test_a_page_is_cut_into_windows_by_its_characters():
    lines = ((Element("link", "one"),), ("two", Element("link", "three")), (Element("link", "four"),))
    cuts = windows(Snapshot(lines), 30)  # the lines have 12, 22 and 13 characters
    assert [cut.text() for cut in cuts] == [
        "[0] link one\nmore below",
        "more above\ntwo | [1] link three\nmore below",
        "more above\n[2] link four",
    ]
    assert [sorted(cut.numbers) for cut in cuts] == [[0], [1], [2]]
    assert windows(Snapshot(lines), 100)[0].text() == "[0] link one\ntwo | [1] link three\n[2] link four"
    assert windows(Snapshot(()), 100)[0].text() == ""


def test_long_names_are_cut_and_values_and_options_are_shown():
    line = (Element("select", "size", "low", ("low", "high")), Element("textbox", "", "x" * 99))
    (cut,) = windows(Snapshot((line,)), 1000)
    assert cut.text() == "[0] select size = low of low / high | [1] textbox = " + "x" * 57 + "..."


def test_a_long_text_is_shown_whole_over_several_lines():
    words = [f"word{number:02}" for number in range(24)]  # eight of them fit into 60 characters
    snapshot = Snapshot((("before", " ".join(words), Element("textbox", "answer")), ("after",)))
    (cut,) = windows(snapshot, 1000)
    assert cut.lines == (
        "before | " + " ".join(words[:8]),
        " ".join(words[8:16]),
        " ".join(words[16:]) + " | [0] textbox answer",
        "after",
    )
    cuts = windows(snapshot, 100)
    assert [line for cut in cuts for line in cut.lines] == list(windows(snapshot, 1000)[0].lines)
    assert [sorted(cut.numbers) for cut in cuts] == [[], [], [0]]


def test_without_chromium_one_line_says_how_to_install_it(monkeypatch):
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(ConfigError, match=r"Chromium is not installed; .*apt-get install chromium.*'inprocess'"):
        find_chromium(BrowserSettings())
    with pytest.raises(ConfigError, match="'/nowhere/at/all', which is no program"):
        find_chromium(BrowserSettings(executable="/nowhere/at/all"))


def test_without_playwright_one_line_names_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "playwright", None)
    with pytest.raises(MissingExtraError, match=r"'playwright' is not installed .*pip install 'steadyrl\[browse\]'"):
        playwright_api()


def test_a_loopback_answers_as_a_proxy_for_itself_and_for_nobody_else():
    class Answer(SiteRequest):
        def do_GET(self):
            self.send_response(200)
            self.send_header("Content-Length", "0")
            self.send_header("X-Path", self.path)
            self.end_headers()

        do_POST = do_GET

    server = Loopback(Answer)
    port = int(server.origin.rpartition(":")[2])

    def ask(first_line):
        with socket.create_connection(("127.0.0.1", port), timeout=5) as one:
            one.sendall(f"{first_line} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n".encode())
            with one.makefile("rb") as answer:
                head = answer.read().decode().split("\r\n")
        return head[0].split()[1], next((line[8:] for line in head if line.startswith("X-Path")), None)

    try:
        assert ask("GET /a?b=c") == ("200", "/a?b=c")
        assert ask(f"GET {server.origin}/a?b=c") == ("200", "/a?b=c")
        strangers = [f"http://127.0.0.1:{port + 1}/", f"{server.origin}0/", f"{server.origin}@example.com/"]
        strangers += ["http://localhost/", "http://example.com/", "https://127.0.0.1/", server.origin, "*", "x"]
        assert [ask(f"{verb} {one}") for verb in ("GET", "POST") for one in strangers] == [("204", None)] * 18
        assert ask(f"CONNECT 127.0.0.1:{port}") == ask("CONNECT 127.0.0.1:22") == ("403", None)
    finally:
        server.close()


# What follows drives Chromium.

PAGES = {
    "/": '<h1>first</h1><a href="/second">on</a><a href="OTHER">away</a><a href="/second" target="_blank">beside</a>'
    '<button onclick="alert(1)">warn</button><button onclick="window.open(\'/second\')">popup</button>'
    '<button onclick="for(;;){}">hang</button><a href="/file">file</a>',
    "/second": "<h1>second</h1>",
    "/beside": "<form action='/second' target='_blank'><button>beside</button></form>"
    "<form action='/second' target='_self'><button formtarget='_blank'>beside</button><button>here</button></form>",
    "/clinging": "<script>addEventListener('pagehide', () => { const a = document.createElement('a');"
    "a.href = '/hop'; a.download = 'x'; document.body.append(a); a.click() })</script><h1>clinging</h1>",
    "/endless": "<script>addEventListener('pagehide', () => { for (;;) {} })</script><h1>endless</h1>",
    "/memory": "<script>const seen = [document.cookie, localStorage.a, sessionStorage.a, window.name];"
    "document.cookie = localStorage.a = sessionStorage.a = window.name = 'a=1';"
    "document.write('<p>' + JSON.stringify(seen) + '</p>')</script>",
    "/heap": "<style>button { position: absolute; left: 0; top: 0; width: 100px; height: 50px }</style>"
    "<button onclick='document.title += 1'>under</button>"
    "<button onclick='document.title += 2' style='left: 30px; width: 60px'>between</button>"
    "<button onclick='document.title += 3' style='left: 90px'>over</button>"
    "<button style='left: 200px'>hidden</button><button style='left: 200px'>last</button>",
    "/widgets": "<div onclick='x=1'>pressable</div><p>plain</p><p style='display:none'>hidden</p>"
    "<label>colour <input value='red'></label><input type='checkbox' checked aria-label='agree'>"
    "<textarea placeholder='words'></textarea><input type='radio' name='r' id='r1'><label for='r1'>left</label>"
    "<div id='listens'>listening</div><script>listens.addEventListener('mousedown', () => {})</script>"
    "<button disabled>never</button><table><tr><td>a</td><td>b</td></tr></table>",
}


class Handler(SiteRequest):
    def do_GET(self):
        body = PAGES.get(self.path, "?").replace("OTHER", self.server.other).encode()
        if self.path == "/hop":
            self.send_response(302)
            self.send_header("Location", self.server.other)
            self.end_headers()
            return
        self.send_response(200)
        kind = "application/octet-stream" if self.path == "/file" else "text/html"
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
        self.server.asked.append(self.path)


class Server(ThreadingHTTPServer):
    daemon_threads, block_on_close = True, False

    def handle_error(self, *_):
        pass


def serve():
    server = Server(("127.0.0.1", 0), Handler)
    server.asked, server.other = [], ""
    server.address = f"http://127.0.0.1:{server.server_port}"
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return server


@pytest.fixture(scope="module")
def servers():
    """Return our server and a stranger's, which ours links to."""
    ours, stranger = serve(), serve()
    ours.other = stranger.address + "/second"
    yield ours, stranger
    for server in (ours, stranger):
        server.shutdown()
        server.server_close()


@pytest.fixture(scope="module")
def chromium(servers):
    made = Chromium(BrowserSettings(page_timeout_s=4.0), servers[0].address)
    yield made
    made.close()


@pytest.mark.parametrize("program", [pytest.param("exit 1", marks=pytest.mark.weekly), "sleep 30"])
def test_a_start_that_fails_or_is_given_up_leaves_no_folder(servers, tmp_path, monkeypatch, program):
    needs.skip_without_packages("playwright", extra="browse")
    script = tmp_path / "chromium"
    script.write_text(f"#!/bin/sh\n{program}\n")
    script.chmod(0o755)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    made, left = Chromium(BrowserSettings(executable=str(script)), servers[0].address), []
    try:
        made.call(made._living_driver())
        with pytest.raises(EpisodeError):
            made.call(made._launch(), timeout_s=3.0)
        deadline = time.monotonic() + 10
        while (left := list(tmp_path.glob("srl-*"))) and time.monotonic() < deadline:
            time.sleep(0.05)
        assert left == []
        tab_left = []
        with pytest.raises(EpisodeError):
            made._settings = made._settings.model_copy(update={"launch_timeout_s": 0.5})
            made.open(servers[0].address + "/", lambda: tab_left.append(1))
        assert tab_left == [1]  # told once that no one shows the page
    finally:
        made.close()


@pytest.fixture
def opened(chromium, servers):
    """Return a function that opens a path of our server; what it opened is closed in the end."""
    tabs = []

    def open_path(path):
        tabs.append(chromium.open(servers[0].address + path, lambda: None))
        return tabs[-1]

    yield open_path
    for tab in tabs:
        tab.close()


@pytest.fixture
def temporary(monkeypatch):
    """Return a folder in which all temporary files of a test lie; a short path, for Chromium has sockets in it."""
    folder = Path(tempfile.mkdtemp(dir="/tmp"))
    monkeypatch.setenv("TMPDIR", str(folder))
    monkeypatch.setattr(tempfile, "tempdir", None)
    yield folder
    shutil.rmtree(folder)


def headings(tab):
    return [line[0] for line in tab.look().lines if isinstance(line[0], str)]


@pytest.mark.browser
def test_kinds_names_and_values_of_what_is_on_a_page(opened):
    assert opened("/widgets").look().lines == (
        (Element("item", "pressable"),),
        ("plain",),
        (
            Element("textbox", "colour", "red"),
            Element("checkbox", "agree", "on"),
            Element("textbox", "words"),
            Element("radio", "left"),
        ),
        (Element("item", "listening"),),
        (Element("button", "never"),),
        ("a", "b"),
    )


@pytest.mark.browser
def test_what_cannot_be_done_is_said_and_does_nothing(opened):
    tab = opened("/widgets")
    tab.look()
    assert tab.act(Type(0, "x")) == "element 0 takes no text"
    assert tab.act(Select(1, "x")) == "element 1 is no list"
    assert tab.act(Click(6)) == "element 6 is disabled"
    assert tab.act(Back()) == "there is no page before"


@pytest.mark.browser
def test_what_lies_under_something_else_is_pressed_where_it_shows(opened):
    tab = opened("/heap")
    tab.look()
    assert [tab.act(Click(n)) for n in range(4)] == ["", "", "", "element 3 is covered"]
    assert tab.evaluate("() => document.title") == "123"


@pytest.mark.browser
def test_a_tab_never_leaves_its_origin_nor_opens_another(opened, servers):
    stranger = servers[1]
    tab = opened("/")
    tab.look()
    for number in (1, 2, 3, 4, 6):  # a stranger's page, a new tab, a dialog, a popup, a file
        assert tab.act(Click(number)) == ""
        assert headings(tab) == ["heading first"]
    assert stranger.asked == []
    assert tab.act(Click(0)) == "" and headings(tab) == ["heading second"]
    assert tab.act(Back()) == "" and headings(tab) == ["heading first"]


@pytest.mark.browser
def test_a_form_that_is_sent_to_a_new_tab_leaves_this_one_as_it_is(opened):
    tab = opened("/beside")
    tab.look()
    for number in (0, 1):
        assert tab.act(Click(number)) == "" and len(tab.look().elements()) == 3
    assert tab.act(Click(2)) == "" and tab.look().lines == (("?",),)  # what is served for "/second?"


@pytest.mark.browser
def test_names_of_other_machines_are_not_even_looked_up(opened, servers):
    tab = opened("/second")
    script = "url => fetch(url, {mode: 'no-cors'}).then(() => 'reached', () => 'refused')"
    assert tab.evaluate(script, "http://example.com/") == "refused"
    assert tab.evaluate(script, servers[1].address) == "refused"
    assert tab.evaluate(script, servers[0].address + "/") == "reached"


@pytest.mark.browser
def test_an_episode_finds_nothing_of_the_one_before_it_in_the_same_browser(chromium, opened):
    seen = []
    for _ in range(3):
        tab = opened("/memory")
        seen.append((tab.evaluate("() => document.querySelector('p').textContent"), chromium.pids()))
        assert tab.act(Back()) == "there is no page before"
        tab.close()
    assert [text for text, _ in seen] == ['["",null,null,""]'] * 3
    assert seen[0][1] == seen[2][1]


@pytest.mark.browser
def test_a_page_that_hangs_is_given_up_and_the_next_one_works(servers):
    chromium = Chromium(BrowserSettings(page_timeout_s=2.5), servers[0].address)
    try:
        tab = chromium.open(servers[0].address + "/", lambda: None)
        tab.look()
        with pytest.raises(EpisodeError, match=r"did not answer within 2\.5 s"):
            tab.act(Click(5))
            tab.look()
        with pytest.raises(EpisodeError, match="closed before"):
            tab.look()
        tab.close()
        again = chromium.open(servers[0].address + "/", lambda: None)
        assert headings(again) == ["heading first"]
    finally:
        chromium.close()


@pytest.mark.browser
@pytest.mark.parametrize("path", [pytest.param("/clinging", marks=pytest.mark.weekly), "/endless"])
def test_a_page_that_will_not_be_left_does_not_cost_the_episode_after_it(path, servers):
    chromium = Chromium(BrowserSettings(page_timeout_s=2.5), servers[0].address)
    try:
        chromium.open(servers[0].address + path, lambda: None).close()
        left = []
        tab = chromium.open(servers[0].address + "/", lambda: left.append(1))
        assert headings(tab) == ["heading first"]
        assert len(chromium.pids()) == 1
        tab.close()
        assert left == [1]
    finally:
        chromium.close()


@pytest.mark.browser
@pytest.mark.parametrize(
    "victim", ["driver", *(pytest.param(each, marks=pytest.mark.weekly) for each in ("browser", "renderer"))]
)
def test_what_is_killed_costs_its_own_episode_and_nothing_else(victim, servers, temporary):
    before = descendants(os.getpid())
    chromium = Chromium(BrowserSettings(page_timeout_s=4.0), servers[0].address)
    left = []
    try:
        one = chromium.open(servers[0].address + "/", lambda: left.append("one"))
        two = chromium.open(servers[0].address + "/second", lambda: left.append("two"))
        for pid in _victims(victim, chromium.pids()[0]):
            os.kill(pid, signal.SIGKILL)
        answers = [_heading_or_error(tab) for tab in (one, two)]
        assert sum(isinstance(answer, EpisodeError) for answer in answers) == (2 if victim == "driver" else 1)
        one.close()
        two.close()
        assert sorted(left) == ["one", "two"]
        assert headings(chromium.open(servers[0].address + "/", lambda: None)) == ["heading first"]
    finally:
        chromium.close()
    assert _settled(lambda: descendants(os.getpid()) <= before)
    assert _settled(lambda: not list(temporary.iterdir())), list(temporary.iterdir())


def _heading_or_error(tab):
    try:
        return headings(tab)
    except EpisodeError as error:
        return error


def _victims(kind, browser):
    """Return a browser's own process, those of its pages, or the driver of all browsers."""
    if kind == "browser":
        return [browser]
    if kind == "driver":
        return [pid for pid in descendants(os.getpid()) if "run-driver" in _command(pid)]
    return [pid for pid in descendants(browser) if "--type=renderer" in _command(pid)]


def descendants(ancestor):
    """Return the ids of all living processes that descend from one."""
    parents = {}
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            with contextlib.suppress(OSError):
                state, parent = (folder / "stat").read_text().rpartition(")")[2].split()[:2]
                if state != "Z":
                    parents[int(folder.name)] = int(parent)
    found, new = set(), {ancestor}
    while new:
        new = {pid for pid, parent in parents.items() if parent in new} - found
        found |= new
    return found


def _command(pid):
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_text()
    return ""


def _settled(holds, seconds=20.0):
    end = time.monotonic() + seconds
    while not holds() and time.monotonic() < end:
        time.sleep(0.05)
    return holds()


@pytest.mark.browser
@pytest.mark.parametrize("ending", [pytest.param("exit", marks=pytest.mark.weekly), "interrupt"])
def test_a_program_that_ends_takes_its_browsers_with_it(ending, servers, temporary):
    program = (
        "import signal, sys, time\n"
        # Where the tests themselves run in the background, interrupts are ignored, and so they would be here.
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "from steadyrl.environments.browse.browser.chromium import Chromium\n"
        "from steadyrl.environments.browse.browser.settings import BrowserSettings\n"
        f"c = Chromium(BrowserSettings(), {servers[0].address!r})\n"
        f"c.open({servers[0].address!r} + '/', lambda: None).look()\n"
        "print('open', flush=True)\n"
        "if sys.argv[1] == 'interrupt': time.sleep(120)\n"
    )
    running = subprocess.Popen(
        [sys.executable, "-c", program, ending],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    with running:
        assert running.stdout.readline() == "open\n", running.stderr.read()
        if ending == "interrupt":
            os.killpg(running.pid, signal.SIGINT)  # as the terminal does: the driver hears it as well
        running.communicate(timeout=60)
    assert _settled(lambda: not list(temporary.iterdir())), list(temporary.iterdir())
    assert not [p for p in Path("/proc").iterdir() if p.name.isdigit() and str(temporary) in _command(p.name)]


@pytest.mark.browser
def test_what_a_killed_program_and_its_driver_leave_goes_when_the_next_one_starts(servers, temporary):
    program = (
        "import time\n"
        "from steadyrl.environments.browse.browser.chromium import Chromium\n"
        "from steadyrl.environments.browse.browser.settings import BrowserSettings\n"
        f"c = Chromium(BrowserSettings(), {servers[0].address!r})\n"
        f"c.open({servers[0].address!r} + '/', lambda: None).look()\n"
        "print('open', flush=True)\n"
        "time.sleep(120)\n"
    )
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True) as running:
        assert running.stdout.readline() == "open\n"
        below = descendants(running.pid)
        for pid in (running.pid, *below):
            with contextlib.suppress(ProcessLookupError):  # one that ended with another
                os.kill(pid, signal.SIGKILL)
    assert _settled(lambda: not [pid for pid in below if Path(f"/proc/{pid}/cmdline").exists() and _command(pid)])
    assert len(list(temporary.glob("srl-*"))) == 1 and len(list(temporary.glob("playwright_*"))) == 1
    chromium = Chromium(BrowserSettings(), servers[0].address)
    try:
        assert headings(chromium.open(servers[0].address + "/", lambda: None)) == ["heading first"]
    finally:
        chromium.close()
    assert _settled(lambda: not list(temporary.iterdir())), list(temporary.iterdir())
