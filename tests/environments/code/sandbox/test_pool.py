import gc
import os
import signal
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from steadyrl.environments.code.sandbox import jails
from steadyrl.environments.code.sandbox.outcome import Raised, Returned, read_outcome
from steadyrl.environments.code.sandbox.pool import JailError, Limits, Sandbox

ADD = "def add(a, b):\n    return a + b\n"


def descriptors():
    return len(list(Path("/proc/self/fd").iterdir()))


def test_arguments_arrive_as_they_were_and_values_come_back(sandbox):
    given = [{"a": (1, 2.5), 3: {4, 5}}, [None, True, b"\x00", "é\ud800", 1 << 70]]
    outcome = sandbox.run("def echo(*args):\n    return list(args)\n", "echo", [given])
    assert [result.value for result in outcome.results] == [given]


def test_calls_go_on_after_one_that_raises(sandbox):
    outcome = sandbox.run("def half(x):\n    return 10 // x\n", "half", [(5,), (0,), (2,)])
    assert outcome.verdict == "finished"
    assert [type(r) for r in outcome.results] == [Returned, Raised, Returned]
    assert outcome.results[1].type_name == "ZeroDivisionError"


def test_what_came_before_a_hang_counts(sandbox):
    outcome = sandbox.run("def f(x):\n    while x: pass\n    return x\n", "f", [(0,), (1,), (0,)])
    assert (outcome.verdict, outcome.results) == ("timeout", (Returned(0),))


@pytest.mark.parametrize(
    ("code", "verdict"),
    [
        ("def f(:", "syntax"),
        ("x = 1", "no_function"),
        ("f = 3", "no_function"),
        ("1 / 0", "exception"),
        ("raise MemoryError", "memory"),
        ("import ctypes; ctypes.string_at(0)", "killed"),
    ],
)
def test_verdicts_tell_how_a_program_failed(sandbox, code, verdict):
    outcome = sandbox.run(code, "f", [(1,)])
    assert (outcome.verdict, outcome.results) == (verdict, ())
    assert outcome.compiled == (verdict != "syntax")
    assert outcome.note


@pytest.mark.parametrize("timed_out", [True, False])
def test_a_text_that_ends_the_compiler_is_not_known_to_be_python(timed_out):
    assert not read_outcome(b"", calls=1, timed_out=timed_out, status=signal.SIGSEGV, wall_s=1.0).compiled
    assert read_outcome(b'["compiled"]\n', calls=1, timed_out=timed_out, status=signal.SIGSEGV, wall_s=1.0).compiled


def test_useful_parts_of_the_standard_library_can_be_used(sandbox):
    names = (
        "asyncio bisect collections datetime decimal fractions functools heapq itertools json "
        "math random re statistics string typing"
    )
    code = (
        "".join(f"import {name}\n" for name in names.split())
        + "def f():\n    return re.sub('a', 'b', 'cat'), str(decimal.Decimal('1.1'))"
    )
    assert sandbox.run(code, "f", [()]).results[0].value == ("cbt", "1.1")


def test_packages_installed_beside_the_standard_library_are_not_there(sandbox):
    for name in ("numpy", "pytest", "steadyrl.loop.tasks"):
        outcome = sandbox.run(f"import {name}", "f", [()])
        assert outcome.verdict == "exception"
        assert outcome.note.startswith(("ModuleNotFoundError", "PermissionError"))


def test_a_program_meets_nothing_of_the_one_before(sandbox):
    leave = "import builtins, math, sys\nbuiltins.left = math.left = 1\nsys.modules['left'] = math\ndef f(): return 1\n"
    assert sandbox.run(leave, "f", [()]).results == (Returned(1),)
    look = (
        "import builtins, math, sys\n"
        "def f(): return [hasattr(builtins, 'left'), hasattr(math, 'left'), 'left' in sys.modules]\n"
    )
    assert sandbox.run(look, "f", [()]).results[0].value == [False, False, False]


