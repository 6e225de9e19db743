import http.client
import json
import random
import signal
import socket
import subprocess
import sys
import threading
import time
from contextlib import closing, contextmanager, suppress

import pytest

from steadyrl.core.errors import AccessError
from tests import needs
from tests.show.web.made import make_run

needs.skip_without_packages("starlette", "uvicorn", extra="web")

from steadyrl.show.web.serve import listen  # noqa: E402 # it needs the packages


@contextmanager
def served(folder, *options):
    """Serve a folder with the command; yield its process, its port and its token."""
    command = [sys.executable, "-m", "steadyrl", "web", str(folder), "--port", "0", *options]
    server = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        line = server.stdout.readline()
        assert "http://127.0.0.1:" in line
        yield server, int(line.rpartition(":")[2].partition("/")[0]), line.strip().rpartition("=")[2]
    finally:
        server.kill()
        server.communicate()


def test_the_command_serves_with_a_token_and_ends_at_once_although_a_page_is_connected(tmp_path):
    make_run(tmp_path / "a")
    with served(tmp_path) as (server, port, token):
        page = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
        page.request("GET", "/run/a/live", headers={"cookie": f"steadyrl-{port}={token}"})
        answer = page.getresponse()
        assert answer.status == 200 and answer.read()  # the connection stays open, as a browser has it
        server.send_signal(signal.SIGINT)
        assert (server.communicate(timeout=30)[1], server.returncode) == ("", 130)
        page.close()


@pytest.mark.weekly
def test_ctrl_c_waits_for_no_page_that_still_computes(tmp_path):
    """Sixteen diagnoses of 60,000 rows, one after the other, take some ten seconds."""
    log = "".join(json.dumps({"step": k, "loss": 0.1, "reward": 0.2}) + "\n" for k in range(60_000)).encode()
    with served(tmp_path, "--no-token") as (server, port, _):

        def upload():
            with closing(http.client.HTTPConnection("127.0.0.1", port, timeout=60)) as page, suppress(OSError):
                page.request("POST", "/doctor", log)
                page.getresponse().read()

        threads = [threading.Thread(target=upload, daemon=True) for _ in range(16)]
        for thread in threads:
            thread.start()
        time.sleep(1)
        began = time.monotonic()
        server.send_signal(signal.SIGINT)
        assert (server.communicate(timeout=60)[1], server.returncode) == ("", 130)
        assert time.monotonic() - began < 6  # one second for pages, and a machine that does other work
        for thread in threads:
            thread.join()


@pytest.mark.weekly
def test_a_browser_that_sends_many_cookies_of_other_programs_is_served(tmp_path):
    with served(tmp_path) as (_, port, token):
        page = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
        others = "; ".join(f"other{n}={'x' * 4000}" for n in range(60))
        page.request("GET", "/", headers={"cookie": f"{others}; steadyrl-{port}={token}"})
        assert page.getresponse().status == 200
        page.close()


PATHS = (
    "/ /run/a /run/a/live /run/a/curves /run/a/rollouts /run/a/rollouts/0/0 /run/a/problem /compare /studies /study/x "
    "/doctor /static/app.css /static/ /run/log.jsonl /run/log.jsonl/curves /run/log.jsonl/report /run/a/doctor"
).split()
BITS = (
    "% %0 %zz %00 %ff %ed%a0%80 %2e%2e/ ../ // %5c %2f ~ -1 0x10 1e309 NaN %D9%A3 %C2%B2 99999999999999999999 <script> "
    "; & = # [ ] [] + %0d%0aX:y {{7*7}} %f0%9f%98%80 %e2%80%ae null ' \""
).split()
NAMES = "run step page problem order q least most stop colour n from to after name part sort arm token status".split()
ODD = {
    "Host": ["", "[", "[::1", "[::1]:x", "a b", "localhost:99999999", "127.0.0.1:-1", "u@127.0.0.1", "[v1.x]", "\xe9"],
    "Origin": ["http://[", "null", "", "://", "http://[::1", "\xe9", "http://a:b:c", "http://x]"],
    "Range": [
        "bytes=0-",
        "bytes=-1",
        "bytes=5-2",
        "bytes=",
        "x",
        "bytes=a-b",
        "bytes=9" + "9" * 30 + "-",
        "bytes=\xb2-",
    ],
    "If-Range": ["x", '"', "Wed, 99 Oct 99999 07:28:00 GMT"],
    "If-Modified-Since": ["x", "", "Wed, 99 Oct 99999 07:28:00 GMT", "Thu, 01 Jan 0000 00:00:00 -9999"],
    "Content-Type": ["application/x-www-form-urlencoded", "multipart/form-data; boundary=", "text/plain; charset=nope"],
    "Content-Length": ["-1", "x", "9" * 20, "5, 5", "1e3"],
    "Cookie": ['a={"x":1}', "\xe9", ";;=", "x" * 9000],
    "Accept": ["*/*", "", "\xe9"],
    "Sec-Fetch-Site": ["cross-site", "x"],
}
BODIES = (
    b"log=%zz%",
    b"log=%ed%a0%80",
    b"",
    b'{"step":1}',
    b"\xff\xfe\x00",
    b"&" * 999,
    b"log=step,loss%0A1,2",
    b"log",
)


