"""`steadyrl sample` of a policy whose task answers back."""

import sys

import pytest

from steadyrl.cli.main import main
from steadyrl.core import config
from steadyrl.loop import record
from steadyrl.loop.train import open_session, train

CONFIG = """
[run]
steps = 1
folder = "runs"
preflight = "off"
[backend]
name = "toy"
[task]
name = "browse"
args = { kinds = ["open"], levels = [1], train_count = 4, heldout_count = 1, max_turns = 3 }
[rewards]
success = 1.0
[sampling]
max_new_tokens = 4
[rollout]
max_tokens = 2000
prompts_per_step = 2
[update]
minibatches = 1
"""


@pytest.fixture
def sample(tmp_path, monkeypatch, capsys):
    """Train a step and return a function that asks the policy once: (exit code, stdout, stderr)."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "config.toml").write_text(CONFIG)
    settings = config.load("config.toml")
    run = record.begin(settings, CONFIG)
    record.close(run, train(open_session(settings), run), settings)

    def ask(request):
        monkeypatch.setattr(sys, "argv", ["steadyrl", "sample", str(run.path), request, "--samples", "1"])
        with pytest.raises(SystemExit) as ended:
            main()
        return ended.value.code or 0, *capsys.readouterr()

    return ask


def test_the_policy_is_asked_turn_after_turn_and_its_lines_are_judged(sample):
    code, out, _ = sample("buy a box")
    assert code == 0
    answer, judged = [], []
    for line in out.splitlines():
        (judged if line.startswith("    ") else answer).append(line)
    assert len(answer) == 3  # turns, of letters at random
    assert len(judged) == 3 and all(line.endswith(": that is no action") for line in judged)


def test_a_request_that_leaves_no_room_for_a_turn_is_refused(sample):
    code, out, err = sample("x" * 5000)
    assert (code, out) == (2, "")
    assert err.startswith(
        "error: rollout.max_tokens = 2000 leaves no room for a turn: problem and first observation take"
    )
