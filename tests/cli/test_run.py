"""`steadyrl train` beside signals, closed outputs and reports that were cut off; `steadyrl sample` of hostile text."""

import io
import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from steadyrl.cli.main import main
from steadyrl.cli.terminal import printable

CONFIG = """
[run]
steps = {steps}
checkpoint_every = 100000
preflight = "off"
[backend]
name = "toy"
[task]
name = "prompts"
args = {{ path = "prompts.jsonl" }}
[rewards]
length = 1.0
[sampling]
max_new_tokens = 4
[rollout]
prompts_per_step = 4
[update]
minibatches = 1
"""


@pytest.fixture
def here(tmp_path, monkeypatch):
    """Stand in a folder with prompts; return a function that writes a config of so many steps there."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "prompts.jsonl").write_text("".join(json.dumps({"prompt": f"say {i}"}) + "\n" for i in range(8)))
    (tmp_path / "config.toml").write_text(CONFIG.format(steps=2))
    return tmp_path


def steadyrl(monkeypatch, capsys, *arguments):
    monkeypatch.setattr(sys, "argv", ["steadyrl", *map(str, arguments)])
    with pytest.raises(SystemExit) as end:
        main()
    return end.value.code or 0, *capsys.readouterr()


def begun(here, *more, **options):
    """Start a training that would take forever in a process of its own, and wait for its first steps."""
    (here / "config.toml").write_text(CONFIG.format(steps=10**7))
    command = [sys.executable, "-m", "steadyrl", "train", "config.toml", *more]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, **options)
    deadline = time.monotonic() + 60
    while not list(here.glob("runs/*/metrics.jsonl")):
        assert process.poll() is None and time.monotonic() < deadline, process.stderr.read()
        time.sleep(0.05)
    return process, next(here.glob("runs/*"))


@pytest.mark.parametrize(
    "number", [signal.SIGINT, *(pytest.param(of, marks=pytest.mark.weekly) for of in (signal.SIGTERM, signal.SIGHUP))]
)
def test_a_signal_stops_after_the_step_and_saves(here, number):
    # Shells let background jobs ignore an interrupt, and a process inherits that.
    process, run = begun(here, stdout=subprocess.DEVNULL, preexec_fn=lambda: signal.signal(number, signal.SIG_DFL))
    process.send_signal(number)
    with process:
        stderr = process.communicate(timeout=60)[1]
    assert process.returncode == 130
    # After the step, or within it where the signal met a reward at work, which is not waited for.
    assert re.search(rf"(stopped and|steps? is) saved; go on with: steadyrl train --resume \S*{run.name}\n", stderr)
    steps = [json.loads(line)["step"] for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert (run / "checkpoints" / f"{len(steps):06d}" / "DONE").is_file()
    assert json.loads((run / "run.json").read_text())["status"] == "interrupted"


@pytest.mark.parametrize("steps", [0, 2])  # before training, and after its two steps
def test_an_interrupted_evaluation_says_how_to_go_on(here, monkeypatch, capsys, steps):
    (here / f"cutting_{steps}.py").write_text(
        "from pathlib import Path\n\n\ndef score(problem, rollout):\n"
        "    lines = [line for file in Path().glob('runs/*/metrics.jsonl') for line in file.read_text().splitlines()]\n"
        f"    if len(lines) == {steps}:\n        raise KeyboardInterrupt\n    return len(rollout.text)\n"
    )
    code, _, stderr = steadyrl(monkeypatch, capsys, "train", "config.toml", f"rewards.cutting_{steps}:score=1.0")
    (run,) = here.glob("runs/*")
    assert code == 130
    assert f"go on with: steadyrl train --resume {run.relative_to(here)}\nstopped\n" in stderr
    assert (run / "checkpoints" / "000002" / "DONE").is_file() == (steps == 2)


def test_a_reward_that_hangs_in_a_thread_holds_no_interrupt(here):
    """The first Ctrl-C is enough, the last whole step is saved, and the thread does not keep the process."""
    (here / "hanging.py").write_text(
        "from concurrent.futures import ThreadPoolExecutor\nimport time\npool = ThreadPoolExecutor(1)\n"
        "def slow(problem, rollout):\n"
        "    return pool.submit(time.sleep, 3600 if rollout.policy_version >= 8 else 0).result() or len(rollout.text)\n"
    )
    process, run = begun(
        here,
        "rewards.hanging:slow=1.0",
        "run.checkpoint_every=100",
        stdout=subprocess.DEVNULL,
        env={**os.environ, "PYTHONPATH": f"{here}:{Path(__file__).parents[2]}"},
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    time.sleep(1.5)
    process.send_signal(signal.SIGINT)
    with process:
        stderr = process.communicate(timeout=30)[1]
    assert process.returncode == 130
    assert f"steps is saved; go on with: steadyrl train --resume {run}\n" in stderr
    assert [folder.name for folder in (run / "checkpoints").iterdir()] == ["000004"]  # two updates each


def test_a_run_goes_on_when_nobody_reads_its_output_any_more(here):
    process, run = begun(here, stdout=subprocess.PIPE)
    with process:
        process.stdout.close()
        for line in iter(process.stderr.readline, ""):
            if "standard output cannot be written" in line:
                break
        before = len((run / "metrics.jsonl").read_text().splitlines())
        time.sleep(1.0)
        after = len((run / "metrics.jsonl").read_text().splitlines())
        process.send_signal(signal.SIGTERM)
    assert after > before
    assert process.returncode == 130


def test_a_run_whose_reward_closes_standard_output_shows_its_result_beside_it(here, monkeypatch, capsys):
    (here / "closing.py").write_text("import sys\ndef half(problem, rollout): sys.stdout.close(); return 0.5\n")
    monkeypatch.setattr(sys, "stdout", io.StringIO())
    code, _, stderr = steadyrl(monkeypatch, capsys, "train", "config.toml", "rewards.closing:half=1.0")
    assert code == 0
    assert stderr.count("standard output cannot be written") == 1
    (run,) = here.glob("runs/*")
    assert stderr.endswith(f"report: {run.relative_to(here)}/report/report.html\n")


@pytest.mark.linux
def test_a_full_disk_behind_the_output_is_one_line(here):
    with open("/dev/full", "w") as full:
        command = [sys.executable, "-m", "steadyrl", "--help"]
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert (done.returncode, done.stderr) == (2, "error: the output cannot be written: No space left on device\n")


@pytest.mark.parametrize("closed", [["stdout"], ["stdin", "stdout", "stderr"]])
def test_a_stream_that_was_closed_before_the_start_is_none_to_write_to(here, monkeypatch, closed):
    """Python sets those to None; `steadyrl runs >&-` is how a shell closes one."""
    for name in closed:
        monkeypatch.setattr(sys, name, None)
    monkeypatch.setattr(sys, "argv", ["steadyrl", "train", "config.toml"])
    with pytest.raises(SystemExit) as end:
        main()
    for name in closed:
        getattr(sys, name).close()
    assert not end.value.code
    assert len(list(here.glob("runs/*/report/report.html"))) == 1


def test_a_report_that_was_cut_off_is_written_by_the_next_resume(here, monkeypatch, capsys):
    assert steadyrl(monkeypatch, capsys, "train", "config.toml")[0] == 0
    run = next(here.glob("runs/*"))
    for named in (run, run.parent):  # a folder of one run stands for it, as everywhere
        (run / "report" / "report.html").unlink()
        code, out, error = steadyrl(monkeypatch, capsys, "train", "--resume", named)
        assert code == 0 and "its report is not written" in error and f"report: {run.relative_to(here)}" in out
        assert (run / "report" / "report.html").is_file()
    code, _, error = steadyrl(monkeypatch, capsys, "train", "--resume", run)
    assert code == 2 and "`steadyrl report` to write its report again" in error


def test_what_is_printed_obeys_no_escape():
    assert printable("a\x1b[31mred\x07\u202etxt\ud800\n\tb") == "a\\x1b[31mred\\x07\\u202etxt\\ud800\n\tb"
    assert printable("żółć 語 ✓") == "żółć 語 ✓"


def test_answers_are_printed_without_their_escapes(here, monkeypatch, capsys):
    monkeypatch.setattr("steadyrl.backends.toy.CharTokenizer.decode", lambda self, ids: "\x1b]0;owned\x07 done")
    assert steadyrl(monkeypatch, capsys, "train", "config.toml")[0] == 0
    code, out, _ = steadyrl(monkeypatch, capsys, "sample", next(here.glob("runs/*")), "say 9", "--greedy")
    assert (code, out) == (0, "\\x1b]0;owned\\x07 done\n")
