"""Decisions as a pure function: what holds for any series of measurements and findings."""

import copy
import json
import math
from dataclasses import asdict, replace
from functools import cache

import numpy as np
import pytest
from pydantic import TypeAdapter

from steadyrl.core import config
from steadyrl.core.errors import DivergedError
from steadyrl.core.types import Finding
from steadyrl.loop.autopilot.action import KL_STEP, ROLLBACKS_AT_MOST, Context
from steadyrl.loop.autopilot.band import COEF_STEP, FASTER, SEARCH, SLOWER
from steadyrl.loop.autopilot.decide import decide
from steadyrl.loop.autopilot.knobs import FIXES, KL_COEF, RATE_MULTIPLIER, configured, read_knob
from steadyrl.loop.autopilot.rate import TAKEN_BACK_AT_MOST, after_divergence
from steadyrl.loop.checkpoint import LastMove, PilotState

SETTINGS = (
    "run.steps=40",
    "autopilot.cooldown=20",
    "update.learning_rate=0.01",
    "update.epochs=4",
    "algorithm.args.entropy_coef=0.01",
)
WITH_TARGET = ("autopilot.kl_ref_target=2.0",)
STATE = TypeAdapter(PilotState)


def resolved(*overrides, mode="act"):
    return config.resolve({"rewards": {"length": 1.0}}, (*SETTINGS, f"autopilot.mode={mode}", *overrides))


def finding(check, cause, severity="warning", since=None):
    return Finding(check, severity, since, cause, f"{check}: {cause}.", ("as seen",), "Do something.")


SICK = finding("learning_rate_too_high", "learning_rate")


def measured(settings, pilot, rng, step):
    """Return a line of metrics of a step, sane or not."""
    rate = settings.update.learning_rate * pilot.scale * pilot.rate_multiplier
    kls = [float(np.exp(rng.normal(-2, 1.5))), 0.0, math.inf, math.nan, -1e-9]
    return {
        "step": step - 1,
        "attempt": 0,
        "learning_rate": rate * rng.choice([1.0, 0.3, 0.05]),
        KL_STEP: None if rng.random() < 0.03 else float(rng.choice(kls, p=[0.9, 0.03, 0.03, 0.02, 0.02])),
        "reward/mean": float(rng.normal()),
        "reward/std": float(rng.choice([0.0, 0.5])),
        "kl_ref_exact_seq": float(rng.choice([np.exp(rng.normal(1, 2)), math.inf, -0.1])),
        "kl_old_k3": float(rng.choice([3.0, 0.01])),
        "clip_fraction": float(rng.choice([0.7, 0.1])),
    }


def found(rng, step):
    """Return what a doctor may have found, None where it did not look."""
    if rng.random() < 0.7:
        return None
    causes = list(FIXES)
    return [
        finding(*causes[rng.integers(len(causes))], severity=str(rng.choice(["critical", "warning", "info"])),
                since=int(rng.integers(0, step + 1)))
        for _ in range(rng.integers(0, 4))
    ]  # fmt: skip


def decisions(settings, seed, steps=150):
    """Yield (pilot, numbers, record, findings, context, action) of a run in which anything may be measured."""
    rng = np.random.default_rng(seed)
    pilot, numbers, step = PilotState(), {"kl_coef": settings.algorithm.args.kl_coef}, 0
    checkpoints, rows, rewards, actions = [0], [], [], []
    for _ in range(steps):
        step += 1
        record, findings = measured(settings, pilot, rng, step), found(rng, step)
        rows = [row for row in rows if row["step"] < step - 1] + [record]
        rewards = [*rewards, record["reward/mean"]][-16:]
        context = Context(settings, step, numbers, tuple(checkpoints), rewards, rows, actions)
        action = decide(pilot, record, findings, context)
        yield pilot, numbers, record, findings, context, action
        pilot, numbers = action.pilot, {**numbers, **action.numbers}
        actions = [*actions, *action.lines]
        if action.back_to is not None:
            step = action.back_to
            checkpoints = [known for known in checkpoints if known <= step]
        elif rng.random() < 0.2:
            checkpoints.append(step)


