"""The one way in for user code: an import path ``"package.module:name"``, or the short name of a built-in.

An algorithm and a curriculum are modules with a section ``Settings`` and a function ``build``: for them the path of the
module will do. Built-ins are listed in plugins.toml by kind; an installed package can add its own with an entry point
in the group ``steadyrl.<kind>``. Nothing is imported before it is asked for.
"""

from __future__ import annotations

import difflib
import importlib
import inspect
import re
import reprlib
import sys
import tomllib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.machinery import PathFinder
from importlib.metadata import entry_points
from pathlib import Path
from types import ModuleType
from typing import Any, Literal

from steadyrl.core.arguments import gives_no_value, takes
from steadyrl.core.counting.count import begin
from steadyrl.core.errors import ConfigError, DataError, MissingExtraError, SteadyError, raised_line
from steadyrl.core.places import path_hint
from steadyrl.core.protocols import (
    Attackable,
    Bounded,
    Checking,
    Editable,
    Exact,
    Interactive,
    Limited,
    Task,
    Teaching,
    ToolUsing,
)
from steadyrl.core.rundir import file_digests
from steadyrl.core.types import Problem, encodable
from steadyrl.core.words import counted

_TABLES = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))
BUILT_IN: dict[str, dict[str, str]] = _TABLES["built_in"]
# What a task may offer beside the methods of Task.
OF_TASKS = (Interactive, Bounded, Exact, Teaching, Attackable, Editable, Limited, ToolUsing)
_SESSION = "steadyrl_session"  # the module of functions without an import path of their own
_ALIKE = 0.84  # as difflib compares: one letter more, less or other in a name of six
MODULES = ("algorithm", "curriculum", "sampler", "launcher")  # kinds whose plug-ins are modules
_EXTRA_OF = {package: extra for extra, packages in _TABLES["extras"].items() for package in packages}


@dataclass(frozen=True)
class _Form:
    """What something of a kind has, and how it is used."""

    expected: str
    """In words."""
    calls: Mapping[str, int] = field(default_factory=dict)
    """The functions that are called, with how many arguments."""
    makes: Sequence[str] = ()
    """What is read of the thing that comes of it."""
    arguments: int | None = None
    """How many it is called with itself, where it is a class; None for a module or an object. The methods of its
    objects are looked at by ``require_members``."""


_FORMS = {kind: _Form(**fields) for kind, fields in _TABLES["forms"].items()}


def load(kind: str, name: str) -> Any:
    """Return the object behind a short name or an import path.

    Args:
        kind: "algorithm", "curriculum", "task", "reward", "judge", "sampler", "backend", "launcher" or
            "exporter".
        name: A built-in's short name, an entry point's name, or "package.module:name"; for an algorithm and a
            curriculum also "package.module".

    Raises:
        ConfigError: Nothing has that name, or what has it does not build an algorithm or a curriculum.
        MissingExtraError: It needs a package that is not installed.
    """
    plugin = _find(kind, name)
    if kind in _FORMS and (lack := _form_fault(_FORMS[kind], plugin)):
        raise ConfigError(f"'{name:.120}' is no {kind}: {lack}; expected {_FORMS[kind].expected}")
    if kind in MODULES or is_module(kind, name):
        require_members(f"{kind}.name: '{name}'", plugin, optional=(Checking,))
    return plugin


def make(kind: str, name: str, *arguments: Any) -> Any:
    """Return what a plug-in makes: an algorithm of its settings, a task, a backend, ...

    Raises:
        ConfigError: See ``load``; or what comes of it is nothing of the kind.
        MissingExtraError: It needs a package that is not installed.
    """
    plugin, form = load(kind, name), _FORMS[kind]
    function = plugin if form.arguments is not None else getattr(plugin, next(iter(form.calls)))
    try:
        product = function(*arguments)
    except TypeError as error:  # what a dataclass raises for a field that it has not, such as a misspelt one
        unexpected = re.search(r"unexpected keyword argument '(\w+)'", str(error))
        close = [field for field in form.makes if unexpected and _alike(unexpected[1], field)]
        if not unexpected or not close:
            raise
        raise ConfigError(
            f"'{name:.120}' gives the {kind} a field '{unexpected[1]}', which nothing calls; did you mean '{close[0]}'?"
        ) from error
    if missing := ", ".join(repr(attribute) for attribute in form.makes if not hasattr(product, attribute)):
        raise ConfigError(
            f"'{name:.120}' is no {kind}: what it makes is {type(product).__name__} and has no {missing}; expected "
            f"{form.expected}"
        )
    return product