STATE = """
import fcntl, locale, os, resource, signal, sys, threading, time
def state():
    limits = [getattr(resource, name) for name in dir(resource) if name.startswith("RLIMIT_")]
    return [
        [[fcntl.fcntl(n, fcntl.F_GETFL), fcntl.fcntl(n, fcntl.F_GETFD)] for n in range(5)],
        [[os.lseek(n, 0, os.SEEK_CUR), os.fstat(n).st_atime_ns, os.fstat(n).st_mtime_ns] for n in range(3)],
        os.getcwd(), dict(os.environ), time.tzname, locale.setlocale(locale.LC_ALL), threading.active_count(),
        [resource.getrlimit(limit) for limit in limits], list(signal.pthread_sigmask(signal.SIG_BLOCK, [])),
        [str(signal.getsignal(n)) for n in signal.valid_signals()], signal.getitimer(signal.ITIMER_REAL),
        len(os.sched_getaffinity(0)), sys.getrecursionlimit(), os.path.exists("/tmp/x"), os.path.exists("/dev/shm/x"),
    ]
"""
CHANGES = (
    *(f"fcntl.fcntl({n}, fcntl.F_SETFL, os.O_APPEND | os.O_NONBLOCK)" for n in range(5)),
    *(f"fcntl.fcntl({n}, fcntl.F_SETFD, fcntl.FD_CLOEXEC)" for n in range(5)),
    *(f"os.lseek({n}, 5, os.SEEK_SET), os.write({n}, b'x'), os.read({n}, 1)" for n in range(3)),
    *(f"os.utime({n}, (0, 0))" for n in range(3)),
    "os.chdir('/usr')", "os.umask(0)", "os.environ.update(TZ='Asia/Tokyo'); time.tzset()", "os.nice(5)",
    "locale.setlocale(locale.LC_ALL, 'C')", "resource.setrlimit(resource.RLIMIT_CORE, (0, 0))",
    "signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1])", "signal.signal(signal.SIGUSR1, signal.SIG_IGN)",
    "signal.setitimer(signal.ITIMER_REAL, 500)", "os.sched_setaffinity(0, [0])", "sys.setrecursionlimit(99)",
    "open('/tmp/x', 'w')", "open('/dev/shm/x', 'w')", "threading.Thread(target=time.sleep, args=(60,)).start()",
)  # fmt: skip


def test_nothing_that_an_answer_sets_is_seen_by_the_next(sandbox):
    before = sandbox.run(STATE, "state", [()]).results[0].value
    tries = "".join(f"try:\n    {change}\nexcept (OSError, ValueError):\n    pass\n" for change in CHANGES)
    assert sandbox.run(f"{STATE}\n{tries}", "state", [()]).results[0].value != before
    assert sandbox.run(STATE, "state", [()]).results[0].value == before


def test_the_environment_holds_a_few_harmless_names_only(sandbox, monkeypatch):
    monkeypatch.setenv("STEADYRL_TEST_KEY", "secret")
    names = set(sandbox.run("import os\ndef f():\n    return sorted(os.environ)\n", "f", [()]).results[0].value)
    assert names <= {"LC_ALL", "LC_CTYPE", "PATH", "PWD", "PYTHONDONTWRITEBYTECODE", "PYTHONHASHSEED"}


def test_what_a_program_prints_is_thrown_away(sandbox, capfd):
    code = "import os, sys\ndef f():\n    print('x', flush=True); os.write(1, b'y'); os.write(2, b'z')\n    return 1\n"
    assert sandbox.run(code, "f", [()]).results == (Returned(1),)
    assert capfd.readouterr() == ("", "")


def test_texts_of_exceptions_are_cut_and_can_be_stored(sandbox):
    code = "def f(n):\n    raise ValueError('\\ud800' * n)\nclass Bad(Exception):\n    def __str__(self): raise Bad\n"
    [raised] = sandbox.run(code, "f", [(1000,)]).results
    assert raised.type_name == "ValueError" and raised.text.startswith("\\ud800") and len(raised.text) < 2000
    assert raised.text.encode()
    assert sandbox.run(code + "def g():\n    raise Bad\n", "g", [()]).results == (Raised("Bad", ""),)


def test_jobs_larger_than_a_pipe_arrive_whole(sandbox):
    text = "x" * 900_000
    assert sandbox.run(f"# {text}\ndef f(x):\n    return len(x)\n", "f", [(text,)]).results == (Returned(len(text)),)


def test_sets_and_random_numbers_are_the_same_in_every_worker(jail):
    code = "import random\ndef f():\n    return [list({'a', 'b', 'c', 'd'}), random.random(), hash('x')]"
    found = []
    for _ in range(2):
        with Sandbox(jail) as pool:
            found.append(pool.run(code, "f", [()]).results)
    assert found[0] == found[1]


