"""The autopilot: any learning rate works, what it does can be undone and resumed, and advice changes nothing."""

import json
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from steadyrl.core import config
from steadyrl.core.errors import ConfigError, DivergedError
from steadyrl.core.metrics import repeatable
from steadyrl.core.rundir import RunDir, append_line, write_json
from steadyrl.core.types import Finding
from steadyrl.doctor.examine import CHECKS
from steadyrl.loop import checkpoint
from steadyrl.loop.autopilot.band import Band
from steadyrl.loop.autopilot.knobs import FIXES, MOVES, adjust, choose
from steadyrl.loop.autopilot.pilot import KL_STEP, Autopilot, step_kl
from steadyrl.loop.checkpoint import LastMove, PilotState, State
from steadyrl.loop.rollout.collect import collect
from steadyrl.loop.train import Watch, train, with_knobs
from steadyrl.maths.batch import limit_rewards, make_batch, take_rows
from steadyrl.show.report.rows import actions_view
from steadyrl.show.report.write import write_report

GOOD = 0.1  # a learning rate at which the toy backend learns its task
LONG = (
    "run.steps=30", "rollout.prompts_per_step=16", "algorithm.args.kl_coef=0.0", "update.warmup_steps=2",
    "autopilot.kl_band=[0.01, 0.15]",
)  # fmt: skip
ACT = "autopilot.mode=act"
SICK = Finding(
    "learning_rate_too_high", "critical", 5, "learning_rate", "Steps are too large.", ("as seen",), "Slower."
)


def steady(run):
    """Metrics without what a clock or a resume changes."""
    return [repeatable(line) for line in run.metrics()]


def reward_at_the_end(run):
    return float(np.mean([line["reward/mean"] for line in run.metrics()[-5:]]))


def finished(toy, folder, *overrides, factor=1.0):
    """Return a finished run; ``factor`` times the rate may be more than a config takes."""
    run, session = RunDir(folder), toy(*LONG, *overrides)
    train(replace(session, config=adjust(session.config, PilotState(scale=factor))), run)
    return run


def pilot_at(toy, folder, steps=12):
    """Return an autopilot, its run and the state after some steps, with a checkpoint at 4 and at the end."""
    session, run = toy(ACT, f"run.steps={steps}", "run.checkpoint_every=4", "run.keep_checkpoints=9"), RunDir(folder)
    train(session, run)
    state = checkpoint.load(run, session.backend)
    return Autopilot(session.config, run, session.backend), run, state


@pytest.mark.parametrize("factor", [pytest.param(1e-5, marks=pytest.mark.weekly), 1e3])
def test_a_rate_that_is_far_off_ends_near_a_good_one_with_the_autopilot_only(toy, tmp_path, factor):
    rate = (f"update.learning_rate={GOOD}", "run.steps=40")
    good = reward_at_the_end(finished(toy, tmp_path / "good", *rate))
    assert good > 0.75
    alone = reward_at_the_end(finished(toy, tmp_path / "alone", *rate, factor=factor))
    helped = reward_at_the_end(finished(toy, tmp_path / "helped", *rate, ACT, factor=factor))
    assert alone < 0.5 * good
    assert helped > 0.9 * good


def test_a_healthy_rate_is_left_where_it_is(toy, tmp_path):
    run = finished(toy, tmp_path, f"update.learning_rate={GOOD}", "run.steps=15", ACT)
    rates = [line["learning_rate"] for line in run.metrics()[2:]]
    assert min(rates) > GOOD / 1.5 and max(rates) < GOOD * 1.5
    assert run.actions() == []


