"""Training on pairs: what is learned of their order, from metrics under the names of several trainers."""

import json
import tempfile
from pathlib import Path

import numpy as np
import pytest

from steadyrl.doctor.examine import diagnose

ROWS = 45
TIME = np.linspace(0.0, 1.0, ROWS)
TRL = {"accuracy": "rewards/accuracies", "margin": "rewards/margins", "chosen": "rewards/chosen",
       "rejected": "rewards/rejected", "logp": "logps/chosen"}  # fmt: skip
OF_OWN = {"accuracy": "preference_accuracy", "margin": "reward_margin", "chosen": "chosen_rewards",
          "rejected": "rejected_rewards", "logp": "chosen_logps"}  # fmt: skip

OF_OPENRLHF = {"accuracy": "acc", "margin": "", "chosen": "chosen_reward", "rejected": "reject_reward", "logp": ""}


def noisy(values, scale=0.02, seed=3):
    return np.asarray(values) + scale * np.random.default_rng(seed).normal(size=ROWS)


def diagnosis_of(names=TRL, every=15, evaluations=None, **columns):
    """Diagnose a run that learns the order of its pairs but for some columns."""
    healthy = {"accuracy": noisy(0.52 + 0.2 * TIME), "margin": noisy(0.9 * TIME), "chosen": noisy(0.2 * TIME),
               "rejected": noisy(-0.7 * TIME), "logp": noisy(-180 - 10 * TIME, 1.0)}  # fmt: skip
    log = {"step": np.arange(1, ROWS + 1) * 5, "loss": noisy(0.69 - 0.2 * TIME), "grad_norm": noisy(3 + 0 * TIME, 0.2),
           "learning_rate": np.full(ROWS, 8e-7)}  # fmt: skip
    log |= {names.get(name, name): values for name, values in {**healthy, **columns}.items() if values is not None}
    rows = [dict(zip(log, map(float, row), strict=True)) for row in zip(*log.values(), strict=True)]
    for place, scores in enumerate(evaluations or ()):
        rows[(place + 1) * every - 1] |= scores
    (diagnosis,) = diagnose(rows)
    return diagnosis


def diagnose_text(text):
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "card.md"
        path.write_text(text)
        return diagnose(path)


def causes(diagnosis):
    return [(f.check, f.cause, f.severity) for f in diagnosis.findings if f.check in ("pair_order", "chosen_unlikely")]


def test_an_accuracy_beside_the_rewards_of_pairs_is_theirs():
    columns = {"accuracy": noisy(0.5 + 0.3 * TIME), "margin": None, "logp": None}
    assert diagnosis_of(OF_OPENRLHF, **columns).verdict == "healthy"


@pytest.mark.parametrize("names", [TRL, OF_OWN])
def test_an_order_that_is_learned_is_healthy_whoever_logs_it(names):
    assert diagnosis_of(names).verdict == "healthy"
    assert diagnosis_of(names, accuracy=None).verdict == "healthy"
    assert diagnosis_of(names, margin=None).verdict == "healthy"
    assert diagnosis_of(names, accuracy=None, margin=None).verdict == "healthy"  # the rewards of both tell the margin


def test_pairs_that_stay_alike_ask_for_a_higher_rate_or_for_what_is_trained():
    still = {"accuracy": noisy(0.5 + 0 * TIME, 0.04), "margin": noisy(0 * TIME, 0.01), "chosen": noisy(0 * TIME, 0.01),
             "rejected": noisy(0 * TIME, 0.01), "loss": noisy(0.693 + 0 * TIME, 0.004)}  # fmt: skip
    low = diagnosis_of(**still)
    assert causes(low) == [("pair_order", "learning_rate_too_low", "warning")]
    assert low.findings[0].overrides == ("learning_rate=4e-06",)
    high = diagnosis_of(**still, learning_rate=np.full(ROWS, 2e-5))
    assert causes(high) == [("pair_order", "not_trained", "warning")]
    assert high.findings[0].overrides == ()