@cache
def decided(mode, overrides, seed):
    """Return what ``decisions`` yields, worked out once for all tests: its first steps are those of a shorter run."""
    steps = {("act", ()): 400, ("advise", WITH_TARGET): 80}.get((mode, overrides), 300)
    return list(decisions(resolved(*overrides, mode=mode), seed, steps))


@pytest.fixture(scope="module", autouse=True)
def forgotten():
    """Forget what was decided once no test needs it any more."""
    yield
    decided.cache_clear()


SEEDS = [0, *(pytest.param(seed, marks=pytest.mark.weekly) for seed in range(1, 8))]
RUNS = [(mode, overrides, seed) for mode in ("act", "advise") for overrides in ((), WITH_TARGET) for seed in range(1)]


@pytest.mark.halved
@pytest.mark.parametrize(("mode", "overrides", "seed"), RUNS)
def test_the_same_situation_gives_the_same_action_and_stays_as_it_is(mode, overrides, seed):
    for pilot, _, record, findings, context, action in decided(mode, overrides, seed)[:40]:
        before = copy.deepcopy((pilot, findings, context))
        again = decide(pilot, record, findings, context)
        assert repr(again) == repr(action), "repr, because NaN is not NaN"
        assert repr((pilot, findings, context)) == repr(before)


@pytest.mark.parametrize(("mode", "overrides", "seed"), RUNS)
def test_a_state_that_went_through_json_decides_the_same(mode, overrides, seed):
    for pilot, _, record, findings, context, action in decided(mode, overrides, seed)[:80]:
        read = STATE.validate_json(json.dumps(asdict(pilot)))
        assert read == pilot
        assert repr(decide(read, record, findings, context)) == repr(action)


@pytest.mark.halved
@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("overrides", [(), WITH_TARGET])
def test_whatever_is_measured_every_number_stays_within_its_bounds(overrides, seed):
    settings = resolved(*overrides)
    for pilot, numbers, _, _, _, action in decided("act", overrides, seed)[:300]:
        after = action.pilot
        assert 1e-6 <= after.scale <= 1e6
        bounds = (1 / SEARCH, SEARCH) if pilot.found_scale is None else (SLOWER, FASTER)
        assert bounds[0] * 0.999 <= after.scale / pilot.scale <= bounds[1] * 1.001
        assert 0.1 <= after.rate_multiplier <= 1.0
        assert 1 <= after.settings.get("update.epochs", 4) <= 4
        assert 1e-4 <= after.settings.get("algorithm.args.entropy_coef", 0.01) <= 0.04
        assert 1.0 <= after.settings.get("sampling.temperature", 1.0) <= 1.5
        coef = {**numbers, **action.numbers}["kl_coef"]
        start = settings.algorithm.args.kl_coef
        assert 0.1 * start * 0.999 <= coef <= 100 * start * 1.001
        if overrides and action.back_to is None and not any(line["kind"] in ("move", "undo") for line in action.lines):
            assert abs(math.log(coef / numbers["kl_coef"])) <= math.log(COEF_STEP) * 1.001


@pytest.mark.parametrize("seed", SEEDS)
def test_the_run_goes_back_to_checkpoints_only_and_seldom(seed):
    last = None
    for pilot, _, _, findings, context, action in decided("act", (), seed):
        last = action.pilot
        if action.back_to is None:
            continue
        assert action.back_to in context.checkpoints
        assert [line["back_to"] for line in action.lines if "back_to" in line] == [action.back_to]
        went = last.rollbacks - pilot.rollbacks, last.steps_taken_back - pilot.steps_taken_back
        assert went in ((1, 0), (0, 1))
        if action.skips_problems:
            cause = (last.last_move.check, last.last_move.cause)
            onsets = [f.since_step for f in findings or () if (f.check, f.cause) == cause and f.severity == "critical"]
            assert pilot.findings_since is not None or action.back_to <= max(onsets)
        else:
            assert action.back_to < context.step
    assert last.rollbacks <= ROLLBACKS_AT_MOST
    assert last.steps_taken_back <= TAKEN_BACK_AT_MOST