def test_while_the_reward_clearly_rises_steps_get_longer_and_that_is_said(toy, tmp_path):
    pilot, run, state = pilot_at(toy, tmp_path)
    band = Band(*pilot.config.autopilot.kl_band)
    record = {"learning_rate": pilot.config.update.learning_rate, "reward/std": 1.0}
    record[KL_STEP] = 0.3 * band.middle  # a constant rate aims at 0.25 of it, and at 0.5 while the reward rises
    scales = []
    for rise in (0.0, 0.1):
        pilot._rewards, state.autopilot = {}, PilotState(found_scale=1.0)
        for step in range(20):
            state.step = 100 + step
            rate = record["learning_rate"] * state.autopilot.scale
            pilot.steer(state, {**record, "learning_rate": rate, "reward/mean": rise * step + (step % 2) / 100}, None)
        scales.append(state.autopilot.scale)
    assert scales[0] < 1.0 < scales[1]
    said = run.actions()[-1]
    assert said["kind"] == "rate" and said["after"] > said["before"] and "clearly rises" in said["why"]


@pytest.mark.parametrize("rate", [10.0, pytest.param(1e-3, marks=pytest.mark.weekly)])
def test_stopped_and_resumed_runs_equal_an_unbroken_one(toy, tmp_path, rate):
    settings = (*LONG, ACT, f"update.learning_rate={rate}", "run.steps=14", "run.doctor_every=5")
    unbroken = RunDir(tmp_path / "unbroken")
    train(toy(*settings), unbroken)
    for stop in (1, 7):
        run, seen = RunDir(tmp_path / f"stopped-{stop}"), []
        watch = Watch(step=seen.append, stop=lambda seen=seen, stop=stop: len(seen) == stop)
        assert train(toy(*settings), run, watch=watch) == "interrupted"
        train(toy(*settings), run, attempt=1)
        assert steady(run) == steady(unbroken)
        assert run.actions() == unbroken.actions() != []


@pytest.mark.parametrize("algorithm", ["ppo", "rloo"])  # the coefficient is a number of the one, a setting of the other
def test_a_resumed_run_says_the_same_of_its_coefficient_as_an_unbroken_one(toy, tmp_path, algorithm):
    target = ("algorithm.args.kl_coef=0.01", "autopilot.kl_ref_target=9.0", f"algorithm.name={algorithm}")
    settings = (*LONG, ACT, *target, "run.steps=14")
    unbroken, run, seen = RunDir(tmp_path / "unbroken"), RunDir(tmp_path / "stopped"), []
    train(toy(*settings), unbroken)
    assert train(toy(*settings), run, watch=Watch(step=seen.append, stop=lambda: len(seen) == 6)) == "interrupted"
    train(toy(*settings), run, attempt=1)
    assert run.actions() == unbroken.actions()
    lines = [line for line in run.actions() if line["kind"] == "kl_coef"]
    assert len(lines) > 1 and lines[0]["before"] == 0.01
    assert [line["before"] for line in lines[1:]] == [line["after"] for line in lines[:-1]]
    logged = {line["step"]: line["algorithm/kl_coef"] for line in run.metrics()}
    assert logged[0] == 0.01
    assert [logged[line["step"] + 1] for line in lines[:-1]] == [pytest.approx(line["after"]) for line in lines[:-1]]


def test_a_killed_run_repeats_its_decisions_from_its_last_checkpoint(toy, tmp_path):
    class Killed(Exception):
        pass

    def die(record):
        if record["step"] == 9:
            raise Killed

    settings = (*LONG, ACT, "update.learning_rate=10.0", "run.steps=14", "run.checkpoint_every=6")
    unbroken, run = RunDir(tmp_path / "unbroken"), RunDir(tmp_path / "killed")
    train(toy(*settings), unbroken)
    with pytest.raises(Killed):
        train(toy(*settings), run, watch=Watch(step=die))
    train(toy(*settings), run, attempt=1)
    assert steady(run) == steady(unbroken)
    assert run.actions() == unbroken.actions()


