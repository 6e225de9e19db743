"""Two runs: what is set differently, what parts first, and what is behind it."""

import json
from dataclasses import replace

import numpy as np
import pytest

from steadyrl.doctor.differ import differ, sentences
from steadyrl.doctor.examine import diagnose
from steadyrl.doctor.statistics.gap import gap
from tests.doctor.checks.series_for_values import healthy, make_run, noise, rise

N = 200


def test_two_seeds_of_one_config_do_not_part():
    parted = 0
    for seed in range(20):
        found = differ(healthy(seed, N, algorithm="grpo"), healthy(seed + 100, N, algorithm="grpo"))
        assert found.settings == ()
        parted += any(part.lasting for part in found.parted)
    assert parted <= 2, parted


def test_a_handful_of_rows_is_called_too_few_and_not_alike():
    one, other = (make_run({"reward": rise(5, 0.0, end)}, trainer="unknown") for end in (0.4, 0.9))
    assert differ(one, other).cause.startswith("they share fewer than 10 rows of every quantity")
    one, other = (make_run({"reward": rise(12, 0.0, end)}, trainer="unknown") for end in (0.4, 0.4))
    assert differ(one, other).cause.startswith("nothing that both log differs beyond its noise")


def test_a_learning_rate_is_named_by_meaning_and_by_key_with_the_quantity_that_it_moves():
    rng = np.random.default_rng(0)
    slow, fast = (0.01 * np.exp(noise(rng, N, 0.2)), 0.08 * np.exp(noise(rng, N, 0.2)))
    one = healthy(1, N, kl_old=slow, settings={"learning_rate": 1e-5})
    other = healthy(1, N, kl_old=fast, settings={"learning_rate": 1e-4})
    found = differ(one, other)
    assert [(s.name, s.values) for s in found.settings] == [("learning_rate", (1e-5, 1e-4))]
    assert found.settings[0].keys == ("update.learning_rate", "update.learning_rate")
    assert found.parted[0].quantity == "kl_old" and found.parted[0].step == 0
    assert found.cause.startswith("learning_rate is set differently, 1e-05 and 0.0001; kl_old from step 0")
    assert found.cause.endswith("is the first to differ, which learning_rate moves directly")


def test_the_quantity_that_parts_first_leads_and_its_step_is_near_the_truth():
    entropy = np.full(N, 2.0) + noise(np.random.default_rng(3), N, 0.02)
    reward = rise(N, 0.4, 0.6) + noise(np.random.default_rng(4), N, 0.01)
    later = np.arange(N)
    one = healthy(1, N, entropy=entropy, reward=reward)
    other = healthy(1, N, entropy=entropy - 1.0 * (later >= 60), reward=reward - 0.3 * (later >= 120))
    found = differ(one, other)
    assert [part.quantity for part in found.parted] == ["entropy", "reward"]
    assert 55 <= found.parted[0].step <= 65 and 115 <= found.parted[1].step <= 125
    assert "no setting that is known of both differs" in found.cause
    assert sentences(found)[0] == f"likely: {found.cause}"


def test_a_run_does_not_part_from_itself():
    run = healthy(5, N)
    found = differ(run, run)
    assert found.parted == () and found.settings == ()
    assert "reward" in found.together


def test_a_coefficient_that_is_logged_and_not_equal_is_what_was_set():
    one, other = healthy(1, N, kl_coef=np.full(N, 0.02)), healthy(2, N, kl_coef=np.full(N, 0.0005))
    found = differ(one, other)
    assert (found.parted[0].quantity, found.parted[0].step) == ("kl_coef", 0)
    assert found.cause.startswith("kl_coef is set differently, 0.02 and 0.0005; ")


def test_a_gap_that_opens_and_closes_again_is_no_noise():
    rng = np.random.default_rng(11)
    n = 60
    slow, fast = rise(n, 0.1, 0.9, pace=2.0), rise(n, 0.1, 0.9, pace=12.0)
    found = differ(
        make_run({"reward": slow + noise(rng, n, 0.06, 0.0)}), make_run({"reward": fast + noise(rng, n, 0.06, 0.0)})
    )
    (part,) = found.parted
    assert part.between[0] <= part.step <= part.between[1] <= 8
    assert part.levels[1] - part.levels[0] > 0.2