def _form_fault(form: _Form, plugin: object) -> str:
    """Return what a plug-in lacks of its form, "" where it has all."""
    if form.arguments is not None and not isinstance(plugin, type):
        return f"it is {'a module' if isinstance(plugin, ModuleType) else f'of the type {type(plugin).__name__}'}"
    if missing := [name for name in form.calls if not hasattr(plugin, name)]:
        return f"it has no {', '.join(map(repr, missing))}"
    if form.arguments is not None and not takes(plugin, form.arguments):
        return f"it cannot be called with {counted(form.arguments, 'argument')}"
    for name, count in form.calls.items():
        function = getattr(plugin, name)
        if gives_no_value(function):
            return f"{name} is a generator or asynchronous, and gives no value"
        if not takes(function, count):
            return f"{name} cannot be called with {counted(count, 'argument')}"
    return ""


def open_task(name: str, args: Any, seed: int) -> Task:
    """Return the task of that name, with its settings.

    Raises:
        SteadyError: It cannot be had, lacks something that it needs, or offers something that nothing would use.
    """
    subject = f"the task '{name}'"
    begin(f"reading the data of {subject}")
    task: Task = make("task", name, args, seed)
    require_members(subject, task, Task, OF_TASKS, later=("ask", "show", "baselines"))
    if wrong := [name for name in ("name", "metric") if not isinstance(getattr(task, name), str)]:
        raise ConfigError(f"{subject}: its attribute {wrong[0]} is {getattr(task, wrong[0])!r:.60}; expected a text")
    if not isinstance(task, Interactive):
        return task
    for attribute in ("max_turns", "workers"):
        count = getattr(task, attribute)
        if not isinstance(count, int) or isinstance(count, bool) or count < 1:
            raise ConfigError(
                f"{subject}: its attribute {attribute} is {count!r:.40}; expected a whole number of 1 or more"
            )
    if hasattr(task, "tools") != hasattr(task, "tool_format"):
        raise ConfigError(
            f"{subject} has only one of the attributes 'tools' and 'tool_format'; expected both of "
            "steadyrl.core.protocols.ToolUsing, or neither"
        )
    if isinstance(task, Teaching):
        raise ConfigError(
            f"{subject} has both 'episode' and 'demonstration', which nothing calls where there are episodes; let the "
            "episodes' own method expert show the way, and remove demonstration"
        )
    return task


def problems_of(task: Task, split: Literal["train", "heldout"]) -> Sequence[Problem]:
    """Return the problems of a split.

    Raises:
        DataError: They are no sequence of problems.
    """
    problems = task.problems(split)
    subject = f"the task '{task.name}': problems('{split}')"
    if not isinstance(problems, Sequence):
        raise DataError(f"{subject} is {reprlib.repr(problems)}; expected a list of steadyrl.core.types.Problem")
    for problem in problems:
        if not isinstance(problem, Problem):
            raise DataError(f"{subject} has {reprlib.repr(problem)} in it; expected steadyrl.core.types.Problem alone")
        text = "".join([problem.prompt, *(message["content"] for message in problem.messages)])
        if encodable(text) != text:
            raise DataError(f"{subject} has a text that is not valid Unicode (a lone surrogate) in '{problem.id:.80}'")
    return problems


