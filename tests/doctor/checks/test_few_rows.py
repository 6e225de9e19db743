"""What needs no trend is said from a row or two, and what few rows cannot show is not."""

import json

import numpy as np
import pytest

from steadyrl.doctor.examine import diagnose


@pytest.fixture
def said(tmp_path):
    """Return a function from rows of metrics to what the doctor says: {check: (cause, severity)}, and the diagnosis."""

    def diagnosed(rows):
        names = list(rows[0])
        lines = [f"| Step | {' | '.join(names)} |", "|---" * (len(names) + 1) + "|"]
        lines += [f"| {i + 1} | {' | '.join(str(row[name]) for name in names)} |" for i, row in enumerate(rows)]
        (tmp_path / "log.md").write_text("\n".join(lines), encoding="utf-8")
        (diagnosis,) = diagnose(tmp_path / "log.md")
        return {f.check: (f.cause, f.severity) for f in diagnosis.findings}, diagnosis

    return diagnosed


def test_a_gradient_of_billions_is_told_from_two_rows(said):
    found, diagnosis = said([{"reward": 0.3, "grad_norm": 4.5e8}, {"reward": 0.31, "grad_norm": 7e8}])
    assert found["grad_norm"] == ("exploding", "critical")
    shown = next(f.evidence[0] for f in diagnosis.findings if f.check == "grad_norm")
    assert "from 4.5e+08 (first steps, from 1) to 7e+08" in shown  # and not the mean of both rows twice
    assert "grad_norm" not in said([{"reward": 0.3, "grad_norm": 45.0}, {"reward": 0.3, "grad_norm": 7.0}])[0]


def test_a_batch_whose_least_and_greatest_reward_are_one_teaches_nothing(said):
    row = {"reward_mean": 0.0, "reward_min": 0.0, "reward_max": 0.0, "kl": 0.01}
    assert said([row])[0]["no_signal_groups"][1] == "critical"
    assert "no_signal_groups" not in said([{**row, "reward_max": 1.0, "reward_mean": 0.25}])[0]


def test_a_gradient_that_comes_and_goes_reaches_the_weights(said):
    rows = [{"reward": 0.2 + 0.1 * (i % 3), "reward_std": 0.3, "grad_norm": 0.0 if i % 5 else 0.4} for i in range(10)]
    found, diagnosis = said(rows)
    assert "grad_norm" not in found
    assert any("nothing tells why" in gap.message for gap in diagnosis.unknown if gap.check == "grad_norm")
    dead = [{**row, "grad_norm": 0.0 if i > 3 else 0.4} for i, row in enumerate(rows)]
    assert said(dead)[0]["grad_norm"][0] == "detached"


def test_rows_of_an_impossible_kl_are_a_fault_though_most_are_calm(tmp_path):
    def said_of(kl):
        row = {"reward_std": 0.3, "frac_reward_zero_std": 0.1, "completions/mean_length": 90.0, "num_tokens": 1.0}
        history = [{"step": i, "reward": 0.2 + 0.02 * i, "kl": value, **row} for i, value in enumerate(kl, start=1)]
        (tmp_path / "trainer_state.json").write_text(json.dumps({"log_history": history, "global_step": 40}))
        (diagnosis,) = diagnose(tmp_path / "trainer_state.json")
        return {finding.check: (finding.cause, finding.severity) for finding in diagnosis.findings}

    kl = np.full(40, 0.4)
    kl[[7, 22]] = 250.0, 900.0
    assert said_of(kl.tolist())["kl_runaway"] == ("spikes", "warning")
    kl[22] = 0.4
    assert said_of(kl.tolist()).get("kl_runaway", ("", ""))[0] != "spikes"


def test_a_gradient_that_grows_because_groups_differ_at_last_is_no_fault(said):
    zero = np.concatenate([np.full(20, 0.95), np.linspace(0.95, 0.1, 20), np.full(160, 0.1)])
    rows = [
        {"reward": 0.1 + 0.002 * i, "frac_reward_zero_std": z, "grad_norm": 0.02 + 0.9 * (0.95 - z)}
        for i, z in enumerate(zero)
    ]
    causes = []
    for shown in (rows, [{**row, "frac_reward_zero_std": 0.2} for row in rows]):
        causes.append({f.cause for f in said(shown)[1].findings if f.check == "grad_norm" and f.harms})
    assert causes == [set(), {"exploding"}]


