import json
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from steadyrl.core.counting.count import heard_by
from steadyrl.core.errors import CheckpointError, DataError, DivergedError
from steadyrl.core.metrics import repeatable
from steadyrl.core.rundir import RunDir, read_lines
from steadyrl.core.sections import UpdateSection
from steadyrl.loop.train import Watch, train

# peft reads a property of the model that transformers has renamed.
pytestmark = pytest.mark.filterwarnings("ignore:.is_gradient_checkpointing. is deprecated:FutureWarning")

# Everything that a resumed run has to find again: generators, Adam's moments, the adaptive coefficient, the schedule.
MUCH = (
    "sampling.temperature=0.8", "sampling.top_p=0.9", "update.warmup_steps=2", "update.schedule=cosine",
    "update.minibatches=3", "algorithm.args.kl_control=adaptive", "algorithm.args.kl_horizon=1",
    "algorithm.args.entropy_coef=0.01", "run.rollouts_every=1", "evaluate.every=2",
)  # fmt: skip


@pytest.fixture
def open_session(toy, request):
    """Return a function that opens the same session anew: the toy backend, or a tiny model in torch."""
    kind = getattr(request, "param", "toy")
    if kind == "toy":
        return toy
    folder = request.getfixturevalue("tiny_models")["llama"]
    rank = 4 if kind == "lora" else 0
    more = (
        "backend.name=torch", "backend.device=cpu", "backend.threads=1", f"model.path={folder}",
        f"model.lora_rank={rank}", "update.learning_rate=0.01", "update.epochs=1", "rollout.prompts_per_step=4",
    )  # fmt: skip
    return lambda *overrides, **settings: toy(*more, *overrides, **settings)


def steady(lines):
    """Metrics without what a clock or a resume changes."""
    return [repeatable(line) for line in lines]


def stop_after(steps):
    seen = []
    return Watch(step=seen.append, stop=lambda: len(seen) == steps)


def all_rollouts(run):
    return [list(read_lines(run.rollouts_file(step))) for step in range(6)]


def assert_same_run(run, expected):
    assert [line["step"] for line in run.metrics()] == list(range(6))
    assert steady(run.metrics()) == steady(expected.metrics())
    assert all_rollouts(run) == all_rollouts(expected)
    for name in ("before", "after"):
        assert run.evaluation_file(name).read_text() == expected.evaluation_file(name).read_text()


@pytest.mark.parametrize(
    "open_session", ["toy", "lora", pytest.param("torch", marks=pytest.mark.weekly)], indirect=True
)
def test_a_stopped_and_resumed_run_equals_an_unbroken_one(open_session, tmp_path, monkeypatch):
    monkeypatch.setattr("steadyrl.loop.train.GRADIENT_PARTS_EVERY", 2)
    unbroken, run = RunDir(tmp_path / "unbroken"), RunDir(tmp_path / "stopped")
    assert train(open_session(*MUCH), unbroken) == "finished"
    assert train(open_session(*MUCH), run, watch=stop_after(3)) == "interrupted"
    assert (len(run.metrics()), run.checkpoints()) == (3, [2, 3])  # the best one, and the newest
    assert train(open_session(*MUCH), run, attempt=1) == "finished"
    assert_same_run(run, unbroken)
    assert [line["attempt"] for line in run.metrics()] == [0, 0, 0, 1, 1, 1]
    assert len({line["reward/mean"] for line in unbroken.metrics()}) > 2
    assert len({line["algorithm/kl_coef"] for line in unbroken.metrics()}) == 6
    assert ["gradient/penalty" in line for line in run.metrics()] == [False, True] * 3


@pytest.mark.parametrize("open_session", ["toy", "torch"], indirect=True)
def test_measuring_the_gradients_of_reward_and_penalty_changes_nothing_else(open_session, tmp_path, monkeypatch):
    """With one update per step, torch keeps the pass over the batch for it."""
    one_update = ("update.epochs=1", "update.minibatches=1", "run.steps=3")
    runs = [RunDir(tmp_path / every) for every in ("100", "1")]
    for run in runs:
        monkeypatch.setattr("steadyrl.loop.train.GRADIENT_PARTS_EVERY", int(run.path.name))
        train(open_session(*one_update), run)
    without, beside = ([dict(line) for line in steady(run.metrics())] for run in runs)
    measured = [{name: line.pop(name) for name in list(line) if name.startswith("gradient/")} for line in beside]
    assert beside == without
    assert [set(names) >= {"gradient/reward", "gradient/penalty"} for names in measured] == [True] * 3


