"""Settings far from usual are suspected where a run falls short, and never in a sound run."""

from dataclasses import replace
from math import log10
from pathlib import Path

import numpy as np
import pytest

from steadyrl.core import config
from steadyrl.core.types import Finding
from steadyrl.doctor.checks.unusual import SECTIONS, USUAL, suspects
from steadyrl.doctor.examine import examine
from steadyrl.doctor.names.identify import identify
from steadyrl.doctor.readers.spelling import flat_settings
from steadyrl.doctor.remedies import with_rate
from steadyrl.doctor.series import Column, RawLog, Run

ROOT = Path(__file__).parents[3]
ALGORITHMS = ("ppo", "grpo", "rloo", "reinforce", "rlaif", "raft", "rwr", "sft")
N = 60
RNG = np.random.default_rng(0)
FLAT = 0.2 + 0.01 * RNG.normal(size=N)
RISING = 0.95 - 0.75 * np.exp(-np.arange(N) / 10) + 0.01 * RNG.normal(size=N)
HALF_WAY = 0.55 - 0.35 * np.exp(-np.arange(N) / 10) + 0.01 * RNG.normal(size=N)


def resolved(*overrides, algorithm="ppo"):
    data = {"rewards": {"structure": 1.0}, "algorithm": {"name": algorithm}, "run": {"steps": N}}
    return config.resolve(data, overrides)


def settings_of(chosen):
    return flat_settings(config.dump(chosen))


def suspected(chosen):
    return suspects(Run("made", "steadyrl", "", {}, config=settings_of(chosen)))


def examined(reward, *overrides, algorithm="ppo", **columns):
    """Examine a run of ours whose policy moves; its best completions earn 1."""
    every = {
        "reward/mean": reward,
        "reward/std": 0.2 + 0.01 * RNG.normal(size=N),
        "reward/max": np.ones(N),
        "reward/structure": reward,
        "kl_old_k3": 0.005 * np.exp(0.1 * RNG.normal(size=N)),
        "kl_ref_k1_seq": 2.0 * np.arange(N) / N,
        "entropy": 2.0 - 0.5 * np.arange(N) / N + 0.01 * RNG.normal(size=N),
        **columns,
    }
    steps, chosen = np.arange(N), resolved(*overrides, algorithm=algorithm)
    log = RawLog("made", "steadyrl", {k: Column(steps, v) for k, v in every.items()}, settings_of(chosen))
    return examine(identify(log))


def finding(diagnosis, check="unusual_setting"):
    return next((found for found in diagnosis.findings if found.check == check), None)


FAR = [
    ("sampling.temperature=0.2", "sampling.temperature=1"),
    ("sampling.top_k=1", "sampling.top_k=0"),
    ("rollout.ahead=8", "rollout.ahead=0"),
    ("update.epochs=40", "update.epochs=2"),
    ("algorithm.args.gamma=0.5", "algorithm.args.gamma=1"),
    ("algorithm.args.value_coef=300", "algorithm.args.value_coef=0.1"),
    ("algorithm.args.clip_value=0.0001", "algorithm.args.clip_value=0.2"),
    ("algorithm.args.whiten_rewards=true", "algorithm.args.whiten_rewards=false"),
    ('sampling.stop=["e"]', "sampling.stop=[]"),
]


@pytest.mark.parametrize(("setting", "default"), FAR)
def test_a_setting_far_from_usual_leads_where_the_reward_does_not_rise(setting, default):
    diagnosis = examined(FLAT, setting)
    lead = diagnosis.findings[0]
    assert (lead.check, lead.severity, lead.overrides) == ("unusual_setting", "warning", (default,))
    assert "Suspected, not measured" in lead.remedy
    config.resolve(config.dump(resolved(setting)), lead.overrides)


@pytest.mark.parametrize(("setting", "default"), FAR)
def test_no_setting_is_suspected_where_the_reward_comes_to_the_best(setting, default):
    assert finding(examined(RISING + 0.04 * np.arange(N) / N, setting)) is None


