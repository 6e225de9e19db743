"""What one row, or a few averaged ones, can show; in the forms that trainers print. Rows are made up."""

import json

import numpy as np
import pytest

from steadyrl.doctor.examine import diagnose

GRPO = {
    "loss": 0.01, "grad_norm": 0.4, "learning_rate": 1e-6, "reward": 0.4, "reward_std": 0.2,
    "frac_reward_zero_std": 0.3, "completions/mean_length": 180.0, "completions/clipped_ratio": 0.02, "kl": 0.01,
}  # fmt: skip
VERL = {
    "actor/entropy": 0.4, "actor/pg_loss": 0.01, "actor/ppo_kl": 0.0001, "actor/grad_norm": 0.3, "actor/lr": 1e-6,
    "critic/score/mean": 0.6, "critic/score/max": 1.0, "critic/score/min": 0.0, "critic/advantages/mean": 0.01,
    "critic/advantages/max": 1.4, "critic/advantages/min": -1.5, "response_length/mean": 300.0,
    "response_length/max": 700.0, "response_length/min": 40.0, "response_length/clip_ratio": 0.0,
}  # fmt: skip


@pytest.fixture
def trl(tmp_path):
    """Diagnose rows of TRL's GRPO trainer, each the mean of so many steps."""

    def run(rows, every=10):
        whole = [{**GRPO, **row, "step": every * (i + 1)} for i, row in enumerate(rows)]
        history = [{name: value for name, value in row.items() if value is not None} for row in whole]
        path = tmp_path / "trainer_state.json"
        path.write_text(json.dumps({"log_history": history, "logging_steps": every}))
        return diagnose(path)[0]

    return run


@pytest.fixture
def verl(tmp_path):
    """Diagnose lines that verl prints."""

    def run(rows):
        lines = [
            f"step:{i + 1} - " + " - ".join(f"{name}:{value}" for name, value in {**VERL, **row}.items())
            for i, row in enumerate(rows)
        ]
        path = tmp_path / "train.log"
        path.write_text("\n".join(lines) + "\n")
        return diagnose(path)[0]

    return run


def lead(diagnosis):
    assert diagnosis.verdict == "sick", diagnosis.findings
    return diagnosis.findings[0].check, diagnosis.findings[0].cause


def test_one_row_in_order_is_too_little_to_judge(trl, verl):
    for diagnosis in (trl([{}]), verl([{}])):
        assert diagnosis.verdict == "too little to judge"
        assert not [finding for finding in diagnosis.findings if finding.harms]
        assert any("the course of the reward" in what for what in diagnosis.missing)


def test_nan_in_the_only_row_is_lost_and_not_recovered(verl):
    diagnosis = verl([{"actor/pg_loss": "nan", "actor/grad_norm": "nan", "actor/ppo_kl": "nan"}])
    assert lead(diagnosis) == ("non_finite", "log_probs")
    assert diagnosis.findings[0].severity == "critical" and "in the only row" in diagnosis.findings[0].message


def test_nan_in_the_last_of_many_rows_is_said_to_last_to_the_end(verl):
    diagnosis = verl([*({"critic/score/mean": 0.3 + 0.01 * i} for i in range(30)), {"actor/grad_norm": "nan"}])
    assert lead(diagnosis) == ("non_finite", "gradient")
    assert "to the end" in diagnosis.findings[0].message


def test_a_gradient_of_zero_while_rewards_differ_is_detached(trl):
    assert lead(trl([{"grad_norm": 0.0, "loss": 0.0}])) == ("grad_norm", "detached")


def test_a_gradient_of_zero_where_no_group_differs_follows_the_groups(trl):
    diagnosis = trl([{"grad_norm": 0.0, "loss": 0.0, "reward_std": 0.0, "frac_reward_zero_std": 1.0}])
    assert lead(diagnosis)[0] == "no_signal_groups"
    assert {f.check: f.follows for f in diagnosis.findings}["grad_norm"] == "no_signal_groups"


def test_advantages_that_are_all_zero_are_named_though_the_rewards_differ(verl):
    zero = {f"critic/advantages/{end}": 0.0 for end in ("mean", "max", "min")}
    assert lead(verl([zero])) == ("no_signal_groups", "same_answers")


