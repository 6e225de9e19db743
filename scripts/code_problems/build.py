"""Write steadyrl/environments/code/problems.jsonl from the text files beside this script.

A problem there is a line ``= signature level request``, the body, ``! `` lines with a wrong body, and a line ``? `` of
tests: arguments, and for the first ones, which the prompt shows, the value that a person worked out. The values of
the hidden tests are those of the body, once it gives the values that were worked out.
"""

from __future__ import annotations

import ast
import json
from pathlib import Path

HERE = Path(__file__).parent
TARGET = HERE.parent.parent / "steadyrl" / "tasks" / "code" / "problems.jsonl"
TOPICS = ("arithmetic", "strings", "lists", "dicts", "recursion", "parsing")
EXAMPLES_SHOWN = 2


def main() -> None:
    """Write the file."""
    TARGET.write_text(text(), encoding="utf-8")


def text() -> str:
    """Return the file's content."""
    return "".join(json.dumps(problem, ensure_ascii=False) + "\n" for topic in TOPICS for problem in problems(topic))


def problems(topic: str) -> list[dict[str, object]]:
    """Return the problems of a topic."""
    blocks = (HERE / f"{topic}.txt").read_text(encoding="utf-8").split("\n= ")
    return [problem(topic, block.removeprefix("= ").rstrip("\n").split("\n")) for block in blocks]


def problem(topic: str, lines: list[str]) -> dict[str, object]:
    """Return one problem as it stands in the file."""
    signature, _, rest = lines[0].partition(") ")
    level, _, request = rest.partition(" ")
    signature += ")"
    name = signature.partition("(")[0]
    body = indented([line for line in lines[1:] if not line.startswith(("! ", "? "))])
    wrong = indented([line[2:] for line in lines[1:] if line.startswith("! ")])
    [asked] = [line[2:] for line in lines[1:] if line.startswith("? ")]
    right, mistaken = (function(f"def {signature}:\n{code}", name) for code in (body, wrong))
    tests, shown, caught = [], [], False
    for call in asked.split(" ;; "):
        written, arrow, worked_out = call.partition(" -> ")
        value = right(*ast.literal_eval(f"({written},)"))
        if arrow:
            assert value == ast.literal_eval(worked_out), f"{name}({written}) gives {value!r}, not {worked_out}"
            shown.append(
                f"    >>> {name}({written})\n    {ast.literal_eval(worked_out)!r}\n".replace("\n    None\n", "\n")
            )
        arguments = list(ast.literal_eval(f"({written},)"))
        assert json.loads(json.dumps([arguments, value])) == [arguments, value], f"{name}: no JSON"
        tests.append([arguments, value])
        caught |= outcome(mistaken, written) != repr(value)
    assert len(shown) >= EXAMPLES_SHOWN < len(tests), f"{name}: too few tests"
    assert caught, f"{name}: the wrong solution passes"
    examples = "".join(shown[:EXAMPLES_SHOWN])
    raw = "r" if "\\" in request + examples else ""
    starter = f'def {signature}:\n    {raw}"""{request}\n\n{examples}    """\n'
    return {
        "id": f"{topic}/{name}",
        "level": int(level),
        "prompt": starter,
        "entry_point": name,
        "starter_code": starter,
        "tests": tests,
        "canonical_solution": body,
        "wrong_solution": wrong,
    }


def outcome(called, written: str) -> str:
    try:
        return repr(called(*ast.literal_eval(f"({written},)")))
    except Exception as error:  # a wrong solution may fail in any way
        return type(error).__name__


def function(code: str, name: str):
    """Return the function that code written here defines."""
    namespace: dict[str, object] = {}
    exec(code, namespace)
    return namespace[name]


def indented(lines: list[str]) -> str:
    return "".join(f"    {line}\n" if line else "\n" for line in lines)


if __name__ == "__main__":
    main()