@pytest.mark.parametrize(("setting", "default"), FAR)
def test_a_number_far_from_usual_is_worth_knowing_where_the_reward_stays_a_tenth_below_the_best(setting, default):
    """From 0.2 the last tenth begins at 0.92; a switch was meant, then."""
    diagnosis = examined(0.93 * RISING, setting)
    known, switch = finding(diagnosis), default.endswith("=false")
    assert known is None if switch else (known.cause, known.overrides) == ("near_best", (default,))
    assert diagnosis.harmful == ()


def test_no_measured_advice_takes_along_a_setting_where_the_reward_is_near_the_best():
    diagnosis = examined(
        0.93 * RISING, "algorithm.args.value_coef=200", "update.max_grad_norm=1e-7", grad_norm=np.ones(N)
    )
    limit = finding(diagnosis, "limit_too_narrow")
    assert limit.harms and not any("value_coef" in override for override in limit.overrides)


def test_a_reward_that_rises_half_way_makes_the_suspicion_information():
    diagnosis = examined(HALF_WAY, "algorithm.args.gamma=0.5")
    assert (finding(diagnosis).severity, diagnosis.harmful) == ("info", ())


def test_the_usual_settings_are_not_suspected_however_ill_the_run():
    assert finding(examined(FLAT)) is None


def test_suspects_are_ordered_by_their_decades_beyond_the_range():
    """0.1 of the least temperature 0.5, a millionth of max_grad_norm 0.01, and 2 tokens of half of 32, by hand."""
    several = suspected(resolved("update.max_grad_norm=1e-6", "algorithm.args.gamma=0.5", "sampling.temperature=0.1"))
    assert [s.name.rpartition(".")[2] for s in several] == ["max_grad_norm", "gamma", "temperature"]
    first, second, third = (s.decades for s in several)
    assert first - second == pytest.approx(4.0 - log10(16 / 2))
    assert second - third == pytest.approx(log10(16 / 2) - log10(5.0))


@pytest.mark.parametrize(("gamma", "tokens", "suspect"), [(0.97, 80, True), (0.97, 60, False), (0.99, 80, False)])
def test_a_discount_is_usual_where_it_looks_ahead_for_half_of_an_answer(gamma, tokens, suspect):
    """0.97 looks 33 tokens ahead, 0.99 looks 100."""
    several = suspected(resolved(f"algorithm.args.gamma={gamma}", f"sampling.max_new_tokens={tokens}"))
    assert [s.default for s in several] == ([1.0] if suspect else [])


def test_two_settings_are_set_back_together():
    found = finding(examined(FLAT, "algorithm.args.gamma=0.5", "sampling.top_k=1"))
    assert set(found.overrides) == {"algorithm.args.gamma=1", "sampling.top_k=0"}


def test_measured_advice_leads_and_takes_suspects_along():
    """A warm-up as long as the run is measured; the discount beside it is suspected."""
    diagnosis = examined(FLAT, f"update.warmup_steps={N}", "algorithm.args.gamma=0.5")
    lead = diagnosis.findings[0]
    assert lead.check == "rate_not_reached"
    assert set(lead.overrides) == {"update.warmup_steps=6", "algorithm.args.gamma=1"}
    assert lead.remedy.endswith("Set back what else lies far from usual: algorithm.args.gamma=1.")
    assert finding(diagnosis) is None


def test_a_threshold_that_no_answer_reaches_is_set_to_what_a_quarter_of_them_do():
    """Rewards of 0.2 with a deviation of 0.1: 0.2 + 0.67 x 0.1."""
    columns = {"reward/std": np.full(N, 0.1), "grad_norm": np.zeros(N), "advantage/used": np.zeros(N)}
    wanted = ("algorithm.args.keep=above", "algorithm.args.reward_threshold=0.95")
    diagnosis = examined(np.where(np.arange(N) % 2, 0.19, 0.21), *wanted, algorithm="rlaif", **columns)
    kept = finding(diagnosis, "grad_norm")
    assert (kept.cause, kept.overrides) == ("nothing_kept", ("algorithm.args.reward_threshold=0.267",))


def test_selection_that_keeps_most_answers_selects_nothing():
    """Five of eight answers kept are beyond a half; three of eight are usual."""
    args = ("rollout.samples_per_prompt=8", "algorithm.args.top_k={}")
    several, few = (suspected(resolved(args[0], args[1].format(k), algorithm="raft")) for k in (5, 3))
    assert [s.name for s in several] == ["algorithm.args.top_k"] and few == []


