"""Names that no vocabulary has: told by their words and by how their values behave, or not at all."""

import json

import numpy as np
import pytest

from steadyrl.core.errors import RunError
from steadyrl.doctor.examine import diagnose
from steadyrl.doctor.names.identify import identify
from steadyrl.doctor.names.shapes import RULES, guesses, words
from steadyrl.doctor.series import Column, RawLog

# What a remedy computes with: a guess of these could become advice.
IN_REMEDIES = {"learning_rate", "kl_coef", "entropy_coef", "length_max", "kl_old", "updates", "epochs"}


def column(*values):
    return Column(np.arange(len(values)), np.array(values, float))


def log(columns):
    return RawLog("x", "jsonl", {name: column(*values) for name, values in columns.items()})


@pytest.mark.parametrize(
    ("name", "values", "quantity"),
    [
        ("AvgLen", (210.0, 233.0), "length"),
        ("seq_len_mean", (40.0, 41.5), "length"),
        ("mean generated tokens", (12.0, 300.0), "length"),
        ("answer_overlong_share", (0.0, 0.3), "truncated"),
        ("batch/zero_variance_groups_frac", (0.2, 0.9), "no_signal"),
        ("gradNorm", (0.2, 3.0), "grad_norm"),
        ("expl_variance", (-0.4, 0.5), "explained_variance"),
        ("opd/kl", (3.0, 0.2), "kl_teacher"),
        ("n_eos_tokens", (0.0, 3.0), "ended_tokens"),
        ("percentage of correct samples", (0.2, 0.4), "reward"),
        ("proxy_mean", (0.2, 3.5), "reward"),
        ("gold score", (0.2, 1.5), "heldout/gold"),
        ("n_hacking_successful", (0.0, 42.0), "hacks"),
        ("cheated_rate", (0.0, 0.3), "hacks"),
        ("n_no_hacking_successful", (60.0, 2.0), None),
        ("exploitation", (0.1, 0.9), None),  # as against exploration, it is meant to rise
        ("exploit_rate", (0.1, 0.9), None),
        ("mean_ep_score", (), None),
        ("answer_overlong_share", (0.0, 30.0), None),
        ("AvgLen", (0.2, 0.3), None),
        ("grad_norm_clip_threshold", (1.0, 1.0), None),
        ("kl_target", (0.1, 0.1), None),
        ("max_response_len", (512.0, 512.0), None),
        ("train/avg_r", (0.3, -0.2), "reward"),
        ("episode_info/rew_mean", (0.01, 0.02), "reward"),
        ("episode_info/response_lens", (31.0, 30.0), "length"),
        ("mean_kl_divergence", (0.0, 0.4), "kl_ref"),
        ("output_diversity", (0.2, 0.4), None),
        ("value/var_explained", (-2.0, 0.3), "explained_variance"),
        ("vf/loss", (3.0, 1.0), "loss_value"),
        ("objective/kl_to_base", (0.0, 0.3), "kl_ref"),
        ("objective/kl_to_target", (0.0, 0.3), None),
        ("objective/kl_base", (0.0, 0.3), "kl_ref"),
        ("kl_vs_initial_policy", (0.0, 0.3), "kl_ref"),
        ("reference/mean_kl", (0.0, 0.3), "kl_ref"),
        ("reference/mean_score", (0.0, 0.3), None),  # of another model
        ("frac_at_max_tokens", (0.0, 0.3), "truncated"),
        ("cut_off_share", (0.0, 0.3), "truncated"),
        ("stopped_by_length_pct", (0.0, 0.3), "truncated"),
        ("max_answer_tokens", (64.0, 64.0), None),
        ("share_of_identical_groups", (0.0, 0.3), "no_signal"),
        ("groups_with_tied_scores", (0.0, 0.3), None),
        ("pg_clipped_share", (0.0, 0.3), "clip_fraction"),
        ("clipped_share", (0.0, 0.3), None),  # of ratios, of texts or of gradients
        ("grads_total_norm", (0.2, 3.0), "grad_norm"),
        ("avg_tokens", (40.0, 41.5), "length"),
        ("rm/score_avg", (0.2, 3.0), "reward"),
        ("smoothed_score", (0.2, 3.0), "reward"),
        ("mean_group_sd", (0.2, 0.3), "reward_std_within"),
        ("critic/head_loss", (3.0, 1.0), "loss_value"),
        ("debug/unclipped_gradient_norm", (0.2, 3.0), None),
        ("debug/gradient_norm_pre_clipping", (0.2, 3.0), "grad_norm"),
        ("health/uniform_groups_pct", (0.0, 0.3), "no_signal"),
        ("dataset/uniform_groups_pct", (0.0, 0.3), None),
        ("Stopped / overlong", (0.0, 0.3), None),  # two names
        ("objective/entropies", (1.2, 1.0), "entropy"),
        ("share at cap", (0.0, 0.3), "truncated"),
    ],
)
def test_a_name_is_told_by_its_words_and_values(name, values, quantity):
    found = guesses({name: column(*values)}, frozenset({"reward"} - {quantity}))
    assert found.get(name, None) is None if quantity is None else found[name].quantity == quantity


