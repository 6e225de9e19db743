"""Scores before and after training, as people write them up."""

from __future__ import annotations

from pathlib import Path

import pytest

from steadyrl.core.errors import RunError
from steadyrl.doctor.examine import Diagnosis, diagnose
from steadyrl.doctor.readers.evaluations import find

FORMS = {
    "rows.md": """
        | Model | Problems | Accuracy | Avg tokens |
        |---|---:|---:|---:|
        | Llama-1B-Base | 400 | 31.5% | 210 |
        | Llama-1B + RLOO (120 steps) | 400 | {after}% | 180 |
    """,
    "columns.md": """
        Our results on n=400 problems:

        | Benchmark | Before RL | After RL | Δ |
        |:--|:-:|:-:|--:|
        | accuracy on held-out sums (n=400) | 0.315 | 0.{digits} | x |
    """,
    "spaces.txt": """
        Metric               Baseline      Trained
        ------------------------------------------
        Accuracy (n=400)        0.315        0.{digits}
    """,
    "arrow.md": """
        | split | accuracy (before → after) |
        |---|---|
        | test, n=400 | 31.5% → {after}% |
    """,
    "headed.md": """
        BEFORE training:
          easy accuracy:   126/400
        AFTER RLOO training:
          easy accuracy:   {count}/400  <- look
    """,
    "lines.log": """
        [untrained] accuracy: 126/400
        saving the adapter
        [trained] accuracy: {count}/400
    """,
    "headings.md": """
        ## Untrained model
        1. Accuracy: 126/400
        2. Tokens: 210
        ### After PPO
        1. Accuracy: {count}/400
        2. Tokens: 190
    """,
    "nested.json": """
        {{"base": {{"accuracy": 0.315, "n": 400}}, "grpo": {{"accuracy": 0.{digits}, "n": 400}}}}
    """,
    "flat.json": """{{"n_before": 400, "n_after": 400, "accuracy_before": 0.315, "accuracy_after": 0.{digits}}}""",
    "table.csv": """
        checkpoint,n,accuracy
        base,400,0.315
        step 300,400,0.{digits}
    """,
}


def written(folder: Path, name: str, right: int) -> Path:
    """Return a write-up of a model that solved 126 of 400 problems before training, and ``right`` of them after."""
    share = right / 400
    text = FORMS[name].format(after=f"{100 * share:.1f}", digits=f"{round(1000 * share):03d}", count=right)
    path = folder / name
    path.write_text("\n".join(line.strip() if name != "spaces.txt" else line for line in text.strip().splitlines()))
    return path


def examined(path: Path) -> Diagnosis:
    """Return what the doctor says of the one run of a file."""
    [diagnosis] = diagnose(path)
    return diagnosis


@pytest.mark.parametrize("name", FORMS)
def test_each_form_states_one_score_with_its_answers(tmp_path: Path, name: str) -> None:
    scores = [score for score in find(written(tmp_path, name, right=130)) if "tokens" not in score.name.lower()]
    [score] = scores
    assert score.before == pytest.approx(0.315, abs=1e-9)
    assert score.after == pytest.approx(0.325, abs=1e-9)
    assert score.answers == 400


@pytest.mark.parametrize("name", FORMS)
@pytest.mark.parametrize(
    ("right", "cause"),
    [(127, "no_gain"), (80, "fell")],  # one more problem; 11.5 points less, which are 3.7 standard errors
)
def test_training_that_raises_no_score_is_sick(tmp_path: Path, name: str, right: int, cause: str) -> None:
    diagnosis = examined(written(tmp_path, name, right))
    [finding] = [finding for finding in diagnosis.findings if finding.check == "heldout_no_gain"]
    assert (diagnosis.verdict, finding.cause) == ("sick", cause)


@pytest.mark.parametrize("name", sorted(set(FORMS) - {"table.csv"}))  # whose two rows are a log, too
def test_a_clear_rise_is_healthy_and_one_within_the_noise_is_open(tmp_path: Path, name: str) -> None:
    rose = examined(written(tmp_path, name, right=180))  # 13.5 points more: 4 standard errors
    assert rose.verdict == "healthy"
    assert "signal" in " ".join(rose.minor)
    within = examined(written(tmp_path, name, right=140))  # 3.5 points more: 1.1 standard errors
    assert within.verdict == "too little to judge"
    assert any("noise" in unknown.message for unknown in within.unknown)


