"""Attacks with memory, output, descriptors and time."""

from tests.environments.code.sandbox.attacks.record import Attack, body

_HANGS = "an answer that never comes must not hold up the others"
_MEMORY = "the machine's memory belongs to the trainer"

RESOURCES = (
    body("resources", "a growing list", _MEMORY, "x = []\nwhile True: x.append(bytearray(1 << 20))"),
    body("resources", "a huge list", _MEMORY, "return [0] * (1 << 40)"),
    body("resources", "a huge text", _MEMORY, "return 'x' * (1 << 40)"),
    body("resources", "a huge mapping", _MEMORY, "import mmap\nreturn len(mmap.mmap(-1, 1 << 40))"),
    body("resources", "locked memory", _MEMORY, "import ctypes\nreturn ctypes.CDLL(None).mlockall(3) == 0"),
    body(
        "resources",
        "a packed gigabyte",
        "a few bytes unpack to gigabytes",
        "import zlib\nx = zlib.compress(bytes(1 << 26))\nreturn zlib.decompress(x) * 64",
        slow=True,
    ),
    body(
        "resources",
        "growing the stack",
        _MEMORY,
        "import threading\nthreading.stack_size(1 << 30)\nthreading.Thread(target=print).start()",
    ),
    body(
        "resources",
        "memory that is freed and taken",
        "limits that look now and then miss it",
        "for _ in range(200):\n    x = bytearray(100 << 20)\nreturn 0",
        slow=True,
    ),
    body(
        "resources",
        "cycles with finalizers",
        "each finalizer makes the next object",
        "class A:\n    def __del__(self): A()\nA()\nreturn 0",
        slow=True,
    ),
    body(
        "resources",
        "recursion without end",
        "deep recursion has crashed interpreters",
        "return sys._getframe().f_back.f_globals['x'] if 0 else (lambda f: f(f))(lambda f: f(f))",
    ),
    body(
        "resources",
        "recursion in C",
        "C code has no limit of its own",
        "sys.setrecursionlimit(10**9)\nclass A:\n    def __repr__(self): return repr(self)\nreturn repr(A())",
    ),
    body(
        "resources",
        "a deep object that is freed",
        "freeing it recurses as well",
        "x = None\nfor _ in range(10**6): x = (x,)\ndel x\nreturn 0",
        slow=True,
    ),
    body(
        "resources",
        "all descriptors",
        "descriptors are few in the whole machine",
        "kept = []\nwhile True: kept.append(os.open('/dev/null', 0))",
    ),
    body("resources", "all pipes", "pipes hold memory of the kernel", "while True: os.pipe()"),
    body(
        "resources",
        "writing without end",
        "the pipe's reader must not keep it all",
        "while True: os.write(3, b'x' * 65536)",
        verdicts=("output",),
        slow=True,
    ),
    body(
        "resources",
        "printing without end",
        "logs fill a disk",
        "while True: sys.stdout.write('x' * 10**6); sys.stderr.write('y' * 10**6)",
        verdicts=("timeout",),
        slow=True,
    ),
    body(
        "resources",
        "writing past Python",
        "descriptors 1 and 2 are the trainer's screen elsewhere",
        "os.write(1, b'x'); os.write(2, b'y')\nreturn 0",
    ),
    body(
        "resources",
        "a megabyte of values",
        "values over the limit are cut off",
        "return 'x' * 10_000_000",
        verdicts=("output",),
    ),
    body(
        "resources",
        "raising the limits",
        "a soft limit may be raised to the hard one",
        "import resource\nfor what in range(16):\n    try:\n"
        "        resource.setrlimit(what, (resource.RLIM_INFINITY,) * 2)\n        return 'raised'\n"
        "    except (OSError, ValueError):\n        continue\nreturn 'kept'",
    ),
    *(
        Attack(
            "resources",
            name,
            "reading hostile text can exhaust a parser",
            f"{code}\ndef add(a, b):\n    return 0\n",
            slow=name in ("a power that is folded", "a hundred thousand names"),
        )
        for name, code in (
            ("brackets without end", "(" * 100_000),
            ("nested lists in the source", "x = " + "[" * 5000 + "]" * 5000),
            ("a row of signs", "-" * 200_000 + "1"),
            ("a row of attributes", "x" + ".x" * 100_000),
            ("a null in the source", "a = 1\x00"),
            ("a sum of thousands", "x = " + "1+" * 50_000 + "1"),
            ("a comparison of thousands", "x = " + "1<" * 50_000 + "1"),
            ("nested blocks", "".join(f"{' ' * i}if 1:\n" for i in range(200)) + " " * 200 + "pass"),
            ("nested formatted texts", "x = " + "f'{" * 200 + "1" + "}'" * 200),
            ("a constant that is folded", "x = 'a' * 4096 * 4096 * 4096 * 4096"),
            ("a power that is folded", "x = 2 ** 99999999 ** 9"),
            ("a hundred thousand names", "\n".join(f"x{i} = {i}" for i in range(50_000))),
            ("a pattern without end", "match 1:\n    case " + "[" * 500 + "]" * 500 + ": pass"),
            ("half of a surrogate pair", "x = '\ud800'"),
            ("a coding that is not there", "# coding: rot_13_x\nx = 1"),
            ("a coding that executes", "# coding: unicode_escape\nx = 1\\u000aimport os"),
        )
    ),
)
TIME = (
    body("time", "a busy loop", _HANGS, "while True: pass", verdicts=("timeout",), slow=True),
    body("time", "sleep", _HANGS, "import time; time.sleep(100)", verdicts=("timeout",), slow=True),
    body(
        "time",
        "an event that nobody sets",
        _HANGS,
        "import threading; threading.Event().wait()",
        verdicts=("timeout",),
        slow=True,
    ),
    body("time", "a read that waits", _HANGS, "r, w = os.pipe(); os.read(r, 1)", verdicts=("timeout",), slow=True),
    body(
        "time",
        "a loop in C",
        "signals are handled between instructions of Python alone",
        "return sum(range(10**12))",
        slow=True,
    ),
    body("time", "a power", "one instruction can take hours", "return pow(3, 10**9) % 7", slow=True),
    body(
        "time",
        "a regular expression",
        "some expressions take exponential time",
        "import re; return re.match('(a+)+$', 'a' * 40 + 'b')",
        slow=True,
    ),
    body(
        "time",
        "texts of huge integers",
        "writing them takes quadratic time",
        "sys.set_int_max_str_digits(0)\nreturn len(str(1 << 4_000_000))",
        slow=True,
    ),
    Attack(
        "time",
        "at import",
        "time counts from the start, not from the call",
        "while True: pass\n",
        verdicts=("timeout",),
        slow=True,
    ),
    Attack(
        "time",
        "in each call a little",
        "the limit is for all calls together",
        "import time\ndef add(a, b):\n    time.sleep(0.6)\n    return a + b\n",
        verdicts=("timeout",),
        right=1,
        slow=True,
    ),
    Attack(
        "time",
        "in the text of an exception",
        "the worker asks for it after the call",
        "class E(Exception):\n    def __str__(self):\n        while True: pass\ndef add(a, b):\n    raise E\n",
        verdicts=("timeout",),
        slow=True,
    ),
    Attack(
        "time",
        "while its value is written",
        "values are read after the call",
        "def add(a, b):\n    x = []\n    for _ in range(60): x = [x, x]\n    return x\n",
        slow=True,
    ),
    Attack(
        "time",
        "a list that grows as it is read",
        "an iteration may never end",
        "class L(list):\n    pass\ndef add(a, b):\n    x = L([0])\n    import threading\n"
        "    def grow():\n        while True: x.append(0)\n"
        "    threading.Thread(target=grow, daemon=True).start()\n    return x\n",
        slow=True,
    ),
    Attack(
        "time",
        "at the end",
        "what is registered for the end runs after the last call",
        "import atexit, time\natexit.register(time.sleep, 60)\ndef add(a, b):\n    return a + b\n",
        verdicts=("finished",),
        right=2,
    ),
    Attack(
        "time",
        "when it is freed",
        "a finalizer runs after the call",
        "import time\nclass A:\n    def __del__(self): time.sleep(60)\ndef add(a, b):\n    A()\n    return a + b\n",
        verdicts=("timeout",),
        slow=True,
    ),
    Attack(
        "time",
        "a thread that holds the interpreter",
        "other threads wait for it",
        "import threading\ndef spin():\n    while True: pass\n"
        "for _ in range(4): threading.Thread(target=spin, daemon=True).start()\ndef add(a, b):\n"
        "    while True: pass\n",
        verdicts=("timeout", "killed", "exception"),
        slow=True,
    ),
    Attack(
        "time",
        "the clock",
        "a limit by the clock of the day can be set back",
        "import time\ndef add(a, b):\n    try:\n        time.clock_settime(time.CLOCK_REALTIME, 0)\n"
        "        return 'set'\n    except OSError:\n        return 0\n",
    ),
    Attack(
        "time",
        "a descriptor that says it has ended",
        "the worker takes the end of descriptor 4 for the end of the process",
        "import os, time\nos.close(4)\ndef add(a, b):\n    time.sleep(60)\n",
        verdicts=("killed",),
    ),
)
