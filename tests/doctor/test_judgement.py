"""What labelled logs like a run were, where no check can tell; and what stays hidden where checks can."""

import json
import re
import tomllib
from dataclasses import replace

import numpy as np
import pytest

from bench.doctor import fit_judgement
from steadyrl.doctor.examine import examine
from steadyrl.doctor.judgement import model
from steadyrl.doctor.judgement.model import QUANTITIES, judge, probability
from steadyrl.doctor.judgement.quantities import quantities
from steadyrl.doctor.series import Series
from tests.doctor.checks.series_for_values import healthy, make_run, noise, rise

N = 120
SIGNAL = ["no_signal", "reward_std_within", "reward_std", "advantage_std", "reward_max", "reward_min"]
LENGTH = ["length", "truncated", "length_max"]


@pytest.mark.parametrize(("without", "hidden"), [(["grad_norm"], "updates"), (SIGNAL, "groups"), (LENGTH, "cut off")])
def test_a_reward_that_rises_is_healthy_where_one_of_the_others_is_not_logged(without, hidden):
    run = healthy(n=N, algorithm="grpo", without=without)
    diagnosis = examine(run)
    assert diagnosis.verdict == "healthy"
    assert len(diagnosis.minor) == 1 and hidden in diagnosis.minor[0]


def test_of_a_log_with_a_reward_that_rises_and_little_else_each_gap_is_named():
    diagnosis = examine(healthy(n=N, algorithm="grpo", without=[*SIGNAL, *LENGTH, "grad_norm"]))
    assert diagnosis.verdict == "healthy"
    assert [gap.partition(" (")[0] for gap in diagnosis.minor] == [
        "the learning signal", "the length of the answers", "the gradient"
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("values", "verdict"),
    [
        ([0.05, 0.11, 0.28, 0.33, 0.52, 0.55, 0.74, 0.78, 0.93, 0.97], "healthy"),
        ([0.05, 0.71, 0.08, 0.53, 0.32, 0.75, 0.24, 0.78, 0.43, 0.67], "too little to judge"),
    ],
)
def test_ten_rows_far_apart_show_a_course_if_it_is_clear(values, verdict):
    steps = 40 * np.arange(1, 11)
    reward = Series("reward", "", "", "reward", steps, np.array(values))
    assert examine(make_run({"reward": reward}, trainer="unknown")).verdict == verdict


def test_a_reward_that_is_level_needs_the_gradient_too():
    level = 0.4 + noise(np.random.default_rng(5), N, 0.03)
    diagnosis = examine(healthy(n=N, without=["grad_norm"], reward=level))
    assert diagnosis.verdict != "healthy" and diagnosis.minor == ()


def test_quantities_of_a_short_log_are_those_computed_by_hand():
    run = make_run(
        {
            "reward": np.array([0.1, 0.3, 0.2, 0.2, 0.3, 0.1]),
            "truncated": np.array([0.1, 0.1, 0.2, 0.2, 0.4, 0.6]),
            "grad_norm": np.array([1.0, 1.0, 0.0, 2.0, 4.0, 16.0]),
            "entropy": np.array([2.0, 2.0, 1.0, 1.0, 0.2, 0.2]),
            "no_signal": np.array([0.5, 0.5, 0.5, 0.5, 1.0, 0.6]),
        },
        trainer="unknown",
    )
    # Differences of the reward: .2 -.1 0 .1 -.2, mean 0, variance .1 / 5; their noise is that of two rows.
    noise_of_rows = np.sqrt(0.1 / 5 / 2)
    values = quantities(run)
    assert values["reward_not_rising"] == pytest.approx(0.0)
    assert values["reward_below_best"] == pytest.approx(0.2 / noise_of_rows)
    assert values["cut_off"] == pytest.approx(0.5) and values["cut_off_more"] == pytest.approx(0.4)
    assert values["gradient_zero"] == pytest.approx(1 / 6)
    assert values["gradient_spike"] == pytest.approx(np.log10(16 / 1.5))
    assert values["gradient_growth"] == pytest.approx(1.0)
    assert values["entropy_loss"] == -values["entropy_growth"] == pytest.approx(1.0)
    assert values["no_signal"] == pytest.approx(0.8)  # the reward has not risen, so that nothing explains it
    assert values["few_rows"] == pytest.approx(-np.log10(6))
    assert not {"reward_repeated", "kl_end", "length_at_limit", "heldout_fall", "parts_fixed"} & set(values)