def test_advice_changes_nothing_and_is_written(toy, tmp_path):
    rate = ("update.learning_rate=1e-6", "run.steps=12")
    off, advised = (finished(toy, tmp_path / mode, *rate, f"autopilot.mode={mode}") for mode in ("off", "advise"))
    without = [{k: v for k, v in line.items() if k != KL_STEP} for line in steady(advised)]
    assert without == steady(off)
    assert not off.actions_file.exists()
    (line,) = [line for line in advised.actions() if line["kind"] == "rate"]
    assert (line["done"], line["knob"], line["before"]) == (False, "update.learning_rate", 1e-6)
    assert line["after"] == pytest.approx(1e-5)
    assert "nats/token" in line["evidence"][0]
    assert all(line["done"] is False for line in advised.actions())


def advices(toy, folder, kls, std=1.0):
    """Return what is advised while steps move the policy so far."""
    session, run = toy("autopilot.mode=advise"), RunDir(folder)
    pilot, state = Autopilot(session.config, run, session.backend), State()
    for step, kl in enumerate(kls):
        state.step = step + 1
        record = {"learning_rate": session.config.update.learning_rate, "reward/std": std, "reward/mean": 0.0}
        pilot.steer(state, {**record, KL_STEP: kl}, None)
    return [(line["step"], line["after"] / line["before"]) for line in run.actions()]


def test_advice_is_what_would_be_done(toy, tmp_path):
    low = [1e-3] * 5
    ((step, factor),) = advices(toy, tmp_path / "low", low)
    assert step == 4 and factor > 1.0
    assert advices(toy, tmp_path / "dull", low, std=0.0) == []  # no difference in reward says nothing of the rate
    assert advices(toy, tmp_path / "mixed", [1e-3, 0.5] * 5) == []  # never five in a row on one side
    ((step, factor),) = advices(toy, tmp_path / "leap", [50.0, *low])  # gone after one step, it moves no more
    assert step == 0 and factor < 1.0


def test_a_step_that_leaps_is_taken_back_bit_by_bit(toy, tmp_path):
    """The rate is a hundred times too high: the first step is made again, from the very weights it began with."""
    weights, session = [], toy(*LONG, ACT, "update.learning_rate=10.0", "run.steps=3")
    before = session.backend.parameters["logits"].copy()
    step = session.backend.generate

    def generate(prompts, sampling, seeds):
        weights.append(session.backend.parameters["logits"].copy())
        return step(prompts, sampling, seeds)

    session.backend.generate = generate
    run = RunDir(tmp_path)
    train(replace(session, heldout=()), run)
    back = [line for line in run.actions() if line["kind"] == "rollback"]
    assert back[0]["back_to"] == 0 and back[0]["after"] < 0.2 * back[0]["before"]
    for again in weights[: len(back) + 1]:
        np.testing.assert_array_equal(again, before)
    assert [line["step"] for line in run.metrics()] == [0, 1, 2]


def test_a_rollback_restores_weights_optimizer_and_state_and_skips_the_problems_since(toy, tmp_path):
    pilot, run, state = pilot_at(toy, tmp_path)
    expected = json.loads((run.checkpoint_folder(4) / "state.json").read_text())
    with np.load(run.checkpoint_folder(4) / "toy.npz") as saved:
        arrays = {name: saved[name] for name in saved}
    drawn = state.problems_drawn
    earlier = pilot.steer(state, {"step": 11}, [SICK])
    assert (earlier.step, earlier.updates) == (4, expected["updates"])
    assert (earlier.algorithm, earlier.problems_drawn) == (expected["algorithm"], drawn)
    assert earlier.autopilot.rate_multiplier == 0.5 and earlier.autopilot.rollbacks == 1
    backend = pilot.backend
    for name, array in backend.parameters.items():
        np.testing.assert_array_equal(array, arrays[name])
    for name, array in backend._moments.items():
        np.testing.assert_array_equal(array, arrays[name])
    assert run.checkpoints()[-1] == 4, "a resume starts from here"
    assert checkpoint.load(run, backend) == earlier
    (line,) = [line for line in run.actions() if line.get("check")]
    assert (line["back_to"], line["check"], line["cause"]) == (4, "learning_rate_too_high", "learning_rate")
    assert line["evidence"] == ["as seen"]