def test_advantages_that_are_the_rewards_have_no_baseline(verl):
    rows = [
        {f"critic/{what}/{end}": value for what in ("score", "advantages") for end, value in
         (("mean", 0.1 * i - 0.3), ("max", 0.1 * i), ("min", -0.5))} for i in range(8)
    ]  # fmt: skip
    assert lead(verl(rows)) == ("advantage_baseline", "single_sample")


def test_centred_advantages_are_no_rewards(verl):
    diagnosis = verl([{"critic/score/mean": 0.5 + 0.01 * i} for i in range(8)])
    assert "advantage_baseline" not in {finding.check for finding in diagnosis.findings}


def test_a_length_pinned_at_a_number_is_the_root_of_no_reward(trl):
    row = {
        "completions/clipped_ratio": None, "completions/mean_length": None, "completion_length": 256.0, "reward": 0.0,
        "reward_std": 0.0, "frac_reward_zero_std": 1.0, "grad_norm": 0.0, "loss": 0.0, "kl": 0.0,
    }  # fmt: skip
    diagnosis = trl([*([row] * 12), {**row, "completion_length": 241.0}])
    assert lead(diagnosis) == ("truncated", "never_ends")
    chain = {finding.check: finding.follows for finding in diagnosis.findings}
    assert chain["reward_constant"] == "truncated" and chain["grad_norm"] == "no_signal_groups"
    assert "detached" not in {finding.cause for finding in diagnosis.findings}


def test_short_answers_of_one_length_are_not_taken_for_cut_off(verl):
    rows = [{"response_length/mean": 20.0, "response_length/max": 20.0, "response_length/min": 20.0}] * 20
    assert "truncated" not in {finding.check for finding in verl(rows).findings}


@pytest.mark.parametrize(("share", "said"), [(0.02, None), (0.1, "info"), (0.4, "warning"), (0.97, "warning")])
def test_the_share_cut_off_is_graded(trl, share, said):
    diagnosis = trl([{"completions/clipped_ratio": share}] * 4)
    assert {f.check: f.severity for f in diagnosis.findings}.get("truncated") == said


def test_a_part_that_never_pays_is_named_while_nothing_is_learned(trl):
    rows = [
        {"reward": 0.2 + 0.02 * (i % 3), "rewards/right": 0.2 + 0.02 * (i % 3), "rewards/form": 0.0} for i in range(8)
    ]
    assert lead(trl(rows)) == ("reward_part_idle", "never_pays")


@pytest.mark.parametrize(("every", "said"), [(4, "info"), (7, "warning")])
def test_a_part_that_is_hard_to_earn_is_given_fifty_steps(trl, every, said):
    rows = [{"reward": 0.2 + 0.02 * (i % 3), "rewards/right": 0.2, "rewards/form": 0.0} for i in range(8)]
    rows[0]["rewards/right"] = 0.3
    found = {finding.check: finding.severity for finding in trl(rows, every).findings}
    assert found["reward_part_idle"] == said


def test_a_part_that_never_pays_is_worth_knowing_only_while_the_reward_rises(trl):
    rows = [{"reward": 0.02 * i, "rewards/right": 0.02 * i, "rewards/form": 0.0} for i in range(30)]
    found = {finding.check: finding.severity for finding in trl(rows).findings}
    assert found["reward_part_idle"] == "info"


def test_a_reward_lost_in_one_step_is_found_in_five_rows_with_the_gradient_that_did_it(trl):
    lost = ((0.8, 700.0), (0.05, 20.0), (0.06, 30.0), (0.05, 9.0), (0.06, 12.0))
    rows = [{"reward": reward, "grad_norm": norm} for reward, norm in lost]
    diagnosis = trl(rows, every=1)
    assert ("reward_falling", "large_update") in {(f.check, f.cause) for f in diagnosis.findings}
    assert diagnosis.verdict == "sick" and diagnosis.findings[0].check == "grad_norm"


