"""The notebook of examples/ runs from its first cell to its last, and shows what its text says."""

import ast
import contextlib
import io
import json
from pathlib import Path

import pytest

import steadyrl
from steadyrl.python.train import train
from tests import needs

NOTEBOOK = Path(__file__).parent.parent / "examples" / "first_run.ipynb"


def executed(source, names):
    """Run a cell; return what it printed and its last value, as a notebook shows both."""
    *statements, last = ast.parse(source).body
    if not isinstance(last, ast.Expr):
        statements, last = [*statements, last], None
    with contextlib.redirect_stdout(io.StringIO()) as out:
        exec(compile(ast.Module(statements, []), "cell", "exec"), names)
        value = None if last is None else eval(compile(ast.Expression(last.value), "cell", "eval"), names)
    return out.getvalue(), value


@pytest.mark.weekly
def test_the_notebook_runs_and_shows_what_its_text_says(tmp_path, monkeypatch):
    needs.package("torch")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(steadyrl, "train", train)
    cells = [cell for cell in json.loads(NOTEBOOK.read_text())["cells"] if cell["cell_type"] == "code"]
    assert all(not cell["outputs"] for cell in cells), "outputs are not kept: they would say what another version did"
    names = {"__name__": "notebook"}
    shown = [executed("".join(cell["source"]), names) for cell in cells]
    first, diagnosis, answers, second, picture, (reward, asked), (end, _) = (
        shown[0][1], shown[1][1], shown[2][0], shown[3], shown[4][1], shown[5][1], shown[6],
    )  # fmt: skip
    assert "answers_alike (repeated_words)" in repr(diagnosis)
    repeated = [line.split() for line in answers.splitlines() if "after:" in line]
    assert sum(len(words[1:]) > 2 * len(set(words[1:])) for words in repeated) >= 3
    assert first._repr_html_() and "before:" in second[0] and picture._repr_png_()
    # Two words of the request and AND between them: 1.
    scores = [line["answers"]["greedy"]["reward"] for line in second[1].evaluations()["after"]]
    assert sum(scores) / len(scores) > 0.9 and reward > 0.9 and len(asked) == 2
    assert [line["step"] for line in names["run"].metrics()] == list(range(22))
    assert '[task]\nname = "prompts"' in end and Path(end.splitlines()[-1]).is_file()
