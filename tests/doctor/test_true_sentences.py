"""Sentences that were untrue of notebooks: each says what its log shows, and advises what is not there already."""

import json

import numpy as np
import pytest

from steadyrl.cli.main import main
from steadyrl.doctor.examine import diagnose
from steadyrl.doctor.readers.evaluations import find
from steadyrl.doctor.readers.search import search
from steadyrl.doctor.readers.source import settings_in

GRPO = {"loss": 0.02, "reward": 0.4, "reward_std": 0.3, "kl": 0.02}
ROWS = 40
LACKS = "neither log nor settings tell the coefficient of the KL penalty"


def written(tmp_path, text, name="run.log"):
    path = tmp_path / name
    path.write_text(text, encoding="utf-8")
    return path


def trl_rows(rows):
    lengths = [90.25 + 5 * (i % 7) for i in range(len(rows))]
    return [{**GRPO, "completions/mean_length": lengths[i], "step": i + 1, **row} for i, row in enumerate(rows)]


def trl(rows):
    """Diagnose rows of TRL's GRPO trainer, one a step."""
    return diagnose(trl_rows(rows))[0]


def finding(diagnosis, check):
    return next((found for found in diagnosis.findings if found.check == check), None)


def gap(diagnosis, check):
    return next(unknown.message for unknown in diagnosis.unknown if unknown.check == check)


# scores before and after training


def test_neither_a_progress_bar_nor_the_content_of_an_answer_is_a_score(tmp_path):
    text = (
        "=== Base model ===\nScoring MATH problems:  80% 40/50 [00:09<00:02]\nrest: 12%|# | 6/50 [00:01]\n"
        "=== After RLOO ===\nScoring MATH problems:  20% 10/50 [00:02<00:08]\nrest: 90%|## | 45/50 [00:09]\n"
        "| Phase | Verdict | Ref | Predicted |\n|---|---|---|---|\n"
        "| Before | wrong | 12 | 40 |\n| After | wrong | 12 | 75 |\n"
        "The cost of 3 caps before discount: 9\nThe cost of 3 caps after discount: 7\n"
    )
    assert find(written(tmp_path, text, "run.txt")) == ()


@pytest.mark.parametrize(
    ("text", "name", "scores"),
    [
        ("Pre-PPO accuracy: 20.00%\nPost-PPO accuracy: 55.00%", "accuracy", (0.2, 0.55, 0)),
        ("accuracy BEFORE: 25.0% (3/12)\naccuracy AFTER: 50.0% (6/12)", "accuracy", (0.25, 0.5, 12)),
        ("rude [mean, std] before RL: [0.75, 0.1]\nrude [mean, std] after RL: [0.5, 0.2]", "rude", (0.75, 0.5, 0)),
        ("|Run|Right|Part|\n|---|---|---|\n| Before | 3/12 | 0.25 |\n| After | 6/12 | 0.5 |", "Part", (0.25, 0.5, 12)),
    ],
)  # fmt: skip
def test_a_score_is_read_with_its_answers_however_its_stage_is_spelled(tmp_path, text, name, scores):
    score = next(score for score in find(written(tmp_path, text + "\n", "run.txt")) if score.name == name)
    assert (score.before, score.after, score.answers) == pytest.approx(scores)


def test_of_proxies_that_rose_alone_the_other_scores_are_said_not_to_have_risen(tmp_path):
    text = "| metric | before GRPO | after GRPO |\n|---|---|---|\n| mean reward | 0.5 | 2.5 |\n| solved | 0.6 | 0.3 |\n"
    [found] = diagnose(written(tmp_path, text, "post.md"))[0].findings
    assert found.message == (
        'only proxies rose: mean reward 0.5 -> 2.5 ("before GRPO" to "after GRPO"); the other scores did not: solved '
        '0.6 -> 0.3 ("before GRPO" to "after GRPO")'
    )


# rewards that do not differ


def test_a_kl_of_0_is_no_lack_of_advantages_where_some_steps_have_them():
    spreads = [0.0 if i % 4 else 0.5 for i in range(ROWS)]
    rows = [{"reward_std": spread, "kl": 0.0, "reward": 0.5 * spread} for spread in spreads]
    assert finding(trl(rows), "kl_zero").cause != "no_advantage"
    assert finding(trl([{**row, "reward_std": 0.0} for row in rows]), "kl_zero").cause == "no_advantage"