def test_form_that_is_learned_without_the_task_is_named(tmp_path: Path) -> None:
    path = tmp_path / "post.md"
    path.write_text(
        "| Task | valid JSON (base -> PPO) | solved (base -> PPO) |\n|---|---|---|\n"
        "| routes | 12% -> 99% | 0.33 -> 0.21 |\n| tables | 40% -> 97% | 0.08 -> 0.08 |\n"
    )
    [finding] = examined(path).findings
    assert (finding.check, finding.cause) == ("heldout_no_gain", "proxy_alone")
    assert "valid JSON (routes) 0.12 -> 0.99" in finding.message
    path.write_text(
        "| metric | before PPO | after PPO |\n|---|---|---|\n| mean reward | 1.5 | 4.5 |\n| solved | 0.45 | 0.20 |\n"
    )
    [finding] = examined(path).findings
    assert (finding.check, finding.cause) == ("heldout_no_gain", "proxy_alone")


def test_a_base_without_the_words_of_an_arm_is_compared_with_its_own_training(tmp_path: Path) -> None:
    path = tmp_path / "arms.md"
    path.write_text(
        "| Model | n | score |\n|---|---|---|\n| 3B base | 90 | 0.2 |\n| 3B SFT | 90 | 0.5 |\n| 3B GRPO | 90 | 0.5 |\n"
        "| no baseline | 90 | 0.9 |\n| best | 90 | 0.9 |\n| 3B SFT, other split | 50 | 0.1 |\n"
    )
    [score] = find(path)
    assert (score.stages, score.before, score.after) == (("3B SFT", "3B GRPO"), 0.5, 0.5)


@pytest.mark.parametrize(
    "text",
    [
        "| setting | SFT | GRPO |\n|---|---|---|\n| learning rate | 1e-5 | 1e-6 |\n| batch size | 32 | 32 |\n",
        "| # | response (before) | rewards (after) |\n|---|---|---|\n| 0 | 1 | 0 |\n| 1 | 1 | 0 |\n",
        "| pairs | base | trained |\n|---|---|---|\n| logit y7 | 44.9 | 40.3 |\n",
        "Baseline accuracy: 4/8\nGRPO accuracy: 2/8\n",  # eight answers
        "start: 0.5\nafter a while: 0.4\n",
    ],
)
def test_what_is_no_score_of_enough_answers_is_no_fault(tmp_path: Path, text: str) -> None:
    path = tmp_path / "notes.md"
    path.write_text(text)
    try:
        assert examined(path).harmful == ()
    except RunError:
        assert find(path) == ()


def test_scores_beside_a_log_are_read_with_it(tmp_path: Path) -> None:
    path = tmp_path / "train.log"
    rows = "\n".join(f"{{'reward': {0.3 + 0.01 * (i % 3)}, 'loss': 0.1, 'step': {i}}}" for i in range(40))
    path.write_text(f"baseline exact match: 0.412\n{rows}\nfinal exact match: 0.371\n")
    diagnosis = examined(path)
    assert diagnosis.run.steps == 40
    assert "exact match 0.412 -> 0.371" in " ".join(finding.message for finding in diagnosis.findings)


def test_a_later_checkpoint_that_scores_less_is_past_the_peak(tmp_path: Path) -> None:
    path = tmp_path / "checkpoints.md"
    rows = ["SFT | 0.10 | 0.30", "PPO ckpt 40 | 0.42 | 0.61", "★ PPO ckpt 90 | {} | 0.52"]
    for last, cause in (("0.33", "past_peak"), ("0.47", "")):
        table = "\n".join(["| Model | accuracy | solved |", "|--|--|--|", *(f"| {row} |" for row in rows)])
        path.write_text(table.format(last))
        assert [finding.cause for finding in examined(path).findings] == ([cause] if cause else [])


def test_a_verdict_on_scores_alone_shows_them(tmp_path: Path) -> None:
    path = tmp_path / "end.log"
    path.write_text("untrained exact match: 0.125\ntrained exact match: 0.5\n")
    diagnosis = examined(path)
    assert diagnosis.verdict == "healthy"
    assert diagnosis.rise == "beside scores before and after training (exact match 0.125 -> 0.5)"


def test_rows_of_a_training_below_its_title_are_no_counterpart_of_a_baseline(tmp_path: Path) -> None:
    path = tmp_path / "run.md"
    path.write_text("# PPO on routes\nbaseline solved: 0.45\nstep 1\nsolved: 0.25\nstep 2\nsolved: 0.28\n")
    assert find(path) == ()


def test_answers_that_repeat_themselves_are_a_fault_where_only_the_reward_rose(tmp_path: Path) -> None:
    path = tmp_path / "notes.md"
    rows = "| Mean reward | 0.6 | 0.9 |\n| Repeated bigrams, repetition | 0.02 | 0.41 |\n"
    path.write_text(f"| What | Base | After RLOO |\n|---|---|---|\n{rows}")
    [finding] = examined(path).findings
    assert (finding.check, finding.cause) == ("heldout_no_gain", "spoiled")
    path.write_text(f"| What | Base | After RLOO |\n|---|---|---|\n{rows}| Accuracy | 0.3 | 0.6 |\n")
    assert examined(path).findings == ()