def test_noise_in_five_rows_is_no_loss(trl):
    rows = [{"reward": r} for r in (0.5, 0.3, 0.45, 0.28, 0.4)]
    assert "reward_falling" not in {finding.check for finding in trl(rows, every=1).findings}


@pytest.mark.parametrize("name", ["accuracy", "acc", "acc_reward"])
def test_right_answers_given_up_for_form_are_found_in_three_rows(trl, name):
    rows = [
        {"reward": 0.7 + 0.1 * i, f"rewards/{name}": a, "rewards/format": 0.5 + 0.2 * i}
        for i, a in enumerate((0.2, 0.12, 0.05))
    ]
    assert lead(trl(rows)) == ("reward_hacking", "rightness_falls")


def test_a_part_whose_name_only_begins_like_accuracy_pays_for_something_else(trl):
    rows = [
        {"reward": 0.7 + 0.1 * i, "rewards/accent": a, "rewards/format": 0.5 + 0.2 * i}
        for i, a in enumerate((0.2, 0.12, 0.05))
    ]
    assert "reward_hacking" not in {finding.check for finding in trl(rows).findings}


def test_a_penalty_larger_than_every_reward_is_the_root_of_answers_of_one_token(verl):
    lengths = [1500, 1400, 900, 300, 40, 4, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1]
    rows = [
        {"actor/reward_kl_penalty": 0.8 if n > 10 else 15.0, "actor/reward_kl_penalty_coeff": 0.02,
         "response_length/mean": n, "critic/score/mean": -0.6 if n > 10 else -1.0, "critic/score/min": -1.0,
         "critic/score/max": 1.0 if n > 10 else -1.0, "actor/entropy": 0.3 if n > 10 else 0.001}
        for n in lengths
    ]  # fmt: skip
    diagnosis = verl(rows)
    assert lead(diagnosis) == ("kl_penalty_outweighs", "ends_early")
    collapse = next(finding for finding in diagnosis.findings if finding.check == "length_collapse")
    assert (collapse.cause, collapse.follows) == ("kl_penalty", "kl_penalty_outweighs")
    assert diagnosis.findings[0].overrides[0].startswith("algorithm.kl_ctrl.kl_coef=")


def test_a_penalty_that_is_a_fraction_of_the_reward_is_in_order(verl):
    rows = [{"actor/reward_kl_penalty": 0.01, "actor/reward_kl_penalty_coeff": 0.001}] * 20
    assert "kl_penalty_outweighs" not in {finding.check for finding in verl(rows).findings}


@pytest.mark.parametrize(("more", "expected"), [
    ({}, ("reference_mismatch", "info")),  # a penalty of 1e-5 hardly pulls
    ({"actor/reward_kl_penalty_coeff": 0.01}, ("reference_mismatch", "warning")),
    ({"distillation/loss": 0.25}, ("teacher", "info")),
])  # fmt: skip
def test_a_reference_that_the_policy_comes_nearer_to_is_a_teacher_where_one_is_logged(verl, more, expected):
    rows = [{"actor/reward_kl_penalty": 0.6 - 0.01 * i, "actor/reward_kl_penalty_coeff": 1e-5,
             "critic/score/mean": 0.2 + 0.01 * i, **more} for i in range(30)]  # fmt: skip
    found = {finding.check: (finding.cause, finding.severity) for finding in verl(rows).findings}
    assert found["kl_runaway"] == expected


def test_a_reference_that_stays_far_from_the_first_row_on_is_another_model(trl):
    assert lead(trl([{"kl": 1.1 - 0.05 * (i % 3)} for i in range(12)], every=1)) == ("kl_runaway", "reference_mismatch")


