import http.client
import signal
import subprocess
import sys

import pytest

from steadyrl.errors import AccessError
from tests import needs
from tests.web.made import make_run

needs.skip_without_packages("starlette", "uvicorn", extra="web")

from steadyrl.web.serve import listen  # noqa: E402 # it needs the packages


def test_the_command_serves_with_a_token_and_ends_at_once_although_a_page_follows(tmp_path):
    make_run(tmp_path / "a")
    command = [sys.executable, "-m", "steadyrl", "web", str(tmp_path), "--port", "0"]
    server = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    line = server.stdout.readline()
    assert "?token=" in line
    port, token = int(line.rpartition(":")[2].partition("/")[0]), line.strip().rpartition("=")[2]
    page = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    page.request("GET", "/run/a/events", headers={"cookie": f"steadyrl-{port}={token}"})
    events = page.getresponse()
    assert events.status == 200
    assert events.readline() == b"retry: 2000\n"
    server.send_signal(signal.SIGINT)
    said = server.communicate(timeout=30)[1]
    assert said == ""
    page.close()


def test_a_port_that_is_taken_is_passed_over_and_one_that_cannot_be_had_is_refused():
    with listen("127.0.0.1", 0) as taken:
        port = taken.getsockname()[1]
        with listen("127.0.0.1", port) as other:
            assert other.getsockname()[1] > port
    with pytest.raises(AccessError, match="choose another --host"):
        listen("192.0.2.1", 0)