def test_what_was_not_measured_before_training_is_no_broken_number(tmp_path):
    rows = ['{"step": 0, "reward": null, "kl": null, "accuracy": 0.4}']
    rows += [f'{{"step": {i}, "reward": 0.{i}, "kl": 0.01, "accuracy": 0.5}}' for i in range(1, 9)]
    (tmp_path / "log.jsonl").write_text("\n".join(rows))
    (diagnosis,) = diagnose(tmp_path / "log.jsonl")
    assert "non_finite" not in {finding.check for finding in diagnosis.findings}
    (tmp_path / "log.jsonl").write_text("\n".join([*rows[1:], rows[0].replace('"step": 0', '"step": 9')]))
    (diagnosis,) = diagnose(tmp_path / "log.jsonl")
    assert "non_finite" in {finding.check for finding in diagnosis.findings}


def test_a_small_share_cut_off_explains_no_batch_without_a_signal(said):
    row = {"reward": 0.0, "reward_std": 0.0, "frac_reward_zero_std": 1.0, "completions/clipped_ratio": 0.08}
    _, diagnosis = said([{**row, "completions/mean_length": 300.0}])
    assert diagnosis.findings[0].check == "no_signal_groups" and diagnosis.findings[0].severity == "critical"


def test_paying_for_the_form_alone_is_not_called_too_easy(said):
    rows = [
        {
            "reward": 1.0,
            "reward_std": 0.0,
            "frac_reward_zero_std": 1.0,
            "rewards/form/mean": 1.0,
            "rewards/sum/mean": 0.0,
        }
        for _ in range(12)
    ]
    cause, _ = said(rows)[0]["no_signal_groups"]
    assert cause != "too_easy"


def test_answers_without_any_end_token_never_end_in_any_number_of_rows(said):
    row = {"reward": 0.4, "kl": 0.01, "n_eos_tokens": 0}
    assert said([row, row])[0]["truncated"] == ("never_ends", "critical")
    assert "truncated" not in said([row, {**row, "n_eos_tokens": 9}])[0]


def losses(idle, small=False):
    rng = np.random.default_rng(3)
    dead = rng.random(120) < idle
    size = np.where(dead, 0.0, rng.normal(0, 20, 120) + 90)
    size[~dead] *= 1e-6 ** np.linspace(0, 1, (~dead).sum()) if small else 1.0
    return [{"reward": 0.0 if d else 0.125, "loss": float(x)} for d, x in zip(dead, size, strict=True)]


def test_losses_of_exactly_0_beside_large_ones_are_steps_without_a_signal(said):
    assert said(losses(0.9))[0]["no_signal_groups"][0] == "too_hard"
    assert said(losses(0.6))[0]["no_signal_groups"][0] == "too_hard"
    assert "no_signal_groups" not in said(losses(0.3))[0]
    assert "no_signal_groups" not in said(losses(0.9, small=True))[0]  # may have been rounded to 0


def test_a_gain_is_sized_by_the_mean_where_most_rewards_are_0(said):
    gaps = said(losses(0.9, small=True))[1].unknown
    assert not any(" 0 would be worth having" in gap.message for gap in gaps)


def test_a_form_that_pays_without_an_answer_that_is_right_is_a_proxy(said):
    def rows(right):
        return [
            {
                "reward/total": 0.2 + 0.012 * i + right * i,
                "reward/is_exact_k": right * i,
                "reward/runs_k": 0.2 + 0.012 * i,
            }
            for i in range(40)
        ]

    assert said(rows(0.0))[0]["reward_hacking"] == ("rightness_idle", "warning")
    assert "reward_hacking" not in said(rows(0.004))[0]
    assert "reward_hacking" not in said(rows(0.0)[:20])[0]
    # Once the form is learned and the whole is level, half as many steps are enough.
    level = [*rows(0.0)[:8], *(rows(0.0)[8:9] * 12)]
    assert said(level)[0]["reward_hacking"] == ("rightness_idle", "warning")


