"""Causes stand before what they bring about; what no link joins stands by how bad it is."""

import json
from dataclasses import asdict, replace

import pytest
from pydantic import TypeAdapter

from steadyrl.core.types import Finding
from steadyrl.doctor.causes import arrange, tree
from steadyrl.doctor.check import RECORDS, Check
from steadyrl.doctor.examine import BY_NAME, CHECKS, diagnose
from steadyrl.doctor.remedies import CHANGES
from steadyrl.doctor.series import Traits
from steadyrl.loop.autopilot.knobs import MOVES

WRITTEN = TypeAdapter(Check)


def found(check, since=None, severity="warning", cause="unknown", follows="", evidence=()):
    return Finding(check, severity, since, cause, f"{check} shows", evidence, "mend it", follows=follows)


def placed(*findings, tolerance=0):
    return [(p.finding.check, p.depth) for p in tree(arrange(findings, tolerance, BY_NAME))]


@pytest.mark.parametrize(("cause", "first"), [("reward_shift", "reward_jump"), ("judge_noise", "length_collapse")])
def test_lengths_that_collapse_after_the_rewards_shifted_follow_the_shift(cause, first):
    shift = found("reward_jump", 20, cause=cause)
    lengths = found("length_collapse", 33, "critical", cause="length_reward")
    assert arrange([lengths, shift], 6, BY_NAME)[0].check == first


def test_a_value_spike_caused_by_the_kl_stands_under_the_kl_and_that_under_the_learning_rate():
    spikes = found("value_loss_spikes", 300, cause="kl")
    runaway = found("kl_runaway", 210, cause="learning_rate", follows="learning_rate_too_high")
    rate = found("learning_rate_too_high", 200, cause="learning_rate")
    assert placed(spikes, runaway, rate) == [
        ("learning_rate_too_high", 0),
        ("kl_runaway", 1),
        ("value_loss_spikes", 2),
    ]


def test_what_began_later_is_no_cause():
    early, late = found("reward_falling", 100), found("learning_rate_too_high", 300)
    assert placed(early, late) == [("reward_falling", 0), ("learning_rate_too_high", 0)]


def test_a_cause_may_show_a_little_later_than_its_consequence():
    early, late = found("reward_falling", 290), found("learning_rate_too_high", 300)
    assert placed(early, late, tolerance=10) == [("learning_rate_too_high", 0), ("reward_falling", 1)]
    assert placed(early, late, tolerance=9) == [("reward_falling", 0), ("learning_rate_too_high", 0)]


def test_a_finding_of_the_whole_run_can_be_brought_about_at_any_step():
    assert placed(found("reward_flat"), found("reward_constant", 50, "critical")) == [
        ("reward_constant", 0),
        ("reward_flat", 1),
    ]


def test_a_consequence_that_names_another_cause_of_its_own_stays_alone():
    spikes = found("value_loss_spikes", 300, cause="value_reset")
    assert placed(spikes, found("kl_runaway", 100)) == [("kl_runaway", 0), ("value_loss_spikes", 0)]


def test_a_cause_that_a_finding_names_but_nobody_found_is_dropped():
    (alone,) = arrange([found("ratio_off", 5, follows="learning_rate_too_high")], 0, BY_NAME)
    assert alone.follows == ""


@pytest.mark.parametrize(("severity", "expected"), [
    ("warning", [("no_signal_groups", 0), ("grad_norm", 1), ("repetition", 0)]),
    ("info", [("grad_norm", 0), ("repetition", 0), ("no_signal_groups", 0)]),
])  # fmt: skip
def test_the_worst_chain_comes_first_and_no_info_leads_over_what_is_critical(severity, expected):
    warning = found("repetition", 10, "warning")
    root = found("no_signal_groups", 50, severity, cause="too_hard")
    zero = found("grad_norm", 60, "critical", cause="no_signal", follows="no_signal_groups")
    assert placed(warning, root, zero) == expected


def test_roots_of_one_severity_stand_by_their_first_step():
    assert [
        check for check, _ in placed(found("repetition", 90), found("truncated", 20), found("reward_flat", 60))
    ] == [
        "truncated",
        "reward_flat",
        "repetition",
    ]


def test_what_is_worth_knowing_only_explains_no_harm():
    collapse, alike = found("entropy_collapse", 10, "info", "learned"), found("no_signal_groups", 20, "warning")
    assert placed(collapse, replace(alike, cause="same_answers")) == [("no_signal_groups", 0), ("entropy_collapse", 0)]
    known, harm = found("length_collapse", 10, "info"), found("reward_hacking", 20, "warning")
    assert placed(known, harm) == [("reward_hacking", 0), ("length_collapse", 0)]
    assert placed(replace(known, severity="warning"), harm) == [("length_collapse", 0), ("reward_hacking", 1)]


