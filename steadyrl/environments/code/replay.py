"""Runs inside a jail: test code with ``assert``, without the candidate.

Every ``assert`` statement is one test, however often it is reached: were each round of a loop a test of its own, a
candidate could make many that hold, by returning much to loop over, and hide those that fail among them.

The candidate is another process. The test code is run several times: what it does with the candidate is written down
as steps, the candidate takes the steps in its own process, and the next run replays what they gave. Plain values come
back as values. An object of the candidate's own stays with it: the test code has a ``Proxy`` of it, and can call it,
read and set its attributes and hand it to the candidate; each of these is a step. So no expected value ever meets the
candidate, and no object of the candidate ever takes part in a comparison.

Arguments come back as the call has left them, for functions that work in place. A candidate that returns a value could
choose with them what the tests compare this value with, as in ``assert f(xs) == sorted(xs)``. ``replay`` therefore
says whether the result of the tests depends on such a change, and can be asked to leave these arguments alone.

This file is compiled and sent into the jail. It needs the standard library and ``sandbox.values``.
"""

from __future__ import annotations

import ast
import builtins
import json
import random
from collections.abc import Callable, Sequence
from typing import Any

from steadyrl.environments.code.sandbox import values


class Marks(ast.NodeTransformer):
    """Turns every assert into a mark with its number, so that one that fails does not hide the others.

    Calls whose result is thrown away are marked too: all that they can be for is to change something in place.
    """

    def __init__(self) -> None:
        self.asserts = 0

    def visit_Assert(self, node: ast.Assert) -> ast.Expr:
        """Return ``__mark__(number, lambda: test)``."""
        empty = ast.arguments(posonlyargs=[], args=[], kwonlyargs=[], kw_defaults=[], defaults=[])
        number = ast.Constant(self.asserts)
        call = ast.Call(ast.Name("__mark__", ast.Load()), [number, ast.Lambda(empty, node.test)], [])
        self.asserts += 1
        return ast.copy_location(ast.Expr(call), node)

    def visit_Expr(self, node: ast.Expr) -> ast.Expr:
        """Return ``__thrown_away__(call)``."""
        if isinstance(node.value, ast.Call):
            call = ast.Call(ast.Name("__thrown_away__", ast.Load()), [node.value], [])
            return ast.copy_location(ast.Expr(call), node)
        return node


def marked(script: str) -> tuple[ast.Module, int]:
    """Return test code with a mark for every assert, and how many asserts there are.

    Raises:
        SyntaxError, ValueError, RecursionError, MemoryError: It is no Python, or nested beyond reading.
    """
    marks = Marks()
    tree: ast.Module = ast.fix_missing_locations(marks.visit(ast.parse(script)))
    return tree, marks.asserts


class Unknown(Exception):
    """The value of a step is needed that has not been taken yet."""


class Steps:
    """What the test code has done with the candidate so far.

    Attributes:
        recorded: The steps of this run, as ``sandbox.candidate`` reads them.
        refused: What was asked for that cannot be judged from outside the candidate; "" for nothing.
        changed: The arguments of the step that was taken last, as it has left them; empty where it left them alone.
        in_place: Whether a call has changed its arguments and returned a value that the tests may compare with them.
    """

    def __init__(self, previous: Sequence[Any], results: Sequence[Any], values_only: bool):
        self.recorded: list[Any] = []
        self.refused = ""
        self.changed: list[Any] = []
        self.in_place = False
        self.errors: dict[str, type[Exception]] = {}
        self._previous, self._results, self._values_only = previous, results, values_only
        self._diverged = False
        self._pending: tuple[Any, Sequence[Any], list[Any]] | None = None  # a result, arguments, what became of them

    def take(self, *step: Any) -> Any:
        """Record a step and return its value, or a ``Proxy`` of it."""
        number, self.changed = len(self.recorded), []
        self.recorded.append(list(step))
        self._diverged = self._diverged or self._previous[number : number + 1] != self.recorded[number:]
        if self._diverged:  # from here on the results belong to other steps
            return Proxy(self, number, "")
        match self._results[number] if number < len(self._results) else ["raised", "RuntimeError", "it has ended"]:
            case ["value", ["opaque", kind], _]:
                return Proxy(self, number, kind)
            case ["value", wire, ["list", *changed]]:
                self.changed = changed
                if kind := _opaque(wire):
                    self.refused = (
                        f"they get a container with an object of type '{kind}', which cannot leave the answer"
                    )
                return values.decode(wire)
            case ["raised", kind, text]:
                error = self.errors.get(kind, getattr(builtins, kind, None))
                if isinstance(error, type) and issubclass(error, StopIteration | StopAsyncIteration):
                    raise RuntimeError(f"{kind}: {text}")  # a loop of the tests would take it for its own end
                if isinstance(error, type) and issubclass(error, Exception):
                    raise error.__new__(error, text)
                raise Exception(f"{kind}: {text}")

    def plain(self, value: Any) -> Any:
        """Return the wire form of what is handed to the candidate."""
        wire = values.encode(value)
        if kind := _opaque(wire):
            self.refused = f"they hand the function an object of type '{kind}', which cannot leave the tests"
        return wire

    def call(self, *arguments: Any, **named: Any) -> Any:
        """Stand for the function that is tested."""
        result = self.take("use", self.plain(list(arguments)), self.plain(named))
        self._pending = result, arguments, self.changed
        self.in_place = self.in_place or (bool(self.changed) and result is not None)
        if result is None or not self._values_only:
            self.discard(result)
        return result

    def discard(self, result: Any) -> None:
        """Change the arguments of the last call if this is its result, at which nothing looks."""
        if self._pending is None or result is not self._pending[0]:
            return
        _, arguments, changed = self._pending
        self._pending = None
        for argument, wire in zip(arguments, changed, strict=False):
            if not _opaque(wire):  # it holds objects that have stayed with the candidate
                value = values.decode(wire)
                if isinstance(argument, list) and isinstance(value, list):
                    argument[:] = value
                elif isinstance(argument, dict | set) and type(argument) is type(value):
                    argument.clear()
                    argument.update(value)


