"""Attacks on the machine: files, processes, network, time, memory. Each fails and leaves nothing behind."""

import os
import socket
from pathlib import Path

import pytest

import steadyrl
from steadyrl.sandbox.outcome import Raised, Returned

PACKAGE = Path(steadyrl.__file__).parent


def denied(outcome):
    """Return whether every call ended in an exception of the operating system."""
    names = {"PermissionError", "OSError", "BlockingIOError", "FileNotFoundError"}
    return bool(outcome.results) and all(isinstance(r, Raised) and r.type_name in names for r in outcome.results)


def children_of_workers():
    """Return how many processes live below this one."""
    parents = {}
    for entry in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = entry.read_text().rpartition(")")[2].split()
        except (FileNotFoundError, ProcessLookupError):
            continue
        if fields[0] != "Z":
            parents[int(entry.parent.name)] = int(fields[1])
    below, grown = {os.getpid()}, True
    while grown:
        more = {pid for pid, parent in parents.items() if parent in below} - below
        below, grown = below | more, bool(more)
    return len(below) - 1


@pytest.fixture
def no_process_left(attack):
    """Check around a test that as many processes run afterwards as before."""
    attack("def add(a, b):\n    return a + b\n")
    before = children_of_workers()
    yield
    assert children_of_workers() == before


def test_a_statement_that_nothing_stops_is_seen_as_done(done):
    assert done("x = 1", "raise PermissionError", "open(os.devnull)") == ["x = 1", "open(os.devnull)"]


def test_tests_and_files_cannot_be_read(done):
    files = (
        PACKAGE / "tasks" / "code" / "problems.jsonl",
        PACKAGE / "types.py",
        "/etc/passwd",
        "/etc/hostname",
        __file__,
    )
    assert all(Path(file).is_file() for file in files)
    assert done(*(f"open({str(file)!r})" for file in files)) == []


def test_folders_of_the_project_and_of_the_user_cannot_be_listed(done):
    folders = [PACKAGE, PACKAGE.parent, Path.home(), Path(__file__).parent, Path("/home"), Path("/etc"), Path("/proc")]
    assert done(*(f"os.listdir({str(folder)!r})" for folder in folders)) == []


def test_memory_and_environment_of_other_processes_cannot_be_read(done):
    pids = ("'self'", "1", "os.getppid()", str(os.getpid()))
    names = ("environ", "mem", "maps", "cmdline")
    assert done(*(f"open('/proc/' + str({pid}) + '/{name}', 'rb')" for pid in pids for name in names)) == []


def test_the_environment_holds_no_secret(attack, monkeypatch):
    monkeypatch.setenv("STEADYRL_TEST_KEY", "secret")
    names = set(attack("import os\ndef add(a, b):\n    return sorted(os.environ)\n").results[0].value)
    assert names <= {"LC_ALL", "LC_CTYPE", "PATH", "PWD", "PYTHONDONTWRITEBYTECODE", "PYTHONHASHSEED"}


def test_nothing_can_be_written_anywhere(done, tmp_path):
    tmp_path.chmod(0o777)
    folders = [
        tmp_path,
        Path("/tmp"),
        Path.home(),
        PACKAGE,
        Path("/"),
        Path("/dev"),
        Path("/dev/shm"),
        Path("/var/tmp"),
    ]
    assert done(*(f"open({str(folder / 'steadyrl-attack')!r}, 'w').write('x')" for folder in folders)) == []
    assert [folder for folder in folders if (folder / "steadyrl-attack").exists()] == []


def test_a_file_cannot_be_changed_emptied_renamed_or_removed(done, tmp_path):
    target = tmp_path / "target"
    target.write_text("kept")
    target.chmod(0o666)
    deeds = ("open(p, 'a').write('x')", "os.truncate(p, 0)", "os.rename(p, p + '2')", "os.unlink(p)", "os.chmod(p, 0)")
    assert done(*(f"p = {str(target)!r}; {deed}" for deed in deeds)) == []
    assert target.read_text() == "kept"
    assert target.stat().st_mode & 0o777 == 0o666


def test_links_and_folders_cannot_be_made(done, tmp_path):
    link = str(tmp_path / "link")
    assert (
        done(f"os.symlink('/etc/passwd', {link!r})", f"os.link('/etc/passwd', {link!r})", f"os.mkdir({link!r})") == []
    )
    assert list(tmp_path.iterdir()) == []


