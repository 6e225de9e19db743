"""What works where the system lacks what POSIX has, and what is refused there: a process of its own plays Windows."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import steadyrl

ROOT = Path(__file__).parents[2]
# The frameworks are not imported as they would be there; `steadyrl` itself imports none of them.
FRAMEWORKS = ("torch", "mlx", "huggingface", "vllm", "fsdp")


MAIN = """
import contextlib, importlib, io, json, os, pkgutil, sys
from tests.other_system import pretend
pretend()
import steadyrl
from steadyrl.cli import main as cli

def main(words):
    sys.argv = ["steadyrl", *words]
    shown, errors = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(shown), contextlib.redirect_stderr(errors):
        try:
            code = cli.main()
        except SystemExit as end:
            code = end.code
    return code, shown.getvalue(), errors.getvalue()

answers = [main(words) for words in json.loads(sys.argv[1])]
for module in pkgutil.walk_packages(steadyrl.__path__, "steadyrl."):
    words = set(module.name.split("."))
    if not words & {"__main__", "integrations"} and not ("backends" in words and words & set(FRAMEWORKS)):
        importlib.import_module(module.name)
for name in steadyrl.__all__:
    getattr(steadyrl, name)
print(json.dumps(answers))
"""
REFUSED = [
    ["train", "math.toml"],
    ["preflight", "math.toml"],
    ["tune", "math.toml"],
    ["task", "check", "code.toml"],
]


@pytest.fixture(scope="module")
def there(tmp_path_factory):
    """Return the folder of a process that ran there, and what its commands and at last the process itself said."""
    folder, runs = tmp_path_factory.mktemp("there"), tmp_path_factory.mktemp("runs")
    settings = {
        "task": {"name": "math"},
        "rewards": {"correct": 1.0},
        "backend": {"name": "toy"},
        "rollout": {"prompts_per_step": 2},
        "run": {"steps": 2, "preflight": "off", "folder": str(runs)},
        "evaluate": {"problems": 2},
    }
    run = str(steadyrl.run(settings).path)
    for task, reward in (("math", "correct"), ("code", "tests")):
        (folder / f"{task}.toml").write_text(f'task.name = "{task}"\nbackend.name = "toy"\nrewards.{reward} = 1.0\n')
    commands = [["--help"], ["doctor", run], ["report", run], *REFUSED]
    done = subprocess.run(
        [sys.executable, "-c", f"FRAMEWORKS = {FRAMEWORKS}\n{MAIN}", json.dumps(commands)],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ["PYTHONPATH"]])},
        capture_output=True,
        encoding="utf-8",
        check=False,
    )
    return folder, done


def test_every_module_outside_the_frameworks_is_imported_there(there):
    _, done = there
    assert (done.returncode, done.stderr) == (0, "")


def test_a_run_is_diagnosed_and_reported_there(there):
    codes, texts, errors = zip(*json.loads(there[1].stdout)[:3], strict=True)
    assert codes == (0, 1, 0)  # 1: two steps are too few to judge
    assert "".join(errors) in ("", "writing the report\n")  # where it takes long
    assert "Usage:" in texts[0] and "grad_norm" in texts[1] and "report.html" in texts[2]


def test_what_needs_posix_is_refused_there_in_one_line_each(there):
    folder, done = there
    codes, texts, errors = zip(*json.loads(done.stdout)[3:], strict=True)
    assert (codes, "".join(texts)) == ((2, 2, 2, 2), "")
    for error in errors:
        assert error.count("\n") == error.count("needs Linux or macOS") == error.count("WSL") == 1
    assert {path.name for path in folder.iterdir()} == {"math.toml", "code.toml"}
