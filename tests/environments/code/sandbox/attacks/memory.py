"""Attacks that look for tests, solutions and keys in memory, in inherited things, and in other processes."""

from tests.environments.code.sandbox.attacks.record import Attack, body, deeds, system_calls
from tests.environments.code.sandbox.memory_scan import SCAN

_FOUND = "import gc, os, re, sys, ctypes\nLIKE = re.compile(rb'S[E]CRE[T]-[0-9a-f]{16}')\n"


def _look(name, why, lines):
    """Return an attack whose ``add`` returns all secrets in the bytes that these lines gather in ``seen``."""
    text = "".join(f"    {line}\n" for line in lines.splitlines())
    code = (
        f"{_FOUND}def add(a, b):\n    seen = []\n{text}    return [m.decode() for x in seen for m in LIKE.findall(x)]\n"
    )
    return Attack("memory", name, why, code)


MEMORY = (
    Attack(
        "memory",
        "all of the address space",
        "freed memory keeps its bytes: hidden tests were found that way, and 8 of 8 asserts passed",
        SCAN + "\ndef add(a, b):\n    return scan()[0]\n",
        slow=True,
    ),
    _look(
        "objects of the collector",
        "whatever Python object is alive can be reached from the collector",
        "for kept in gc.get_objects():\n    seen += [repr(kept)[:100_000].encode('utf-8', 'replace')] if type(kept) in "
        "(list, tuple, dict) else []",
    ),
    _look(
        "strings behind every object",
        "texts are not tracked by the collector, but what holds them is",
        "for kept in gc.get_objects():\n    seen += [str(x).encode('utf-8', 'replace') for x in gc.get_referents(kept) "
        "if type(x) in (str, bytes)]",
    ),
    _look(
        "frames below the call",
        "the code that runs a candidate has the whole job in its local names",
        "frame = sys._getframe()\nwhile frame:\n    seen.append(str(frame.f_locals).encode('utf-8', 'replace'))\n"
        "    frame = frame.f_back",
    ),
    _look(
        "memory that malloc hands out",
        "malloc does not clear what was freed before",
        "malloc = ctypes.CDLL(None).malloc\nmalloc.restype = ctypes.c_void_p\n"
        "for size in (64, 500, 4000, 30_000, 120_000, 1 << 20):\n    for _ in range(50 if size < 10**5 else 5):\n"
        "        seen.append(ctypes.string_at(malloc(size), size))",
    ),
    _look(
        "memory of new buffers",
        "ctypes and mmap hand out memory of the system",
        "import mmap\nseen += [bytes(ctypes.create_string_buffer(1 << 20)), bytes(mmap.mmap(-1, 1 << 20))]",
    ),
    _look(
        "around known objects",
        "the neighbours of a living object are those of its size, dead ones too",
        "for near in ([], {}, 'x' * 40, b'y' * 300, object()):\n"
        "    start = id(near) & ~0xFFF\n    seen.append(ctypes.string_at(start, 4096))",
    ),
    _look(
        "modules of the worker",
        "the worker's own modules are loaded in the candidate",
        "for name, module in sys.modules.items():\n"
        "    seen.append(str(vars(module)).encode('utf-8', 'replace')[:10**6])",
    ),
    _look(
        "arguments and environment",
        "keys stand in the environment of the trainer, and settings in its arguments",
        "seen += [repr((sys.argv, sys.orig_argv, dict(os.environ), os.environb)).encode()]\n"
        "environ = ctypes.POINTER(ctypes.c_char_p).in_dll(ctypes.CDLL(None), 'environ')\n"
        "index = 0\nwhile environ[index]:\n    seen.append(environ[index])\n    index += 1",
    ),
    _look(
        "inherited descriptors",
        "a pipe or socket that is left open may hold what was sent to others",
        "for number in [*range(3), *range(4, 1024)]:\n    try:\n"
        "        __import__('fcntl').fcntl(number, 4, os.O_NONBLOCK)\n"
        "        seen.append(os.read(number, 1 << 20))\n    except OSError:\n        continue",
    ),
    _look(
        "the job's pipe once more",
        "the candidate's own job came through a pipe that must not hold the next one",
        "for number in range(32):\n    try:\n        os.dup2(number, 30)\n"
        "        __import__('fcntl').fcntl(30, 4, os.O_NONBLOCK)\n"
        "        seen.append(os.read(30, 1 << 20)) if number != 3 else None\n    except OSError:\n        continue",
    ),
    _look(
        "sources that tracebacks remember",
        "linecache keeps the text of programs",
        "import linecache, traceback\nseen += [str(linecache.cache).encode(), ''.join(linecache.getlines('<candidate>')"
        " + linecache.getlines('<tests>') + linecache.getlines('<given>')).encode()]",
    ),
    _look(
        "registers and caches of modules",
        "re, functools and struct remember what they were given",
        "import functools, struct\nseen += [repr(x).encode('utf-8', 'replace') for x in "
        "(re._cache, vars(functools), struct.__dict__)]",
    ),
    deeds(
        "memory",
        "files of processes",
        "/proc shows memory, arguments and environment of every process of the same user",
        *(
            f"open('/proc/' + str({pid}) + '/{name}', 'rb')"
            for pid in ("'self'", "1", "os.getpid()", "os.getppid()", "@TRAINER@", "@VICTIM@", "'thread-self'")
            for name in ("mem", "maps", "environ", "cmdline", "stack", "root", "cwd", "syscall")
        ),
    ),
    deeds(
        "memory",
        "descriptors of other processes",
        "a pipe of the trainer or the worker can be opened anew by its name in /proc",
        *(
            f"open('/proc/' + str({pid}) + '/fd/{number}', 'rb')"
            for pid in ("os.getppid()", "@TRAINER@", "@VICTIM@")
            for number in range(40)
        ),
        *(f"os.listdir('/proc/' + str({pid}) + '/fd')" for pid in ("os.getppid()", "@TRAINER@", "'self'")),
    ),
    _look(
        "its own descriptors, opened anew",
        "the other end of its own pipe may hold more than it wrote",
        "for number in range(64):\n    try:\n"
        "        pipe = os.open(f'/proc/self/fd/{number}', os.O_RDONLY | os.O_NONBLOCK)\n"
        "        seen.append(os.read(pipe, 1 << 20))\n    except OSError:\n        continue",
    ),
    deeds(
        "memory",
        "devices of memory",
        "/dev/mem and its like are the machine's memory",
        *(f"open('/dev/{name}', 'rb').read(1)" for name in ("mem", "kmem", "port", "kmsg", "vcs", "shm")),
        "open('/proc/kcore', 'rb')",
        "open('/sys/kernel/notes', 'rb')",
    ),
    system_calls(
        "memory",
        "memory of other processes",
        "a process of the same user may read and write another one's memory",
        ptrace="101, 16, @TRAINER@, 0, 0",
        ptrace_parent="101, 16, os.getppid(), 0, 0",
        ptrace_seize="101, 0x4206, @VICTIM@, 0, 0",
        traceme="101, 0, 0, 0, 0",
        process_vm_readv="310, @TRAINER@, 0, 0, 0, 0, 0",
        process_vm_readv_parent="310, os.getppid(), 0, 0, 0, 0, 0",
        process_vm_writev="311, os.getppid(), 0, 0, 0, 0, 0",
        process_madvise="440, 3, 0, 0, 4, 0",
        kcmp="312, os.getpid(), os.getppid(), 0, 0, 0",
        pidfd_open="434, @TRAINER@, 0",
        pidfd_getfd="438, 3, 0, 0",
        userfaultfd="323, 0",
        perf_event_open="298, 0, @TRAINER@, 0, -1, 0",
        bpf="321, 0, 0, 0",
        io_uring_setup="425, 8, 0",
        move_pages="279, @TRAINER@, 0, 0, 0, 0, 0",
        get_robust_list="274, @TRAINER@, 0, 0",
    ),
    system_calls(
        "memory",
        "shared memory and keys",
        "segments, queues and keys of the same user outlive a process and can be listed",
        shmget="29, 0x5EC, 4096, 0o1666",
        shmctl="31, 0, 14, 0",
        shmat="30, 0, 0, 0",
        msgget="68, 0x5EC, 0o1666",
        semget="64, 0x5EC, 1, 0o1666",
        memfd_create="319, b'x', 0",
        memfd_secret="447, 0",
        mq_open="240, b'/x', 0o102, 0o600, 0",
        keyctl="250, 0, -3, 1",
        add_key="248, b'user', b'x', b'y', 1, -3",
        request_key="249, b'user', b'x', 0, -3",
    ),
    body(
        "memory",
        "a dump of the process",
        "a core dump would be a file with all of its memory",
        "import resource\ntry:\n    resource.setrlimit(resource.RLIMIT_CORE, (-1, -1))\n"
        "except (OSError, ValueError):\n    pass\nos.abort()",
        verdicts=("killed",),
    ),
    body(
        "memory",
        "expected values on the way",
        "were they in the job, they would be near its arguments",
        "frame = sys._getframe(1)\nkept = str([x for x in __import__('gc').get_objects() if type(x) is list])\n"
        "return [x for x in (5, 6) if f\"'expected': {x}\" in kept] or 0",
    ),
)