class Proxy(values.Reference):
    """Stands for an object that stays with the candidate, or for a result that is not there yet."""

    def __init__(self, steps: Steps, number: int, kind: str):
        super().__init__(number)
        _ours(self).update(steps=steps, kind=kind)

    def __getattribute__(self, name: str) -> Any:
        if name in _PYTHONS_OWN:
            return object.__getattribute__(self, name)
        return _ours(self)["steps"].take("get", _ours(self)["number"], name)

    def __setattr__(self, name: str, value: Any) -> None:
        steps = _ours(self)["steps"]
        steps.take("set", _ours(self)["number"], name, steps.plain(value))

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        """Call the object."""
        steps = _ours(self)["steps"]
        return steps.take("apply", _ours(self)["number"], steps.plain(list(arguments)), steps.plain(named))

    def __eq__(self, value: object) -> bool:
        return _refuse(self, "compare an object with")

    def __instancecheck__(self, instance: object) -> bool:
        return _refuse(self, "ask whether an object is of")

    def __bool__(self) -> bool:
        if not _ours(self)["kind"]:
            raise Unknown
        return True  # as any object is that does not say otherwise

    __hash__ = None  # type: ignore[assignment]  # equal to nothing, so it must not be found in a set either


_PYTHONS_OWN = frozenset(dir(object)) | {"__copy__", "__deepcopy__"}  # asked of any object by Python itself


def _ours(proxy: Proxy) -> dict[str, Any]:
    """Return the attributes of the proxy itself: its steps, its number among them, and the type of its object."""
    # Any other attribute of a proxy is its object's, so that none of the object's names can mean one of ours.
    attributes: dict[str, Any] = object.__getattribute__(proxy, "__dict__")
    return attributes


def _refuse(proxy: Proxy, action: str) -> bool:
    """Note that something was asked that only the candidate could answer, and in its own favour."""
    kind = _ours(proxy)["kind"]
    if not kind:
        raise Unknown
    _ours(proxy)["steps"].refused = f"they {action} one of type '{kind}', which stays with the answer"
    return False


def _opaque(wire: Any) -> str:
    """Return the type of what is not plain in a wire form, "" where all of it is."""
    if not isinstance(wire, list):
        return ""
    if wire[0] == "opaque":
        return str(wire[1])
    return next((kind for kind in map(_opaque, wire[1:]) if kind), "")


def replay(
    script: str, preamble: str, name: str, classes: Sequence[str], previous: str, results: str, values_only: bool
) -> tuple[str, int, list[list[int]], bool, str, bool]:
    """Run test code against known results.

    Args:
        script: Test code; calls the function as ``candidate`` or by its name.
        preamble: Code that the test code builds on, of the same author.
        name: The function's name.
        classes: Names that the test code uses and that mean the candidate's own classes.
        previous: The steps of the run before, as JSON.
        results: What they gave, as JSON: ["value", wire form, arguments after a change] or ["raised", type, text].
        values_only: Leave the arguments of a call alone whose value the tests look at.

    Returns:
        The steps of this run as JSON, and how many they are; for every assert statement, in the order of the source,
        how often it held and how often it was reached; whether the end was reached; what cannot be judged, or "";
        whether ``values_only`` would have changed the steps or what holds.
    """
    tree, asserts = marked(script)
    code = compile(preamble, "<given>", "exec")

    def run(steps: Steps) -> tuple[list[list[int]], bool]:
        def mark(number: int, test: Callable[[], Any]) -> None:
            counts[number][1] += 1
            try:
                counts[number][0] += bool(test())
            except Exception:  # a test that raises is a test that fails
                return

        random.seed(0)
        counts = [[0, 0] for _ in range(asserts)]
        namespace: dict[str, Any] = {"__name__": "tests", "__mark__": mark, "__thrown_away__": steps.discard}
        try:
            exec(code, namespace)
            class_objects = {name: value for name, value in namespace.items() if isinstance(value, type)}
            steps.errors = {name: value for name, value in class_objects.items() if issubclass(value, Exception)}
            for class_name in classes:
                if class_name not in steps.errors:
                    namespace[class_name] = steps.take("global", class_name)
            for statement in tree.body:
                # The test code calls the candidate under both names, whatever stands under them by now.
                namespace.update({"candidate": steps.call, name: steps.call})
                exec(compile(ast.Module([statement], []), "<tests>", "exec"), namespace)
        except Exception:  # the tests were led astray by what the candidate returned
            return counts, False
        return counts, True

    inputs = json.loads(previous), json.loads(results)
    steps = Steps(*inputs, values_only)
    counts, reached_end = run(steps)
    mutation_matters = False
    if steps.in_place and not values_only and steps.recorded == inputs[0]:
        values_only_steps = Steps(*inputs, True)
        same_result = run(values_only_steps) == (counts, reached_end)
        mutation_matters = not same_result or values_only_steps.recorded != steps.recorded
    return json.dumps(steps.recorded), len(steps.recorded), counts, reached_end, steps.refused, mutation_matters