@pytest.mark.parametrize(
    ("temperature", "step", "rate"),
    # A step's KL of 4e-4 at 0.2 is one of 1.6e-5 at 1; the root of 0.005 / 1.6e-5 is 17.7. Of 0.004 at 9 it is 0.324.
    [(0.2, 4e-4, 2e-4), (9, 0.004, 1e-6), (0.2, 0.004, None)],
)
def test_a_temperature_that_is_set_back_takes_the_rate_along_where_steps_would_not_fit(temperature, step, rate):
    override = f"sampling.temperature={temperature}"
    lead = finding(examined(FLAT, override, "update.learning_rate=1e-5", kl_old_k3=step * np.ones(N)))
    rates = [f"update.learning_rate={rate:.3g}"] if rate else []
    assert list(lead.overrides) == ["sampling.temperature=1", *rates]
    assert ("The temperature changes how far a step moves" in lead.remedy) == bool(rates)


@pytest.mark.parametrize(
    ("advised", "rate"),
    # From 0.25 to 1 steps become a quarter as large: of a cut to a tenth 0.4 is left, of one to a half none.
    [("1e-6", "4e-06"), ("5e-6", None), ("4e-5", "0.0002")],
)
def test_a_temperature_that_is_set_back_does_a_part_of_what_a_lower_rate_would(advised, rate):
    run = examined(FLAT, "sampling.temperature=0.25", "update.learning_rate=1e-5").run
    overrides = (f"update.learning_rate={advised}", "sampling.temperature=1")
    measured = Finding("learning_rate_too_high", "warning", remedy="Lower it.", overrides=overrides)
    rates = [f"update.learning_rate={rate}"] if rate else []
    assert set(with_rate(run, measured).overrides) == {"sampling.temperature=1", *rates}


def test_a_trainer_without_a_name_for_the_rate_gets_the_temperature_alone():
    run = examined(FLAT, "sampling.temperature=0.1", "update.learning_rate=1e-5", kl_old_k3=np.full(N, 4e-4)).run
    keys = {name: key for name, key in run.keys.items() if name != "learning_rate"}
    cold = Finding("unusual_setting", "warning", remedy="Set it back.", overrides=("sampling.temperature=1",))
    assert len(with_rate(run, cold).overrides) == 2
    assert with_rate(replace(run, keys=keys), cold) == cold


def test_small_steps_are_not_suspected_where_the_entropy_is_lost():
    """Half a run of warm-up beside an entropy that falls to a fortieth: whatever moved the policy so far was enough."""
    slow = f"update.warmup_steps={N // 2}"
    assert finding(examined(FLAT, slow, entropy=np.full(N, 2.0))).overrides == ("update.warmup_steps=10",)
    assert finding(examined(FLAT, slow, entropy=np.geomspace(2.0, 0.05, N))) is None


def test_what_only_shows_that_something_is_wrong_follows_the_suspicion():
    cut = np.full(N, 0.6)
    diagnosis = examined(FLAT, "sampling.temperature=5", **{"completion/truncated": cut})
    assert diagnosis.findings[0].check == "unusual_setting"
    assert finding(diagnosis, "truncated").follows == "unusual_setting"


def test_what_shows_a_fault_follows_the_measured_advice_on_the_suspected_setting():
    limited = examined(
        FLAT - 0.02 * np.arange(N) / N, "update.reward_limit=1e-6", **{"completion/truncated": np.full(N, 0.6)}
    )
    assert limited.findings[0].check == "limit_too_narrow"
    assert finding(limited, "truncated").follows == "limit_too_narrow"


def test_what_cuts_most_answers_advises_no_longer_limit_where_the_reward_is_near_the_best():
    cut = {"completion/truncated": np.full(N, 0.97)}
    short, near = (finding(examined(reward, **cut), "truncated") for reward in (FLAT, RISING))
    assert (short.severity, near.severity) == ("warning", "warning")
    assert short.overrides and not near.overrides