def test_the_disk_cannot_be_filled(attack):
    code = (
        "import os, tempfile\ndef add(a, b):\n"
        "    for folder in ('/tmp', '/dev/shm', '/var/tmp', '/run', '.'):\n"
        "        try:\n            f = open(folder + '/big', 'wb')\n        except OSError:\n            continue\n"
        "        try:\n            while True: f.write(b'x' * 65536); f.flush()\n"
        "        except OSError:\n            return 'wrote'\n"
        "    return 'nowhere'\n"
    )
    assert attack(code).results[0] == Returned("nowhere")


def test_no_socket_can_be_opened(done):
    families, kinds = ("AF_INET", "AF_INET6", "AF_UNIX", "AF_NETLINK"), ("SOCK_STREAM", "SOCK_DGRAM")
    assert (
        done(*(f"socket.socket(socket.{f}, socket.{k})" for f in families for k in kinds), "socket.socketpair()") == []
    )


def test_a_server_of_this_machine_hears_nothing(attack):
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(0.2)
        port = server.getsockname()[1]
        attack(f"import urllib.request\ndef add(a, b):\n    urllib.request.urlopen('http://127.0.0.1:{port}').read()\n")
        with pytest.raises(TimeoutError):
            server.accept()


@pytest.mark.parametrize(
    "how", ["os.fork()", "os.forkpty()", "os.posix_spawn('/bin/sh', ['sh'], {})", "os.system('true')"]
)
def test_no_process_can_be_started(attack, no_process_left, how):
    outcome = attack(f"import os\ndef add(a, b):\n    return {how}\n")
    # system() says -1, or 127 in the place of a shell that could not be started.
    assert denied(outcome) or {result.value for result in outcome.results} <= {-1, 127 << 8}


def test_no_program_can_take_the_place_of_the_candidate(attack):
    assert denied(attack("import os\ndef add(a, b):\n    os.execv('/bin/sh', ['sh', '-c', 'true'])\n"))


def test_a_fork_bomb_does_not_go_off(attack, no_process_left, right):
    code = (
        "import os, subprocess, multiprocessing\ndef add(a, b):\n"
        "    while True:\n        try:\n            os.fork()\n        except OSError:\n            pass\n"
    )
    outcome = attack(code)
    assert (outcome.verdict, right(outcome)) == ("timeout", 0)


def test_a_daemon_cannot_be_left_behind(attack, no_process_left):
    code = (
        "import os, time\ndef add(a, b):\n    if os.fork() == 0:\n        os.setsid()\n"
        "        if os.fork() == 0:\n            time.sleep(60)\n        os._exit(0)\n    return a + b\n"
    )
    assert denied(attack(code))


def test_threads_left_behind_end_with_the_candidate(attack, no_process_left, right):
    code = (
        "import threading, time\nfor _ in range(4):\n    threading.Thread(target=time.sleep, args=(60,)).start()\n"
        "def add(a, b):\n    return a + b\n"
    )
    outcome = attack(code)
    assert (outcome.verdict, right(outcome)) == ("finished", 2)
    assert outcome.wall_s < 0.9


def test_no_signal_reaches_another_process(done):
    targets = ("os.getppid()", "1", "-1", "0", str(os.getpid()))
    signals = ("SIGKILL", "SIGSTOP", "SIGTERM")
    assert done(*(f"os.kill({target}, signal.{name})" for target in targets for name in signals)) == []


def test_no_process_can_be_made_the_owner_of_a_pipe_and_get_its_signals(done):
    pids = ("os.getppid()", str(os.getpid()))
    assert done(*(f"import fcntl; fcntl.fcntl(os.pipe()[0], fcntl.F_SETOWN, {pid})" for pid in pids)) == []


def test_limits_cannot_be_changed(done):
    pids = ("os.getppid()", str(os.getpid()), "0")
    assert done(*(f"resource.prlimit({pid}, resource.RLIMIT_CPU, (1, 1))" for pid in pids)) == []


@pytest.mark.parametrize(
    "body",
    [
        "while True: pass",
        "import time; time.sleep(100)",
        "import os, signal; os.kill(os.getpid(), signal.SIGSTOP)",
        "import threading; threading.Event().wait()",
        "import os; r, w = os.pipe(); os.read(r, 1)",
    ],
)
def test_what_hangs_is_ended(attack, no_process_left, body, right):
    outcome = attack(f"def add(a, b):\n    {body}\n")
    assert (outcome.verdict, right(outcome)) == ("timeout", 0)
    assert outcome.wall_s < 6