def test_scores_of_which_some_fell_keep_a_run_whose_reward_rises_from_being_healthy(tmp_path: Path) -> None:
    path = tmp_path / "run.md"
    rows = "".join(f"| {10 * i} | {0.2 + 0.03 * i:.2f} | 0.3 |\n" for i in range(1, 13))
    scores = "\n| Set | Base | After PPO |\n|---|---|---|\n| accuracy, sums | 0.40 | 0.55 |\n"
    scores += "| accuracy, words | 0.61 | {} |\n"
    path.write_text(f"| step | reward | reward_std |\n|---|---|---|\n{rows}{scores.format(0.42)}")
    diagnosis = examined(path)
    assert [(x.cause, x.severity) for x in diagnosis.findings if x.check == "heldout_no_gain"] == [("mixed", "info")]
    assert diagnosis.verdict == "too little to judge"
    path.write_text(f"| step | reward | reward_std |\n|---|---|---|\n{rows}{scores.format(0.72)}")
    assert examined(path).verdict == "healthy"


def test_problems_without_a_word_for_a_score_count_where_several_are_shares(tmp_path: Path) -> None:
    path = tmp_path / "levels.md"
    path.write_text(
        "| Stage | Short | Middle | Long |\n|---|---|---|---|\n| Baseline | 0.71 | 0.52 | 0.40 |\n"
        "| PPO, 300 steps | 0.44 | 0.21 | 0.12 |\n"
    )
    [finding] = examined(path).findings
    assert (finding.check, finding.cause) == ("heldout_no_gain", "fell")
    path.write_text(path.read_text().replace("Baseline", "Words").replace("PPO, 300 steps", "Numbers"))
    with pytest.raises(RunError):
        diagnose(path)


def test_what_is_no_aim_takes_nothing_from_a_gain(tmp_path: Path) -> None:
    path = tmp_path / "cost.md"
    path.write_text(
        "| Model | Accuracy | Throughput |\n|---|---|---|\n"
        "| Base | 31.0% | 15,000 tok/s |\n| GRPO | 44.5% | 9,000 tok/s |\n"
    )
    assert examined(path).verdict == "healthy"


def test_the_stage_may_stand_behind_the_models_name_and_each_model_has_its_own_base(tmp_path: Path) -> None:
    path = tmp_path / "models.md"
    rows = [("Small", "Base", 12), ("Large", "Base", 60), ("Small", "+ GRPO", 30), ("Large", "+ GRPO", 45)]
    lines = "".join(f"| {model} | {stage} | {score}% |\n" for model, stage, score in rows)
    path.write_text(f"| Model | Method | Accuracy |\n|---|---|---|\n{lines}")
    assert [(of.before, of.after) for of in find(path)] == [(0.12, 0.3), (0.6, 0.45)]


def test_ways_of_decoding_are_compared_each_with_its_own_and_equal_names_are_no_checkpoints(tmp_path: Path) -> None:
    path = tmp_path / "decoding.md"
    rows = [("SFT", "greedy", 11), ("SFT", "best of 8", 31), ("SFT+GRPO", "greedy", 16), ("SFT+GRPO", "best of 8", 44)]
    lines = "".join(f"| {stage} | {way} | {solved}% |\n" for stage, way, solved in rows)
    path.write_text(f"| stage | decoding | solved |\n|---|---|---|\n{lines}")
    assert [(of.before, of.after) for of in find(path)] == [(0.11, 0.16), (0.31, 0.44)]
    sets = [("sums", "Base", 56), ("", "Base + GRPO", 70), ("words", "Base", 40), ("", "Base + GRPO", 48)]
    lines = "".join(f"| {name} | {stage} | {score}% |\n" for name, stage, score in sets)
    path.write_text(f"| data | model | accuracy |\n|---|---|---|\n{lines}")
    assert [(of.before, of.after, of.from_training) for of in find(path)] == [(0.56, 0.7, False), (0.4, 0.48, False)]


def test_arms_of_experiments_below_a_baseline_show_a_fall_and_no_health(tmp_path: Path) -> None:
    path = tmp_path / "arms.md"
    head = "| Experiment | rank | dev.json accuracy |\n|---|---|---|\n| Baseline | N/A | 61.0% |\n"
    path.write_text(f"{head}| wide_a | 64 | 55.0% |\n| wide_b | 16 | 57.5% |\n")
    [finding] = examined(path).findings
    assert (finding.check, finding.cause) == ("heldout_no_gain", "fell")
    path.write_text(f"{head}| wide_a | 64 | 70.0% |\n| wide_b | 16 | 74.5% |\n")
    assert examined(path).verdict == "too little to judge"
    # Arms that differ in a number alone are no checkpoints of one training.
    path.write_text(f"{head}| rate 2e-5 | 64 | 74.5% |\n| rate 5e-5 | 64 | 62.0% |\n")
    assert examined(path).findings == ()