def test_groups_alike_because_all_answers_are_right_are_no_lack_of_signal():
    reward, alike = np.array([0.0, 0.5, 1.0, 1.0, 1.0, 1.0]), np.array([0.0, 0.0, 0.5, 1.0, 1.0, 1.0])
    assert quantities(make_run({"reward": reward, "no_signal": alike}))["no_signal"] == 0.0
    assert quantities(make_run({"reward": reward[::-1].copy(), "no_signal": alike}))["no_signal"] == 1.0


def test_a_probability_is_the_sum_of_log_odds_and_a_quantity_that_is_missing_counts_as_usual():
    silent = {"above": [], "usual": [], "sick": []}
    weights = {"base_sick": -1.0, **dict.fromkeys(QUANTITIES, silent)}
    weights["cut_off"] = {"above": [0.1, 0.5], "usual": [0.5, 0.25], "sick": [0.4, 2.0]}
    weights["reward_zero"] = {"above": [0.2], "usual": [0.5], "sick": [1.0]}
    # -1 + .4 (above .1) + 0 (not above .5) + .5 * 1 (a reward that is not logged) = -.1
    sick, shares = probability({"cut_off": 0.3}, "sick", weights)
    assert sick == pytest.approx(1 / (1 + np.exp(0.1)))
    assert shares == {"cut_off": pytest.approx(0.4 * 0.5 - 2.0 * 0.25)}
    assert probability({"cut_off": 0.6, "reward_zero": 0.0}, "sick", weights)[0] == pytest.approx(
        1 / (1 + np.exp(-1.4))
    )


@pytest.mark.parametrize(
    ("reward", "further", "cause", "seen"),
    [
        (np.zeros(7), {}, "no_signal_groups", "the reward is 0 in 100% of the rows"),
        (
            np.array([0.5, 0.4, 0.5, 0.4, 0.45]),
            {"length": np.array([180.0, 185, 190, 195, 197]), "length_max": np.full(5, 200.0)},
            "truncated",
            "the mean length ends at 98% of the limit",
        ),
    ],
)
def test_a_short_log_like_sick_ones_is_probably_sick_and_says_why_and_what_would_decide(reward, further, cause, seen):
    diagnosis = examine(make_run({"reward": reward, **further}, trainer="unknown"))
    judgement = diagnosis.judgement
    assert judgement is not None and judgement.cause == cause and judgement.sick > 0.7
    assert seen in judgement.speaks_for and judgement.decide
    assert diagnosis.findings == () and diagnosis.harmful == ()  # a judgement is no finding, and names no remedy


def test_a_verdict_by_judgement_says_so_and_with_which_odds():
    diagnosis = examine(make_run({"reward": np.zeros(7), "no_signal": np.full(7, 0.97)}, trainer="unknown"))
    assert diagnosis.verdict == "sick" and diagnosis.judgement is not None
    right, every = map(int, re.findall(r"(\d+) of (\d+) labelled logs", diagnosis.judgement.sentence)[0])
    assert diagnosis.judgement.sentence.startswith("sick, probably (") and every / 2 < right <= every


def test_a_verdict_that_fits_little_more_than_half_of_the_labelled_logs_is_no_probable_one():
    diagnosis = examine(make_run({"reward": np.zeros(7), "no_signal": np.full(7, 0.97)}, trainer="unknown"))
    words = [replace(diagnosis.judgement, alike=f"{right} of 21 labelled logs").likely for right in (11, 13, 14, 21)]
    assert words == ["perhaps", "perhaps", "probably", "probably"]


def test_nothing_is_called_healthy_that_the_log_contradicts():
    def rising(rows):
        reward = 0.05 * np.arange(rows) + 0.01 * np.resize([0, 1, 0, -1, 0, 1], rows)
        return make_run(
            {"reward": reward, "kl_ref": np.linspace(0.001, 0.02, rows), "truncated": np.zeros(rows)}, trainer="unknown"
        )

    assert judge(rising(12)).verdict == "healthy"
    assert judge(rising(12), contradicted=True).verdict == ""
    assert judge(rising(7)).verdict == ""  # so few may rise by chance


def test_a_run_that_the_checks_can_judge_has_no_judgement():
    assert examine(healthy(n=N)).judgement is None