def test_ignoring_every_signal_does_not_help_to_stay(attack, no_process_left):
    code = (
        "import signal, time\nfor n in range(1, 65):\n"
        "    try: signal.signal(n, signal.SIG_IGN)\n    except (OSError, ValueError): pass\n"
        "signal.pthread_sigmask(signal.SIG_BLOCK, range(1, 65))\ndef add(a, b):\n    while True: time.sleep(0.01)\n"
    )
    assert attack(code).verdict == "timeout"


@pytest.mark.parametrize(
    "body",
    [
        "x = []\n    while True: x.append(bytearray(1 << 20))",
        "return [0] * (1 << 40)",
        "import mmap; return len(mmap.mmap(-1, 1 << 40))",
    ],
)
def test_memory_is_limited(attack, body, right):
    outcome = attack(f"def add(a, b):\n    {body}\n")
    assert right(outcome) == 0
    assert {r.type_name for r in outcome.results if isinstance(r, Raised)} <= {"MemoryError", "OSError"}
    assert outcome.results or outcome.verdict in ("memory", "killed", "timeout")


def test_printing_gigabytes_goes_nowhere(attack, capfd, right):
    outcome = attack(
        "import sys\ndef add(a, b):\n    while True: sys.stdout.write('x' * 1000000); sys.stderr.write('y' * 1000000)\n"
    )
    assert (outcome.verdict, right(outcome)) == ("timeout", 0)
    assert capfd.readouterr() == ("", "")


def test_returning_gigabytes_is_cut_off(attack, right):
    outcome = attack("def add(a, b):\n    return 'x' * 10_000_000\n")
    assert (outcome.verdict, right(outcome)) == ("output", 0)


def test_flooding_the_pipe_is_cut_off(attack, right):
    outcome = attack("import os\ndef add(a, b):\n    while True: os.write(3, b'x' * 65536)\n")
    assert (outcome.verdict, right(outcome)) == ("output", 0)


def test_deep_recursion_is_a_failure(attack, right):
    outcome = attack("def add(a, b):\n    return add(a, b)\n")
    assert [r.type_name for r in outcome.results] == ["RecursionError", "RecursionError"]
    deep = (
        "import sys\nsys.setrecursionlimit(10**9)\nclass A:\n"
        "    def __repr__(self): return repr(self)\ndef add(a, b):\n    return repr(A())\n"
    )
    outcome = attack(deep)
    assert right(outcome) == 0


def test_code_nested_beyond_the_parser_is_a_failure(attack, right):
    for code in (
        "(" * 100_000,
        "x = " + "[" * 5000 + "]" * 5000,
        "-" * 200_000 + "1",
        "x" + ".x" * 100_000,
        "a = 1\x00",
    ):
        outcome = attack(code + "\ndef add(a, b):\n    return 0\n")
        assert right(outcome) == 0


def test_huge_integers_are_read_and_compared_in_no_time(attack):
    outcome = attack("def add(a, b):\n    return (1 << 1_000_000) + a\n")
    assert [result.value for result in outcome.results] == [(1 << 1_000_000) + 2, (1 << 1_000_000) + 10]


def test_huge_integers_in_messages_of_errors_harm_nobody(attack, right):
    assert right(attack("def add(a, b):\n    raise ValueError(10 ** 5000)\n")) == 0
    assert right(attack("def add(a, b):\n    return str(10 ** 5000)\n")) == 0


def test_values_within_themselves_or_nested_deeply_are_a_failure(attack, right):
    assert right(attack("def add(a, b):\n    x = []; x.append(x); return x\n")) == 0
    assert right(attack("def add(a, b):\n    x = []\n    for _ in range(100_000): x = [x]\n    return x\n")) == 0


def test_an_exception_that_cannot_be_written_is_a_failure(attack):
    code = "class Bad(Exception):\n    def __str__(self): raise Bad\ndef add(a, b):\n    raise Bad\n"
    assert attack(code).results == (Raised("Bad", ""), Raised("Bad", ""))


def test_tracing_mounting_and_namespaces_are_refused(attack):
    for call in (
        "ptrace(16, os.getppid(), 0, 0)",
        "mount(b'/', b'/tmp', 0, 4096, 0)",
        "unshare(0x10000000)",
        "setns(3, 0)",
    ):
        code = (
            "import ctypes, os\nlibc = ctypes.CDLL(None, use_errno=True)\n"
            f"def add(a, b):\n    return libc.{call}, ctypes.get_errno()\n"
        )
        assert attack(code).results == (Returned(["tuple", -1, 1]),) * 2  # EPERM