def test_findings_that_say_the_same_are_put_together_with_all_their_evidence():
    twice = (
        found("truncated", 40, "warning", "grew", evidence=("a", "b")),
        found("truncated", 30, "critical", "grew", evidence=("b", "c")),
    )
    (single,) = arrange(twice, 0, BY_NAME)
    assert (single.severity, single.since_step, single.evidence) == ("critical", 30, ("b", "c", "a"))


def test_findings_that_name_each_other_do_not_go_round_in_a_circle():
    one = found("kl_runaway", 10, follows="value_loss_spikes")
    other = found("value_loss_spikes", 10, cause="kl", follows="kl_runaway")
    assert sorted(depth for _, depth in placed(one, other)) == [0, 1]


def test_the_order_does_not_depend_on_the_order_of_the_checks():
    several = [
        found("value_loss_spikes", 300, cause="kl"),
        found("kl_runaway", 210, cause="learning_rate"),
        found("learning_rate_too_high", 200),
        found("entropy_collapse", 220, cause="learning_rate"),
        found("truncated", 200, "critical", "limit_too_low"),
    ]
    assert placed(*several) == placed(*reversed(several))


def test_every_link_is_between_checks_that_exist():
    named = {name for check in CHECKS for name in check.follows}
    named |= {name for check in CHECKS for cause in check.causes for name in cause.follows}
    of_one_cause = {f"{check.name}:{cause.name}" for check in CHECKS for cause in check.causes}
    assert named <= set(BY_NAME) | of_one_cause


@pytest.mark.parametrize(("cut", "leads"), [(0.55, "reward_constant"), (0.98, "truncated")])
def test_a_limit_that_some_answers_meet_does_not_bring_about_a_constant_reward(tmp_path, cut, leads):
    rows = [
        {"step": i, "reward": 0.0, "reward_std": 0.0, "frac_reward_zero_std": 1.0, "kl": 0.01, "grad_norm": 0.0,
         "completions/clipped_ratio": cut, "completions/mean_length": 190.0 + i, "completions/max_length": 256.0}
        for i in range(1, 13)
    ]  # fmt: skip
    (tmp_path / "trainer_state.json").write_text(json.dumps({"log_history": rows}))
    (diagnosis,) = diagnose(tmp_path / "trainer_state.json")
    assert {"reward_constant", "truncated"} <= {finding.check for finding in diagnosis.findings}
    assert diagnosis.findings[0].check == leads


def test_every_move_of_a_cause_is_one_of_the_autopilot():
    assert {move for check in CHECKS for cause in check.causes for move in cause.moves} == set(MOVES)


def test_causes_of_one_check_have_names_of_their_own():
    for check in CHECKS:
        assert len({cause.name for cause in check.causes}) == len(check.causes), check.name


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.name)
def test_a_record_holds_what_a_check_is_made_of(check):
    WRITTEN.validate_python(asdict(check))
    texts = [check.title, check.symptom, check.healthy, check.source]
    texts += [text for cause in check.causes for text in (cause.sign, cause.remedy)]
    assert all(text and "{" not in text for text in texts)
    assert {name for cause in check.causes for name in cause.change} <= CHANGES.keys()
    assert check.not_for.keys() <= vars(Traits()).keys()


def test_every_record_has_the_code_of_its_check():
    assert set(RECORDS.records) == set(BY_NAME)


def advising(check, *overrides, severity="warning", **others):
    return replace(found(check, severity=severity, **others), overrides=overrides)


def test_the_first_advice_takes_along_that_of_other_roots_which_slow_a_run():
    sampler = advising("warped_sampling", "logprobs=sampled")
    penalty = advising("kl_penalty_holds", "kl_coef=0.03", "logprobs=sampled", cause="penalty_too_strong")
    first, other = arrange([sampler, penalty], 0, BY_NAME)
    assert first.overrides == ("logprobs=sampled", "kl_coef=0.03")
    assert "kl_penalty_holds asks for kl_coef=0.03" in first.remedy and other.overrides == penalty.overrides


@pytest.mark.parametrize(
    "other",
    [
        advising("kl_penalty_holds", "prompts=8", cause="penalty_too_strong"),  # the same setting, another value
        advising("kl_penalty_holds", "kl_coef=0.03", severity="info", cause="penalty_too_strong"),
        advising("truncated", "max_new_tokens=90"),  # it may only show that something is wrong
        advising("reward_falling", "learning_rate=1e-6"),  # it slows nothing
        advising("learning_rate_too_low", "learning_rate=1e-4", cause="learning_rate"),  # brought about by the first
    ],
    ids=lambda finding: f"{finding.check}-{finding.severity}",
)
def test_what_is_no_root_of_its_own_is_not_taken_along(other):
    first, second = (
        ("limit_too_narrow", "rate=3") if other.check == "learning_rate_too_low" else ("batch_small", "prompts=64")
    )
    lead = advising(first, second, cause="gradient" if first == "limit_too_narrow" else "few")
    assert arrange([lead, other], 0, BY_NAME)[0].overrides == (second,)
