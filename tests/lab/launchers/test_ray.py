"""Jobs on a real Ray of this machine with two CPUs."""

import os
import signal
import socket
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

from steadyrl.core.errors import ConfigError
from steadyrl.lab.launchers.command import Command, Ended, choose
from tests import needs

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("default")]  # Ray's client warns of its own dependencies
STARTS_S, ENDS_S = 300, 120
# On a busy machine the parts of a cluster wait longer for each other than they do by default.
PATIENCE = {
    "RAY_DASHBOARD_STARTUP_TIMEOUT_S": str(STARTS_S),
    "RAY_raylet_start_wait_time_s": str(STARTS_S),
    "RAY_agent_register_timeout_ms": str(1000 * STARTS_S),
}


@pytest.fixture(scope="module")
def address(tmp_path_factory):
    needs.skip_without_packages("ray", "aiohttp", extra="ray")
    folder = tmp_path_factory.mktemp("ray")
    ports = [free_port() for _ in range(2)]
    program = [str(Path(sys.executable).parent / "ray"), "start", "--head", "--block", "--num-cpus=2"]
    options = [f"--dashboard-port={ports[0]}", f"--port={ports[1]}", f"--temp-dir={folder}", "--disable-usage-stats"]
    options += ["--object-store-memory=100000000"]
    out = folder / "out"
    with out.open("wb") as file:
        words = [*program, *options]
        head = subprocess.Popen(words, env={**os.environ, **PATIENCE}, stdout=file, stderr=file, start_new_session=True)
    until = time.monotonic() + STARTS_S
    try:
        while b"Ray runtime started" not in out.read_bytes():
            assert head.poll() is None, out.read_text()
            assert time.monotonic() < until, out.read_text()
            time.sleep(0.5)
        yield f"http://127.0.0.1:{ports[0]}"
    finally:
        head.terminate()  # it ends the others, which it has started
        head.wait()


def free_port():
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]


def python(tmp_path, name, code):
    words = (sys.executable, "-S", "-c", textwrap.dedent(code))
    return Command(name, words, tmp_path, tmp_path / f"{name} 's.log")


def until_ended(launcher, count):
    found, until = [], time.monotonic() + ENDS_S
    while len(found) < count:
        assert time.monotonic() < until, f"only {found} ended"
        found += launcher.ended()
        time.sleep(0.2)
    return sorted(found, key=lambda one: one.name)


def test_jobs_end_with_their_codes_and_write_their_logs(address, tmp_path, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", "/of/this/process")
    launcher = choose("ray", {"address": address}, ["cpus=0.5"], 2)
    launcher.start(
        [
            python(tmp_path, "a", "import os; print('it\\'s', os.getcwd(), os.environ['PYTHONPATH'])"),
            python(tmp_path, "b", "import sys; sys.exit('error: no')"),
            python(tmp_path, "c", f"import os; os.kill(os.getpid(), {signal.SIGKILL.value})"),
        ]
    )
    assert until_ended(launcher, 3) == [Ended("a", 0, "SUCCEEDED"), Ended("b", 1, "FAILED"), Ended("c", -9, "FAILED")]
    assert (tmp_path / "a 's.log").read_text() == f"it's {tmp_path} /of/this/process\n"
    assert python(tmp_path, "b", "").error(Ended("b", 2)) == "no"


def test_stopping_lets_a_run_end_by_itself_and_begins_nothing_more(address, tmp_path):
    launcher = choose("ray", {"address": address}, (), 1)
    code = """
        import pathlib, signal, sys, time
        def end(*args):
            time.sleep(5)  # Ray's own patience is three seconds
            pathlib.Path("saved").touch()
            sys.exit(130)
        signal.signal(signal.SIGTERM, end)
        pathlib.Path("begun").touch()
        time.sleep(60)
    """
    launcher.start([python(tmp_path, "a", code), python(tmp_path, "b", "open('second', 'w')")])
    until = time.monotonic() + ENDS_S
    while not (tmp_path / "begun").exists():
        assert time.monotonic() < until
        assert launcher.ended() == []
        time.sleep(0.2)
    launcher.stop()
    ended = until_ended(launcher, 2)
    assert [one.name for one in ended] == ["a", "b"]
    assert ended[1] == Ended("b", None, "was not begun")
    assert (tmp_path / "saved").exists()
    assert not (tmp_path / "second").exists()


def test_a_cluster_that_does_not_answer_is_one_line():
    needs.skip_without_packages("ray", "aiohttp", extra="ray")
    with pytest.raises(ConfigError, match=r"^no Ray cluster answers: .*--launcher-args address=http://HOST:8265$"):
        choose("ray", {"address": f"http://127.0.0.1:{free_port()}"}, (), 1)