def test_noise_alone_differs_in_one_pair_of_a_hundred_whatever_its_memory():
    rng = np.random.default_rng(12)
    for memory, n in ((0.0, 25), (0.5, 60), (0.8, 150)):
        wrong = sum(gap(noise(rng, n, 1.0, memory), noise(rng, n, 1.0, memory), 0.01) is not None for _ in range(80))
        assert wrong <= 5, (memory, n, wrong)  # of 80 one is expected, and more than five once in a thousand


def test_the_interval_of_the_first_step_holds_the_truth():
    rng = np.random.default_rng(13)
    covered = []
    for _ in range(30):
        one, other = noise(rng, 200, 0.7, 0.3), noise(rng, 200, 0.7, 0.3)
        found = gap(one + 1.5 * (np.arange(200) >= 90), other, 0.01)
        assert found is not None and abs(found.start - 90) < 40
        covered.append(found.earliest <= 90 <= found.latest)
    assert np.mean(covered) > 0.8


def test_equal_levels_never_part():
    level = np.full(40, 0.7361)
    level[:3] = 0.9, 0.8, 0.75
    found = differ(make_run({"reward": level}), make_run({"reward": level * 1.002}))
    assert found.parted == ()


def test_a_learning_rate_is_told_by_its_peak_and_not_by_its_warm_up():
    warm = np.minimum(np.arange(50) / 10.0, 1.0)
    found = differ(make_run({"learning_rate": 3e-6 * warm}), make_run({"learning_rate": 6e-5 * warm}))
    assert "learning_rate is set differently, 3e-06 and 6e-05" in found.cause
    late = make_run({"learning_rate": 3e-6 * np.minimum(np.arange(50) / 40.0, 1.0)})
    assert "by its schedule, 3e-06 at most in both" in differ(make_run({"learning_rate": 3e-6 * warm}), late).cause


ROWS = [{"step": i, "reward": 0.1 + 0.01 * i, "loss": 0.5} for i in range(20)]


def write(path, rows):
    path.parent.mkdir(exist_ok=True)
    path.write_text("\n".join(map(json.dumps, rows)))
    (diagnosis,) = diagnose(path)
    return diagnosis.run


@pytest.mark.parametrize(
    "row",
    [{"type": "config", "hparams": {"lr": 3e-5, "dropout": 0.1}}, {"kind": "settings", "lr": 3e-5, "dropout": 0.1}],
)
def test_settings_in_the_first_row_are_no_metrics_and_a_difference_in_them_leads(tmp_path, row):
    one = write(tmp_path / "a.jsonl", [row, *ROWS])
    other = write(tmp_path / "b.jsonl", [json.loads(json.dumps(row).replace("0.1", "0.3")), *ROWS])
    assert one.settings["learning_rate"] == 3e-5 and "lr" not in one.unknown and one.steps == 20
    assert differ(one, other).cause.startswith("dropout is set differently, 0.1 and 0.3; nothing else that both log")


def test_settings_beside_the_only_log_of_a_folder_are_its_own(tmp_path):
    for name, rate in (("a", 1e-6), ("b", 8e-6)):
        (tmp_path / name).mkdir()
        (tmp_path / name / "args.json").write_text(json.dumps({"learning_rate": rate, "output_dir": name}))
        (tmp_path / name / "config.json").write_text(json.dumps({"model_type": "qwen2", "learning_rate": 5.0}))
    one, other = (write(tmp_path / name / "log.jsonl", ROWS) for name in "ab")
    assert any("args.json" in note for note in one.notes)
    assert [(s.name, s.values) for s in differ(one, other).settings] == [("learning_rate", (1e-6, 8e-6))]
    write(tmp_path / "a" / "second.jsonl", ROWS)
    assert "learning_rate" not in write(tmp_path / "a" / "log.jsonl", ROWS).settings