def test_the_weights_are_those_that_the_labelled_logs_give():
    entries = [json.loads(line) for line in fit_judgement.VECTORS.read_text().splitlines()]
    logs = fit_judgement.read(entries).earlier
    weights = tomllib.loads(fit_judgement.WEIGHTS.read_text())
    fitted = fit_judgement.fit(logs, "sick")
    assert weights["base_sick"] == pytest.approx(fitted.base, abs=2e-3)
    for i in (0, 50, 100):
        values = entries[i]["quantities"]
        theirs = fit_judgement.probability(fitted, logs.values[i : i + 1])[0]
        assert probability(values, "sick", weights)[0] == pytest.approx(theirs, abs=0.02)  # weights are rounded


def test_a_log_is_judged_by_weights_and_thresholds_of_the_logs_that_teach():
    # Sick where its quantity is high, healthy where that is low, which is the first of QUANTITIES; all left open.
    rng = np.random.default_rng(7)
    high = np.concatenate([rng.normal(3.0, 0.5, 60), rng.normal(-3.0, 0.5, 60)])
    values = np.full((120, len(QUANTITIES)), np.nan)
    values[:, 0] = high
    rows = list(QUANTITIES).index("few_rows")
    values[:, rows] = -np.log10(30)
    family = next(iter(QUANTITIES.values())).family
    labels = [
        {"state": "sick", "any_of": [family], "first": "silent"}
        if x > 0
        else {"state": "healthy", "any_of": [], "first": "too little"}
        for x in high
    ]
    teaching = fit_judgement.Logs(labels, values, np.arange(120) % 4)
    judged = np.full((3, len(QUANTITIES)), np.nan)
    judged[:, 0] = 4.0, 4.0, -4.0
    judged[:, rows] = -np.log10(30)
    asked = [{"state": "sick", "any_of": [family]}, {"state": "sick", "any_of": ["other"]}, {"state": "sick"}]
    answers = fit_judgement.outcomes(teaching, fit_judgement.Logs(asked, judged, np.full(3, 9)))
    assert answers == ["right", "wrong cause", "called healthy"]
    # Of a course, as the first quantity's fault is, nothing is said from few rows.
    values[:, rows] = judged[:, rows] = -np.log10(10)
    answers = fit_judgement.outcomes(teaching, fit_judgement.Logs(asked, judged, np.full(3, 9)))
    assert answers == ["too little", "too little", "called healthy"]
    # Four sets that are answered by the three others know nothing of their own.
    counts = fit_judgement.by_sets(teaching, lambda others, own: [len(others.labels)] * len(own.labels))
    assert counts == [90] * 120


def test_no_labelled_log_is_a_copy_of_one_in_another_set():
    fresh = fit_judgement.VECTORS.with_name("fresh.jsonl").read_text(encoding="utf-8").splitlines()
    copies = {label["file"] for label in map(json.loads, fresh) if "copy_of" in label}
    files = {json.loads(line)["file"] for line in fit_judgement.VECTORS.read_text(encoding="utf-8").splitlines()}
    assert len(copies) == 3 and not copies & files


def test_a_part_for_being_right_that_never_pays_contradicts_health():
    parts = {"reward_part__check_numbers": rise(N, 0.1, 0.6), "reward_part__check_answer": np.zeros(N)}
    run = healthy(n=N, algorithm="grpo", without=["reward_part/retrieval", "reward_part/structure"], **parts)
    diagnosis = examine(run)
    assert ("reward_part_idle", "never_right", False) in [(f.check, f.cause, f.harms) for f in diagnosis.findings]
    assert diagnosis.verdict == "too little to judge"
    assert "these parts of the reward are 0 throughout: check_answer" in diagnosis.missing[0]
    form = {**parts, "reward_part__xml_format": parts["reward_part__check_answer"]}
    del form["reward_part__check_answer"]
    run = healthy(n=N, algorithm="grpo", without=["reward_part/retrieval", "reward_part/structure"], **form)
    assert examine(run).verdict == "healthy"


def test_a_reward_that_rests_at_its_top_speaks_for_no_fault():
    values = quantities(
        make_run({"reward": np.array([1.0, 0.9, 1.0, 0.95, 1.0, 1.0]), "no_signal": np.full(6, 0.9)}, trainer="unknown")
    )
    assert not {"reward_not_rising", "reward_repeated", "reward_below_best"} & set(values)
    assert values["no_signal"] == pytest.approx(0.9 * (1.0 - 1.0))


def test_a_perplexity_that_rises_is_a_held_out_loss_and_an_accuracy_a_gain():
    run = make_run({"heldout/perplexity": np.array([4.4, 11.3]), "heldout/accuracy": np.array([0.2, 0.6])})
    assert quantities(run)["heldout_fall"] == 0.5