def test_the_share_of_the_last_rows_is_said_to_be_of_these():
    rows = [{"reward_std": 0.0 if i >= ROWS // 2 else 0.4, "reward": 0.5 + 0.001 * (i % 3)} for i in range(ROWS)]
    assert "in 100% of the last rows reward_std is 0" in finding(trl(rows), "no_signal_groups").message


@pytest.mark.parametrize(
    ("rewards", "words"),
    [((0.0, 1.0), "agree, some right, some wrong"), ((0.5, 0.5), "agree, and earn neither the least nor the most")],
)
def test_what_equal_rewards_are_is_said_by_the_rows_that_have_them(rewards, words):
    rows = [{"reward_std": 0.0 if i % 5 else 0.4, "reward": rewards[i % 2]} for i in range(ROWS)]
    assert words in finding(trl(rows), "no_signal_groups").message


def test_of_rewards_beyond_a_share_nothing_is_said_to_be_right():
    rows = [{"reward_std": 0.0 if i % 5 else 0.4, "reward": 7.0 if i % 9 else 8.0} for i in range(ROWS)]
    assert "all earn about the most that is seen" in finding(trl(rows), "no_signal_groups").message


def test_answers_that_are_paid_for_their_form_alone_are_too_hard():
    part = {"rewards/form": 1.0, "rewards/equation_func": -0.25, "rewards/write_samples": 0.0}
    rows = [{**part, "reward": 0.75, "reward_std": 0.0} for _ in range(ROWS - 1)]
    diagnosis = trl([{**part, "rewards/equation_func": 1.0, "reward": 2.0, "reward_std": 0.9}, *rows])
    found = finding(diagnosis, "no_signal_groups")
    assert found.cause == "too_hard" and "nothing for being right (equation_func -0.25)" in found.message
    idle = [text for found in diagnosis.findings if found.check == "reward_part_idle" for text in found.evidence]
    assert not any("write_samples" in text for text in idle)  # pays nothing on purpose


def test_at_temperature_1_no_higher_one_is_asked_for(tmp_path):
    rows = "".join(
        f"{{'loss': 0.01, 'reward': {0.5 if i % 5 else 0.55}, 'reward_std': {0.0 if i % 5 else 0.4}, 'kl': 0.01, "
        f"'completions/mean_length': {90.25 + i % 7}}}\n"
        for i in range(ROWS)
    )
    for temperature, asked in (("temperature=1.0, ", False), ("", True)):
        cell = f"args = GRPOConfig({temperature}num_generations=6)"
        cells = [{"cell_type": "code", "source": cell, "outputs": [{"output_type": "stream", "text": rows}]}]
        path = written(tmp_path, json.dumps({"cells": cells, "metadata": {}, "nbformat": 4}), "run.ipynb")
        found = finding(diagnose(path)[0], "no_signal_groups")
        assert found.cause == "same_answers" and ("Sample at temperature 1" in found.remedy) == asked
        assert set(found.overrides) == {"num_generations=12", *(["temperature=1"] if asked else [])}


# what is cut off, and how much of a run there is


def test_nearly_all_that_count_as_cut_off_at_other_lengths_end_elsewhere():
    row = {"completions/min_length": 200.0, "completions/clipped_ratio": 1.0}
    rows = [{**row, "completions/max_length": 300.0 + 40 * (i % 7), "reward": 0.1 * (i % 3)} for i in range(ROWS)]
    rows[11]["completions/clipped_ratio"] = 0.75
    found = finding(trl(rows), "truncated")
    assert (found.cause, found.message.partition(" completions")[0]) == ("other_end", "nearly all")


def test_a_limit_that_no_setting_holds_is_that_of_the_longest():
    row = {"completions/clipped_ratio": 0.7, "completions/max_length": 160.0}
    found = finding(trl([{**row, "reward": 0.1 * (i % 3)} for i in range(ROWS)]), "truncated")
    assert "the longest has 160 tokens" in found.evidence[0]


def test_a_run_that_ended_early_is_said_to_be_a_part_of_what_was_planned(tmp_path):
    bars = "".join(
        f" {100 * i // 80}%|# | {i}/80 [00:0{i}<09:00, 2.0s/it]\n"
        f"{{'loss': 0.5, 'reward': 0.{i}, 'reward_std': 0.25, 'completions/mean_length': {90.25 + i}}}\n"
        for i in range(1, 8)
    )
    [diagnosis] = diagnose(written(tmp_path, bars))
    assert diagnosis.run.facts.endswith("7 rows (1 to 7 of 80 planned)")
    loading = "Tokenizing: 100%|####| 4000/4000 [00:01<00:00]\n100%|####| 4000/4000 [00:01<00:00]\n"
    rows = "".join(line for line in bars.splitlines(keepends=True) if "%|" not in line)
    [diagnosis] = diagnose(written(tmp_path, loading + rows))
    assert diagnosis.run.facts.endswith("7 rows (numbered 1 to 7)")


# what is read


def test_the_name_of_a_bar_is_no_metric_and_its_end_no_step(tmp_path):
    rows = "".join(
        f"Tuning PPO:  {i}%|# | {i}/60 [00:01<00:09]Round {i} | loss: 0.5 | Avg reward: 0.{10 + i}\n"
        for i in range(1, 31)
    )
    (log,) = search(written(tmp_path, rows), lambda log: True).logs
    assert set(log.columns) == {"Avg reward", "loss"}
    steps = "".join(f"Step {i} loss: 0.25 reward: 0.{10 + i}\n" for i in range(1, 31))
    bar = "Scoring accuracy: 0.5: 100%|##| 900/900 [00:01<00:00, extra=3]\n"
    (log,) = search(written(tmp_path, bar + steps), lambda log: True).logs
    assert not any("missing" in note for note in log.notes)


def test_rewards_are_read_before_what_a_trainer_warns_of_beside_them(tmp_path):
    warning = "UserWarning: The average ratio of batch ({}) exceeds threshold 10.00. Skipping batch.\n"
    rows = "".join(f"{warning.format(15.5 + i) * 2}Step {i} | Avg reward: -0.{10 + i}\n" for i in range(20))
    (log,) = search(written(tmp_path, rows), lambda log: True).logs
    assert len(log.columns["Avg reward"].steps) == 20
    assert "beside its rows the trainer warned of ppo/policy/ratio 40 times, of up to 34.5" in log.notes


def test_a_setting_that_a_class_of_the_notebook_gives_by_default_is_in_force():
    cell = "@dataclass\nclass Plan:\n    rate: float = 2e-5\n    many: int = 16\n    path: str = find()\n"
    config = (
        "plan = Plan()\nargs = GRPOConfig(learning_rate=plan.rate, num_generations=plan.many, output_dir=plan.path)"
    )
    assert settings_in([cell, config]) == {"learning_rate": 2e-5, "num_generations": 16}


@pytest.mark.parametrize(
    ("source", "words"), [("GRPOConfig(beta=0.1)", "configures reinforcement"), ("", "supervised")]
)
def test_losses_of_a_notebook_that_configures_rl_are_not_said_to_be_supervised(tmp_path, source, words):
    text = "".join(f"{{'loss': 0.{i}, 'epoch': 0.{i}}}\n" for i in range(10, 40))
    cells = [{"cell_type": "code", "source": source, "outputs": [{"output_type": "stream", "text": text}]}]
    path = written(tmp_path, json.dumps({"cells": cells, "metadata": {}, "nbformat": 4}), "run.ipynb")
    assert words in diagnose(path)[0].judgement.sentence


# what is asked for


def test_no_measurement_that_is_logged_already_would_decide():
    judgement = trl([{"grad_norm": 12.0 if i == 7 else 0.3, "reward": 0.3 + 0.01 * i} for i in range(9)]).judgement
    assert (judgement.cause, judgement.decide) == ("grad_norm", "more steps")


@pytest.mark.parametrize(
    ("row", "words"),
    [({}, ""), ({"reward_std": None, "frac_reward_zero_std": 0.2}, " and the spread of the rewards")],
)
def test_a_check_says_what_it_lacks_and_no_more(row, words):
    rows = [{"reward": 0.3 + 0.01 * (i % 5), **row} for i in range(ROWS)]
    whole = [{name: x for name, x in row.items() if x is not None} for row in trl_rows(rows)]
    assert gap(diagnose(whole)[0], "kl_penalty_holds") == f"{LACKS}{words}"


def test_a_trainer_of_transformers_logs_a_norm_that_the_table_of_a_notebook_leaves_out():
    assert "trainer.state.log_history" in gap(trl([{} for _ in range(ROWS)]), "grad_norm")
    trlx = [{"step": i, "losses/total_loss": 0.1, "losses/policy_loss": 0.1, "losses/value_loss": 0.1,
             "policy/approx_kl": 0.1, "rollout_scores/mean": 0.5} for i in range(ROWS)]  # fmt: skip
    [diagnosis] = diagnose(trlx)
    assert diagnosis.run.trainer == "trlx" and "log_history" not in gap(diagnosis, "grad_norm")


def test_the_short_answer_says_of_no_other_chain_that_the_leading_fault_brings_it_about(tmp_path, monkeypatch, capsys):
    """A KL that no policy has leads; a part that is never paid comes of answers that are cut off."""
    row = {"completions/clipped_ratio": 0.7, "rewards/form": 0.0, "completions/max_length": 160.0}
    rows = [{**GRPO, **row, "step": i, "kl": 90.0 * (i > 3), "reward": 0.1 * (i % 3)} for i in range(80)]
    path = written(tmp_path, "".join(json.dumps(row) + "\n" for row in rows), "run.jsonl")
    monkeypatch.setattr("sys.argv", ["steadyrl", "doctor", str(path)])
    with pytest.raises(SystemExit):
        main()
    out = capsys.readouterr().out
    assert "kl_runaway (impossible tokens)" in out and "also found: truncated" in out
    assert "caused by it" not in out and "up to 90" in out
    assert np.isfinite(rows[0]["reward"])