def test_a_drift_beyond_the_noise_of_steps_is_told_as_what_another_seed_may_do_too():
    rng = np.random.default_rng(21)
    n = 60
    wander = 0.3 * np.sin(np.arange(n) / 12.0)  # much more than the noise of a step, and slower
    one, other = (0.6 + sign * wander + rng.normal(size=n) * 0.005 for sign in (1, -1))
    steady = rng.normal(size=(2, n)) * 0.02
    runs = [make_run({"truncated": x, "entropy": 1.0 + y}) for x, y in zip((one, other), steady, strict=True)]
    found = differ(*runs)
    assert [(part.quantity, part.lasting) for part in found.parted] == [("truncated", False)]
    assert found.parted[0].step <= 10 and found.parted[0].levels[0] > found.parted[0].levels[1]
    assert "truncated from step" in found.cause and "as another seed may" in found.cause
    assert any(
        line.startswith("differ, and the noise of another seed may explain it: truncated") for line in sentences(found)
    )


def test_a_gap_of_a_few_dozen_steps_shows_by_the_noise_of_both_runs():
    rng = np.random.default_rng(22)
    told = [gap(noise(rng, 40, 1.0, 0.3) + 1.9, noise(rng, 40, 1.0, 0.3), 0.01) is not None for _ in range(300)]
    assert np.mean(told) > 0.6  # by the noise of the difference alone half of them


def config_run(columns, **config):
    return replace(make_run(columns, trainer="other"), config=config)


def test_a_logged_learning_rate_leads_over_how_long_a_run_is_and_how_often_it_is_written():
    warm = np.minimum(np.arange(60) / 10.0, 1.0)
    one = config_run(
        {"learning_rate": 2e-6 * warm}, save_every=10, logging_steps=2, global_step=60, seed=1, dropout=0.1
    )
    other = config_run(
        {"learning_rate": 9e-6 * warm}, save_every=20, logging_steps=5, global_step=77, seed=2, dropout=0.2
    )
    found = differ(one, other)
    assert [setting.name for setting in found.settings] == ["learning_rate", "dropout", "seed"]
    assert found.cause.startswith("learning_rate is set differently, 2e-06 and 9e-06, and so are dropout, seed; ")


def test_a_model_is_a_setting_and_a_path_is_none_and_what_is_written_twice_differs_once():
    one = config_run(
        {}, **{"judge_model_name": "acme/small-1B", "run_name": "x", "data": "./a.jsonl", "cli.alpha": 4, "alpha": 4}
    )
    other = config_run(
        {}, **{"judge_model_name": "acme/big-7B", "run_name": "y", "data": "./b.jsonl", "cli.alpha": 8, "alpha": 8}
    )
    assert {s.name: s.values for s in differ(one, other).settings} == {
        "judge_model_name": ("acme/small-1B", "acme/big-7B"),
        "alpha": (4, 8),
    }


def test_series_that_are_equal_in_both_runs_cost_no_certainty():
    rng = np.random.default_rng(23)
    columns = [{"reward": level + rng.normal(size=30) * 0.1} for level in (0.5, 0.66)]
    same = {f"reward_part/{i}": np.full(30, 0.1 * i) for i in range(40)}
    for more in ({}, same):
        assert [part.quantity for part in differ(*(make_run(c | more) for c in columns)).parted] == ["reward"]


def test_another_algorithm_leads_over_what_follows_from_it():
    one = make_run({"reward": np.full(20, 0.5)}, algorithm="ppo", trainer="trl-ppo", settings={"kl_place": "reward"})
    other = make_run({"reward": np.full(20, 0.5)}, algorithm="grpo", trainer="trl-grpo", settings={"kl_place": "loss"})
    assert differ(one, other).cause.startswith(
        "algorithm is set differently, ppo and grpo, and so are trainer, kl_place"
    )
    assert differ(one, replace(one, trainer="unknown", algorithm="")).settings == ()


