import io
from itertools import chain, repeat

from rich.console import Console

from steadyrl.cli.progress import Progress
from steadyrl.core.counting.count import heard_by, tell
from steadyrl.core.types import Finding
from steadyrl.doctor.live import Change

RECORD = {
    "step": 29,
    "reward/mean": 0.412,
    "reward/recall": 0.25,
    "kl_ref_k1_seq": 1.5,
    "entropy": 2.031,
    "completion/length": 12.4,
    "tokens/per_second": 4321.0,
    "value/explained_variance": None,
}
FINDING = Finding("kl_runaway", "critical", 12, message="the KL runs away", remedy="lower the rate")


def shown(progress):
    console = Console(file=io.StringIO(), width=80, force_terminal=True, color_system=None)
    console.print(progress.view())
    return console.file.getvalue()


def following(monkeypatch, *times):
    """Return the progress of 120 steps under a clock that shows these times one after another, then the last one."""
    clock = chain(times, repeat(times[-1]))
    monkeypatch.setattr("steadyrl.cli.progress.time.monotonic", lambda: next(clock))
    progress = Progress()
    progress.total = 120
    return progress


def test_a_terminal_sees_the_measurements_the_time_left_and_the_last_finding(monkeypatch):
    progress = following(monkeypatch, 100.0, 120.0)
    progress.step({**RECORD, "step": 9})
    progress.step(RECORD)
    progress.finding(Change(30, "raised", FINDING))
    progress.forecast("heldout/f1: 0.2 now")
    text = shown(progress)
    assert "forecast, heldout/f1: 0.2 now" in text
    assert "step 29 (30 of 120 done)" in text
    assert "1:30 left" in text  # 20 steps took 20 s, and 90 are left
    for said in ("reward", "0.41", "recall", "KL to ref, nats/sequence", "2.03", "length", "12.40", "4321"):
        assert said in text
    assert "explained" not in text
    assert "last finding, step 30: critical kl_runaway since step 12: the KL runs away" in text
    assert len(text.splitlines()) <= 9


def test_a_closed_output_is_reported_once_and_ends_nothing(monkeypatch, capsys):
    """A reward may call sys.stdout.close()."""
    progress = following(monkeypatch, 1.0)
    closed = io.StringIO()
    closed.close()
    monkeypatch.setattr("sys.stdout", closed)
    progress.phase("one")
    progress.phase("two")
    said = "standard output cannot be written (ValueError: I/O operation on closed file)"
    assert capsys.readouterr().err.count(said) == 1


def test_a_phase_is_shown_until_the_next_step(monkeypatch, capsys):
    progress = following(monkeypatch, 1.0)
    progress.phase("evaluating on 60 held-out problems")
    assert "evaluating on 60 held-out problems" in shown(progress)
    assert "evaluating on 60 held-out problems" in capsys.readouterr().out
    progress.step(RECORD)
    assert "evaluating" not in shown(progress)


def test_names_of_rewards_cannot_act_on_the_terminal(monkeypatch):
    progress = following(monkeypatch, 1.0)
    progress.step({**RECORD, "reward/\x1b[31mred": 1.0})
    assert "\x1b" not in shown(progress)


def test_a_file_gets_short_lines(monkeypatch, capsys):
    progress = following(monkeypatch, 1.0, 100.0)
    progress.step({**RECORD, "step": 0})
    progress.step({**RECORD, "kl_ref_k1": 0.015})
    lines = capsys.readouterr().out.splitlines()
    assert all(line.startswith("step ") for line in lines)
    assert "length 12.40 tokens" in lines[-1]
    assert "recall" not in lines[-1]
    assert lines[-1].count("KL to ref") == 1
    assert "0.015 nats/token" in lines[-1]
    assert len(lines[-1]) <= 120


def test_many_reward_parts_take_few_rows(monkeypatch):
    progress = following(monkeypatch, 1.0)
    progress.step({**RECORD, **{f"reward/part_{i}": i / 10 for i in range(9)}})
    text = shown(progress)
    assert "part_2" in text
    assert "part_3" not in text
    assert "and 6 more" in text


def test_a_long_phase_shows_how_many_are_done_until_all_are(monkeypatch):
    progress = following(monkeypatch, 1.0, 2.0, 3.0, 4.0)
    progress.step(RECORD)
    with heard_by(progress.count):
        tell("held-out evaluations", 0, 2)
        tell("completions", 5, 64)
        tell("completions", 17, 64)
    tell("completions", 18, 64)
    text = shown(progress)
    assert "17 of 64" in text
    assert "0 of 2" in text
    progress.count("completions", 64, 64)
    assert "completions" not in shown(progress)
    assert "0 of 2" in shown(progress)


def test_the_next_step_ends_the_counts_of_the_last(monkeypatch):
    progress = following(monkeypatch, 1.0, 2.0)
    progress.count("updates", 1, 8)  # a step that ended early
    progress.step(RECORD)
    assert "updates" not in shown(progress)


def test_a_file_gets_a_line_of_a_count_every_half_minute_only(monkeypatch, capsys):
    progress = following(monkeypatch, 10.0, 20.0, 41.0, 60.0, 72.0)
    for done in range(1, 6):
        progress.count("completions", done, 64)
    assert capsys.readouterr().out.splitlines() == ["    completions: 3 of 64", "    completions: 5 of 64"]


def test_80_columns_cut_no_number_and_name_both_units_of_the_kl(monkeypatch):
    progress = following(monkeypatch, 1.0)
    long_name = "reward/a_reward_part_with_a_name_of_forty_letters"
    numbers = {"loss/value": 0.000412345, "kl_ref_k1": 0.000987, "grad_norm": 123456.0, "value/explained_variance": 0.5}
    progress.step({**RECORD, **numbers, long_name: 0.0001234})
    text = shown(progress)
    assert all(len(line) <= 80 for line in text.splitlines())
    for number in ("0.000412", "0.000987", "123456", "0.000123", "1.50"):
        assert f" {number}" in text
    assert "KL to ref, nats/token" in text and "KL to ref, nats/sequence" in text
    assert text.count("\u2026") == 1  # the name of the part, and no number


def test_the_rewards_of_the_config_stand_before_other_parts(monkeypatch):
    progress = following(monkeypatch, 1.0)
    progress.rewards = ("my_rewards:worth", "parseable")
    parts = ("bits", "dead_part", "joint", "parseable", "worth")
    progress.step({**RECORD, **{f"reward/{part}": 0.1 for part in parts}})
    text = shown(progress)
    assert [part for part in parts if part in text] == ["bits", "parseable", "worth"]


def test_what_was_cleared_does_not_stand_while_other_findings_hold(monkeypatch):
    progress = following(monkeypatch, 1.0)
    flat = Finding("reward_flat", "warning", 3, message="the reward is flat", remedy="train on")
    progress.finding(Change(10, "raised", FINDING))
    progress.finding(Change(20, "raised", flat))
    assert "last of 2 findings, step 20: warning reward_flat" in shown(progress)
    progress.finding(Change(30, "cleared", flat))
    assert "last finding, step 10: critical kl_runaway" in shown(progress)
    progress.finding(Change(40, "cleared", FINDING))
    assert "last finding, step 40: critical kl_runaway since step 12: cleared" in shown(progress)