def test_a_killed_run_goes_on_from_its_last_checkpoint(toy, tmp_path):
    """It dies after the line of step 2 is written and before the next checkpoint, while it writes the next line."""

    class Killed(Exception):
        pass

    def die(record):
        if record["step"] == 2:
            raise Killed

    unbroken, run = RunDir(tmp_path / "unbroken"), RunDir(tmp_path / "killed")
    settings = (*MUCH, "run.checkpoint_every=2")
    train(toy(*settings), unbroken)
    with pytest.raises(Killed):
        train(toy(*settings), run, watch=Watch(step=die))
    assert run.checkpoints() == [2]
    with run.metrics_file.open("a") as file:
        file.write('{"step": 3, "attempt": 0, "reward/me')
    train(toy(*settings), run, attempt=1)
    assert_same_run(run, unbroken)
    assert [line["attempt"] for line in run.metrics()] == [0, 0, 1, 1, 1, 1]


def test_a_step_that_is_made_again_is_examined_again(toy, tmp_path):
    """It dies when the line of the last step is written and nobody has looked at it: what is seen there is not lost."""

    class Killed(Exception):
        pass

    def die(record):
        if record["step"] == 5:
            raise Killed

    unbroken, run = RunDir(tmp_path / "unbroken"), RunDir(tmp_path / "killed")
    settings = (*MUCH, "run.checkpoint_every=1", "run.doctor_every=6")
    train(toy(*settings), unbroken)
    with pytest.raises(Killed):
        train(toy(*settings), run, watch=Watch(step=die))
    assert not run.findings_file.exists()
    train(toy(*settings), run, attempt=1)
    found = [[(line["step"], line["check"]) for line in read_lines(one.findings_file)] for one in (run, unbroken)]
    assert found[0] == found[1] != []


def test_a_checkpoint_without_its_marker_is_no_checkpoint(toy, tmp_path):
    unbroken, run = RunDir(tmp_path / "unbroken"), RunDir(tmp_path / "stopped")
    train(toy(*MUCH), unbroken)
    train(toy(*MUCH), run, watch=stop_after(3))
    for name in ("000005", "000006", "000004.part"):
        folder = run.path / "checkpoints" / name
        folder.mkdir()
        (folder / "state.json").write_text("{")
    assert run.checkpoints() == [2, 3]
    train(toy(*MUCH), run, attempt=1)
    assert_same_run(run, unbroken)
    assert run.checkpoints() == [2, 3, 6]


def test_a_run_that_died_before_any_checkpoint_begins_again(toy, tmp_path):
    unbroken, run = RunDir(tmp_path / "unbroken"), RunDir(tmp_path / "died")
    train(toy(*MUCH), unbroken)

    def die(record):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train(toy(*MUCH), run, watch=Watch(step=die))
    train(toy(*MUCH), run, attempt=1)
    assert_same_run(run, unbroken)


def test_a_damaged_state_is_refused(toy, tmp_path):
    run = RunDir(tmp_path)
    train(toy("run.steps=2"), run)
    (run.checkpoint_folder(2) / "state.json").write_text('{"step": 2, "nonsense": 1}')
    with pytest.raises(CheckpointError, match=r"state\.json"):
        train(toy("run.steps=4"), run)


@pytest.mark.parametrize(
    ("memory", "told"),
    [
        ({"seen": {"a": {"rollouts": 2.0, "lost": 1.0}}}, r"what is remembered of 'a' lacks last"),
        ({"seen": {"a": {"rollouts": "many", "last": 1.0}}}, "valid number"),
        ({"seen": [1]}, "should be an object"),
        ({"made": [{"id": "a"}]}, "prompt"),
    ],
)
def test_a_damaged_memory_of_the_curriculum_is_refused(toy, tmp_path, memory, told):
    run = RunDir(tmp_path)
    train(toy("run.steps=2", "curriculum.name=learnability"), run)
    file = run.checkpoint_folder(2) / "state.json"
    state = json.loads(file.read_text())
    file.write_text(json.dumps(state | {"curriculum": state["curriculum"] | memory}))
    with pytest.raises(CheckpointError, match=rf"state\.json: (?s:.)*{told}"):
        train(toy("run.steps=4", "curriculum.name=learnability"), run)


def test_a_finished_run_has_nothing_left_to_do(toy, tmp_path):
    run = RunDir(tmp_path)
    train(toy("run.steps=2"), run)
    assert train(toy("run.steps=2"), run, attempt=1) == "finished"
    assert [(line["step"], line["attempt"]) for line in run.metrics()] == [(0, 0), (1, 0)]


def test_only_the_newest_checkpoints_are_kept(toy, tmp_path):
    run = RunDir(tmp_path)
    train(toy("run.steps=7", "run.checkpoint_every=2", "run.keep_checkpoints=3"), run)
    assert run.checkpoints() == [4, 6, 7]


def test_a_run_follows_from_its_seed(toy, tmp_path):
    runs = [RunDir(tmp_path / name) for name in ("one", "same", "other")]
    for run, seed in zip(runs, (5, 5, 6), strict=True):
        train(toy(*MUCH, "run.steps=3", f"run.seed={seed}"), run)
    one, same, other = (steady(run.metrics()) for run in runs)
    assert one == same
    assert one != other


