"""The notebook of examples/ runs from its first cell to its last, and shows what it says."""

import contextlib
import io
import json
from pathlib import Path

from tests import needs

NOTEBOOK = Path(__file__).parent.parent / "examples" / "first_run.ipynb"


def test_the_notebook_runs(tmp_path, monkeypatch):
    needs.package("torch")
    monkeypatch.chdir(tmp_path)
    cells = [cell for cell in json.loads(NOTEBOOK.read_text())["cells"] if cell["cell_type"] == "code"]
    assert all(not cell["outputs"] for cell in cells), "outputs are not kept: they would say what another version did"
    names, shown = {}, []
    for number, cell in enumerate(cells):
        with contextlib.redirect_stdout(io.StringIO()) as out:
            exec(compile("".join(cell["source"]), f"cell {number}", "exec"), names)
        shown.append(out.getvalue())
    run = names["run"]
    assert run.status == "finished" and [line["step"] for line in run.metrics()] == list(range(8))
    assert shown[1].count("reward/mean") == 6 and "before:" in shown[2]
    assert "found" in shown[4] and Path(shown[5].strip()).is_file()