def test_in_a_distillation_a_reward_of_0_is_no_fault_and_falling_entropy_is(said):
    row = {"reward": 0.0, "reward_std": 0.0, "length": 300.0}
    rows = [{**row, "distill_kl": 4.0 * 0.8**i, "entropy": 3.0 * 0.8**i} for i in range(40)]
    assert not {"reward_constant", "no_signal_groups"} & said(rows)[0].keys()
    assert "reward_constant" in said([{**row, "kl": 0.1} for _ in rows])[0]


def test_a_few_kls_deep_below_0_are_a_fault_and_a_few_near_it_are_not(said):
    def rows(*kl):
        return [{"reward": 0.4, "kl": value} for value in kl]

    assert said(rows(0.0, -2.1, -3.0, -2.6, -2.2))[0]["negative_kl"][1] == "critical"
    assert "negative_kl" not in said(rows(0.0, -2.1, -30.0, -1.2, 0.4))[0]
    assert "negative_kl" not in said(rows(0.0, -0.2, -0.3, -0.25, -0.2))[0]


def test_what_a_row_shows_is_said_as_a_sentence(said):
    _, diagnosis = said([{"reward_mean": 0.5, "reward_min": 0.5, "reward_max": 0.5}] * 2)
    told = next(f for f in diagnosis.findings if f.check == "no_signal_groups")
    assert told.message.startswith("in 100% of the rows all rewards are equal, so that they teach nothing: ")


def test_one_row_has_no_start_and_no_end(said):
    _, diagnosis = said([{"reward": 0.0, "grad_norm": 3e8, "truncated": 0.9, "no_signal": 1.0}])
    assert len(diagnosis.findings) >= 3
    texts = [text for finding in diagnosis.findings for text in (finding.message, *finding.evidence)]
    assert not any("at the start" in text or "went from" in text for text in texts)


@pytest.mark.parametrize(("rows", "told"), [(6, False), (9, True)])
def test_one_length_in_a_handful_of_rows_is_no_limit_yet(said, rows, told):
    found, _ = said([{"reward": 7.0 + i % 3, "completion_length": 437.0, "kl": 0.3} for i in range(rows)])
    assert ("truncated" in found) == told


def test_what_is_broken_in_the_first_row_has_no_first_cause(said):
    row = {"reward": 0.3, "kl": float("nan"), "entropy": float("nan"), "grad_norm": float("nan")}
    _, diagnosis = said([row, row, row])
    (message,) = [f.message for f in diagnosis.findings if f.check == "non_finite"]
    assert "from step 1 to the end" in message and "nothing tells which was first" in message
    sound = {"reward": 0.3, "kl": 0.1, "entropy": 1.0, "grad_norm": 0.5}
    _, diagnosis = said([sound, sound, {**sound, "kl": float("nan")}, row])
    (message,) = [f.message for f in diagnosis.findings if f.check == "non_finite"]
    assert "overflowed first" in message


def test_a_kl_that_breaks_out_in_the_last_row_is_a_fault_in_whatever_unit(said):
    rows = [{"reward": 0.5, "kl": 0.4, "loss": 0.1}, {"reward": 0.25, "kl": 190.0, "loss": 240.0}]
    [finding] = said(rows)[1].findings
    assert (finding.check, finding.severity) == ("kl_runaway", "warning")
    calm = said([rows[0], {"reward": 0.55, "kl": 0.5, "loss": 0.1}])[1].judgement
    assert calm is not None and calm.verdict == ""


def test_a_kl_that_is_nothing_but_noise_tells_that_a_flat_reward_stands_still(said):
    rng = np.random.default_rng(1)
    rows = [{"reward": x, "kl": y} for x, y in zip(rng.normal(-2, 0.6, 300), rng.normal(0, 0.003, 300), strict=True)]
    found = said(rows)[1].findings[0]
    assert (found.check, found.cause) == ("reward_flat", "not_moving")
    moved = [{**row, "kl": row["kl"] + 0.002} for row in rows]
    assert not any(finding.cause == "not_moving" for finding in said(moved)[1].findings)