def test_rollouts_that_a_reward_fails_on_are_unscored_and_counted(toy, tmp_path):
    run = RunDir(tmp_path)
    settings = ("run.steps=2", "run.rollouts_every=1", "evaluate.problems=1", "sampling.max_new_tokens=60")
    session = toy(*settings, reward="toy_rewards:refuses_odd_lengths")
    train(replace(session, heldout=[]), run)
    for line in run.metrics():
        rollouts = list(read_lines(run.rollouts_file(line["step"])))
        failed = [r for r in rollouts if r["tokens"] % 2]
        assert 0 < len(failed) < 16 == len(rollouts)
        assert line["reward/unscored"] == pytest.approx(len(failed) / 16)
        assert line["reward/mean"] == 1.0
        assert {(r["reward"], r["unscored"]) for r in failed} == {
            (None, "refuses_odd_lengths raised RuntimeError: odd (toy_rewards.py, line 16)")
        }
        assert {(r["reward"], r["unscored"]) for r in rollouts if r not in failed} == {(1.0, None)}


def test_fewer_scored_rollouts_than_minibatches_are_one_update_each(toy, tmp_path):
    run = RunDir(tmp_path)
    settings = ("run.steps=1", "update.minibatches=16", "update.epochs=1", "sampling.max_new_tokens=60")
    session = toy(*settings, reward="toy_rewards:refuses_odd_lengths")
    train(replace(session, heldout=[]), run)
    (line,) = run.metrics()
    scored = round(16 * (1 - line["reward/unscored"]))
    assert scored < 16
    assert (line["updates"], line["epochs"]) == (scored, 1)


def test_a_reward_that_always_fails_ends_the_run(toy, tmp_path):
    with pytest.raises(DataError, match=r"always_fails.*broken"):
        train(toy(reward="toy_rewards:always_fails"), RunDir(tmp_path))


def test_an_algorithm_that_keeps_nothing_ends_the_run(toy, tmp_path):
    session = toy()
    with pytest.raises(DataError, match="kept none of 8 groups"):
        train(replace(session, algorithm=replace(session.algorithm, select=lambda groups: [])), RunDir(tmp_path))


def test_a_gradient_that_is_not_finite_ends_the_run_and_leaves_the_weights(toy, tmp_path):
    session = toy()
    before = session.backend.parameters["logits"].copy()

    def broken(xp, new, arrays, count):
        return (new.logprobs * arrays["mask"]).sum() * float("nan"), {}

    with pytest.raises(DivergedError, match="step 0, update 0"):
        train(replace(session, algorithm=replace(session.algorithm, loss=broken)), RunDir(tmp_path))
    np.testing.assert_array_equal(session.backend.parameters["logits"], before)
    assert RunDir(tmp_path).checkpoints() == []


def test_evaluations_have_a_line_per_held_out_problem(toy, tmp_path):
    run, session = RunDir(tmp_path), toy("run.steps=2")
    train(session, run)
    heldout = [problem.id for problem in session.task.problems("heldout")]
    assert len(heldout) == 4
    for name in ("before", "after"):
        lines = list(read_lines(run.evaluation_file(name)))
        assert [line["problem"] for line in lines] == heldout
        for line in lines:
            assert set(line["answers"]) == {"sampled", "greedy"}
            text = line["answers"]["sampled"]["text"]
            assert line["answers"]["sampled"]["reward"] == pytest.approx(text.count("a") / max(1, len(text)))
    assert not run.evaluation_file("baselines").exists()


def test_steps_go_through_the_training_problems_and_no_others(toy, tmp_path):
    """Sixteen of them, eight a step: two steps make a pass."""
    run, session = RunDir(tmp_path), toy("run.rollouts_every=1")
    train(session, run)
    by_step = [{record["problem"] for record in step} for step in all_rollouts(run)]
    for first, second in ((0, 1), (2, 3), (4, 5)):
        assert by_step[first] | by_step[second] == {problem.id for problem in session.task.problems("train")}
    assert not set.union(*by_step) & {problem.id for problem in session.heldout}


def test_fewer_held_out_problems_can_be_asked_for(toy, tmp_path):
    run = RunDir(tmp_path)
    train(toy("run.steps=1", "evaluate.problems=3"), run)
    assert len(list(read_lines(run.evaluation_file("after")))) == 3


def test_a_policy_that_does_not_change_is_evaluated_alike_before_and_after(toy, tmp_path):
    run = RunDir(tmp_path)
    train(toy("run.steps=2", "update.learning_rate=0", "evaluate.every=1"), run)
    assert run.evaluation_file("before").read_text() == run.evaluation_file("after").read_text()
    sampled = [line["answers"]["sampled"]["reward"] for line in read_lines(run.evaluation_file("after"))]
    assert [line["heldout/reward"] for line in run.metrics()] == [pytest.approx(np.mean(sampled))] * 2