def test_it_rolls_back_twice_at_most(toy, tmp_path):
    pilot, _, state = pilot_at(toy, tmp_path)
    state.autopilot = replace(state.autopilot, rollbacks=2)
    later = pilot.steer(state, {"step": 11}, [SICK])
    assert later is state and state.step == 12
    assert state.autopilot.rate_multiplier == 0.5, "the knob is turned all the same"


def test_no_checkpoint_before_the_onset_means_no_rollback(toy, tmp_path):
    pilot, run, state = pilot_at(toy, tmp_path)
    checkpoint_steps = run.checkpoints()
    early = replace(SICK, since_step=min(checkpoint_steps) - 1)
    assert pilot.steer(state, {"step": 11}, [early]).step == 12


def sick_rows(pilot, state, since, until):
    """Write steps whose updates are too large by every sign."""
    for step in range(since, until):
        kl = 3.0 + 0.01 * (step % 3)
        record = {"step": step, "attempt": 0, "kl_old_k3": kl, "clip_fraction": 0.7, "reward/mean": 0.5, "entropy": 1.0}
        append_line(pilot.run.metrics_file, record)
    state.step = until


def test_a_move_that_did_not_help_is_undone_and_not_made_again(toy, tmp_path):
    pilot, run, state = pilot_at(toy, tmp_path)
    warning = replace(SICK, severity="warning")
    pilot.steer(state, {"step": 11}, [warning])
    assert state.autopilot.rate_multiplier == 0.5
    sick_rows(pilot, state, 12, 40)
    pilot.steer(state, {"step": 39}, [warning])
    assert state.autopilot.rate_multiplier == 0.5, "it is not judged before its cooldown is over"
    sick_rows(pilot, state, 40, 52)
    pilot.steer(state, {"step": 51}, [warning])
    assert state.autopilot.rate_multiplier == 1.0
    assert [line["kind"] for line in run.actions()][-2:] == ["move", "undo"]
    assert choose(pilot.config, state.autopilot, state.algorithm, [warning], []) is None


def test_a_move_whose_finding_is_gone_is_kept(toy, tmp_path):
    pilot, run, state = pilot_at(toy, tmp_path)
    pilot.steer(state, {"step": 11}, [replace(SICK, severity="warning")])
    state.step = 12 + 40
    pilot.steer(state, {"step": 51}, [replace(SICK, severity="warning")])
    assert state.autopilot.rate_multiplier == 0.5
    assert run.actions()[-1]["kind"] == "kept"


def test_one_move_at_a_time(toy, tmp_path):
    pilot, _, state = pilot_at(toy, tmp_path)
    other = Finding("entropy_collapse", "warning", 6, "unknown", "Falls.", (), "More.")
    pilot.steer(state, {"step": 11}, [replace(SICK, severity="warning"), other])
    pilot.steer(state, {"step": 11}, [other])
    assert state.autopilot.settings == {}


def test_a_gradient_that_is_not_finite_goes_back_twice_and_then_ends_the_run(toy, tmp_path):
    session = toy(ACT, "run.checkpoint_every=2")

    def breaks(xp, new, arrays, count):
        return (new.logprobs * arrays["mask"]).sum() * float("nan"), {}

    run = RunDir(tmp_path)
    state = State(algorithm=dict(session.algorithm.state), autopilot=PilotState(found_scale=1.0))
    checkpoint.save(run, session.backend, state, 2)
    with pytest.raises(DivergedError):
        train(replace(session, heldout=(), algorithm=replace(session.algorithm, loss=breaks)), run)
    back = [line for line in run.actions() if line["why"] == "a gradient is not finite"]
    assert [(line["before"], line["after"]) for line in back] == [(0.1, 0.05), (0.05, 0.025)]
    assert "not finite" in back[0]["evidence"][0]