def test_a_collapse_is_told_though_it_makes_the_noise_of_its_steps_large():
    rng = np.random.default_rng(31)
    steady = 0.8 + 0.1 * np.sin(np.arange(40) / 8.0) + rng.normal(size=40) * 0.03
    falls = np.where(np.arange(40) < 5, 0.8, 0.02) + rng.normal(size=40) * 0.01
    (part,) = differ(make_run({"reward": steady}), make_run({"reward": falls})).parted
    assert part.step in (4, 5) and part.levels[1] < 0.1 < part.levels[0]


@pytest.mark.parametrize("n", [20, 30])
def test_rewards_that_cross_within_thirty_steps_differ_by_their_trend(n):
    rng, t = np.random.default_rng(n), np.linspace(-1.0, 1.0, n)
    assert gap(0.1 * rng.normal(size=n) + t, 0.1 * rng.normal(size=n) - t, 0.01) is not None
    equal = [gap(rng.normal(size=n), rng.normal(size=n), 0.01) for _ in range(200)]
    assert sum(one is not None for one in equal) <= 4


@pytest.mark.parametrize("n", [12, 20, 40])
def test_a_collapse_by_orders_of_magnitude_beside_a_steady_run_is_a_difference(n):
    rng = np.random.default_rng(0)
    steady = 0.47 + rng.normal(0, 0.08, n)
    lost = np.concatenate([np.geomspace(0.5, 1e-4, n // 2), 1e-4 * np.exp(rng.normal(0, 0.8, n - n // 2))])
    found = differ(make_run({"entropy": lost}), make_run({"entropy": steady}))
    assert [part.quantity for part in found.parted] == ["entropy"] and found.parted[0].step <= n // 2


def test_what_one_run_logs_alone_is_named():
    one = healthy(1, N, without=["kl_ref", "time_step"])
    found = differ(one, healthy(2, N, without=["reward_part/structure"]))
    assert found.alone == (("reward_part/structure",), ("kl_ref",))
    assert "logged by the second only: kl_ref" in sentences(found)


def test_what_a_trainer_saves_of_its_state_is_no_setting_and_another_algorithm_is_said_once():
    rng = np.random.default_rng(7)
    columns = [{"reward": 0.5 + 0.02 * rng.normal(size=40)} for _ in range(2)]
    state = {
        "stateful_callbacks.TrainerControl.args.should_training_stop": True,
        "best_metric": 0.5,
        "is_world_zero": 1,
    }
    one = replace(make_run(columns[0], "ppo"), config={**state, "adv_estimator": "ppo", "dropout": 0.1})
    other_state = dict.fromkeys(state, 0)
    other = replace(make_run(columns[1], "rloo"), config={**other_state, "adv_estimator": "rloo", "dropout": 0.2})
    assert [setting.name for setting in differ(one, other).settings] == ["algorithm", "dropout"]


@pytest.mark.parametrize(("higher", "direct"), [(0.02, False), (0.5, True)])
def test_a_higher_rate_moves_directly_only_what_is_more_with_it(higher, direct):
    rng = np.random.default_rng(8)
    sizes = [level * np.exp(noise(rng, N, 0.1)) for level in (0.1, higher)]
    pairs = zip(sizes, (1e-6, 5e-6), strict=True)
    runs = [make_run({"kl_old": size}, settings={"learning_rate": rate}) for size, rate in pairs]
    cause = differ(*runs).cause
    assert cause.startswith("learning_rate is set differently") and ("moves directly" in cause) is direct


def test_another_trainer_leads_whatever_its_settings_move():
    rng = np.random.default_rng(9)
    sizes = [0.1 * np.exp(noise(rng, N, 0.1)), 0.5 * np.exp(noise(rng, N, 0.1))]
    rates, trainers = (1e-6, 5e-6), ("verl", "trl-grpo")
    runs = [
        make_run({"kl_old": size}, trainer=trainer, settings={"learning_rate": rate})
        for size, rate, trainer in zip(sizes, rates, trainers, strict=True)
    ]
    assert differ(*runs).cause.startswith("trainer is set differently, verl and trl-grpo, and so is learning_rate")