def test_of_a_trainer_that_logs_no_best_reward_a_rise_withholds_no_advice():
    """It rises by three deviations of the rewards, and nobody knows how far it could."""
    steps = np.arange(N)
    columns = {"reward": 3 * RISING, "reward_std": np.full(N, 0.7), "completions/clipped_ratio": np.full(N, 0.97)}
    settings = {"max_completion_length": 200, "learning_rate": 1e-6}
    log = RawLog("made", "trl-grpo", {name: Column(steps, values) for name, values in columns.items()}, settings)
    found = finding(examine(identify(log)), "truncated")
    assert found.harms and any(override.startswith("max_completion_length=") for override in found.overrides)


def test_a_setting_that_is_not_in_use_is_no_suspect():
    assert not suspected(resolved("algorithm.args.kl_target=0.001"))
    assert suspected(resolved("algorithm.args.kl_target=0.001", "algorithm.args.kl_control=adaptive"))


@pytest.mark.parametrize("weights", [(-0.5, -1.5), (0.005, 0.015), (10.0, 30.0)])
def test_weights_that_pay_nothing_are_scaled_to_a_sum_of_1(weights):
    """A quarter and three quarters, by hand; a wrong sign is one even where the reward rises to 0."""
    data = {"rewards": dict(zip(("structure", "retrieval"), weights, strict=True)), "algorithm": {"name": "ppo"}}
    assert {s.name: s.default for s in suspected(config.resolve(data))} == pytest.approx(
        {"rewards.structure": 0.25, "rewards.retrieval": 0.75}
    )


def test_rewards_that_only_take_away_are_suspected_however_the_reward_rises():
    found = finding(examined(RISING - 1.0, "rewards.structure=-1"))
    assert found.overrides == ("rewards.structure=1",)


def test_a_limit_to_the_length_below_the_samplers_is_set_back_with_its_buffer():
    chosen = resolved(
        "algorithm.args.length_limit=16", "algorithm.args.overlong_buffer=8", "sampling.max_new_tokens=64",
        algorithm="grpo",
    )  # fmt: skip
    assert {s.name.rpartition(".")[2]: s.default for s in suspected(chosen)} == {
        "length_limit": 0,
        "overlong_buffer": 0,
    }


def test_a_batch_counts_by_its_completions():
    small = ("update.minibatches=1", "rollout.prompts_per_step=2")
    assert suspected(resolved(*small, "rollout.samples_per_prompt=1"))
    assert not suspected(resolved(*small, "rollout.samples_per_prompt=8"))


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_defaults_are_usual(algorithm):
    default = flat_settings(config.defaults(algorithm))
    assert not suspects(Run("made", "steadyrl", "", {}, config=default))


def test_every_entry_is_a_setting_with_its_default_within_the_range():
    names = {
        name: value for algorithm in ALGORITHMS for name, value in flat_settings(config.defaults(algorithm)).items()
    }
    for name, usual in USUAL.items():
        assert name in names and name.startswith(SECTIONS)
        assert {*usual.when, usual.per, usual.times} - {""} <= names.keys()
        if isinstance(names[name], int | float) and names[name] and not usual.per and not usual.times:
            assert (usual.least or 0) <= names[name] <= (usual.most or np.inf)


EXAMPLES = [path for path in sorted((ROOT / "examples").rglob("*.toml")) if "[algorithm]" in path.read_text()]


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_the_settings_of_shipped_examples_are_usual(path):
    assert not suspected(config.load(path))


@pytest.mark.parametrize("schedule", ["linear", "cosine"])
def test_a_schedule_that_ends_early_is_set_back_with_its_steps(schedule):
    """One over the whole run would lower a rate that was missed."""
    found = finding(examined(FLAT, f"update.schedule={schedule}", "update.schedule_steps=7"))
    assert set(found.overrides) == {"update.schedule_steps=0", "update.schedule=constant"}


@pytest.mark.parametrize(("epochs", "lead"), [(2, "learning_rate_too_high"), (6, "unusual_setting")])
def test_a_clip_that_is_off_explains_large_steps_of_many_passes_alone(epochs, lead):
    large = {"kl_old_k3": np.full(N, 2.0), "clip_fraction": np.full(N, 0.5)}
    first = examined(FLAT, "algorithm.args.clip_high=50", f"update.epochs={epochs}", **large).findings[0]
    assert (first.check, "algorithm.args.clip_high=0.2" in first.overrides) == (lead, True)