def odd_request(rng, port):
    """Return a request with one or more things in it that are no HTTP, or that nobody would ask for."""
    path = rng.choice(PATHS)
    for _ in range(rng.randrange(3)):
        place = rng.randrange(len(path) + 1)
        path = path[:place] + rng.choice(BITS) + path[place:]
    path += "?" * rng.randrange(2) + "&".join(
        f"{rng.choice(NAMES)}={rng.choice(BITS)}" for _ in range(rng.randrange(4))
    )
    body = rng.choice(BODIES)
    method = rng.choice(["GET"] * 6 + ["POST", "HEAD", "PUT", "OPTIONS"])
    headers = {"Host": f"127.0.0.1:{port}", "Connection": "close", "Content-Length": str(len(body))}
    for name in rng.sample(list(ODD), rng.choice([0, 1, 1, 2])):
        headers[name] = rng.choice(ODD[name])
    lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
    return f"{method} {path} HTTP/1.1\r\n{lines}\r\n".encode("latin-1") + body


def test_no_request_however_odd_is_a_fault_of_the_server(tmp_path):
    make_run(tmp_path / "a")
    (tmp_path / "log.jsonl").write_text("".join(json.dumps({"step": k, "loss": 0.1}) + "\n" for k in range(20)))
    rng, codes = random.Random(17), set()
    with served(tmp_path, "--no-token") as (server, port, _):
        for _ in range(300):
            asked = odd_request(rng, port)
            with socket.create_connection(("127.0.0.1", port), timeout=2) as page:
                page.sendall(asked)
                try:
                    answer = page.recv(12)
                except TimeoutError:
                    answer = b"HTTP/1.1 100"  # the server waits for the rest of a body that never comes
            assert answer.startswith(b"HTTP/1.1 ") and answer[9:10] != b"5", asked
            codes.add(answer[9:])
        server.send_signal(signal.SIGINT)
        assert server.communicate(timeout=30)[1] == ""
    assert codes >= {b"200", b"400", b"403", b"404", b"405", b"421"}


@pytest.mark.parametrize(("host", "address"), [("0", "0.0.0.0"), ("0x0", "0.0.0.0"), ("127.1", "127.0.0.1")])
def test_an_address_is_understood_however_it_is_written(host, address):
    with listen(host, 0) as taken:
        assert taken.getsockname()[0] == address


@pytest.mark.parametrize("host", [pytest.param("0", marks=pytest.mark.weekly), "localhost"])
def test_the_address_that_is_printed_can_be_opened(tmp_path, host):
    with (
        served(tmp_path, "--host", host) as (_, port, token),
        closing(http.client.HTTPConnection("127.0.0.1", port)) as page,
    ):
        page.request("GET", f"/?token={token}")
        assert page.getresponse().status == 303


@pytest.mark.parametrize("host", ["", " ", "no such host", "x" * 300, "999.1.1.1", "a..b", "\u202e", "[", "192.0.2.1"])
def test_a_host_that_is_no_address_of_this_machine_is_refused_by_name(host):
    with pytest.raises(AccessError, match="--host"):
        listen(host, 0)


def test_ports_are_tried_up_to_the_last_one_there_is():
    with listen("127.0.0.1", 65_535) as last:
        assert last.getsockname()[1] == 65_535
        with pytest.raises(AccessError, match=r"the ports 65535 to 65535 of .* are taken; choose another --port"):
            listen("127.0.0.1", 65_535)


def test_a_port_that_is_taken_is_passed_over_and_one_that_cannot_be_had_is_refused():
    with listen("127.0.0.1", 0) as taken:
        port = taken.getsockname()[1]
        with listen("127.0.0.1", port) as other:
            assert other.getsockname()[1] > port
    with pytest.raises(AccessError, match="choose another --host"):
        listen("192.0.2.1", 0)