@pytest.mark.parametrize(
    ("columns", "quantities"),
    [
        ({"ending_reward": (-1.0, 80.0)}, {}),
        (
            {"final_reward": (-1.0, 80.0), "solved": (0.0, 1.0)},
            {"final_reward": "reward", "solved": "reward_part/solved"},
        ),
        ({"reward/raw_reward": (0.1, 0.2)}, {"reward/raw_reward": "reward"}),
        ({"reward_curve": (0.1, 2.0), "kl_curve": (0.0, 9.0)}, {"reward_curve": "reward", "kl_curve": "kl_ref"}),
        ({"R": (-2.0, 5.0), "pg": (0.1, 0.2)}, {"R": "reward"}),
        ({"answer_rate": (0.1, 0.2), "score": (0.5, 0.6)}, {"answer_rate": "reward_part/answer", "score": "reward"}),
    ],
)
def test_of_several_that_could_be_the_reward_the_one_that_says_so_is_it(columns, quantities):
    made = {name: column(*values) for name, values in columns.items()}
    assert {name: meaning.quantity for name, meaning in guesses(made, frozenset()).items()} == quantities


def test_what_two_names_could_be_is_neither():
    assert guesses({"AvgLen": column(90.0), "mean_length_tokens": column(80.0)}, frozenset()) == {}
    assert guesses({"AvgLen": column(90.0)}, frozenset({"length"})) == {}


def test_parts_of_the_reward_are_known_under_any_prefix_once_there_is_a_whole():
    names = ["rl/sub_rewards/tone", "json_reward", "rewards/brevity/mean", "reward/max_total", "eval_json_reward"]
    names += ["env/breakdown/tools", "train/r_style", "r_mean", "breakdown/max"]
    names += ["rollout/parse_rate", "metrics/problems_solved", "rl/terms/brief_reward", "weights/terms/kind_reward"]
    columns = {name: column(0.1, 0.2) for name in names}
    quantities = {name: meaning.quantity for name, meaning in guesses(columns, frozenset({"reward"})).items()}
    assert quantities == {
        "rl/sub_rewards/tone": "reward_part/tone",
        "json_reward": "reward_part/json",
        "rewards/brevity/mean": "reward_part/brevity",
        "env/breakdown/tools": "reward_part/tools",
        "rollout/parse_rate": "reward_part/parse",
        "rl/terms/brief_reward": "reward_part/brief",
        "metrics/problems_solved": "reward_part/problems_solved",
        "train/r_style": "reward_part/style",
    }
    del columns["r_mean"]  # which is the whole where there is no other
    del columns["metrics/problems_solved"]  # which would stand for the reward
    assert not guesses(columns, frozenset())


def test_nothing_that_a_remedy_computes_with_is_guessed():
    assert IN_REMEDIES.isdisjoint(name.quantity for name, *_ in RULES)


def test_words_are_split_at_capitals_and_signs():
    assert words("train/AvgKLDiv_per-token2") == ("train", "avg", "kl", "div", "per", "token")


def rows(tmp_path, made):
    (tmp_path / "log.jsonl").write_text("\n".join(map(json.dumps, made)))
    (diagnosis,) = diagnose(tmp_path / "log.jsonl")
    return diagnosis


def test_a_counter_under_any_prefix_is_the_step_and_a_guess_is_said(tmp_path):
    made = [{"trainer/update": 7 * i, "reward": 0.1 * i, "AvgLen": 30 + i} for i in range(1, 9)]
    run = rows(tmp_path, made).run
    assert run.needed("reward").steps.tolist() == [7 * i for i in range(1, 9)]
    assert any("AvgLen as length" in note for note in run.notes)
    assert rows(tmp_path, [{**row, "trainer/update": 5} for row in made]).run.span == (1, 8)


