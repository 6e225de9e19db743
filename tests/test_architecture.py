"""The floors of docs/architecture.md: what may import what, how long things may be, what starts without torch."""

import ast
import importlib
import importlib.util
import subprocess
import sys
from dataclasses import dataclass
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

import steadyrl

ROOT = Path(steadyrl.__file__).parent
FLOORS = (
    {"core"},  # ground
    {"maths", "loop.curriculum"},
    {"loop.rewards", "backends", "doctor", "lab.launchers"},  # services
    {
        "loop.tasks",
        "algorithms",
        "loop.rollout",
        "loop.checkpoint",
        "loop.defaults",
        "loop.autopilot",
        "loop.gradient_parts",
        "integrations.trackers",
    },
    {"loop.train", "loop.evaluate", "loop.record", "loop.preflight"},  # the loop
    {
        "environments.search",
        "environments.code",
        "environments.browse",
        "environments.math",
        "integrations.environments",
    },
    {"loop.launch", "lab", "show.review", "show.page"},  # the front door, science, how pages are written
    {"show.report"},  # writing
    {"show.web", "integrations.export"},  # the pages, which the command line serves; model folders for others
    {"cli", "integrations.trl"},  # user interfaces
    {"python"},  # shows in a script what the command line shows
    {"__main__"},
)
FLOOR_OF = {room: floor for floor, rooms in enumerate(FLOORS) for room in rooms}
TENSOR_PACKAGES = {"torch", "transformers", "peft", "safetensors", "tokenizers", "mlx", "ray"}
MAX_FILE_LINES, MAX_FUNCTION_LINES = 600, 60
HEAVY = ("torch", "mlx", "transformers", "peft", "matplotlib", "scipy.stats")

MODULES = {
    ".".join(("steadyrl", *path.relative_to(ROOT).with_suffix("").parts)).removesuffix(".__init__"): path
    for path in sorted(ROOT.rglob("*.py"))
}


@dataclass(frozen=True)
class Facts:
    """What the tests ask of a module's syntax tree; the trees of all modules together are a million objects.

    Attributes:
        imports: The dotted name of everything that it imports, wherever in the file.
        functions: The name of each function and its length in lines.
        relative: The lines of relative imports.
    """

    imports: frozenset[str]
    functions: tuple[tuple[str, int], ...]
    relative: tuple[int, ...]


