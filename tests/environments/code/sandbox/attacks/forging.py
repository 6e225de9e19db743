"""Attacks on the verdict: prints, exits, patches, odd objects, lines written by hand."""

from tests.environments.code.sandbox.attacks.record import Attack, body

_SUBCLASS = (
    "class Same({base}):\n    def __eq__(self, other): return True\n    __hash__ = None\n"
    "def add(a, b):\n    return Same()\n"
)

FORGING = (
    body(
        "forging",
        "printing success",
        "a runner that reads prints can be told anything",
        "print('passed', 'OK', '[\"value\", 5]', flush=True)\nreturn 'passed'",
    ),
    Attack(
        "forging",
        "leaving by sys.exit at the top",
        "exit code 0 is success elsewhere",
        "import sys; sys.exit(0)",
        verdicts=("exception",),
    ),
    Attack(
        "forging",
        "leaving by os._exit at the top",
        "exit code 0 is success elsewhere",
        "import os; os._exit(0)",
        verdicts=("killed",),
    ),
    Attack(
        "forging",
        "raising SystemExit at the top",
        "exit code 0 is success elsewhere",
        "raise SystemExit(0)",
        verdicts=("exception",),
    ),
    body("forging", "leaving by sys.exit in a call", "exit code 0 is success elsewhere", "sys.exit(0)"),
    body(
        "forging",
        "leaving by os._exit in a call",
        "exit code 0 is success elsewhere",
        "os._exit(0)",
        verdicts=("killed",),
    ),
    body("forging", "raising what asserts raise", "a runner may take it for its own", "raise AssertionError"),
    body("forging", "raising KeyboardInterrupt", "it stops what catches exceptions only", "raise KeyboardInterrupt"),
    body("forging", "raising GeneratorExit", "it stops what catches exceptions only", "raise GeneratorExit"),
    Attack(
        "forging",
        "new built-ins",
        "a comparison made beside the candidate uses its built-ins",
        "import builtins\nclass Never(Exception): pass\nbuiltins.AssertionError = Never\n"
        "builtins.isinstance = lambda *_: True\nbuiltins.all = builtins.any = lambda *_: True\n"
        "builtins.zip = lambda *_, **__: []\ndef add(a, b):\n    return 0\n",
    ),
    Attack(
        "forging",
        "new constants",
        "small integers are shared by the whole process",
        "import ctypes\ndef add(a, b):\n    ctypes.memmove(id(0) + 24, id(5) + 24, 4)\n    return 0\n",
        right=1,
    ),
    Attack(
        "forging",
        "an object that equals everything",
        "its own == would decide",
        "class Same:\n    def __eq__(self, other): return True\n    __ne__ = lambda *_: False\n"
        "    __hash__ = lambda s: 5\ndef add(a, b):\n    return Same()\n",
    ),
    *(
        Attack(
            "forging",
            f"a subclass of {base} that equals everything",
            "its own == would decide",
            _SUBCLASS.replace("{base}", base),
        )
        for base in ("int", "float", "str", "list", "dict", "tuple", "set", "bytes", "complex")
    ),
    Attack(
        "forging",
        "an object that says it is an int",
        "isinstance believes what __class__ says",
        "class Lie:\n    __class__ = int\n    def __int__(self): return 5\n"
        "    def __lt__(self, other): return True\n    __gt__ = __lt__\ndef add(a, b):\n"
        "    return Lie()\n",
        right=1,
    ),
    Attack(
        "forging",
        "a type with another's name",
        "built-in types travel by their names",
        "class int: pass\ndef add(a, b):\n    return int\n",
    ),
    Attack(
        "forging",
        "patching the code that runs it",
        "it is loaded in the same process",
        "import sys, json\nfrom steadyrl.environments.code.sandbox import candidate, values\n"
        "values.encode = lambda *_: ['opaque', 'x']\ncandidate._answer = lambda *_: ['value', 0]\n"
        "json.dumps = lambda *_, **__: '[\"value\", 1]'\ndef add(a, b):\n    return a + b\n",
    ),
    Attack(
        "forging",
        "patching test runners",
        "tests may be run by them",
        "import unittest, doctest\nunittest.TestCase.assertEqual = lambda *_: None\n"
        "doctest.testmod = lambda *_: None\ndef add(a, b):\n    return 0\n",
    ),
    Attack(
        "forging",
        "a trace function",
        "it sees and changes the locals of its callers",
        "import sys\ndef trace(frame, event, arg):\n    frame.f_locals['kept'] = [5]\n"
        "    return trace\nsys.settrace(trace)\nsys.setprofile(trace)\ndef add(a, b):\n    return 0\n",
        right=1,
    ),
    Attack(
        "forging",
        "the entry point as a class",
        "calling it makes an object",
        "class add:\n    def __init__(self, a, b): self.sum = a + b\n    def __eq__(self, other): return True\n",
    ),
    Attack(
        "forging",
        "the entry point as a property of the module",
        "names may be looked up more than once",
        "import sys, types\nclass M(types.ModuleType):\n"
        "    def __getattr__(self, name): return lambda *a: sum(a)\nadd = M('add')\n",
    ),
    Attack(
        "forging",
        "lines of other kinds",
        "the reader might believe a verdict",
        'import os\nfor line in (b\'["passed"]\', b\'["ready"]\', b\'{"verdict": "pass"}\'):\n'
        "    os.write(3, line + b'\\n')\ndef add(a, b):\n    return 0\n",
        verdicts=("malformed",),
    ),
    Attack(
        "forging",
        "more values than calls",
        "the last ones might count",
        "import os\ndef add(a, b):\n"
        '    os.write(3, b\'["value", 0]\\n["value", 0]\\n["value", 5]\\n\')\n    return 0\n',
        verdicts=("malformed",),
    ),
    Attack(
        "forging",
        "a failure that hides the rest",
        "what comes after it is not read",
        'import os\ndef add(a, b):\n    os.write(3, b\'["failed", "syntax", "x", "y"]\\n\')\n    return 0\n',
        verdicts=("syntax",),
    ),
    Attack(
        "forging",
        "closing the pipe",
        "no answer might count as no failure",
        "import os\nos.close(3)\ndef add(a, b):\n    return a + b\n",
        verdicts=("killed",),
    ),
    Attack(
        "forging",
        "another pipe in its place",
        "values could go where they are not seen",
        "import os\nr, w = os.pipe()\nos.dup2(w, 3)\ndef add(a, b):\n    return a + b\n",
        verdicts=("killed",),
    ),
    Attack(
        "forging",
        "a pipe that does not wait",
        "a flag of the open file is shared with the worker",
        "import fcntl, os\nfcntl.fcntl(3, fcntl.F_SETFL, os.O_NONBLOCK | os.O_APPEND | 0o40000)\n"
        "def add(a, b):\n    return 0\n",
    ),
    Attack(
        "forging",
        "a thread that writes between",
        "lines of two writers may mix",
        "import os, threading\ndef write():\n    while True: os.write(3, b'[\"value\", 0]\\n')\n"
        "threading.Thread(target=write, daemon=True).start()\ndef add(a, b):\n    return 0\n",
    ),
    Attack(
        "forging",
        "an end without the last line",
        "half of a line is no value",
        "import os\ndef add(a, b):\n    os.write(3, b'[\"value\", 5')\n    os._exit(0)\n",
        verdicts=("malformed",),
    ),
    Attack(
        "forging",
        "an exception whose text is hostile",
        "its text reaches notes, logs and screens",
        "def add(a, b):\n    raise ValueError('\\x1b[2J\\ud800\\n[\"value\", 5]\\n' * 1000)\n",
    ),
    Attack(
        "forging",
        "an exception that cannot be written",
        "its text is asked for",
        "class Bad(Exception):\n    def __str__(self): raise Bad\ndef add(a, b):\n    raise Bad\n",
    ),
    Attack(
        "forging",
        "an exception whose type has a hostile name",
        "the name is sent",
        "def add(a, b):\n    raise type('\\ud800\\n' + 'x' * 10**5, (Exception,), {})\n",
    ),
    Attack(
        "forging",
        "a group of exceptions",
        "it is an exception that holds others",
        "def add(a, b):\n    raise BaseExceptionGroup('x', [KeyboardInterrupt()])\n",
    ),
    Attack(
        "forging",
        "floats that are nearly right",
        "the tolerance is for rounding only",
        "def add(a, b):\n    return a + b + 1e-3\n",
    ),
    Attack(
        "forging",
        "infinity and no number",
        "comparisons with them are odd",
        "def add(a, b):\n    return float('nan') if a > 5 else float('inf')\n",
    ),
    Attack(
        "forging",
        "a generator of answers",
        "it might be asked until one fits",
        "def add(a, b):\n    yield from range(100)\n",
    ),
    Attack("forging", "a coroutine", "its value is never computed", "async def add(a, b):\n    return a + b\n"),
    Attack(
        "forging",
        "steps of its own",
        "the list of steps is in the candidate's process",
        "import gc\ndef add(a, b):\n    for kept in gc.get_objects():\n"
        "        if type(kept) is list and kept[:1] == ['call']:\n"
        "            kept[1] = ['list', 0, 0]\n    return 0\n",
    ),
)
UNSCORED = (
    Attack(
        "unscored",
        "taking back what it has written",
        "a pipe can be opened anew by its name in /proc; an answer that seems not to have begun was left unscored",
        "import os\nfor number in range(3, 8):\n    try:\n"
        "        pipe = os.open(f'/proc/self/fd/{number}', os.O_RDONLY | os.O_NONBLOCK)\n"
        "        os.read(pipe, 1 << 20)\n    except OSError:\n        continue\ndef add(a, b):\n    return 0\n",
    ),
    Attack(
        "unscored",
        "waking the worker without end",
        "what is written on descriptor 4 reaches the worker, which waits for its end",
        "import os\n__import__('fcntl').fcntl(4, 4, os.O_NONBLOCK)\nfor _ in range(10**5):\n"
        "    try:\n        os.write(4, b'x' * 99)\n"
        "    except OSError:\n        break\ndef add(a, b):\n    return 0\n",
        verdicts=("finished",),
    ),
    Attack(
        "unscored",
        "closing everything",
        "a worker that hears nothing might be taken for lost",
        "import os\nos.closerange(0, 64)\ndef add(a, b):\n    return 0\n",
        verdicts=("killed",),
    ),
    Attack(
        "unscored",
        "reading on descriptor 4",
        "a socket is open both ways, and the worker's end might be drained",
        "import os\n__import__('fcntl').fcntl(4, 4, os.O_NONBLOCK)\nfound = b''\ntry:\n    found = os.read(4, 99)\n"
        "except OSError:\n    pass\n"
        "def add(a, b):\n    return found.decode()\n",
        verdicts=("finished",),
    ),
    Attack(
        "unscored",
        "all memory before the first call",
        "a machine that has no memory left is not the answer's fault, one answer that takes it all is",
        "kept = []\nwhile True: kept.append(bytearray(1 << 20))\n",
        verdicts=("memory", "timeout", "killed"),
        slow=True,
    ),
)
AFTERWARDS = (
    *(
        Attack(
            "afterwards",
            name,
            "the next answer must meet a clean interpreter",
            f"{code}\ndef add(a, b):\n    return 0\n",
        )
        for name, code in (
            ("names in built-ins", "import builtins\nbuiltins.sum = builtins.len = lambda *_: 5"),
            ("names in modules", "import math, json\nmath.pi = 3\njson.dumps = json.loads = None"),
            (
                "modules of its own",
                "import sys, types\nfor name in list(sys.modules): sys.modules[name] = types.ModuleType(name)",
            ),
            ("the environment", "import os\nos.environ['PYTHONPATH'] = os.environ['LD_PRELOAD'] = '/tmp'"),
            ("random numbers", "import random\nrandom.seed(1)\nrandom.random = lambda: 0"),
            ("the recursion limit", "import sys\nsys.setrecursionlimit(60)"),
            ("import hooks", "import sys\nsys.meta_path.clear()\nsys.path_hooks.clear()\nsys.path.clear()"),
            ("signal handlers", "import signal\nsignal.signal(signal.SIGCHLD, signal.SIG_IGN)"),
            ("standard streams", "import os, sys\nsys.stdout = sys.stderr = None\nfor n in (0, 1, 2): os.close(n)"),
            ("the collector", "import gc\ngc.disable()\ngc.freeze()\ngc.set_debug(gc.DEBUG_SAVEALL)"),
            ("the mask of new files", "import os\ntry:\n    os.umask(0)\nexcept OSError:\n    pass"),
        )
    ),
)
