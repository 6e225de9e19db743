"""Counts and shares as sentences have them."""

import ast
import re
import shlex
from itertools import pairwise
from pathlib import Path

import pytest

import steadyrl
from steadyrl.cli.main import COMMANDS
from steadyrl.core.words import percent, shell_command

# The end of a text behind which a word of a command follows.
BARE = re.compile(rf"\bsteadyrl ({'|'.join(COMMANDS)})( [\w-]+)* $")


@pytest.mark.parametrize(
    ("share", "text"),
    [
        (0.0, "0%"), (0.00031, "0.03%"), (0.0042, "0.4%"), (0.005, "0.5%"), (0.0149, "1%"), (0.62, "62%"),
        (0.994, "99%"), (0.9962, "99.6%"), (0.99993, "99.993%"), (1.0, "100%"), (1.4, "140%"), (-0.3, "-30%"),
    ],
)  # fmt: skip
def test_only_nothing_is_0_percent_and_only_all_is_100(share, text):
    assert percent(share) == text


def test_no_sentence_rounds_a_share_by_itself():
    sources = Path(steadyrl.__file__).parent.rglob("*.py")
    places = [path.name for path in sources if re.search(r":\.\d%\}", path.read_text(encoding="utf-8"))]
    assert places == ["words.py"]


def test_a_command_that_is_printed_is_one_for_the_shell_whatever_the_path():
    path = Path("runs of today/it's $HOME; rm *")
    words = ["train", "--resume", str(path), "run.steps=7"]
    assert shlex.split(shell_command("train", "--resume", path, "run.steps=7")) == ["steadyrl", *words]


def test_no_text_of_the_package_puts_a_value_into_a_command_by_itself():
    """Whoever prints `steadyrl train {path}` prints a command that a path with a space breaks."""
    bare = []
    for file in Path(steadyrl.__file__).parent.rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            parts = node.values if isinstance(node, ast.JoinedStr) else []
            for text, value in pairwise(parts):
                if isinstance(text, ast.Constant) and isinstance(value, ast.FormattedValue):
                    bare += [f"{file.name}: {text.value}"] if BARE.search(text.value) else []
    assert bare == []
    assert BARE.search("go on with: steadyrl train --resume ") and BARE.search("`steadyrl study run ")
