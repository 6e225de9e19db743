"""`steadyrl sample` of a policy whose task answers back."""

import sys

from steadyrl import config, record
from steadyrl.cli.main import main
from steadyrl.train import open_session, train

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
prompts_per_step = 2
[update]
minibatches = 1
"""


def test_the_policy_is_asked_turn_after_turn_and_its_lines_are_judged(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "config.toml").write_text(CONFIG)
    settings = config.load("config.toml")
    run = record.begin(settings, CONFIG)
    record.close(run, train(open_session(settings), run), settings)
    monkeypatch.setattr(sys, "argv", ["steadyrl", "sample", str(run.path), "buy a box", "--samples", "1"])
    try:
        main()
    except SystemExit as ended:
        assert not ended.code
    answer, judged = [], []
    for line in capsys.readouterr().out.splitlines():
        (judged if line.startswith("    ") else answer).append(line)
    assert len(answer) == 3  # turns, of letters at random
    assert len(judged) == 3 and all(line.endswith(": that is no action") for line in judged)