def test_without_leave_to_act_a_gradient_that_is_not_finite_ends_the_run(toy, tmp_path):
    session = toy("autopilot.mode=advise")

    def breaks(xp, new, arrays, count):
        return (new.logprobs * arrays["mask"]).sum() * float("nan"), {}

    with pytest.raises(DivergedError):
        train(replace(session, heldout=(), algorithm=replace(session.algorithm, loss=breaks)), RunDir(tmp_path))
    assert RunDir(tmp_path).actions() == []


def scored_batch(session):
    """Return 8 rollouts with their scores before an update."""
    groups = collect(session.backend, session.problems[:4], 2, session.sampling, (0, 0), 0)
    groups = [replace(g, rollouts=tuple(replace(r, reward=1.0) for r in g.rollouts)) for g in groups]
    batch = make_batch(groups, session.backend.tokenizer.pad_id)
    return replace(batch, old=session.backend.score(batch, session.sampling, frozenset()))


def test_the_kl_of_a_step_is_that_of_the_whole_update(toy):
    session = toy()
    backend, batch = session.backend, scored_batch(session)
    assert step_kl(backend, batch, session.sampling) == 0.0
    backend.parameters["logits"][:, 0] += 3.0
    after = backend.score(batch, session.sampling, frozenset()).logprobs
    ratios = np.exp(after - batch.old.logprobs)[batch.completion_mask]
    assert step_kl(backend, batch, session.sampling) == pytest.approx(float(np.mean(ratios - 1 - np.log(ratios))))


def test_the_kl_of_a_step_is_measured_on_rollouts_that_hold_a_token(toy, monkeypatch):
    session = toy()
    backend, batch = session.backend, scored_batch(session)
    batch.completion_mask[[0, -1]] = False  # episodes that ended before a turn
    monkeypatch.setattr("steadyrl.loop.autopilot.pilot.MEASURED_ROWS", 2)
    backend.parameters["logits"][:, 0] += 3.0
    assert step_kl(backend, batch, session.sampling) == pytest.approx(
        step_kl(backend, take_rows(batch, np.array([1, len(batch.lengths) - 2])), session.sampling)
    )
    measured = step_kl(backend, take_rows(batch, np.array([2])), session.sampling)
    batch.old.logprobs[[1, *range(3, len(batch.lengths))]] = np.nan  # demonstrations, which were not all scored
    assert step_kl(backend, batch, session.sampling) == pytest.approx(measured)
    batch.completion_mask[:] = False
    assert step_kl(backend, batch, session.sampling) is None


def test_a_target_for_the_kl_to_the_reference_moves_the_coefficient(toy, tmp_path):
    settings = (ACT, "run.steps=40", "algorithm.args.kl_coef=0.01")
    low = finished(toy, tmp_path / "low", *settings, "autopilot.kl_ref_target=0.5")
    high = finished(toy, tmp_path / "high", *settings, "autopilot.kl_ref_target=9.0")
    ends = [np.mean([line["kl_ref_exact_seq"] for line in run.metrics()[-5:]]) for run in (low, high)]
    assert ends[0] < 0.5 * ends[1]
    coefs = [[line["algorithm/kl_coef"] for line in run.metrics()] for run in (low, high)]
    assert max(coefs[0]) > 0.1 and min(coefs[1]) == pytest.approx(0.001)
    assert any(line["kind"] == "kl_coef" and line["after"] > line["before"] for line in low.actions())


def test_what_the_autopilot_set_becomes_settings_in_one_place(toy):
    session = toy()
    assert with_knobs(session, State()) is session
    settings = {"update.epochs": 1, "algorithm.args.entropy_coef": 0.01, "sampling.temperature": 1.2}
    last = LastMove(3, "kl_runaway", "learning_rate", "learning_rate", "rate_multiplier", 1.0)
    pilot = PilotState(scale=2.0, rate_multiplier=0.25, settings=settings, found_scale=3.0, last_move=last)
    changed = with_knobs(session, State(autopilot=pilot))
    assert changed.config.update.learning_rate == pytest.approx(0.05)
    assert changed.config.update.epochs == 1
    assert changed.sampling.temperature == 1.2
    assert "entropy" in changed.algorithm.needs and "entropy" not in session.algorithm.needs
    assert session.config.update.epochs == 2
    assert config.resolve(config.dump(changed.config)) == changed.config