@cache
def facts(module):
    """Return the facts of a module, read once."""
    imports, functions, relative = set(), [], []
    for node in ast.walk(ast.parse(MODULES[module].read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            imports |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            imports |= {f"{node.module}.{alias.name}" for alias in node.names}
            relative += [node.lineno] if node.level else []
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            functions.append((node.name, code_lines(node)))
    return Facts(frozenset(imports), tuple(functions), tuple(relative))


def room(module):
    """Return the longest of the floors' names that a module lies in: its folder, or itself."""
    path = module.removeprefix("steadyrl.")
    while path not in FLOOR_OF and "." in path:
        path = path.rpartition(".")[0]
    return path


def own_imports(module):
    """Return the modules of this package that a module imports: ``from steadyrl import kl`` names steadyrl.maths.kl."""
    names = {name for name in facts(module).imports if name.startswith("steadyrl.")}
    return {name if name in MODULES else name.rpartition(".")[0] for name in names} - {module}


def code_lines(function):
    """Return a function's length without its docstring: explaining more must not count against it."""
    first = function.body[0]
    documented = ast.get_docstring(function) is not None
    return function.end_lineno - function.lineno + 1 - (first.end_lineno - first.lineno + 1 if documented else 0)


INSIDE = sorted(module for module in MODULES if module != "steadyrl")


PACKAGES = {"loop", "environments", "integrations", "show"}  # what holds rooms of several floors, and no code itself


def test_every_module_stands_on_a_floor():
    assert sorted({room(module) for module in INSIDE} - PACKAGES) == sorted(FLOOR_OF)


def may_import(module, imported):
    here, there = FLOOR_OF[room(module)], FLOOR_OF[room(imported)]
    # Single modules of one floor are known to all of it; folders of one floor do not know each other.
    return (
        there < here or room(imported) == room(module) or (there == here and imported == f"steadyrl.{room(imported)}")
    )


def test_a_module_imports_only_from_lower_floors_and_its_own_folder():
    assert [(m, imported) for m in INSIDE for imported in own_imports(m) if not may_import(m, imported)] == []


def test_what_the_floors_forbid():
    assert may_import("steadyrl.loop.train", "steadyrl.maths.kl")
    assert may_import("steadyrl.maths.losses", "steadyrl.maths.kl")
    assert may_import("steadyrl.loop.rewards.mix", "steadyrl.loop.rewards.judge.client")
    assert not may_import("steadyrl.maths.kl", "steadyrl.loop.train")
    assert not may_import("steadyrl.loop.rewards.mix", "steadyrl.backends.toy")
    assert not may_import("steadyrl.environments.search.task", "steadyrl.environments.code.task")


def test_nothing_outside_of_an_environment_imports_it():
    outside = {m: own_imports(m) for m in INSIDE if not m.startswith("steadyrl.environments")}
    assert {m: of for m, of in outside.items() if any(name.startswith("steadyrl.environments") for name in of)} == {}


def test_no_import_is_relative():
    assert {module: facts(module).relative for module in MODULES if facts(module).relative} == {}


def test_there_is_no_import_cycle():
    TopologicalSorter({module: own_imports(module) for module in INSIDE}).prepare()  # raises CycleError with the cycle


def script(name):
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(ROOT.parent / "scripts")
        return importlib.import_module(name)


def house():
    return script("house")


def test_names_that_say_nothing_are_counted_where_they_are_bound(tmp_path):
    file = tmp_path / "room.py"
    file.write_text(
        "def told(found, problems):\n"
        "    one, rows = problems\n"
        "    self._kept = [each for each in found if known(each)]\n"
        "    for founded in rows:\n"
        "        print(seen)\n"
    )
    vague, bound = script("names").vague(file)
    assert sorted(vague) == [(1, "found"), (1, "told"), (2, "one"), (3, "_kept"), (3, "each")]
    assert bound == 8


def test_what_the_figures_count():
    made = house()
    here = made.PACKAGE / "loop" / "train.py"
    listed = 'a = ("ppo", "x", "grpo")\nb = {"ppo": 1, "sft": 2}\nc = ["ppo"]\nd = name == "ppo"\ne = name == "x"\n'
    places = made.algorithm_lists({here: ast.parse(listed), made.PACKAGE / "algorithms" / "ppo.py": ast.parse(listed)})
    assert [place.partition(": ")[0] for place in places] == [f"loop/train.py:{line}" for line in (1, 2, 4)]
    seven = "".join(f"a{i} = {i}\n" for i in range(7))
    texts = {
        "one": f"import x\n{seven}",
        "two": f"b = 1\n\n{seven}c = 2\n",
        "three": "b = 1\nc = 2\n" * 2,
    }
    repeated = made.repeated_lines({name: made.code_lines(text, ast.parse(text)) for name, text in texts.items()})
    assert repeated == {"one": {*range(2, 9)}, "two": {*range(3, 10)}}
    knot = {
        made.PACKAGE / "maths" / "kl.py": "from steadyrl.maths import losses",
        made.PACKAGE / "maths" / "losses.py": "from steadyrl.maths.kl import k1",
    }
    assert set(made.import_cycle({path: ast.parse(text) for path, text in knot.items()})) == {
        "steadyrl.maths.kl",
        "steadyrl.maths.losses",
    }


def importers(package):
    """Return the folders at the top whose modules import a package."""
    return {m.split(".")[1] for m in INSIDE if package in {name.partition(".")[0] for name in facts(m).imports}}


@pytest.mark.parametrize("package", sorted(TENSOR_PACKAGES))
def test_only_backends_and_integrations_import_tensor_packages(package):
    assert importers(package) <= {"backends", "integrations"}


def test_the_doctor_needs_numpy_a_json_parser_the_ground_and_stats_only():
    modules = [module for module in INSIDE if room(module) == "doctor"]
    rooms = {(m, room(imported)) for m in modules for imported in own_imports(m)}
    assert {(m, of) for m, of in rooms if of not in {"core", "doctor"}} == set()
    packages = {(m, name.partition(".")[0]) for m in modules for name in facts(m).imports}
    # pydantic_core is a compiled JSON parser here, imported for large logs alone.
    allowed = {*sys.stdlib_module_names, "steadyrl", "numpy", "pydantic_core"}
    assert {(m, package) for m, package in packages if package not in allowed} == set()


def test_only_the_report_imports_matplotlib():
    assert importers("matplotlib") == {"show"}


def test_files_stay_short():
    lengths = {module: len(path.read_text(encoding="utf-8").splitlines()) for module, path in MODULES.items()}
    assert {module: length for module, length in lengths.items() if length > MAX_FILE_LINES} == {}


def test_functions_stay_short():
    functions = [(module, *function) for module in MODULES for function in facts(module).functions]
    assert [function for function in functions if function[2] > MAX_FUNCTION_LINES] == []


def test_packages_inside_are_empty():
    assert [m for m in INSIDE if MODULES[m].name == "__init__.py" and MODULES[m].read_text(encoding="utf-8")] == []


@pytest.mark.parametrize(
    "start",
    [
        "import steadyrl",
        "import sys; sys.argv = ['steadyrl', '--help']; from steadyrl.cli.main import main; main()",
        "import sys; sys.argv = ['steadyrl', 'doctor', '--help']; from steadyrl.cli.main import main; main()",
        "import steadyrl.doctor.examine",
    ],
)
def test_the_package_its_help_and_the_doctor_start_without_heavy_packages(start):
    told = f"print('LOADED', *(p for p in {HEAVY} if p in sys.modules))"
    code = f"import atexit, sys\natexit.register(lambda: {told})\n{start}"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "LOADED"


def test_importing_the_package_loads_no_module_of_it():
    code = "import sys, steadyrl; print(sorted(m for m in sys.modules if m.startswith('steadyrl') or m == 'numpy'))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "['steadyrl']"


def test_scripts_import_what_there_is():
    missing = [
        f"{path}: {node.module}.{name.name}"
        for folder in ("bench", "scripts", "examples")
        for path in sorted((ROOT.parent / folder).rglob("*.py"))
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] == "steadyrl"
        for name in node.names
        if not hasattr(importlib.import_module(node.module), name.name)
        and importlib.util.find_spec(f"{node.module}.{name.name}") is None
    ]
    assert missing == []