@pytest.mark.parametrize(("rows", "length"), [(24, "short"), (25, "long")])
def test_a_state_is_said_from_the_probability_above_which_enough_of_the_open_logs_are_so(monkeypatch, rows, length):
    # Ten logs that the rules left open, and one that they named, which does not count; then one of the other length.
    chances = np.array([0.95, 0.9, 0.85, 0.8, 0.72, 0.66, 0.58, 0.5, 0.3, 0.2, 0.99, 0.97])
    states = [*["sick"] * 4, "undecided", "healthy", "undecided", "sick", "healthy", "sick", "sick", "undecided"]
    first = ["right" if state == "undecided" else "silent" for state in states]
    first[10] = "named"
    labels = [{"state": state, "first": answer} for state, answer in zip(states, first, strict=True)]
    values = np.full((12, len(QUANTITIES)), np.nan)
    values[:, list(QUANTITIES).index("few_rows")] = [*[-np.log10(rows)] * 11, -np.log10(49 - rows)]
    logs = fit_judgement.Logs(labels, values, np.arange(12))
    monkeypatch.setattr(fit_judgement, "left_out", lambda logs, state: chances if state == "sick" else 1.0 - chances)
    probabilities, least = fit_judgement.limits(logs)
    assert least[length]["sick"] == pytest.approx(0.7)  # 4 of 5 above it; above .65 one of six is healthy
    assert probabilities["healthy"][5] == 0.0 and probabilities["healthy"][8] == pytest.approx(0.7)


@pytest.mark.parametrize(("apart", "verdict"), [(1, ""), (3, "sick")])
def test_parts_that_never_pay_are_given_fifty_steps_by_the_judgement_too(apart, verdict, monkeypatch):
    monkeypatch.setitem(model._weights()["long"], "limit_sick", 0.5)
    steps, parts = apart * np.arange(1, 31), {"near": -1.2 + 0.1 * np.sin(np.arange(30))}
    parts |= {"form": np.zeros(30), "number": np.zeros(30)}
    run = make_run({f"reward_part/{n}": Series(n, "", "", n, steps, x) for n, x in parts.items()}, trainer="unknown")
    judgement = judge(run)
    assert (judgement.cause, judgement.sick > 0.5) == ("reward_part_idle", True)
    assert judgement.verdict == verdict


def test_a_change_of_the_reward_is_not_compared_with_noise_that_cannot_be_measured():
    three = quantities(make_run({"reward": np.array([0.7, 0.5, 0.4])}, trainer="unknown"))
    assert not {"reward_not_rising", "reward_below_best"} & set(three) and "reward_disordered" in three
    even = quantities(make_run({"reward": np.array([0.8, 0.7, 0.6, 0.5, 0.4, 0.3])}, trainer="unknown"))
    assert 0 < even["reward_not_rising"] <= 100 and 0 < even["reward_below_best"] <= 100


@pytest.mark.parametrize(("value", "said"), [(-0.002, " 0%"), (0.001, " 0%"), (-0.3, " -30%"), (0.05, " +5%")])
def test_a_share_that_rounds_to_0_has_no_sign(value, said):
    assert QUANTITIES["cut_off_more"].sentence(value).endswith(said)


@pytest.mark.parametrize(("scores", "verdict"), [((0.3, 0.3), "sick"), ((0.1, 0.5), "")])
def test_a_held_out_score_that_clearly_rises_is_of_no_run_that_is_probably_sick(scores, verdict):
    generator, steps = np.random.default_rng(11), np.arange(0, N, 6)
    reward = np.where(generator.random(N) < 0.2, 40.0 * generator.random(N), -1.0)  # of one answer in each row
    solved = np.linspace(*scores, len(steps)) + 0.01 * generator.normal(size=len(steps))
    logged = {
        "reward": Series("reward", "", "", "reward", np.arange(N), reward),
        "heldout/solved": Series("heldout/solved", "", "", "eval/solved", steps, solved),
    }
    judgement = judge(make_run(logged, trainer="unknown"))
    assert judgement.sick > 0.6 and judgement.verdict == verdict


def test_what_is_no_sign_of_a_fault_is_not_said_to_speak_for_one():
    rows = 12
    kl = np.linspace(-0.001, -0.04, rows)
    kl[3] = 0.004
    run = make_run({"reward": np.linspace(0.5, 0.52, rows), "kl_ref": kl}, trainer="unknown")
    judgement = judge(run)
    said = [*judgement.speaks_for, *judgement.speaks_against]
    assert not any("number of rows" in text or "times the usual" in text for text in said)
    assert not any(text.endswith("ends at 0") for text in said)