def test_every_cause_in_the_table_is_one_that_a_check_knows_and_names_known_moves():
    assert {name for names in FIXES.values() for name in names} == set(MOVES)
    known = {(check.name, cause.name) for check in CHECKS for cause in check.causes}
    assert set(FIXES) <= known


def test_the_page_of_the_autopilot_has_the_table_of_the_code():
    page = (Path(__file__).parents[3] / "docs" / "autopilot.md").read_text()
    rows = [f"| {check} | {cause} | {', then '.join(names)} |" for (check, cause), names in FIXES.items()]
    rows += [f"| {name} | `{move.knob}` | {move.meaning} |" for name, move in MOVES.items()]
    assert [row for row in rows if row not in page] == []


@pytest.mark.parametrize(("move", "now", "start", "values"), [
    ("learning_rate", 1.0, 1.0, [0.5, 0.25, 0.125, 0.1, 0.1]),
    ("epochs", 3, 3, [2, 1, 1]),
    ("entropy_up", 0.0, 0.0, [0.005, 0.01, 0.02, 0.02]),
    ("kl_coef", 0.2, 0.2, [0.3, 0.45]),
    ("kl_coef", 1.9, 0.2, [2.0, 2.0]),
    ("kl_coef", 5.0, 0.2, [5.0, 5.0]),
    ("temperature", 1.0, 1.0, [1.2, 1.44, 1.5, 1.5]),
    ("clip", 0.2, 0.2, [0.28, 0.28]),
])  # fmt: skip
def test_moves_are_bounded(move, now, start, values):
    for value in values:
        now = MOVES[move].step(now, start, [])
        assert now == pytest.approx(value)


@pytest.mark.parametrize(("coefficient", "spread", "lowered"), [
    (0.8, 0.2, 0.1), (0.8, 0.04, 0.08), (0.05, 0.2, 0.05), (0.8, 0.0, 0.8),
])  # fmt: skip
def test_a_penalty_is_lowered_to_half_of_the_usual_spread_of_the_rewards(coefficient, spread, lowered):
    rows = [{"reward/std": spread}, {"reward/std": spread}, {"reward/std": 7.0}, {"reward/std": None}]
    assert MOVES["kl_coef_down"].step(coefficient, coefficient, rows) == pytest.approx(lowered)
    assert MOVES["kl_coef_down"].step(coefficient, coefficient, []) == coefficient


def test_a_limit_for_rewards_is_four_usual_deviations_and_moves_outliers_only(toy):
    rows = [{"reward/std": 0.5}, {"reward/std": 0.5}, {"reward/std": 40.0}]
    assert MOVES["reward_limit"].step(0.0, 0.0, rows) == 2.0
    session = toy()
    groups = collect(session.backend, session.problems[:4], 1, session.sampling, (0, 0), 0)
    rewards = iter((1.0, 2.0, 3.0, 90.0))
    groups = [replace(g, rollouts=tuple(replace(r, reward=next(rewards)) for r in g.rollouts)) for g in groups]
    batch = make_batch(groups, session.backend.tokenizer.pad_id)
    np.testing.assert_allclose(limit_rewards(batch, 2.0).rewards, [1.0, 2.0, 3.0, 4.5])
    assert limit_rewards(batch, 0.0) is batch


def test_an_old_checkpoint_without_the_autopilot_is_read(toy, tmp_path):
    run, session = RunDir(tmp_path), toy("run.steps=2")
    train(session, run)
    path = run.checkpoint_folder(2) / "state.json"
    path.write_text(json.dumps({k: v for k, v in json.loads(path.read_text()).items() if k != "autopilot"}))
    assert checkpoint.load(run, session.backend).autopilot == PilotState()