def require_ids(task: Task, problems: Sequence[Problem]) -> None:
    """Refuse (DataError) two problems of a split that have the same id."""
    ids = Counter(problem.id for problem in problems)
    if repeated := [id for id, count in ids.items() if count > 1]:
        raise DataError(
            f"the task '{task.name}' has {ids[repeated[0]]} problems with the id '{repeated[0]:.80}', by which answers "
            "before and after training are paired; give each an id of its own"
        )


def functions_of(task: Task, method: Literal["rewards", "baselines"]) -> Mapping[str, Any]:
    """Return a task's own rewards, or its answers without a model.

    Raises:
        ConfigError: They are no mapping of names to functions.
    """
    functions = getattr(task, method)() or {}
    if isinstance(functions, Mapping) and all(map(callable, functions.values())):
        return functions
    raise ConfigError(f"the {method} of the task are {reprlib.repr(functions)}; expected a dict of names to functions")


def require_members(
    subject: str, plugin: object, required: type | None = None, optional: Sequence[type] = (), later: Sequence[str] = ()
) -> None:
    """Refuse an object that lacks what is needed of it, or offers what nothing would ever call.

    Args:
        subject: The object, in the words of a message.
        plugin: A user's module, class or object.
        required: The protocol that it must have.
        optional: Protocols that it may have, each in whole or not at all.
        later: Members of ``required`` that are not needed yet.

    Raises:
        ConfigError: A member is missing, takes other arguments, or is misspelt.
    """
    protocols = [protocol for protocol in (required, *optional) if protocol]
    members = {name: protocol for protocol in protocols for name in _member_names(protocol)}
    missing = [name for name in members if not hasattr(plugin, name)]
    for name in _public_functions(plugin):
        if name not in members and (close := [member for member in missing if _alike(name, member)]):
            raise ConfigError(
                f"{subject} has a method '{name}', which nothing calls; did you mean '{close[0]}'? Rename it, or begin "
                "its name with an underscore"
            )
    if required and (needed := [name for name in _member_names(required) if name in missing and name not in later]):
        raise ConfigError(f"{subject} has no '{needed[0]}'; expected all of {required.__module__}.{required.__name__}")
    for name, protocol in members.items():
        if name in missing or not callable(declared := getattr(protocol, name, None)):
            continue
        lacking = [f"'{member}'" for member in _member_names(protocol) if member in missing and member not in later]
        if lacking:
            raise ConfigError(
                f"{subject} has a method '{name}' and no {', no '.join(lacking)}, so that nothing would call it; "
                f"expected all of {protocol.__module__}.{protocol.__name__}, or another name for it"
            )
        _require_arguments(subject, name, plugin, tuple(inspect.signature(declared).parameters)[1:])


def _member_names(protocol: type) -> list[str]:
    return [name for name in {**inspect.get_annotations(protocol), **vars(protocol)} if not name.startswith("_")]


def _public_functions(plugin: object) -> Iterator[str]:
    """Yield the public functions of a module, a class or an object; a module's imports are none of its own."""
    for name in dir(plugin):
        # Static, since reading a property of a user's object runs code of theirs.
        member = None if name.startswith("_") else inspect.getattr_static(plugin, name, None)
        if isinstance(member, staticmethod | classmethod):
            member = member.__func__
        if inspect.isfunction(member) and (not inspect.ismodule(plugin) or member.__module__ == plugin.__name__):
            yield name


def _alike(name: str, candidate: str) -> bool:
    return sorted(name) == sorted(candidate) or difflib.SequenceMatcher(None, name, candidate).ratio() >= _ALIKE


def _require_arguments(subject: str, name: str, plugin: object, arguments: Sequence[str]) -> None:
    method = getattr(plugin, name)
    if not callable(method):
        raise ConfigError(f"{subject}: '{name}' is {method!r:.40}; expected a method ({', '.join(arguments)})")
    if gives_no_value(method):
        raise ConfigError(
            f"{subject}: its method '{name}' is a generator or asynchronous; expected one that returns a value"
        )
    unbound = inspect.isclass(plugin) and inspect.isfunction(inspect.getattr_static(plugin, name))
    try:
        inspect.signature(method).bind(*([None] if unbound else []), *arguments)
    except ValueError:  # it does not say what it takes, as functions written in C
        return
    except TypeError as error:
        raise ConfigError(
            f"{subject}: its method '{name}' cannot be called with ({', '.join(arguments)}): {error}; give it these"
        ) from error