def test_single_rewards_scatter_by_what_a_gain_would_have_to_pass(said):
    rng = np.random.default_rng(6)
    every = [{"reward": x} for x in rng.choice([-1.5, 1.0], 2000, p=[0.6, 0.4])]  # of a mean of -0.5
    assert said(every)[1].findings[0].check == "reward_flat"  # by a tenth of the mean the noise would hide a gain
    assert not any(found.harms for found in said(every[:60])[1].findings)


def test_a_penalty_that_is_never_earned_is_no_answer_that_is_never_right(said):
    def rows(right):
        return [
            {"reward": 0.1 + n / 60, "rewards/form": 0.1 + n / 60 - right[n], "rewards/date_correct": right[n]}
            for n in range(40)
        ]

    idle, penalty = [0.0] * 40, [-0.25 if n in (3, 8) else 0.0 for n in range(40)]
    assert said(rows(idle))[1].findings[0].cause == "rightness_idle"
    assert not any(found.harms for found in said(rows(penalty))[1].findings)


def test_answers_that_all_have_the_length_of_a_usual_limit_are_cut_off_in_two_rows(said):
    rows = [{"step": i, "reward_mean": r, "resp_len": 255.0} for i, r in enumerate((0.0, 10.0, 5.0))]
    assert said(rows)[0]["truncated"] == ("never_ends", "warning")
    assert "truncated" not in said([{**row, "resp_len": 253.0} for row in rows])[0]
    assert "truncated" not in said([{**row, "resp_len": 255.0 - row["step"]} for row in rows])[0]


def test_a_reward_that_is_its_least_in_most_rows_and_does_not_rise_pays_hardly_a_completion(said):
    paid = {2: 0.07, 5: 0.21, 8: 0.11, 11: 0.03, 14: 0.18, 17: 0.05, 20: 0.16, 23: 0.04, 26: 0.2, 29: 0.06}
    rows = [{"reward": 0.43 + paid.get(i, 0.0), "loss": -0.1 * (i % 7)} for i in range(30)]
    found, diagnosis = said(rows)
    assert found["reward_constant"] == ("mostly_least", "warning")
    assert "exactly 0.43, its least, in 20 of 30 rows" in diagnosis.findings[0].message
    rising = [{**row, "reward": row["reward"] + 0.001 * i} for i, row in enumerate(rows)]
    assert "reward_constant" not in said(rising)[0]


def test_a_flat_training_reward_is_no_fault_where_held_out_measurements_rose(said):
    rng = np.random.default_rng(0)
    rows = [{"step": i, "reward": r} for i, r in enumerate(0.6 + 0.02 * rng.normal(size=200))]
    assert "reward_flat" in said(rows)[0]
    measured = [{**row, "eval_acc": {0: 15.0}.get(i, 42.0) if i % 50 == 0 else "-"} for i, row in enumerate(rows)]
    assert "reward_flat" not in said(measured)[0]


def test_a_reward_that_is_its_least_in_many_of_a_hundred_rows_has_no_signal(said):
    rng = np.random.default_rng(4)
    paid = rng.integers(1, 7, 140) / 24.0  # of 24 completions a step
    rows = [{"reward": 0.0 if rng.random() < 0.45 else float(x)} for x in paid]
    found, diagnosis = said(rows)
    assert found["reward_flat"] == ("no_signal", "warning")
    assert "the reward is exactly 0, its least, in 51 of 140 rows" in diagnosis.findings[0].message
    assert "reward_flat" not in said(rows[:80])[0]
    assert "reward_flat" not in said([{"reward": row["reward"] + 0.004 * i} for i, row in enumerate(rows)])[0]


