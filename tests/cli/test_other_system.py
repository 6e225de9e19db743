"""What works where the system lacks what POSIX has, and what is refused there: a process of its own plays Windows."""

import os
import subprocess
import sys
from pathlib import Path

import steadyrl

ROOT = Path(__file__).parents[2]
# The frameworks are not imported as they would be there; `steadyrl` itself imports none of them.
FRAMEWORKS = ("torch", "mlx", "huggingface", "vllm", "fsdp")


def on_windows(folder, code):
    """Return what a program says that runs there."""
    done = subprocess.run(
        [sys.executable, "-c", f"from tests.other_system import pretend\npretend()\n{code}"],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        encoding="utf-8",
        check=False,
    )
    return done.returncode, done.stdout, done.stderr


MAIN = """
import sys
from steadyrl.cli import main as cli
def main(*words):
    sys.argv = ["steadyrl", *words]
    try:
        cli.main()
    except SystemExit as end:
        return end.code
"""


def test_every_module_outside_the_frameworks_is_imported_there(tmp_path):
    code = f"""
import importlib, pkgutil, steadyrl
for module in pkgutil.walk_packages(steadyrl.__path__, "steadyrl."):
    words = set(module.name.split("."))
    if not words & {{"__main__", "integrations"}} and not ("backends" in words and words & set({FRAMEWORKS})):
        importlib.import_module(module.name)
for name in steadyrl.__all__:
    getattr(steadyrl, name)
print("all")
"""
    assert on_windows(tmp_path, code) == (0, "all\n", "")


def test_a_run_is_diagnosed_and_reported_there(tmp_path):
    settings = {
        "task": {"name": "math"},
        "rewards": {"correct": 1.0},
        "backend": {"name": "toy"},
        "rollout": {"prompts_per_step": 2},
        "run": {"steps": 2, "preflight": "off", "folder": str(tmp_path)},
        "evaluate": {"problems": 2},
    }
    run = str(steadyrl.run(settings).path)
    commands = [["--help"], ["doctor", run], ["report", run]]
    code, shown, errors = on_windows(tmp_path, f"{MAIN}\nprint([main(*words) for words in {commands}])")
    assert errors in ("", "writing the report\n")  # where it takes long
    assert (code, shown.splitlines()[-1]) == (0, "[0, 1, 0]")  # 1: two steps are too few to judge
    assert "Usage:" in shown and "grad_norm" in shown and "report.html" in shown


def test_what_needs_posix_is_refused_there_in_one_line_each(tmp_path):
    for task, reward in (("math", "correct"), ("code", "tests")):
        (tmp_path / f"{task}.toml").write_text(f'task.name = "{task}"\nbackend.name = "toy"\nrewards.{reward} = 1.0\n')
    refused = [
        ["train", "math.toml"],
        ["preflight", "math.toml"],
        ["tune", "math.toml"],
        ["task", "check", "code.toml"],
    ]
    code, shown, errors = on_windows(tmp_path, f"{MAIN}\nprint([main(*words) for words in {refused}])")
    assert (code, shown) == (0, "[2, 2, 2, 2]\n")
    assert len(errors.splitlines()) == errors.count("needs Linux or macOS") == errors.count("WSL") == 4
    assert {path.name for path in tmp_path.iterdir()} == {"math.toml", "code.toml"}