def test_an_unknown_trainer_gets_no_setting_of_another(tmp_path):
    made = [{"step": i, "reward_mean": 0.0, "reward_min": 0.0, "reward_max": 0.0} for i in range(1, 25)]
    found = rows(tmp_path, made)
    assert found.findings and not any(finding.overrides for finding in found.findings)
    assert not any("num_generations" in finding.remedy for finding in found.findings)


def test_columns_in_a_dict_beside_the_columns_belong_to_them(tmp_path):
    steps = list(range(24))
    document = {
        "run": {
            "steps": steps,
            "reward": [0.3 + 0.01 * i for i in steps],
            "reward_components": {"style": [0.01 * i for i in steps], "proof_reward": [0.0] * 24},
        }
    }
    (tmp_path / "curves.json").write_text(json.dumps(document))
    (diagnosis,) = diagnose(tmp_path / "curves.json")
    assert set(diagnosis.run.with_prefix("reward_part/")) == {"style", "proof_reward"}
    assert any(f.check == "reward_part_idle" and "proof_reward" in f.message for f in diagnosis.findings)


def test_how_often_answers_are_right_is_the_reward_where_nothing_else_is():
    shares = {"corr": column(0.25, 0.5), "len": column(90.0, 80.0)}
    assert guesses(shares, frozenset())["corr"].quantity == "reward"
    assert "corr" not in guesses(shares, frozenset({"reward"}))
    assert "corr" not in guesses({"corr": column(25.0, 50.0)}, frozenset())


def test_of_a_critic_its_own_quantities_are_told_and_no_others():
    names = ("critic/explained_var", "critic/mean_loss", "critic/gradient_norm", "actor/gradient_norm", "train/reward")
    run = identify(RawLog("log.jsonl", "jsonl", {name: column(*range(-2, 4)) for name in names[:2]} | {
        name: column(*range(1, 7)) for name in names[2:]
    }))  # fmt: skip
    sources = {quantity: series[0].source for quantity, series in run.series.items()}
    assert (sources["explained_variance"], sources["loss_value"]) == names[:2]
    assert sources["grad_norm"] == "actor/gradient_norm"


def test_headings_of_a_page_tell_held_out_measurements_and_the_unit_of_a_kl():
    names = ("train reward", "held-out reward", "Eval perplexity", "sampling entropy", "per-token KL")
    run = identify(RawLog("page.md", "printed", {name: column(0.1, 0.4) for name in names}))
    assert {quantity: series[0].source for quantity, series in run.series.items()} == {
        "reward": "train reward",
        "heldout/reward": "held-out reward",
        "heldout/perplexity": "Eval perplexity",
        "entropy": "sampling entropy",
        "kl_ref": "per-token KL",
    }
    assert run.needed("kl_ref").unit == "nats/token"


def test_an_accuracy_alone_stands_for_the_reward():
    alone = identify(RawLog("page.md", "printed", {"acc": column(0.1, 0.4), "grad_norm": column(1.0, 2.0)}))
    assert alone.needed("reward").source == "acc" and "acc stands for it" in " ".join(alone.notes)
    formed = identify(RawLog("page.md", "printed", {"acc": column(0.1, 0.4), "format_rate": column(1.0, 1.0)}))
    assert formed.needed("reward").source == "acc" and "reward_part/format" in formed.series
    two = identify(RawLog("page.md", "printed", {"exact_reward": column(0.1, 0.4), "solve_rate": column(0.0, 1.0)}))
    assert "reward" not in two.series


@pytest.mark.parametrize(
    ("logged", "quantity"),
    [
        ("held-out hard", "heldout/hard"),
        ("unseen/solved", "heldout/solved"),
        ("OOD acc", "heldout/acc"),
        ("holdout d3", "heldout/d3"),
        ("reward (val)", "heldout/reward"),
        ("acc_test", "heldout/acc"),
        ("KL eval", "heldout/kl"),
        ("valid_rate", None),  # of a form
        ("best_val", None),
        ("latest", None),
    ],
)
def test_a_word_for_held_out_problems_before_or_behind_a_name_tells_them(logged, quantity):
    run = identify(RawLog("page.md", "printed", {"reward": column(0.1, 0.4), logged: column(0.3, 0.2)}))
    placed = [name for name, several in run.series.items() if several[0].source == logged]
    assert placed == ([] if quantity is None else [quantity])