@pytest.mark.parametrize(("overrides", "message"), [
    (["autopilot.mode=on"], "autopilot.mode: got 'on'; expected 'off', 'advise' or 'act'"),
    (["autopilot.kl_band=[0, 0.3]"], "autopilot.kl_band: got [0, 0.3]; expected two numbers above 0"),
    (["autopilot.kl_band=[0.4]"], "autopilot.kl_band: got [0.4]; expected two numbers above 0"),
    (["autopilot.kl_band=0.4"], "autopilot.kl_band: got 0.4"),
    (["autopilot.cooldown=3"], "autopilot.cooldown: got 3; expected a number greater than or equal to 20"),
    (["autopilot.kl_badn=1"], "autopilot.kl_badn: unknown setting; did you mean 'kl_band'?"),
    (["update.learning_rate=0"], "update.learning_rate is 0"),
    (["run.doctor_every=0"], "run.doctor_every is 0"),
    (["autopilot.kl_ref_target=6", "algorithm.args.kl_coef=0"], "no algorithm.args.kl_coef above 0"),
    (["autopilot.kl_ref_target=6", "algorithm.args.kl_control=adaptive"], "move one number; set one"),
])  # fmt: skip
def test_a_wrong_setting_is_one_clear_line(overrides, message):
    with pytest.raises(ConfigError) as caught:
        config.resolve({"rewards": {"length": 1.0}, "autopilot": {"mode": "act"}}, overrides)
    assert message in str(caught.value) and "\n" not in str(caught.value)


def test_the_report_says_what_was_done():
    rate = {"kind": "rate", "knob": "update.learning_rate", "before": 1e-6, "after": 1e-5, "why": "KL of a step"}
    multiplier = {"knob": "rate_multiplier", "before": 1.0, "after": 0.5, "evidence": []}
    lines = [
        {"step": 3, **rate, "evidence": ["a", "b"], "done": True},
        {"step": 9, **multiplier, "kind": "move", "why": "x", "done": True, "back_to": 4},
        {"step": 60, **multiplier, "kind": "undo", "why": "y", "before": 0.5, "after": 1.0, "done": True},
        {"step": 70, "kind": "move", "knob": "update.epochs", "before": 2, "after": 1, "why": "z", "done": False},
    ]
    assert actions_view([]) == []
    assert actions_view(lines)[1].rows == [
        ("3", "update.learning_rate 1e-06 → 1e-05", "KL of a step", "a; b"),
        ("9", "back to step 4; rate multiplier 1 → 0.5", "x", ""),
        ("60", "undone: rate multiplier 0.5 → 1", "y", ""),
        ("70", "advice: update.epochs 2 → 1", "z", ""),
    ]


def test_the_rate_multiplier_is_a_factor_of_the_learning_rate():
    halved = adjust(config.resolve({"rewards": {"length": 1.0}}), PilotState(rate_multiplier=0.5))
    assert math.isclose(halved.update.learning_rate, 1.5e-4)


def test_the_report_of_a_run_has_its_actions_and_that_of_another_none(toy, tmp_path):
    low_rate = ("update.learning_rate=1e-6", "run.steps=12")
    for name, mode in (("acted", "act"), ("alone", "off")):
        run, session = RunDir(tmp_path / name), toy(*LONG, *low_rate, f"autopilot.mode={mode}")
        write_json(run.info_file, {"status": "finished"})
        train(session, run)
        folder = write_report(run.path)
        for page in ("report.md", "report.html"):
            text = (folder / page).read_text()
            assert ("What the autopilot did" in text) is (mode == "act")
            assert ("update.learning_rate 1e-06 → 1e-05" in text) is (mode == "act")


def test_what_a_resumed_run_did_again_is_read_once(tmp_path):
    run = RunDir(tmp_path)
    for step in (3, 5, 3, 5, 7):
        line = {"step": step, "kind": "rate", "knob": "learning_rate", "before": 1.0, "after": 2.0, "why": "KL"}
        append_line(run.actions_file, {**line, "evidence": []})
    assert [line["step"] for line in run.actions()] == [3, 5, 7]
