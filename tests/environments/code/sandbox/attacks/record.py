"""What an attack is, and the ground that attacks are tried on."""

import contextlib
import json
import os
import platform
import socket
import subprocess
import threading
import time
from dataclasses import dataclass, replace
from pathlib import Path

import steadyrl
from steadyrl.environments.code.sandbox.outcome import Returned
from steadyrl.environments.code.sandbox.pool import JailError, Limits, Sandbox
from tests.environments.code.sandbox.memory_scan import secret

PACKAGE = Path(steadyrl.__file__).parent
CALLS, SUMS = [(2, 3), (10, -4)], (5, 6)
HONEST = "def add(a, b):\n    return a + b\n"
LIMITS = Limits(wall_s=1.0, cpu_s=1, memory_mib=256)  # for attacks that run into the time limit
PATIENT = replace(LIMITS, wall_s=120.0)  # for others, so that a busy machine ends none of them early
WRITTEN = ("/tmp", "/var/tmp", "/dev/shm", "/run", str(Path.home()))
TRAINER_S = 1.0  # processor time of the trainer for one answer; an honest one takes a thousandth of it
SETTLE_S = 2.0  # for what is being killed to be gone; what an attack leaves sleeps for far longer
SLACK_S = 20.0  # over the wall limit, on a machine that does other work as well

# What every attack has to leave as it was, whatever it tries.
PROMISES = {
    "right": "no value is counted right that was not computed",
    "definite": "every answer gets a definite verdict",
    "stopped": "what the attack tries is refused",
    "secret": "nothing of another job is found",
    "file": "no file appears, changes or disappears",
    "network": "no connection and no packet arrives",
    "process": "no process stays behind",
    "signal": "no other process is signalled",
    "time": "the time limit holds",
    "trainer": "reading the answer costs the trainer less than a second",
    "next": "the worker stays, and is right about the next answer",
}


@dataclass(frozen=True)
class Attack:
    """A hostile program that defines ``add``, called with CALLS.

    Attributes:
        category: What it goes for.
        name: Unique in its category.
        why: The reason that it is in the list.
        code: Python; FOLDER, TARGET, PORT, DATAGRAMS, NAMED, TRAINER, VICTIM, PACKAGE and HOME in ``@`` are put in.
        verdicts: Those that are allowed; () for any.
        right: How many sums may be right: 0 but for programs that compute them.
        deeds: Whether the first call returns the list of what nothing stopped, which has to be empty.
        slow: Whether it runs into the time limit, so that only the campaign tries it.
    """

    category: str
    name: str
    why: str
    code: str
    verdicts: tuple[str, ...] = ()
    right: int = 0
    deeds: bool = False
    slow: bool = False

    @property
    def id(self) -> str:
        """The name with its category."""
        return f"{self.category}: {self.name}"


_DEEDS = """
import ctypes, fcntl, mmap, os, resource, signal, socket, struct, sys
libc = ctypes.CDLL(None, use_errno=True)
libc.syscall.restype = ctypes.c_long

def call(number, *arguments):
    wide = [ctypes.c_long(a) if isinstance(a, int) else a for a in arguments]
    result = libc.syscall(ctypes.c_long(number), *wide)
    if result < 0:
        raise OSError(ctypes.get_errno(), "refused")
    return result

{setup}

def add(a, b):
    done = []
    for deed in {deeds!r}:
        try:
            exec(deed, globals())
        except (OSError, ImportError, SystemExit):  # the last is how a distribution says that it left a part out
            continue
        done.append(deed)
    return done
"""


def deeds(category, name, why, *statements, setup="", slow=False):
    """Return an attack of statements, each tried by itself; an OSError or a missing module has to stop each."""
    code = _DEEDS.replace("{setup}", setup).replace("{deeds!r}", repr(list(statements)))
    return Attack(category, name, why, code, deeds=True, slow=slow)


def system_calls(category, name, why, **calls):
    """Return an attack of raw system calls by their numbers on x86-64; elsewhere none of them is tried."""
    known = calls if platform.machine() == "x86_64" else {}
    return deeds(category, name, why, *(f"call({arguments})  # {called}" for called, arguments in known.items()))


def body(category, name, why, text, **more):
    """Return an attack whose ``add`` has this body."""
    lines = "".join(f"    {line}\n" for line in text.splitlines())
    return Attack(category, name, why, f"import os, sys\ndef add(a, b):\n{lines}", **more)