def test_the_mean_of_every_step_comes_before_rewards_printed_now_and_then():
    rare, every = column(0.0, 1.0), Column(np.arange(12), np.linspace(0.2, 0.5, 12))
    run = identify(RawLog("page.md", "printed", {"reward": rare, "reward_avg": every}))
    assert run.needed("reward").source == "reward_avg"
    run = identify(
        RawLog("page.md", "printed", {"reward": Column(every.steps[:6], every.values[:6]), "reward_avg": every})
    )
    assert run.needed("reward").source == "reward"


def test_a_mean_return_stands_for_the_reward_where_nothing_else_is_logged_of_it(tmp_path):
    alone = rows(tmp_path, [{"step": i, "mean_return": i / 4, "loss": 0.5} for i in range(1, 6)])
    assert alone.run.get("reward").values.tolist() == [0.25, 0.5, 0.75, 1.0, 1.25]
    assert any("mean_return stands for it" in note for note in alone.run.notes)
    beside = rows(tmp_path, [{"step": i, "mean_return": i / 4, "reward": 0.5 - i} for i in range(1, 6)])
    assert beside.run.get("reward").values.tolist() == [-0.5, -1.5, -2.5, -3.5, -4.5]
    assert beside.run.get("return_mean").values.tolist() == [0.25, 0.5, 0.75, 1.0, 1.25]


def test_a_log_ratio_over_chosen_texts_is_no_kl_that_must_be_positive(tmp_path):
    pairs = [
        {
            "step": i,
            "kl": -0.01 * i,
            "chosen_reward": i / 9,
            "rejected_reward": -i / 9,
            "preference_acc": 0.9,
            "loss": 0.5,
        }
        for i in range(60)
    ]
    assert rows(tmp_path, pairs).run.traits.trains_on == "given"
    assert "negative_kl" not in rows(tmp_path, pairs).harmful
    sampled = [{**row, "reward": 0.1 * (row["step"] % 7)} for row in pairs]
    assert rows(tmp_path, sampled).run.traits.trains_on == "sampled"
    assert "negative_kl" in rows(tmp_path, sampled).harmful


def test_a_vocabulary_is_no_log_though_it_has_words_of_metrics(tmp_path):
    vocabulary = {f"word{i}": i for i in range(2500)} | {"reward": 2501, "loss": 2502, "kl": 2503, "step": 2504}
    (tmp_path / "vocab.json").write_text(json.dumps(vocabulary))
    with pytest.raises(RunError):
        diagnose(tmp_path / "vocab.json")


@pytest.mark.parametrize("name", ["eval/n_questions", "eval/num_rounds", "val/calls_count/mean"])
def test_how_many_problems_were_held_out_is_no_score_of_them(name):
    run = identify(log({"mean_reward": [0.1, 0.2], "eval/score": [0.3, 0.4], name: [20.0, 20.0]}))
    assert [quantity for quantity in run.series if quantity.startswith("heldout/")] == ["heldout/score"]
    assert "heldout/num_correct" in identify(log({"mean_reward": [0.1], "eval/num_correct": [3.0]})).series


def test_the_explained_variance_of_a_value_head_is_not_held_out():
    run = identify(log({"mean_reward": [0.1, 0.2], "val_var_explained": [-2.0, 0.4]}))
    assert run.get("explained_variance").first == -2.0
    assert not run.with_prefix("heldout/")


@pytest.mark.parametrize(
    ("values", "tokens"), [([0.69, 1.0, 0.91], False), ([40.0, 71.5, 60.0], True), ([1, 1, 0], True)]
)
def test_a_length_that_is_a_score_of_it_is_not_counted_in_tokens(values, tokens):
    run = identify(log({"reward": [0.1, 0.2, 0.3], "length": values}))
    assert (run.get("length") is not None) is tokens
    assert any("'length' is never above 1" in note for note in run.notes) is not tokens


def test_trls_warning_of_a_negative_kl_is_its_kl_where_it_comes_at_nearly_every_step():
    warning = "KL divergence is starting to become negative"
    own = {"mean_reward": np.linspace(0.3, 0.1, 40), "kl": np.full(40, 0.01)}
    run = identify(log({**own, warning: np.linspace(-3.0, -9.0, 38)}))
    assert (run.get("kl_ref").unit, run.get("kl_ref").last) == ("nats/sequence", -9.0)
    seldom = Column(np.arange(0, 40, 5), np.full(8, -1.5))
    run = identify(RawLog("x", "jsonl", {**log(own).columns, warning: seldom}))
    assert run.get("kl_ref").last == 0.01
    assert any("only where it is below -1" in note for note in run.notes)