def test_a_loss_that_rises_diverges():
    found = diagnosis_of(loss=noisy(0.69 + 1.3 * TIME), margin=noisy(-2 * TIME), accuracy=noisy(0.5 - 0.1 * TIME))
    assert causes(found) == [("pair_order", "diverges", "critical")]


BY_HEART = {"accuracy": np.minimum(1.0, 0.55 + TIME), "loss": np.maximum(0.002, 0.69 - 1.5 * TIME), "margin": 6 * TIME}


@pytest.mark.parametrize(
    ("heldout", "severity"),
    [((), "warning"), ((0.55, 0.58, 0.6), "warning"), ((0.7, 0.8, 0.86), "info")],
)
def test_pairs_by_heart_do_harm_where_held_out_pairs_do_not_follow(heldout, severity):
    evaluations = [{"eval_rewards/accuracies": value} for value in heldout]
    found = diagnosis_of(evaluations=evaluations, **BY_HEART)
    assert causes(found) == [("pair_order", "overfit", severity)]
    assert found.verdict == ("sick" if severity == "warning" else "too little to judge")


def test_pairs_that_are_told_apart_without_loss_teach_little_whatever_is_held_out():
    wide = {**BY_HEART, "margin": 16 * TIME}
    found = diagnosis_of(evaluations=[{"eval_rewards/accuracies": value} for value in (0.9, 0.97, 1.0)], **wide)
    assert causes(found) == [("pair_order", "overfit", "warning")]
    once = diagnosis_of(**BY_HEART, epoch=TIME)  # no pair has come again
    assert causes(once) == [("pair_order", "overfit", "info")]


def test_a_table_of_evaluations_has_the_accuracy_of_held_out_pairs():
    rows = [(0.62, 0.69), (0.7, 0.6), (0.74, 0.56), (0.66, 0.65)]
    table = "| Step | Training Loss | Validation Loss | Rewards/accuracies | Rewards/margins |\n|---|---|---|---|---|\n"
    table += "".join(
        f"| {50 * n} | {0.7 - 0.1 * n:.2f} | {x} | {a} | {0.3 * n:.2f} |\n" for n, (a, x) in enumerate(rows, 1)
    )
    (found,) = diagnose_text(table)
    assert causes(found) == [("pair_order", "heldout_worse", "warning")]
    assert "best at step 150 (0.74)" in found.findings[0].message


def test_rewards_far_from_zero_at_the_start_say_that_the_reference_is_another_model():
    found = diagnosis_of(chosen=noisy(-12 + TIME), rejected=noisy(-12.3 + 0.2 * TIME), logp=None, margin=None)
    assert causes(found) == [("pair_order", "reference_apart", "warning")]


def test_a_margin_that_swings_from_batch_to_batch_diverges():
    swings = np.where(np.arange(ROWS) % 9 == 8, 9.0, 0.05) * (TIME > 0.3) + 0.69 * (TIME <= 0.3)
    assert causes(diagnosis_of(loss=swings)) == [("pair_order", "diverges", "critical")]


def test_a_held_out_loss_above_that_of_no_training_is_worse():
    found = diagnosis_of(evaluations=[{"eval_loss": 0.79}, {"eval_loss": 0.8}])
    assert causes(found) == [("pair_order", "heldout_worse", "warning")]
    assert "above the 0.693" in found.findings[0].message


@pytest.mark.parametrize(
    ("accuracies", "losses", "severity"),
    [
        ((0.6, 0.7, 0.62), (0.66, 0.6, 0.65), "warning"),
        ((0.6, 0.7, 0.71), (0.66, 0.6, 0.7), "info"),  # the policy is too sure, and no worse
        ((0.6, 0.7, 0.72), (0.66, 0.6, 0.58), None),
    ],
)
def test_held_out_pairs_that_get_worse_after_their_best_do_harm(accuracies, losses, severity):
    pairs = zip(accuracies, losses, strict=True)
    found = diagnosis_of(evaluations=[{"eval_rewards/accuracies": a, "eval_loss": x} for a, x in pairs])
    assert causes(found) == ([("pair_order", "heldout_worse", severity)] if severity else [])
    assert not severity or found.findings[0].since_step == 150