def is_module(kind: str, name: str) -> bool:
    """Return whether a built-in is a module, which brings settings and checks of its own; nothing is imported."""
    return name in BUILT_IN[kind] and ":" not in BUILT_IN[kind][name]


def of_peers(table: str) -> dict[str, str]:
    """Return what words of other trainers are called here, or whose they are: "algorithms", "settings", "rewards"."""
    text = Path(__file__).with_name("peers.toml").read_text(encoding="utf-8")
    return {word: answer for words, answer in tomllib.loads(text)[table].items() for word in words.split()}


def _find(kind: str, name: str) -> Any:
    if ":" in name:
        _look_in_current_folder()
        return _import(kind, name)
    if name in BUILT_IN[kind]:  # before entry points: no installed package takes the place of a built-in
        return _import(kind, BUILT_IN[kind][name])
    points = {point.name: point for point in entry_points(group=f"steadyrl.{kind}")}
    if name in points:
        return _import(kind, points[name].value)
    if kind in MODULES:
        _look_in_current_folder()
        if "." in name or (name.isidentifier() and PathFinder.find_spec(name)):
            return _import(kind, name)
    if kind == "algorithm" and (answer := of_peers("algorithms").get(re.sub("[-_]", "", name.lower()))):
        raise ConfigError(
            f"algorithm.name = '{name:.120}' {answer}; the algorithms here are {', '.join(BUILT_IN[kind])}"
        )
    if kind == "reward" and "/" in name and not _import_paths_meant(name):
        raise ConfigError(
            f"'{name:.120}' is a path, and rewards are functions; for a reward model write one that loads it and "
            "scores rollout.text, and give its import path, such as 'my_rewards:score'"
        )
    in_process = {"own"} if kind == "sampler" else set()  # the backend's own, which no module is named for
    names = sorted({*BUILT_IN[kind], *points, *in_process})
    close = [*_import_paths_meant(name), *difflib.get_close_matches(name.lower(), names, n=1)]
    hint = f"did you mean '{close[0]}'?" if close else f"known are {', '.join(names)}"
    tables = "; `steadyrl metrics RUN --to csv` or `--to parquet` writes a table" if kind == "tracker" else ""
    raise ConfigError(f"no {kind} is called '{name:.120}'; {hint} (your own: {_path_form(kind)}){tables}")


def of_session(path: str) -> bool:
    """Return whether an import path leads to something that no other process can import."""
    module = path.partition(":")[0]
    return module == "__main__" or module.startswith(f"{_SESSION}.")


def session_path(function: Any, name: str) -> str:
    """Return the import path of a function: its own where that leads to it, else one that this process alone has."""
    module, own_name = str(getattr(function, "__module__", "")), getattr(function, "__qualname__", "")
    if own_name == name and getattr(sys.modules.get(module), name, None) is function:
        return f"{module}:{name}"
    modules = [module for module in sys.modules if module.startswith(f"{_SESSION}.")]
    for module in modules:
        if vars(sys.modules[module]).get(name) is function:
            return f"{module}:{name}"
    # A module for each function: a later one of the same name does not take the place of an earlier run's.
    module = f"{_SESSION}.m{len(modules)}"
    sys.modules[module] = ModuleType(module)
    setattr(sys.modules[module], name, function)
    return f"{module}:{name}"


def _look_in_current_folder() -> None:
    here = str(Path.cwd())  # a module beside the config, as with `python -m`
    if here not in sys.path:
        sys.path.insert(0, here)