STATED = {
    "The entropy dropped quickly from 1.4 to 0.1 and never came back.": "entropy_collapse",
    "In run 7 the mean score sank from ~2.4 to 0.3, in all seeds.": "reward_falling",
    "Mean response length shrinks from 900 to 40.": "length_collapse",
    "At step 31 the loss jumped from 0.2 to 90.": "loss_explosion",
    "Then the gradient norm exploded from 0.5 to 800.": "gradient",
    "After the warm-up the KL rose from 0.3 to 41.": "kl_runaway",
    "训练后期reward从2.4一路下降到0.6。": "reward_falling",
    "The reward stays in the 0.31-0.35 band for 400 steps.": "reward_flat",
    "policy_loss and raw_grad_norm are all NaN on every batch.": "non_finite",
}
HARMLESS = (
    "The entropy dropped from 1.4 to 0.9.",
    "The KL rose from 0.001 to 0.2.",
    "The mean score rose from 0.3 to 2.4.",
    "The reward stays at 0.97 from then on.",
    "If the loss becomes NaN, lower the learning rate.",
    "The random-reward placebo stays at 0.8%, as before.",
    "The baseline score stays at 0.2.",
)


@pytest.mark.parametrize("sentence", STATED)
def test_a_course_that_a_sentence_states_is_judged_by_its_ends(tmp_path: Path, sentence: str) -> None:
    path = tmp_path / "issue.md"
    path.write_text(f"# Help wanted\n\n{sentence}\n")
    diagnosis = examined(path)
    assert [(x.check, x.cause) for x in diagnosis.findings if x.harms] == [("stated_course", STATED[sentence])]
    assert diagnosis.findings[0].message.startswith("the text says so: ")


@pytest.mark.parametrize("sentence", HARMLESS)
def test_a_course_of_no_harm_and_a_warning_are_none(tmp_path: Path, sentence: str) -> None:
    path = tmp_path / "issue.md"
    path.write_text(f"# Notes\n\nThe mean length went from 300 to 310.\n\n{sentence}\n")
    assert not any(finding.harms for finding in examined(path).findings)


def test_a_message_names_the_stages_of_its_scores_and_says_each_score_once(tmp_path: Path) -> None:
    path = tmp_path / "stages.md"
    path.write_text(
        "| Model | solved | exact match |\n|---|---|---|\n| Base | 0.42 | 0.35 |\n| RLOO, step 80 | 0.31 | 0.22 |\n"
    )
    [finding] = examined(path).findings
    assert finding.message.count('("Base" to "RLOO, step 80")') == 1
    assert finding.evidence == (
        "of 2 scores none rose, and 2 fell by more than 3%, which noise may explain: no number of answers stands "
        "beside them",
    )
    path.write_text("| Model | format | solved |\n|---|---|---|\n| Base | 0.2 | 0.42 |\n| + RLOO | 0.9 | 0.41 |\n")
    [finding] = examined(path).findings
    assert finding.message.count("format") == finding.message.count("solved") == 1


def test_the_number_of_answers_may_stand_above_the_names_of_the_scores(tmp_path: Path) -> None:
    path = tmp_path / "counted.md"
    path.write_text("| Score (N = 60) | base | PPO |\n|---|---|---|\n| solved | 0.25 | 0.20 |\n")
    assert [score.answers for score in find(path)] == [60]
    [finding] = examined(path).findings  # three of sixty are noise
    assert (finding.cause, finding.evidence) == ("no_gain", ("of 1 score none rose, and none fell beyond its noise",))


def test_a_share_of_nothing_is_no_aim_and_marks_are_no_part_of_a_name(tmp_path: Path) -> None:
    path = tmp_path / "marks.md"
    rows = "| `<plan>` reward | 0.3 | 0.3 |\n| share with score == 0 | 0.5 | 0.9 |\n"
    path.write_text(f"| metric | base | after GRPO |\n|---|---|---|\n{rows}")
    assert examined(path).findings[0].message == (
        'training did not raise the scores: <plan> reward 0.3 -> 0.3 ("base" to "after GRPO")'
    )


def test_scores_beside_a_count_of_right_answers_are_of_as_many(tmp_path: Path) -> None:
    path = tmp_path / "passed.md"
    path.write_text("| Stage | Passed | pass@1 |\n|---|---|---|\n| SFT | 12/31 | 0.387 |\n| + PPO | 14/31 | 0.452 |\n")
    assert [score.answers for score in find(path)] == [31, 31]
    assert examined(path).verdict == "too little to judge"