def test_three_rows_of_six_far_beyond_the_bound_tell_a_sampler_of_other_weights(said):
    def rows(*gaps):
        return [{"reward mean": 0.5 - 0.06 * i, "rollout_corr/kl": gap} for i, gap in enumerate(gaps)]

    assert said(rows(0.0004, 0.05, 0.31, 7.5, 9.0, 12.0))[0]["sampler_mismatch"] == ("stale_weights", "warning")
    assert "sampler_mismatch" not in said(rows(0.0004, 0.05, 0.03, 0.02, 9.0, 12.0))[0]
    assert "sampler_mismatch" not in said(rows(0.31, 7.5))[0]


def test_strict_answers_of_which_none_is_right_are_named_in_a_few_rows_far_apart(tmp_path):
    def idle(strict, apart=12):
        rewards = (0.21, 0.18, 0.22, 0.25, 0.25)
        rows = [f"| {apart * i} | {reward} | {strict}% |" for i, reward in enumerate(rewards, 1)]
        (tmp_path / "log.md").write_text("\n".join(["| step | reward | strict acc |", "|---|---|---|", *rows]))
        (diagnosis,) = diagnose(tmp_path / "log.md")
        return [f.severity for f in diagnosis.findings if (f.check, f.cause) == ("reward_part_idle", "never_right")]

    assert idle(0.0) == ["warning"]
    assert idle(0.0, apart=4) == ["info"]  # what is hard to earn is given fifty steps
    assert idle(3.5) == []


@pytest.mark.parametrize(
    ("right", "severity"), [((3, 5, 5), "info"), ((4, 4, 4), "warning"), ((5, 4, 3), "warning"), ((0, 1, 0), "warning")]
)
def test_groups_that_agree_more_often_right_are_worth_knowing(said, right, severity):
    rng = np.random.default_rng(7)
    rows = [row for part in right for row in _third(rng, part)]
    assert said(rows)[0]["no_signal_groups"][1] == severity


def _third(rng, right):
    """Return 24 rows: of 15 whose completions agree about ``right`` of 8 are right, and in 9 half of them are."""
    agree = [{"reward": float(i < round(15 * right / 8)), "loss": 0.0} for i in range(15)]
    differ = [{"reward": 0.5, "loss": float(size)} for size in rng.normal(30, 4, 9)]
    return list(rng.permutation(np.array([*agree, *differ], dtype=object)))


def test_a_kl_of_many_nats_below_0_is_told_from_a_row_whatever_the_others_are(said):
    def rows(*kl):
        return [{"reward": 0.4, "kl": value} for value in kl]

    assert said(rows(-31.5))[0]["negative_kl"][1] == "critical"
    found, diagnosis = said(rows(-17.5, -260.0, -41.0, -16.5))  # too unlike each other for a mean beyond its error
    assert found["negative_kl"][1] == "critical"
    assert next(f.since_step for f in diagnosis.findings if f.check == "negative_kl") == 1
    assert "negative_kl" not in said(rows(-1.5))[0]
    assert "negative_kl" not in said(rows(0.4, -0.9, -33.0, 0.2))[0]  # a broken batch


def test_a_probability_ratio_of_thousands_is_told_from_a_row(said):
    assert "ratio_off" in said([{"reward": 0.4, "ratio": 1.0, "batch_ratio": 3100.0}])[0]
    assert "ratio_off" in said([{"reward": 0.4, "policy/loss_metrics/clip_ratio": 0.1, "ratios": 52.0}])[0]
    assert "ratio_off" not in said([{"reward": 0.4, "batch_ratio": 1.02}])[0]


@pytest.mark.parametrize("name", ["solved%", "success rate", "correct"])
def test_answers_that_are_never_right_while_the_reward_rises_are_named_without_another_part(said, name):
    rewards = np.concatenate([np.linspace(0.5, 2.0, 20), np.full(20, 2.0)])
    never = [{"reward": x, name: 0.0, "kl": 0.1} for x in rewards]
    assert said(never)[0]["reward_hacking"] == ("rightness_idle", "warning")
    right = [{"reward": x, name: x / 2.0, "kl": 0.1} for x in rewards]
    assert "reward_hacking" not in said(right)[0]
