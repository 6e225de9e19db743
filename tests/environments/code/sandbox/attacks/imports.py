"""Attacks by imports, code objects and what Python can load."""

from tests.environments.code.sandbox.attacks.record import Attack, body, deeds

_DOORS = "each of these ends in a program or a shell"

IMPORTS = (
    deeds(
        "imports",
        "packages that are installed",
        "they may hold anything, and their versions tell of the machine",
        *(
            f"import {name}"
            for name in ("numpy", "pytest", "pydantic", "torch", "pip", "steadyrl.loop.tasks", "steadyrl.core.types")
        ),
        "import site; site.main(); import numpy",
        "sys.path.append('@PACKAGE@/..'); import steadyrl.core.config",
        "sys.path.insert(0, '@FOLDER@'); import target",
        "import ensurepip; ensurepip.bootstrap()",
        "import importlib.machinery as m; m.SourceFileLoader('t', '@TARGET@').load_module()",
    ),
    deeds(
        "imports",
        "programs behind the standard library",
        _DOORS,
        "import pty; pty.spawn('sh')",
        "import ctypes.util; ctypes.util._findLib_gcc('c') or (_ for _ in ()).throw(OSError())",
        "import platform; platform._syscmd_file('/bin/sh', None) or (_ for _ in ()).throw(OSError())",
        "import pickle; pickle.loads(b'cposix\\nfork\\n(tR.')",
        "import pdb; open('@FOLDER@/x')",
        "eval('os.fork()')",
        "getattr(os, 'fo' + 'rk')()",
        "vars(__builtins__)['__import__']('posix').fork()",
        "().__class__.__base__.__subclasses__()[0]; os.fork()",
    ),
    body("imports", "asking at the keyboard", "nobody is there to answer", "return input()"),
    body("imports", "a debugger", "it waits for commands", "breakpoint()\nreturn 0"),
    body("imports", "an interactive interpreter", "it waits for commands", "import code; code.interact(); return 0"),
    body("imports", "a browser", _DOORS, "import webbrowser; return webbrowser.open('http://127.0.0.1:@PORT@')"),
    body("imports", "the shell behind a pager", _DOORS, "import pydoc; pydoc.pager('x'); return 0"),
    Attack(
        "imports",
        "byte code of its own",
        "byte code is not checked before it runs",
        "def add(a, b):\n    c = add.__code__\n"
        "    add.__code__ = c.replace(co_code=bytes([100, 255] * 50))\n    return add(a, b)\n",
    ),
    Attack(
        "imports",
        "marshalled garbage",
        "reading it can crash",
        "import marshal, random\ndef add(a, b):\n    for seed in range(2000):\n        try:\n"
        "            marshal.loads(bytes(random.Random(seed).randrange(256) for _ in range(40)))\n"
        "        except Exception:\n            continue\n    return 0\n",
        slow=True,
    ),
    Attack(
        "imports",
        "a second interpreter",
        "it has settings of its own",
        "def add(a, b):\n    try:\n        import _interpreters as i\n    except ImportError:\n"
        "        import _xxsubinterpreters as i\n"
        "    i.run_string(i.create(), 'import os; os.fork()')\n    return 0\n",
    ),
    Attack(
        "imports",
        "writing into the interpreter",
        "its memory is the candidate's to write",
        "import ctypes\ndef add(a, b):\n    ctypes.memset(id(int), 255, 400)\n    return 5\n",
        verdicts=("killed",),
    ),
    Attack(
        "imports",
        "a module with a slow name",
        "names are looked up on disk",
        "def add(a, b):\n    for i in range(2000):\n        try:\n"
        "            __import__('x' * 200 + str(i))\n        except ImportError:\n"
        "            continue\n    return 0\n",
    ),
    Attack(
        "imports",
        "itself",
        "the name of its module may be another's",
        "import __main__\n__main__.main = __main__._run = None\nfrom steadyrl.environments.code.sandbox import worker\n"
        "worker._bury = worker._run = lambda *_: b''\ndef add(a, b):\n    return 0\n",
    ),
    Attack(
        "imports",
        "the name that it is called by",
        "the entry point may be deleted as it is called",
        "def add(a, b):\n    globals().clear()\n    return 0\n",
    ),
)