@pytest.mark.parametrize(("end", "severity"), [(-210, None), (-290, "info"), (-420, "warning")])
def test_preferred_answers_that_lose_their_likelihood_are_told_by_how_much(end, severity):
    logp = noisy(-180 + np.minimum(1, 2 * TIME) * (end + 180), 1.0)
    found = diagnosis_of(logp=logp, chosen=None, margin=noisy(0.9 * TIME))
    assert causes(diagnosis_of(logp=logp)) == []  # their reward says that they are as likely as before
    assert causes(found) == ([("chosen_unlikely", "likelihood_displacement", severity)] if severity else [])


@pytest.mark.parametrize(("end", "severity"), [(-2.0, None), (-7.0, "info"), (-15.0, "warning")])
def test_without_log_probs_their_reward_tells_it(end, severity):
    found = diagnosis_of(logp=None, chosen=noisy(end * np.minimum(1, 2 * TIME)))
    assert causes(found) == ([("chosen_unlikely", "likelihood_displacement", severity)] if severity else [])


def test_what_is_open_of_pairs_is_the_sentence_of_the_verdict():
    chance = {"accuracy": noisy(0.5 + 0 * TIME), "margin": noisy(0.2 * TIME)}
    assert "given pairs, and the order of the pairs is hardly learned" in diagnosis_of(**chance).judgement.sentence
    fallen = diagnosis_of(logp=None, chosen=noisy(-7 * np.minimum(1, 2 * TIME)), margin=noisy(0.9 * TIME))
    assert "given pairs, and training makes the preferred answers less likely" in fallen.judgement.sentence


def test_nothing_is_trained_where_the_gradient_is_zero():
    assert causes(diagnosis_of(grad_norm=np.zeros(ROWS))) == [("pair_order", "not_trained", "critical")]


def test_the_small_margins_of_orpo_say_nothing_and_its_accuracy_does():
    small = {
        "margin": noisy(0.01 * TIME, 0.001),
        "chosen": noisy(-0.1 + 0 * TIME, 0.001),
        "log_odds_ratio": -0.6 + TIME / 9,
    }
    small |= {"rejected": noisy(-0.11 - 0.01 * TIME, 0.001), "logp": noisy(-1 + TIME / 9)}
    assert diagnosis_of(**small).verdict == "healthy"
    assert diagnosis_of(**small, accuracy=noisy(0.5 + 0 * TIME)).verdict == "sick"


SOURCE = (
    "from trl import {0}Config, {0}Trainer\nargs = {0}Config(learning_rate=2e-7)\n{0}Trainer(model, args=args).train()"
)


@pytest.mark.parametrize(
    ("trainer", "losses", "expected"),
    [
        ("DPO", 0.694 + 0 * TIME, [("pair_order", "learning_rate_too_low", "warning")]),
        ("DPO", 0.69 - 0.3 * TIME, []),
        ("SFT", 0.694 + 0 * TIME, []),  # of another loss ln 2 is a value like others
    ],
)
def test_a_notebook_with_one_trainer_tells_whose_loss_its_table_has(tmp_path, trainer, losses, expected):
    rows = "".join(f"<tr><td>{10 * n}</td><td>{x:.6f}</td></tr>" for n, x in enumerate(noisy(losses, 0.003), 1))
    table = f"<table><thead><tr><th>Step</th><th>Training Loss</th></tr></thead><tbody>{rows}</tbody></table>"
    outputs = [{"output_type": "display_data", "data": {"text/html": [table]}, "metadata": {}}]
    cell = {"cell_type": "code", "source": SOURCE.format(trainer), "outputs": outputs, "metadata": {}}
    path = tmp_path / "run.ipynb"
    path.write_text(json.dumps({"cells": [cell], "nbformat": 4, "nbformat_minor": 5, "metadata": {}}))
    (found,) = diagnose(path)
    assert causes(found) == expected
    assert (found.verdict == "healthy") == (trainer == "DPO" and not expected)
