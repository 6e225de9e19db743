"""Training on given answers: the doctor says what it is, and gives no advice of reinforcement learning."""

import numpy as np
import pytest

from steadyrl.doctor.examine import diagnose

ROWS = 45
RNG = np.random.default_rng(4)
SLOW = np.arange(ROWS) / ROWS
PAIRS = {
    "rewards/chosen": SLOW, "rewards/rejected": -SLOW, "rewards/margins": SLOW, "rewards/accuracies": 0.5 + SLOW / 3,
    "logps/chosen": -150 - SLOW, "logps/rejected": -160 - 9 * SLOW,
}  # fmt: skip
UNPAIRED = {name: values for name, values in PAIRS.items() if "accuracies" not in name}
KINDS = {
    "dpo": PAIRS,
    "orpo": {**PAIRS, "nll_loss": 2 - SLOW, "log_odds_ratio": -0.5 + SLOW, "log_odds_chosen": SLOW},
    "kto": {**UNPAIRED, "kl": 3 * SLOW},
    "kto without a baseline": {**UNPAIRED, "kl": 0 * SLOW},
    "sft": {"mean_token_accuracy": 0.5 + SLOW / 4, "entropy": 1.5 - SLOW, "num_tokens": 1e4 * SLOW},
    "reward-model": {
        "min_reward": -SLOW, "mean_reward": 0 * SLOW, "max_reward": SLOW, "margin": SLOW, "accuracy": 0.5 + SLOW / 3,
    },
    "no reward is logged": {"eval_loss": 1 - SLOW / 3},
    "pairs of answers": {"chosen_reward": SLOW, "rejected_reward": -SLOW, "reward_margin": 2 * SLOW},
}  # fmt: skip


def diagnosis_of(columns):
    columns = {
        "step": np.arange(ROWS) * 20, "loss": 0.7 - SLOW / 4 + RNG.normal(0, 0.02, ROWS),
        "learning_rate": 1e-6 - 1e-7 * SLOW, "grad_norm": 2 + RNG.normal(0, 0.2, ROWS), **columns,
    }  # fmt: skip
    (diagnosis,) = diagnose({name: values.tolist() for name, values in columns.items()})
    return diagnosis


@pytest.mark.parametrize("kind", ["sft", "no reward is logged"])
def test_a_supervised_run_is_said_to_be_one_and_gets_no_advice_of_rl(kind):
    diagnosis = diagnosis_of(KINDS[kind])
    assert diagnosis.verdict == "too little to judge" and not diagnosis.harmful
    assert f"this looks like supervised training ({kind})" in diagnosis.judgement.sentence
    assert not diagnosis.judgement.reasons


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind not in ("sft", "no reward is logged")])
def test_training_on_pairs_is_judged_by_their_order(kind):
    diagnosis = diagnosis_of(KINDS[kind])
    assert diagnosis.verdict == "healthy" and not diagnosis.findings


def test_a_loss_that_breaks_is_harm_in_supervised_training_too():
    broken = np.where(np.arange(ROWS) < 30, 0.7, np.nan)
    assert "non_finite" in diagnosis_of({**PAIRS, "loss": broken}).harmful


@pytest.mark.parametrize("metric", ["reward", "kl", "completions/mean_length"])
def test_a_log_with_a_metric_of_sampled_answers_is_none(metric):
    judgement = diagnosis_of({metric: SLOW}).judgement
    assert judgement is None or not judgement.supervised
