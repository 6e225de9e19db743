import importlib.util
from pathlib import Path

import pytest

from steadyrl.core.rundir import RunDir
from steadyrl.loop.train import train

PATH = Path(__file__).parent.parent / "scripts" / "ten_answers.py"
specification = importlib.util.spec_from_file_location("ten_answers", PATH)
ten_answers = importlib.util.module_from_spec(specification)
specification.loader.exec_module(ten_answers)

CONFIG = """
[backend]
name = "toy"
[task]
name = "prompts"
[rewards]
"toy_rewards:share_of_a" = 1.0
[sampling]
max_new_tokens = 6
"""


def test_what_a_model_answers_now_is_what_its_run_shows_as_before(toy, tmp_path, capsys):
    session = toy("run.steps=2", share := "task.args.heldout_share=0.7")
    assert len(session.heldout) > ten_answers.SHOWN
    (tmp_path / "toy.toml").write_text(CONFIG)
    ten_answers.ask(tmp_path / "toy.toml", [share, f"task.args.path={tmp_path / 'prompts.jsonl'}"])
    now = capsys.readouterr().out.splitlines()
    run = RunDir(tmp_path / "run")
    assert train(session, run) == "finished"
    ten_answers.main([run.path])
    shown = capsys.readouterr().out.splitlines()
    assert len(now) == 2 * ten_answers.SHOWN
    assert now[::2] == shown[::3]
    assert [f"{line}    (before)" for line in now[1::2]] == shown[1::3]
    assert now[1::2] != [line.removesuffix("    (after)") for line in shown[2::3]]


def test_an_unfinished_run_is_named_with_the_command_that_finishes_it(tmp_path):
    (tmp_path / "evaluations").mkdir()
    (tmp_path / "evaluations" / "before.jsonl").touch()
    with pytest.raises(SystemExit, match=f"not finished; go on with: steadyrl train --resume {tmp_path}"):
        ten_answers.main([tmp_path])


def test_the_turns_of_an_episode_stand_apart():
    episode = {"metric": 1.0, "text": " click 2\n click 0", "turns": [" click 2\n", " click 0"]}
    assert ten_answers.line(episode) == "    1.00  click 2 | click 0"
    assert ten_answers.line({"metric": 0.5, "text": " a  OR b"}) == "    0.50  a OR b"