def _import_paths_meant(path: str) -> list[str]:
    """Return the import path of what was written as the path of a file beside the config, or without a colon."""
    module, colon, attribute = path.removeprefix("./").removeprefix(f"{Path.cwd()}/").partition(":")
    if not colon and not module.endswith(".py"):
        module, _, attribute = module.rpartition(".")
    module = module.removesuffix(".py").replace("/", ".")
    candidate = f"{module}:{attribute or 'FUNCTION'}"
    is_file = Path(f"{module.replace('.', '/')}.py").is_file()
    return [candidate] if candidate != path and candidate[0] != "." and is_file else []


def _path_form(kind: str) -> str:
    return "'package.module' or 'package.module:name'" if kind in MODULES else "'package.module:name'"


def require(package: str) -> Any:
    """Import an optional package or say which extra brings it."""
    try:
        return importlib.import_module(package)
    except ImportError as error:
        raise _missing(error, package) from error


def _import(kind: str, path: str) -> Any:
    module_name, colon, attribute = path.partition(":")
    if of_session(path) and not hasattr(sys.modules.get(module_name), attribute):
        raise ConfigError(
            f"'{path}' is a function of the Python session that started the run, and is not here; "
            f"put it into a module, such as my_rewards.py, and name 'my_rewards:{attribute}'"
        )
    if not all(part.isidentifier() for part in [*module_name.split("."), *([attribute] if colon else [])]):
        hint = "".join(f"; did you mean '{meant}'?" for meant in _import_paths_meant(path))
        raise ConfigError(f"'{path:.120}' is no import path; expected {_path_form(kind)}{hint}")
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name and (module_name == error.name or module_name.startswith(error.name + ".")):
            hint = "".join(f"; did you mean '{meant}'?" for meant in _import_paths_meant(path))
            file = Path(*error.name.split("."))
            raise ConfigError(
                f"'{path}': there is no module '{error.name}' in the current folder"
                f"{path_hint(file.with_suffix('.py'), file)} or in what is installed; expected "
                f"{_path_form(kind)}{hint}"
            ) from error
        raise _missing(error, module_name) from error
    except SteadyError:
        raise
    except (Exception, SystemExit) as error:  # whatever a user's module does when it is imported
        raise ConfigError(
            f"'{path}': the module '{module_name}' cannot be imported: {raised_line(error)}; fix it"
        ) from error
    if not colon:
        return module
    if not hasattr(module, attribute):
        close = difflib.get_close_matches(attribute, [name for name in vars(module) if not name.startswith("_")], n=1)
        hint = f"did you mean '{module_name}:{close[0]}'?" if close else "expected 'package.module:name'"
        # Of a folder without an __init__.py there is a path alone.
        origin = getattr(module, "__file__", None) or next(iter(getattr(module, "__path__", ())), "built into Python")
        location = "" if Path(origin).is_relative_to(Path.cwd()) else f" ({origin})"  # it hides one here
        raise ConfigError(f"'{path}': module '{module_name}'{location} has no '{attribute}'; {hint}")
    return getattr(module, attribute)


def _missing(error: ImportError, module: str) -> MissingExtraError:
    package = (error.name or module).partition(".")[0]
    extra = _EXTRA_OF.get(package)
    cure = f"install it with: pip install 'steadyrl[{extra}]'" if extra else f"install it with: pip install {package}"
    return MissingExtraError(f"the package '{package}' is not installed but needed here; {cure}")


def own_code(named_plugins: Iterable[tuple[str, str]]) -> dict[str, str]:
    """Return a digest of each file that the user's own parts stand in, by module.

    These are the module of the import path and the one that it takes the name from. What they import is left out.
    """
    modules: set[str] = set()
    for kind, name in named_plugins:
        if ":" in name:
            modules |= {name.partition(":")[0], str(getattr(load(kind, name), "__module__", ""))}
    files = {module: Path(getattr(sys.modules.get(module), "__file__", None) or "") for module in sorted(modules)}
    return file_digests(files)
