"""`steadyrl preflight`: exit codes and what is printed."""

import json
import sys
from pathlib import Path

import pytest

from steadyrl.cli.main import main

CONFIG = """
[run]
steps = 3
[backend]
name = "toy"
[task]
name = "prompts"
args = { path = "prompts.jsonl" }
[rewards]
length = 1.0
[sampling]
max_new_tokens = 8
[rollout]
prompts_per_step = 8
"""


@pytest.fixture
def steadyrl(tmp_path, monkeypatch, capsys):
    """Run the command line in a folder with a config; return (exit code, stdout, stderr)."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "config.toml").write_text(CONFIG)
    (tmp_path / "prompts.jsonl").write_text("".join(json.dumps({"prompt": f"say {i}"}) + "\n" for i in range(12)))

    def run(*arguments):
        monkeypatch.setattr(sys, "argv", ["steadyrl", "preflight", *arguments])
        code = 0
        try:
            main()
        except SystemExit as end:
            code = end.code or 0
        return code, *capsys.readouterr()

    return run


def only_error(err):
    """Return the one line that is an error; before it may stand what the preflight was doing."""
    (line,) = [line for line in err.splitlines() if not line.startswith("preflight: ")]
    assert line.startswith("error: ")
    return line


def test_a_sound_config_passes_and_leaves_no_file(steadyrl, tmp_path):
    code, out, err = steadyrl("config.toml")
    assert code == 0
    assert err and all(line.startswith("preflight: ") for line in err.splitlines()), "it says what it does"
    lines = out.splitlines()
    assert (
        lines[0]
        == "ok    data: trains on 10 problems (prompts.jsonl), judged by 2 held-out problems (held out of them)"
    )
    assert lines[3].startswith("ok    completions: 20 of ")
    assert lines[-1].startswith("preflight: 15 of 16 passed; could not tell: gold_answer; the run takes about ")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["config.toml", "prompts.jsonl"]


def test_a_failure_is_printed_with_cause_remedy_and_override(steadyrl):
    code, out, _ = steadyrl("config.toml", "sampling.temperature=0.5", "sampling.logprobs=raw")
    assert code == 1
    lines = out.splitlines()
    at = next(i for i, line in enumerate(lines) if line.startswith("FAIL  sampler_parity: "))
    assert lines[at + 1] == "        cause: raw_logprobs"
    assert lines[at + 2].startswith("        remedy: ")
    assert lines[at + 3] == "        try: sampling.logprobs=sampled"
    assert "FAILED: sampler_parity (raw_logprobs)" in lines[-1]


@pytest.mark.parametrize(("overrides", "code"), [((), 0), (("sampling.temperature=0.5", "sampling.logprobs=raw"), 1)])
def test_json_holds_every_finding(steadyrl, overrides, code):
    found_code, out, _ = steadyrl("config.toml", *overrides, "--json")
    assert found_code == code
    found = json.loads(out)
    assert found["passed"] is (code == 0)
    assert len(found["findings"]) == 16
    assert {"check", "state", "message", "cause", "remedy", "overrides"} <= set(found["findings"][0])
    assert {f["check"] for f in found["findings"] if f["state"] == "unknown"} == {"gold_answer"}


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("nowhere.toml",), "there is no config file"),
        (("config.toml", "update.rate=1"), "unknown setting"),
        (("config.toml", "algorithm.name=grpo", "rollout.samples_per_prompt=1"), "rollout.samples_per_prompt"),
    ],
)
def test_wrong_input_ends_in_one_line_and_exit_code_2(steadyrl, arguments, words):
    code, out, err = steadyrl(*arguments)
    assert (code, out) == (2, "")
    assert words in only_error(err)


def test_a_curriculum_without_its_column_is_refused_in_one_line(steadyrl):
    code, out, err = steadyrl("config.toml", "curriculum.name=bandit")
    assert (code, out) == (2, "")
    assert only_error(err).startswith("error: curriculum.name = 'bandit' needs the column 'difficulty'")


def test_a_budget_in_which_no_turn_fits_is_refused_in_one_line(steadyrl, monkeypatch):
    monkeypatch.syspath_prepend(Path(__file__).parents[1])
    episodes = ("task.name=talk_task:TalkTask", "task.args={}", "rewards={said_a=1.0}", "rollout.max_tokens=20")
    code, out, err = steadyrl("config.toml", *episodes)
    assert (code, out) == (2, "")
    assert only_error(err).startswith("error: rollout.max_tokens = 20 leaves no room for a turn")