@pytest.mark.parametrize("seed", SEEDS)
def test_one_move_at_a_time_each_judged_after_its_cooldown(seed):
    for pilot, _, _, findings, context, action in decided("act", (), seed)[:300]:
        kinds = [line["kind"] for line in action.lines if line["kind"] in ("move", "kept", "undo")]
        assert len(kinds) <= 1
        if not kinds:
            continue
        assert findings is not None, "nothing is moved or judged where the doctor did not look"
        if kinds == ["move"]:
            assert pilot.last_move is None and action.pilot.last_move is not None
        else:
            assert context.step - pilot.last_move.step >= 20
            assert action.pilot.last_move is None


@pytest.mark.parametrize("seed", SEEDS)
def test_a_line_says_what_the_state_then_has(seed):
    settings = resolved(*WITH_TARGET)
    for pilot, numbers, _, _, _, action in decided("act", WITH_TARGET, seed):
        for line in action.lines:
            if line["kind"] in ("move", "undo"):
                assert read_knob(settings, action.pilot, {**numbers, **action.numbers}, line["knob"]) == line["after"]
            if line["kind"] in ("rate", "rollback"):
                assert line["after"] == pytest.approx(0.01 * action.pilot.reported_scale * pilot.rate_multiplier)


@pytest.mark.parametrize("seed", SEEDS)
def test_advice_changes_no_number_and_is_given_once(seed):
    given = []
    for pilot, _, _, _, _, action in decided("advise", (), seed):
        assert replace(action.pilot, steps_outside=0) == replace(pilot, steps_outside=0) == PilotState()
        assert (action.numbers, action.back_to, action.skips_problems) == ({}, None, False)
        assert all(line["done"] is False for line in action.lines)
        given += [(line["knob"], line.get("cause"), line.get("check"), line["why"]) for line in action.lines]
    assert len(given) == len(set(given)) > 3


def test_an_autopilot_that_is_off_does_nothing():
    pilot, settings = PilotState(scale=0.5), resolved(mode="off")
    record = {"learning_rate": 0.01, KL_STEP: 99.0, "reward/mean": 0.0}
    action = decide(pilot, record, [SICK], Context(settings, 9, {}, (0,)))
    assert (action.pilot, action.numbers, action.lines, action.back_to) == (pilot, {}, (), None)


@pytest.mark.parametrize(("kl", "std", "direction"), [
    (1e-4, 0.5, 1), (1e-4, 0.0, 0), (1e-4, None, 0), (0.05, 0.5, 0), (0.9, 0.5, -1), (0.9, 0.0, -1), (None, 0.5, 0),
])  # fmt: skip
def test_the_rate_follows_the_kl_of_the_step(kl, std, direction):
    record = {"learning_rate": 0.01, KL_STEP: kl, "reward/std": std, "reward/mean": 0.0}
    after = decide(PilotState(), record, None, Context(resolved(), 3, {})).pilot.scale
    assert (after > 1.0) - (after < 1.0) == direction


def test_the_search_ends_after_three_steps_inside_the_band_and_its_rate_is_remembered():
    settings, pilot = resolved(), PilotState()
    for step in range(1, 4):
        assert pilot.found_scale is None
        record = {"learning_rate": 0.01 * pilot.scale, KL_STEP: 0.05, "reward/std": 1.0, "reward/mean": 0.0}
        pilot = decide(pilot, record, None, Context(settings, step, {})).pilot
    assert pilot.found_scale == pilot.scale == 1.0


def test_a_move_that_failed_for_a_cause_gives_way_to_the_next_in_the_table():
    settings, numbers = resolved(), {"kl_coef": 0.05}
    sick = finding("kl_runaway", "learning_rate")
    failed = (("kl_runaway", "learning_rate", "learning_rate"),)
    record = {"learning_rate": 0.01, KL_STEP: None}
    knobs = []
    for pilot in (PilotState(), PilotState(failed_moves=failed)):
        (line,) = decide(pilot, record, [sick], Context(settings, 50, numbers)).lines
        knobs.append(line["knob"])
    assert knobs == [RATE_MULTIPLIER, "update.epochs"]


