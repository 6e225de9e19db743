"""The GPU check: a part that fails, dies or hangs ends alone, and the table says so."""

import importlib
import json
import subprocess
import sys
import time
import tomllib
from pathlib import Path

import pytest

from steadyrl.core.config import resolve
from tests import needs

GPU = Path(__file__).parents[2] / "bench" / "gpu"
# The command with parts of this test; its own processes run this file too.
SCRIPT = f"""
import sys
sys.path.insert(0, {str(GPU)!r})
import check
check.__file__, check.SHORTEST = __file__, 1.0
names = ["first", "raises", "hangs", "dies", "beyond", "elsewhere", "last"]
limits, when = {{"hangs": 3, "elsewhere": 0}}, {{"first": "first", "last": "last"}}
check.PARTS = {{
    name: check.Part(f"toy_parts:{{name}}", 20, limits.get(name, 20), when.get(name, "beside")) for name in names
}}
sys.exit(check.main())
"""
TOYS = """
import os, signal, subprocess, sys, time
from pathlib import Path
from part import Row, at_most, skipped

def first(place):
    yield Row("place", place.device)
    yield skipped("more", "there is | no more")

def raises(place):
    yield at_most("before", 1.0, 2.0, "s")
    raise ValueError("no such thing")

def hangs(place):
    yield Row("before", 0.25)
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    Path(os.environ["CHILD"]).write_text(str(child.pid))
    time.sleep(60)

def dies(place):
    os.kill(os.getpid(), signal.SIGKILL)
    yield

def beyond(place):
    yield at_most("too much", float("nan"), 2.0)

def last(place):
    yield Row("end", "reached")
"""


def started(folder, *arguments):
    (folder / "toy_parts.py").write_text(TOYS, encoding="utf-8")
    script = folder / "script.py"
    script.write_text(SCRIPT, encoding="utf-8")
    command = [sys.executable, str(script), "--device", "cpu", "--results", str(folder / "results"), *arguments]
    paths = {"PYTHONPATH": str(folder), "CHILD": str(folder / "child"), "PATH": ""}
    return subprocess.Popen(command, env=paths, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def run(folder, *arguments):
    with started(folder, *arguments) as process:
        output, errors = process.communicate()
    return subprocess.CompletedProcess(process.args, process.returncode, output, errors)


def test_what_fails_hangs_or_dies_stops_no_other_part_and_is_in_the_table(tmp_path):
    done = run(tmp_path)
    result = json.loads((tmp_path / "results" / "gpu_check_cpu.json").read_text(encoding="utf-8"))
    parts = result["parts"]
    assert {name: part["status"] for name, part in parts.items()} == {
        "first": "done",
        "raises": "failed with 1: ValueError: no such thing",
        "hangs": "ended after 3 s",
        "dies": "killed by SIGKILL",
        "beyond": "done",
        "elsewhere": "done",
        "last": "done",
    }
    assert [row["what"] for row in parts["raises"]["rows"]] == ["before"], "rows before a failure stay"
    assert [row["value"] for row in parts["hangs"]["rows"]] == [0.25]
    assert (done.returncode, result["ok"]) == (1, False)
    table = (tmp_path / "results" / "gpu_check_cpu.md").read_text(encoding="utf-8")
    assert table in done.stdout
    assert "| first | place | cpu |  |  |" in table
    assert "|  | more |  |  | skipped: there is / no more |" in table
    assert "| raises | before | 1 s | <= 2 | ok |\n|  | | | | **failed with 1: ValueError: no such thing** |" in table
    assert "| beyond | too much | nan | <= 2 | **no** |" in table
    assert "| elsewhere | elsewhere |  |  | skipped: there is nothing to try on cpu |" in table
    assert "| last | end | reached |  |  |" in table
    assert not runs(int((tmp_path / "child").read_text())), "what a part has started ends with it"


def runs(process):
    """Whether a process runs: one that nobody waits for is there after its end."""
    status = Path(f"/proc/{process}/status")
    return status.is_file() and "State:\tZ" not in status.read_text()


def test_parts_for_which_no_time_is_left_are_not_begun(tmp_path):
    done = run(tmp_path, "--minutes", "0.001", "--only", "first", "last")
    assert done.stdout.count("not begun: the time was over") == 2
    assert done.returncode == 1


def test_all_is_well_where_parts_are_done_and_keep_to_their_bounds(tmp_path):
    done = run(tmp_path, "--only", "first", "last")
    assert done.returncode == 0, done.stderr
    assert "; all is well." in done.stdout


def test_a_check_that_is_stopped_ends_its_parts_and_writes_what_it_has(tmp_path):
    child = tmp_path / "child"
    with started(tmp_path, "--only", "first", "hangs") as process:
        while process.poll() is None and not (child.is_file() and child.read_text()):
            time.sleep(0.02)
        process.terminate()
        process.communicate(timeout=20)
    assert process.returncode == 143
    parts = json.loads((tmp_path / "results" / "gpu_check_cpu.json").read_text(encoding="utf-8"))["parts"]
    assert parts["first"]["status"] == "done"
    assert parts["hangs"]["status"] == "killed by SIGKILL"
    assert not runs(int(child.read_text()))


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (("--device", "tpu"), "invalid choice: 'tpu'"),
        (("--minutes", "-1"), "--minutes: got -1; expected how long all parts may take"),
        (("--only", "nothing"), "invalid choice: 'nothing'"),
    ],
)
def test_a_wrong_argument_is_refused_in_a_line(tmp_path, arguments, why):
    done = run(tmp_path, *arguments)
    assert done.returncode == 2
    assert why in done.stderr
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "results").exists()


def test_a_gpu_that_is_not_there_is_refused_in_a_line(tmp_path, monkeypatch):
    needs.package("torch")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    done = run(tmp_path, "--device", "cuda")
    assert done.returncode == 2
    assert "--device cuda: PyTorch finds no GPU" in done.stderr
    assert "use --device cpu" in done.stderr


def test_the_settings_of_its_runs_are_settings_of_this_version(monkeypatch):
    for folder in (GPU.parent, GPU):
        monkeypatch.syspath_prepend(str(folder))
    agreement, runs_of = importlib.import_module("agreement"), importlib.import_module("whole_runs")
    base = tomllib.loads(agreement.CONFIG)
    names = [(f"algorithm.name={name}",) for name in agreement.ALGORITHMS]
    ways = [*names, *agreement.WAYS.values(), *agreement.LARGE.values()]
    assert {resolve(base, (*agreement.APART, *way)).update.correction for way in ways} == {"off"}
    assert resolve(base, runs_of.QUICK).evaluate.problems == 8


def test_what_a_part_starts_has_no_more_threads_than_the_part(monkeypatch):
    """Two processes with a thread for each core slow one another many times over."""
    monkeypatch.syspath_prepend(str(GPU))
    part = importlib.import_module("part")
    monkeypatch.setattr(part.os, "sched_getaffinity", lambda _: set(range(8)), raising=False)
    of_part = part.environment({"DEVICE": "cpu"})
    assert of_part["OMP_NUM_THREADS"] == str(8 // part.BESIDE["cpu"])
    for name, value in of_part.items():
        monkeypatch.setenv(name, value)
    assert part.environment({"WARM_UP": "1"})["OMP_NUM_THREADS"] == of_part["OMP_NUM_THREADS"]