def test_threads_share_a_pool_and_each_gets_its_own_answer(jail):
    with Sandbox(jail, workers=2) as pool, ThreadPoolExecutor(4) as threads:
        outcomes = list(threads.map(lambda n: pool.run(ADD, "add", [(n, 1)]), range(40)))
    assert [o.results for o in outcomes] == [(Returned(n + 1),) for n in range(40)]


def test_a_worker_that_died_is_replaced(jail):
    with Sandbox(jail) as pool:
        pool.run(ADD, "add", [(1, 2)])
        worker = pool._idle.queue[-1]
        os.kill(worker._inner_pid or worker._process.pid, signal.SIGKILL)
        worker._process.wait()
        assert pool.run(ADD, "add", [(1, 2)]).results == (Returned(3),)


def test_a_worker_killed_at_work_is_replaced_and_the_work_done_again(jail):
    with Sandbox(jail) as pool:
        pool.run(ADD, "add", [(1, 2)])
        worker = pool._idle.queue[-1]
        kill = threading.Timer(0.2, os.kill, (worker._inner_pid or worker._process.pid, signal.SIGKILL))
        kill.start()
        outcome = pool.run("import time\ndef f():\n    time.sleep(0.5)\n    return 1", "f", [()])
        kill.join()
        assert outcome.results == (Returned(1),)


def test_the_start_of_a_fork_is_not_part_of_the_time_of_its_program(jail):
    """A fork takes milliseconds, or seconds on a machine that stands still: that is no fault of the worker."""
    with Sandbox(jail, Limits(wall_s=1e-4)) as pool:
        pool.run("while True: pass", "add", [(1, 2)])
        worker = pool._idle.queue[-1]
        outcomes = [pool.run("while True: pass", "add", [(1, 2)]) for _ in range(20)]
        assert pool._idle.queue[-1] is worker
    assert {outcome.verdict for outcome in outcomes} == {"timeout"}


def test_a_worker_that_was_replaced_is_said(jail, caplog):
    with Sandbox(jail) as pool:
        pool.run(ADD, "add", [(1, 2)])
        worker = pool._idle.queue[-1]
        os.kill(worker._inner_pid or worker._process.pid, signal.SIGKILL)
        worker._process.wait()
        pool.run(ADD, "add", [(1, 2)])
    assert "a worker of the sandbox was replaced: the worker" in caplog.text


def test_a_jail_that_cannot_start_says_why(monkeypatch):
    monkeypatch.setattr(jails, "command", lambda *_: ["/bin/sh", "-c", "echo no room >&2; exit 3"])
    with Sandbox("landlock") as pool, pytest.raises(JailError, match="landlock: no room"):
        pool.run(ADD, "add", [(1, 2)])


def test_closed_and_forgotten_pools_leave_no_process_and_no_descriptor(jail):
    gc.collect()
    before = descriptors()
    pool = Sandbox(jail)
    pool.run(ADD, "add", [(1, 2)])
    pid = pool._idle.queue[-1]._process.pid
    pool.close()
    assert not Path(f"/proc/{pid}").exists()
    assert descriptors() == before
    forgotten = Sandbox(jail)
    forgotten.run(ADD, "add", [(1, 2)])
    pid = forgotten._idle.queue[-1]._process.pid
    del forgotten
    gc.collect()
    assert not Path(f"/proc/{pid}").exists()
    assert descriptors() == before


def test_workers_end_when_their_parent_is_killed(jail):
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        pool = Sandbox(jail)
        pool.run(ADD, "add", [(1, 2)])
        worker = pool._idle.queue[-1]
        os.write(write, f"{worker._process.pid}\n".encode())
        signal.pause()
    pid = int(os.read(read, 20))
    os.close(read)
    os.close(write)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    until = time.monotonic() + 5
    while alive(pid) and time.monotonic() < until:
        time.sleep(0.05)
    assert not alive(pid)


def alive(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def test_a_check_costs_a_fraction_of_the_start_of_an_interpreter(jail):
    def took():
        began = time.perf_counter()
        pool.run(ADD, "add", [(1, 2)])
        return time.perf_counter() - began

    with Sandbox(jail) as pool:
        first = took()  # starts the worker
        assert sorted(took() for _ in range(21))[10] < first / 4