def coefficient_lines(kls, findings=None):
    """Return the lines about the KL coefficient of steps with these KLs to the reference, and the coefficients."""
    settings, numbers = resolved(*WITH_TARGET), {"kl_coef": 0.05}
    pilot, lines, coefs = PilotState(), [], []
    for step, kl in enumerate(kls, start=1):
        record = {"learning_rate": 0.01, KL_STEP: None, "kl_ref_exact_seq": kl}
        action = decide(pilot, record, findings if step == 1 else None, Context(settings, step, numbers))
        pilot, numbers = action.pilot, {**numbers, **action.numbers}
        lines += [line for line in action.lines if line["knob"] == KL_COEF]
        coefs.append(numbers["kl_coef"])
    return lines, coefs


@pytest.mark.parametrize(("kl", "factor"), [(20.0, COEF_STEP), (0.02, 1 / COEF_STEP)])
def test_every_doubling_and_halving_of_the_coefficient_is_a_line_that_begins_where_the_last_ended(kl, factor):
    lines, coefs = coefficient_lines([kl] * 9)
    assert coefs[-1] == pytest.approx(0.05 * factor**9)
    ends = [0.05 * factor**4, 0.05 * factor**8]  # 1.25 ** 4 is the first power above 2
    assert [line["before"] for line in lines] == pytest.approx([0.05, ends[0]])
    assert [line["after"] for line in lines] == pytest.approx(ends)


def test_a_coefficient_that_goes_back_and_forth_is_said_once_it_has_halved_again():
    lines, _ = coefficient_lines([20.0] * 4 + [0.02] * 4 + [20.0, 0.02] * 4)
    assert [(line["before"], line["after"]) for line in lines] == [
        (pytest.approx(0.05), pytest.approx(0.05 * COEF_STEP**4)),
        (pytest.approx(0.05 * COEF_STEP**4), pytest.approx(0.05)),
    ]


def test_a_line_about_the_coefficient_begins_where_a_move_for_a_finding_left_it():
    lines, _ = coefficient_lines([2.0] + [20.0] * 4, [finding("kl_runaway", "controller_slow")])
    assert [line["kind"] for line in lines] == ["move", "kl_coef"]
    assert lines[1]["before"] == lines[0]["after"] == pytest.approx(0.05 * 1.5)


def test_what_a_move_for_a_critical_finding_sets_survives_the_return_to_the_checkpoint():
    """The coefficient that the target moved at this step belongs to the step, and the move to the autopilot."""
    settings, numbers = resolved(*WITH_TARGET), {"kl_coef": 0.05}
    record = {"learning_rate": 0.01, KL_STEP: None, "kl_ref_exact_seq": 20.0}
    runaway = finding("kl_runaway", "controller_slow", "critical", since=30)
    action = decide(PilotState(), record, [runaway], Context(settings, 50, numbers, (20, 29, 40)))
    assert (action.back_to, action.skips_problems) == (29, True)
    assert action.numbers["kl_coef"] == pytest.approx(0.05 * 1.25 * 1.5)
    assert action.pilot.last_move == LastMove(29, "kl_runaway", "controller_slow", "kl_coef", KL_COEF, 0.05 * 1.25)
    slower = replace(runaway, check="learning_rate_too_high", cause="learning_rate")
    action = decide(PilotState(), record, [slower], Context(settings, 50, numbers, (20, 29, 40)))
    assert action.numbers == {}, "the checkpoint has its own coefficient"
    assert action.pilot.rate_multiplier == 0.5


def test_after_a_gradient_that_is_not_finite_the_run_goes_back_at_half_the_rate_while_it_may():
    error, settings = DivergedError("step 7: the gradient is not finite; stop"), resolved()
    context = Context(settings, 7, {}, (2, 5))
    pilot = PilotState(found_scale=1.0)
    for count in (1, 2):
        action = after_divergence(pilot, error, context)
        assert (action.back_to, action.pilot.rollbacks, action.pilot.scale) == (5, count, 0.5**count)
        pilot = action.pilot
    assert after_divergence(pilot, error, context) is None
    assert after_divergence(PilotState(), error, replace(context, checkpoints=())) is None
    assert configured(settings, RATE_MULTIPLIER) == 1.0