class Ground:
    """Files, servers and a process that attacks may go for, and what has become of them."""

    def __init__(self, folder: Path):
        self._folder = folder
        folder.chmod(0o777)
        self.target = folder / "target"
        self.target.write_text(f"VALUE = {secret()!r}\n")
        self.target.chmod(0o666)
        self._tcp = socket.create_server(("127.0.0.1", 0))
        self._udp = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self._udp.bind(("127.0.0.1", 0))
        self._named = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._named.bind(str(folder / "named"))
        self._named.listen()
        for heard in (self._tcp, self._udp, self._named):
            heard.setblocking(False)
        self._victim = subprocess.Popen(["sleep", "100000"])
        self._before = self._state()

    def fill(self, code: str) -> str:
        """Put the names of what is here into a program."""
        names = {
            "FOLDER": self._folder,
            "TARGET": self.target,
            "PORT": self._tcp.getsockname()[1],
            "DATAGRAMS": self._udp.getsockname()[1],
            "NAMED": self._folder / "named",
            "TRAINER": os.getpid(),
            "VICTIM": self._victim.pid,
            "PACKAGE": PACKAGE,
            "HOME": Path.home(),
        }
        for name, value in names.items():
            code = code.replace(f"@{name}@", str(value))
        return code

    def broken(self) -> list[str]:
        """Return the promises about files, network and signals that do not hold any more."""
        found = ["file"] if self._state() != self._before else []
        for heard in (self._tcp, self._named):
            with contextlib.suppress(BlockingIOError):
                heard.accept()
                found.append("network")
        with contextlib.suppress(BlockingIOError):
            self._udp.recv(1)
            found.append("network")
        state = Path(f"/proc/{self._victim.pid}/stat").read_text().rpartition(")")[2].split()[0]
        return found + (["signal"] if state not in "SRD" else [])

    def close(self) -> None:
        """End the process and the servers."""
        self._victim.kill()
        self._victim.wait()
        for heard in (self._tcp, self._udp, self._named):
            heard.close()

    def _state(self) -> object:
        """Return what the folder holds, and which attacks' files lie where anybody may write."""
        here = {path.name: (path.stat().st_mode, path.stat().st_size) for path in self._folder.iterdir()}
        left = [str(p) for folder in WRITTEN if Path(folder).is_dir() for p in Path(folder).glob("steadyrl-attack*")]
        return here, self.target.read_text(), self.target.stat().st_mtime, sorted(left)


def children(root: int) -> int:
    """Return how many living processes descend from a process."""
    parents = {}
    for entry in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = entry.read_text().rpartition(")")[2].split()
        except (FileNotFoundError, ProcessLookupError):
            continue
        if fields[0] not in "ZX":
            parents[int(entry.parent.name)] = int(fields[1])
    below = {root}
    while more := {pid for pid, parent in parents.items() if parent in below} - below:
        below |= more
    return len(below) - 1


def broken_by(attack: Attack, sandbox: Sandbox, ground: Ground) -> list[str]:
    """Try an attack and return the promises that it broke, each with what was seen.

    Args:
        attack: Which one.
        sandbox: With one worker, LIMITS or PATIENT, in the jail to be tested.
        ground: What it may go for.
    """
    other = secret()  # what the job before held, and the attack must not find
    sandbox.run(f"KEPT = {other!r}\n{HONEST}\n# {other}", "add", [*CALLS, (other, other)])
    worker = sandbox._idle.queue[-1]
    processes, threads = children(os.getpid()), threading.active_count()
    began = time.thread_time()
    try:
        outcome = sandbox.run(ground.fill(attack.code), "add", CALLS)
    except JailError as error:
        return [f"definite: {PROMISES['definite']} ({error})"]
    spent = time.thread_time() - began
    found = [(promise, "") for promise in ground.broken()]
    found += [(promise, str(outcome)[:300]) for promise in _broken_in(attack, outcome)]
    if other in f"{outcome}{json.dumps([getattr(r, 'wire', 0) for r in outcome.results])}":
        found.append(("secret", other))
    if outcome.wall_s > sandbox.limits.wall_s + SLACK_S:
        found.append(("time", f"{outcome.wall_s:.1f} s"))
    if spent > TRAINER_S:
        found.append(("trainer", f"{spent:.1f} s"))
    after = sandbox.run(HONEST, "add", CALLS)
    if sandbox._idle.queue[-1] is not worker:
        found.append(("next", f"it was replaced; with status {worker._process.poll()}"))
    if after.results != tuple(Returned(value) for value in SUMS):
        found.append(("next", str(after)[:300]))
    behind = _behind(processes, threads)
    if behind:
        found.append(("process", behind))
    return [f"{promise}: {PROMISES[promise]} ({seen})" for promise, seen in found]


def _behind(processes: int, threads: int) -> str:
    """Return what stays behind for longer than SETTLE_S, or ``""``: a process that is killed takes a moment to end."""
    until = time.monotonic() + SETTLE_S
    while (now := children(os.getpid())) > processes or threading.active_count() > threads:
        if time.monotonic() > until:
            return f"{now} processes and {threading.active_count()} threads; {processes} and {threads} before"
        time.sleep(0.01)
    return ""


def _broken_in(attack: Attack, outcome: object) -> list[str]:
    found = []
    right = sum(
        isinstance(result, Returned) and result.wire == expected
        for result, expected in zip(outcome.results, SUMS, strict=False)
    )
    if right > attack.right:
        found.append("right")
    if attack.verdicts and outcome.verdict not in attack.verdicts:
        found.append("definite")
    if attack.deeds and outcome.results[:1] != (Returned(["list"]),):
        found.append("stopped")
    return found