def test_a_slow_rate_takes_along_a_strong_fixed_penalty_and_no_controllers_start():
    small = {"kl_old_k3": 4e-6 * np.ones(N), "clip_fraction": np.zeros(N), "updates": np.full(N, 4.0)}
    small["kl_ref_k1_seq"] = 1e-3 * np.arange(N) / N
    strong = ("update.learning_rate=1e-6", "algorithm.args.kl_coef=0.6")
    for control, taken in (("fixed", True), ("adaptive", False)):
        lead = examined(FLAT, *strong, f"algorithm.args.kl_control={control}", **small).findings[0]
        assert lead.check == "learning_rate_too_low"
        assert ("algorithm.args.kl_coef=0.05" in lead.overrides) == taken


def test_what_is_part_of_a_setting_is_switched_off_with_it():
    """Settings refuse a buffer before a limit on the length that there is none of."""
    far = ("algorithm.args.length_limit=12", "algorithm.args.overlong_buffer=5", "sampling.max_new_tokens=100")
    chosen = resolved(*far, algorithm="grpo")
    steps = np.arange(N)
    columns = {"reward/mean": FLAT, "reward/max": np.ones(N), "reward/std": 0.2 + 0.01 * RNG.normal(size=N)}
    log = RawLog("made", "steadyrl", {k: Column(steps, v) for k, v in columns.items()}, settings_of(chosen))
    advised = finding(examine(identify(log))).overrides
    assert {"algorithm.args.length_limit=0", "algorithm.args.overlong_buffer=0"} <= set(advised)
    config.resolve(config.dump(chosen), advised)


def test_a_long_warm_up_is_not_suspected_where_the_entropy_is_lost_and_a_bonus_is():
    gone = {"entropy": 2.0 * np.exp(-np.arange(N) / 8.0)}
    assert finding(examined(FLAT, "update.warmup_steps=55", **gone)) is None
    assert finding(examined(FLAT, "update.warmup_steps=55")).overrides == ("update.warmup_steps=10",)
    lone = examined(FLAT, "algorithm.args.entropy_coef=0.4", "update.warmup_steps=55", **gone)
    assert {"algorithm.args.entropy_coef=0"} == {
        override for f in lone.findings for override in f.overrides if "coef" in override
    }


def test_what_pulls_back_does_not_explain_steps_that_are_measured_as_small():
    small = {"kl_old_k3": 4e-6 * np.ones(N), "clip_fraction": np.zeros(N), "updates": np.full(N, 4.0)}
    small["kl_ref_k1_seq"] = 1e-3 * np.arange(N) / N
    slow = "update.learning_rate=1e-6"
    for pull in (
        ["algorithm.args.entropy_coef=0.4"],
        ["algorithm.args.kl_control=adaptive", "algorithm.args.kl_target=0.2"],
    ):
        lead = examined(FLAT, slow, *pull, **small).findings[0]
        assert (lead.check, lead.overrides[0][:21]) == ("learning_rate_too_low", "update.learning_rate=")
        assert any(override.startswith(pull[-1].partition("=")[0]) for override in lead.overrides)


@pytest.mark.parametrize(
    ("mark", "alone"),
    [(" ", True), ("\n", True), ("e", True), (" b ", True), ("Answer:", False), ("#", False), ("", False)],
)
def test_an_answer_behind_any_space_or_letter_is_a_piece_of_the_last_word(mark, alone):
    rewards = {"structure": {"weight": 1.0, "answer_after": mark}}
    chosen = config.resolve({"rewards": rewards, "algorithm": {"name": "ppo"}, "run": {"steps": N}})
    names = [suspect.name for suspect in suspected(chosen)]
    assert names == (["rewards.structure.answer_after"] if alone else [])


@pytest.mark.parametrize(
    ("marks", "far"), [('["o"]', True), ('[" ", "x"]', True), ('["</s>"]', False), ('["\\n"]', None)]
)
def test_a_sampler_that_stops_at_any_letter_is_as_far_from_usual_as_a_number(marks, far):
    several = suspected(resolved(f"sampling.stop={marks}", "algorithm.args.value_coef=200"))
    assert ("sampling.stop" in [s.name for s in several]) == bool(far)