def test_greedy_answers_take_the_likeliest_letter(toy, tmp_path):
    run, session = RunDir(tmp_path), toy("run.steps=1")
    table = session.backend.parameters["logits"].copy()
    tokenizer = session.backend.tokenizer
    train(session, run)
    for line in read_lines(run.evaluation_file("before")):
        token, ids = tokenizer.encode_prompt(line["prompt"])[-1], []
        while len(ids) < 6 and token != tokenizer.end_id:
            token = int(table[token].argmax())
            ids.append(token)
        assert line["answers"]["greedy"]["text"] == tokenizer.decode(np.array(ids)).strip()


def test_evaluations_while_training_come_at_their_steps(toy, tmp_path):
    run = RunDir(tmp_path)
    train(toy("evaluate.every=3"), run)
    assert [line["step"] for line in run.metrics() if "heldout/reward" in line] == [2, 5]


def test_rollouts_are_recorded_at_their_steps(toy, tmp_path):
    run = RunDir(tmp_path)
    train(toy("run.rollouts_every=4"), run)
    assert [step for step in range(6) if run.rollouts_file(step).is_file()] == [0, 4, 5]  # and the last
    records = [json.loads(line) for line in run.rollouts_file(4).read_text().splitlines()]
    assert len(records) == 16
    assert {record["policy_version"] for record in records} == {4 * 4}  # 2 epochs of 2 minibatches a step
    for record in records:
        share = record["completion"].count("a") / max(1, len(record["completion"]))
        assert record["reward"] == record["parts"]["share_of_a"] == pytest.approx(share)


SETTINGS = {"learning_rate": 2.0, "warmup_steps": 4}


@pytest.mark.parametrize(
    ("schedule", "rates"),
    [
        ("constant", {0: 0.5, 1: 1.0, 3: 2.0, 4: 2.0, 8: 2.0, 11: 2.0}),
        ("linear", {0: 0.5, 1: 1.0, 3: 2.0, 4: 2.0, 8: 1.0, 11: 0.25}),
        ("cosine", {0: 0.5, 1: 1.0, 3: 2.0, 4: 2.0, 6: 1 + 2**-0.5, 8: 1.0, 10: 1 - 2**-0.5}),
    ],
)
def test_the_learning_rate_of_a_step_by_hand(schedule, rates):
    """Four steps of warm-up, then eight of the schedule."""
    settings = UpdateSection(**SETTINGS, schedule=schedule)
    assert {step: settings.rate(step, 12) for step in rates} == pytest.approx(rates)


def test_without_warm_up_the_first_step_has_the_whole_rate():
    for schedule in ("constant", "linear", "cosine"):
        assert UpdateSection(learning_rate=2.0, warmup_steps=0, schedule=schedule).rate(0, 4) == 2.0


def test_a_warm_up_as_long_as_the_run_is_no_error():
    settings = UpdateSection(learning_rate=2.0, warmup_steps=10, schedule="linear")
    assert [settings.rate(step, 4) for step in range(4)] == pytest.approx([0.2, 0.4, 0.6, 0.8])


def test_the_learning_rate_of_every_step_is_written(toy, tmp_path):
    run = RunDir(tmp_path)
    train(toy("update.learning_rate=0.4", "update.warmup_steps=4", "update.schedule=linear"), run)
    assert [line["learning_rate"] for line in run.metrics()] == pytest.approx([0.1, 0.2, 0.3, 0.4, 0.4, 0.2])


def test_who_watches_learns_that_the_steps_begin_and_how_many_updates_are_to_come(toy, tmp_path):
    heard = []
    watch = Watch(phase=heard.append, step=lambda line: heard.append(f"step {line['step']}"))
    with heard_by(lambda what, done, total: what == "updates" and heard.append(f"{done} of {total}"), heard.append):
        train(toy("run.steps=1", "update.epochs=2", "update.minibatches=1"), RunDir(tmp_path / "run"), watch=watch)
    begins = heard.index("training, step 0")
    assert "before training" in heard[begins - 1]
    assert heard[begins + 1 : heard.index("step 0")] == ["0 of 2", "1 of 2", "1 of 2", "2 of 2"]


def test_a_clock_that_stands_still_costs_the_speed_alone(toy, tmp_path, monkeypatch):
    monkeypatch.setattr("steadyrl.core.metrics.time", SimpleNamespace(perf_counter=lambda: 1.0))
    run = RunDir(tmp_path)
    assert train(toy("run.steps=2"), run) == "finished"
    assert [(line["tokens/per_second"], line["time/step"]) for line in run.metrics()] == [(None, 0.0)] * 2