def test_values_that_a_callback_repeats_are_no_jumps(tmp_path):
    rows = []
    for i in range(300):
        level = 0.4 + 0.002 * (i // 10) + 0.01 * ((i // 10 * 7) % 5)
        rows.append({"step": i, "reward_mean": level, "reward_std": 0.1 + level / 10, "loss": 1.0 / (i + 1)})
    path = tmp_path / "log.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    diagnosis = diagnose(path)[0]
    assert not [finding for finding in diagnosis.findings if finding.harms]
    assert len(diagnosis.run.get("reward")) == 30


def test_rows_count_for_the_steps_that_they_average(trl):
    few = trl([{}] * 5, every=10)
    assert any("too few rows of 10 steps each: 5, and it takes 6" in gap.message for gap in few.unknown)
    assert not any("too few" in gap.message for gap in trl([{}] * 12, every=10).unknown if gap.check == "reward_flat")


def test_a_kl_beyond_every_vocabulary_is_no_drift(trl):
    assert lead(trl([{"kl": 5000.0 / (i + 1)} for i in range(6)])) == ("kl_runaway", "impossible_tokens")


@pytest.mark.parametrize("rows", [6, 24])
def test_a_frozen_reward_over_other_prompts_is_named_in_many_rows_too(tmp_path, rows):
    """A scatter of 0.4 % ranges over 1 % in a few rows and over 1.6 % in many."""
    scatter = np.random.default_rng(3).normal(size=rows)
    rewards = 0.31 * (1.0 + 0.004 * scatter / scatter.std())
    rows = [{"step": i, "reward": x, "actor_loss": 0.1, "critic_loss": 0.2} for i, x in enumerate(rewards)]
    path = tmp_path / "log.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert lead(diagnose(path)[0]) == ("reward_constant", "frozen")


@pytest.mark.parametrize(
    ("rewards", "sentence"),
    [([0.0] * 7, "is exactly 0 in 7 rows"), ([-2.5, -2.51] * 3, "stays within 0.4% of -2.5 in 6 rows")],
)
def test_a_frozen_reward_is_told_as_it_is_logged(rewards, sentence):
    """Rows two steps apart: ten steps of one reward, of which the range is no share where it is 0."""
    found = diagnose([{"step": 2 * i, "reward": x, "loss": 0.1} for i, x in enumerate(rewards)])[0].findings[0]
    assert (found.check, found.cause) == ("reward_constant", "frozen")
    assert sentence in found.message


def test_the_remedy_is_in_the_trainers_own_key(trl):
    diagnosis = trl([{"completions/clipped_ratio": 0.97, "completions/max_length": 128.0}] * 4)
    assert diagnosis.findings[0].overrides == ("max_completion_length=1024",)  # 8 times, the most that is advised


def found(diagnosis, check):
    return next(((one.cause, one.severity) for one in diagnosis.findings if one.check == check), None)


def test_one_row_of_an_impossible_kl_is_enough_where_it_averages_several_steps(trl):
    rows = [{"kl": 21.0 if i == 4 else 0.05, "reward": 0.2 + 0.02 * i} for i in range(20)]
    assert lead(trl(rows, every=5)) == ("kl_runaway", "spikes")
    assert found(trl(rows, every=1), "kl_runaway") is None


@pytest.mark.parametrize(("row", "severity"), [
    (lambda i: {"kl": 0.9 - 0.005 * (i % 5), "reward": 0.2 + 0.01 * i}, "info"),  # it rises, and keeps its distance
    (lambda i: {"kl": 0.9 - 0.02 * i, "reward": 0.2 + 0.01 * i}, "warning"),  # it comes nearer to what it should be
    (lambda i: {"kl": 0.9 - 0.005 * (i % 5), "loss": 0.002 * (0.9 - 0.005 * (i % 5))}, "info"),  # a weak penalty
    (lambda i: {"kl": 0.9 - 0.005 * (i % 5), "loss": 0.04 * (0.9 - 0.005 * (i % 5))}, "warning"),
])  # fmt: skip
def test_another_reference_harms_where_it_holds_the_policy_back(trl, row, severity):
    diagnosis = trl([row(i) for i in range(40)], every=1)
    assert found(diagnosis, "kl_runaway") == ("reference_mismatch", severity)


def test_one_lucky_batch_before_the_others_is_no_fall(trl):
    rewards = [0.2, -0.6, -0.55, -0.62, -0.58]
    assert found(trl([{"reward": reward, "reward_std": 0.45} for reward in rewards]), "reward_falling") is None
    assert found(trl([{"reward": reward, "reward_std": 0.05} for reward in rewards]), "reward_falling") is not None


def test_rows_at_the_greatest_length_tell_of_themselves_where_they_are_fewer_than_half(trl):
    lengths = [900.0 if i % 3 == 0 else 700.5 + i for i in range(30)]
    row = {"completions/clipped_ratio": None, "reward": 0.4, "kl": None}
    diagnosis = trl([{**row, "completions/mean_length": length} for length in lengths], every=1)
    assert found(diagnosis, "truncated") == ("limit_too_low", "warning")
    assert "about 53% of the completions are cut off" in str(diagnosis.findings)
    assert found(trl([{**row, "completions/mean_length": 600.5 + i} for i in range(30)], every=1), "truncated") is None


def test_a_part_that_no_answer_gets_to_before_it_is_cut_off_is_no_fault_of_its_rule(trl):
    rows = [{"completions/clipped_ratio": 1.0, "reward": 0.5 + 0.01 * (i % 3), "rewards/answer": 0.0,
             "rewards/form": 0.5 + 0.01 * (i % 3)} for i in range(12)]  # fmt: skip
    diagnosis = trl(rows)
    assert lead(diagnosis) == ("truncated", "never_ends")
    assert next(one for one in diagnosis.findings if one.check == "reward_part_idle").follows == "truncated"


def test_a_kl_of_0_that_unsloth_logs_without_a_penalty_is_no_harm(trl):
    rows = [{"kl": 0.0, "reward": 0.4 + 0.01 * (i * 7 % 5)} for i in range(30)]
    assert found(trl(rows, every=1), "kl_zero") == ("unknown", "warning")
    theirs = [{**row, "completion_length": 180.0} for row in rows]
    assert found(trl(theirs, every=1), "kl_zero") == ("unknown", "info")


@pytest.mark.parametrize(("used", "severity"), [("True", "warning"), ("False", "info")])
def test_a_kl_loss_of_0_is_no_harm_where_the_settings_switch_it_off(tmp_path, used, severity):
    rows = [
        {**VERL, "actor/kl_loss": 0.0, "critic/score/mean": 0.2 + 0.01 * i, "actor/entropy": 0.9 - 0.01 * i}
        for i in range(40)
    ]
    settings = f"actor_rollout_ref.actor.use_kl_loss={used} algorithm.use_kl_in_reward=False"
    lines = [
        f"step:{i} - " + " - ".join(f"{name}:{value}" for name, value in row.items()) for i, row in enumerate(rows)
    ]
    path = tmp_path / "run.log"
    path.write_text("\n".join([f"python -m verl.trainer.main_ppo {settings}", *lines]))
    assert found(diagnose(path)[0], "kl_zero") == ("not_compared", severity)


@pytest.mark.parametrize(("coefficient", "severity"), [(None, "info"), (0.05, "warning")])
def test_a_kl_of_0_in_every_row_of_a_loop_without_a_penalty_was_not_measured(tmp_path, coefficient, severity):
    rows = [
        {
            "step": i,
            "reward": 0.2 + 0.01 * i,
            "kl_ref": 0.0,
            "clip_fraction": 0.05,
            "grad_norm": 0.5,
            "length": 90 + i % 3,
        }
        for i in range(40)
    ]
    config = [] if coefficient is None else [{"config": {"kl_coef": coefficient}}]
    path = tmp_path / "run.jsonl"
    path.write_text("\n".join(map(json.dumps, [*config, *rows])))
    assert found(diagnose(path)[0], "kl_zero") == ("not_compared", severity)


def test_spikes_are_measured_by_themselves_not_by_the_first_steps(trl):
    norms = [12.0, 4.0, 3.0, *([2.5, 0.01, 0.02, 0.01, 0.01, 0.02] * 30)]
    rows = [{"grad_norm": norm, "reward": min(0.2 + 0.01 * i, 0.9), "frac_reward_zero_std": float(norm < 1)}
            for i, norm in enumerate(norms)]  # fmt: skip
    assert found(trl(rows, every=1), "grad_norm") in (None, ("unknown", "info"))


def test_a_rise_within_the_noise_of_few_rows_is_enough_where_the_gradient_alone_is_missing(trl):
    rows = [{"grad_norm": None, "reward": 0.4 + 0.02 * i + 0.09 * (-1) ** i} for i in range(25)]
    assert trl(rows).verdict == "healthy"
    assert "the gradient" in trl(rows).minor[0]
    level = [{"grad_norm": None, "reward": 0.4 + 0.09 * (-1) ** i} for i in range(25)]
    assert trl(level).verdict != "healthy"


def test_a_reward_is_not_flat_while_its_interval_holds_a_gain_worth_having(trl):
    noise = 0.15 * np.random.default_rng(23).normal(size=240)  # its slope may be above 0.1, worth having
    rows = [{"reward": 0.5 + 0.02 * i / 240 + noise[i], "reward_std": 0.4} for i in range(240)]
    diagnosis = trl(rows, every=1)
    assert found(diagnosis, "reward_flat") is None
    assert any(gap.check == "reward_flat" and "worth having" in gap.message for gap in diagnosis.unknown)
    falling = [{**row, "reward": row["reward"] - 0.04 * i / 240} for i, row in enumerate(rows)]
    assert found(trl(falling, every=1), "reward_flat") == ("moving_without_gain", "warning")


@pytest.mark.parametrize(("least", "expected"), [(212.0, ("other_end", "info")), (256.0, ("never_ends", "warning"))])
def test_answers_of_different_lengths_are_not_cut_by_the_limit_though_all_lack_an_end(trl, least, expected):
    row = {"completions/clipped_ratio": 1.0, "completions/min_length": least, "completions/max_length": 256.0}
    assert found(trl([{**row, "reward": 0.2 + 0.01 * i} for i in range(8)]), "truncated") == expected


@pytest.mark.parametrize(("per_token", "severity"), [(lambda i: 0.4, "info"), (lambda i: 0.1 + 0.01 * i, "warning")])
def test_a_kl_that_rises_with_the_length_alone_is_no_runaway(trl, per_token, severity):
    rows = [
        {"kl": per_token(i) if i else 0.0, "reward": 0.4, "completions/mean_length": 60.0 + 3 * i} for i in range(60)
    ]
    assert found(trl(rows, every=1), "kl_runaway")[1] == severity


def test_an_order_that_tells_a_fall_is_said_as_one(trl):
    rewards = [0.68, 1.07, 0.18, -0.25, -0.18, -0.10, -0.32, -0.30]
    found = [
        f for f in trl([{"reward": reward} for reward in rewards], every=10).findings if f.check == "reward_falling"
    ]
    assert "noise gives rows such an order in 2 of 100 logs" in found[0].evidence[0]


def test_five_rows_that_cover_a_run_tell_groups_that_lost_their_signal(trl):
    rows = [(0.5, 0.45), (0.72, 0.7), (0.8, 0.9), (0.525, 0.95), (0.5, 1.0)]
    fields = ({"reward": reward, "frac_reward_zero_std": share} for reward, share in rows)
    diagnosis = trl([{**row, "reward_std": None} for row in fields], every=1000)
    # The last third of five rows is one row: all groups alike.
    assert found(diagnosis, "no_signal_groups") == ("same_answers", "warning")


def test_an_entropy_of_unknown_unit_that_grows_manifold_is_an_explosion(trl):
    entropies = [0.18, 0.27, 0.40, 1.16, 1.53, 1.32]
    rewards = [0.768, 0.936, 0.592, 0.257, 0.435, 0.308]
    diagnosis = trl([{"entropy": e, "reward": r} for e, r in zip(entropies, rewards, strict=True)], every=6)
    assert found(diagnosis, "entropy_explosion") == ("unknown", "warning")


def test_few_rewards_that_only_rise_take_the_harm_from_an_entropy_that_falls(trl):
    rows = [(0.7, 0.77), (0.95, 0.7), (0.95, 0.03), (1.2, 0.001), (1.2, 0.002)]
    diagnosis = trl([{"reward": r, "entropy": e} for r, e in rows], every=100)
    assert diagnosis.verdict != "sick"
