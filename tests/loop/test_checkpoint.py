"""Checkpoints: what is read back, what is refused, and what remains when a save is cut short anywhere."""

import errno
import itertools
import json
import os
import shutil
import sys
from dataclasses import replace

import numpy as np
import pytest

from steadyrl.backends.toy import ToyBackend
from steadyrl.core.errors import AccessError, CheckpointError
from steadyrl.core.rundir import RunDir
from steadyrl.loop import checkpoint
from steadyrl.loop.checkpoint import LastMove, PilotState, State
from steadyrl.loop.train import train

EVENTS = {"open", "os.mkdir", "os.rename", "os.remove", "os.rmdir", "os.truncate", "shutil.rmtree"}
PILOT = PilotState(
    scale=0.3,
    rate_multiplier=0.5,
    settings={"update.epochs": 1, "sampling.temperature": 1.2},
    found_scale=0.25,
    last_move=LastMove(40, "kl_runaway", "unknown", "kl_coef", "algorithm.args.kl_coef", 0.05),
    findings_since=40,
    failed_moves=(("kl_runaway", "learning_rate", "epochs"),),
)


class Killed(BaseException):
    """Ends a save as a kill does: nothing catches it."""


class Countdown:
    """Raises at the n-th file operation from now on."""

    def __init__(self):
        self.left, self.error = None, None

    def __call__(self, event, args):
        if self.left is None or event not in EVENTS:
            return
        self.left -= 1
        if self.left == 0:
            self.left = None
            raise self.error


COUNTDOWN = Countdown()
sys.addaudithook(COUNTDOWN)  # Python has no way to remove it; it does nothing while nothing counts


def cut_short(act, operations, error):
    """Return True if ``act`` was ended by an error at that file operation, False where it has fewer of them."""
    COUNTDOWN.left, COUNTDOWN.error = operations, error
    try:
        act()
    except (Killed, AccessError):
        return True
    finally:
        ended, COUNTDOWN.left = COUNTDOWN.left is None, None
    assert not ended, "the error was swallowed"
    return False


def run_with_states(toy, folder, steps=(2, 4)):
    """Return a finished run with checkpoints at these steps, and its session."""
    run, session = RunDir(folder), toy(f"run.steps={steps[-1]}", f"run.checkpoint_every={steps[0]}")
    train(session, run)
    return run, session


def edit(run, step, change):
    file = run.checkpoint_folder(step) / "state.json"
    data = json.loads(file.read_text())
    change(data)
    file.write_text(json.dumps(data))


def refusal(run, session):
    with pytest.raises(CheckpointError) as caught:
        checkpoint.load(run, session.backend)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_an_empty_state_is_refused_and_the_checkpoint_before_it_named(toy, tmp_path):
    run, session = run_with_states(toy, tmp_path)
    (run.checkpoint_folder(4) / "state.json").write_text("{}")
    message = refusal(run, session)
    assert str(run.checkpoint_folder(4)) in message
    assert "it lacks step, updates, problems_drawn, algorithm" in message
    assert "delete that folder, and a resume begins at the earlier checkpoint of step 2" in message
    shutil.rmtree(run.checkpoint_folder(4))
    assert checkpoint.load(run, session.backend).step == 2


def test_the_only_checkpoint_damaged_means_a_resume_at_step_0(toy, tmp_path):
    run, session = run_with_states(toy, tmp_path, steps=(2,))
    edit(run, 2, lambda data: data.pop("problems_drawn"))
    assert "a resume begins at step 0, for there is no earlier checkpoint" in refusal(run, session)


@pytest.mark.parametrize(("key", "value", "message"), [
    ("step", 3, "it is the state after 3 steps, expected 4"),
    ("step", "4", "step: Input should be a valid integer"),
    ("updates", 1.5, "updates: Input should be a valid integer"),
    ("algorithm", [0.1], "algorithm: Input should be an object"),
    ("algorithm", {"kl_coef": "much"}, "algorithm.kl_coef: Input should be a valid number"),
    ("nonsense", 1, "nonsense: Unexpected keyword argument"),
    ("autopilot", 3, "autopilot: Input should be"),
    ("autopilot", {"scale": None}, "autopilot.scale: Input should be a valid number"),
    ("autopilot", {"last_move": {"step": 1}}, "autopilot.last_move.check: Field required"),
])  # fmt: skip
def test_a_wrong_state_is_refused(toy, tmp_path, key, value, message):
    run, session = run_with_states(toy, tmp_path)
    edit(run, 4, lambda data: data.update({key: value}))
    assert message in refusal(run, session)


@pytest.mark.parametrize("text", ["", "{", "[]", "[" * 100_000, '{"step": 1e999}'])
def test_what_is_no_state_is_refused(toy, tmp_path, text):
    run, session = run_with_states(toy, tmp_path)
    (run.checkpoint_folder(4) / "state.json").write_text(text)
    assert "is damaged (state.json: " in refusal(run, session)


def test_a_refused_state_leaves_the_weights_alone(toy, tmp_path):
    run, session = run_with_states(toy, tmp_path)
    (run.checkpoint_folder(4) / "state.json").write_text("{}")
    session.backend.parameters["logits"][:] = 7.0
    refusal(run, session)
    assert (session.backend.parameters["logits"] == 7.0).all()


def test_the_autopilots_state_is_read_back_as_it_was(toy, tmp_path):
    run, session = RunDir(tmp_path), toy()
    for step, pilot in enumerate((PILOT, PilotState(), replace(PILOT, last_move=None, steps_outside=-3))):
        state = State(step=step, algorithm={"kl_coef": 0.1}, autopilot=pilot)
        checkpoint.save(run, session.backend, state, 1)
        found = checkpoint.load(run, session.backend)
        assert found == state
        assert isinstance(found.autopilot.settings.get("update.epochs", 1), int), "a count must not become 1.0"


def test_an_earlier_checkpoint_of_a_run_without_the_autopilot_is_read(toy, tmp_path):
    run, session = run_with_states(toy, tmp_path)
    edit(run, 4, lambda data: data.update(autopilot={}))
    assert checkpoint.load(run, session.backend).autopilot == PilotState()


@pytest.fixture
def written_again(toy, tmp_path):
    """Return a function that makes a run with one checkpoint and an act that writes its step again, with other weights.

    What it returns checks that the checkpoint in the run is one of the two, whole.
    """
    session = toy()
    numbers = itertools.count()

    def make():
        run = RunDir(tmp_path / f"run{next(numbers)}")
        session.backend.parameters["logits"][:] = 1.0
        checkpoint.save(run, session.backend, State(step=3, updates=1), 1)
        session.backend.parameters["logits"][:] = 2.0

        def check():
            state = checkpoint.load(run, session.backend)
            assert state is not None, f"no checkpoint is left in {run.path}"
            assert state.step == 3
            np.testing.assert_array_equal(session.backend.parameters["logits"], float(state.updates))
            return state.updates

        return run, lambda: checkpoint.save(run, session.backend, State(step=3, updates=2), 1), check

    return make


def test_a_kill_at_any_file_operation_leaves_one_whole_checkpoint(written_again):
    found = []
    for operations in itertools.count(1):
        run, save, check = written_again()
        killed = cut_short(save, operations, Killed())
        checkpoint.finish_writing(run, 1)
        found.append(check())
        assert [path.name for path in (run.path / "checkpoints").iterdir()] == ["000003"]
        if not killed:
            break
    assert len(found) > 8, "the operations were counted"
    assert found == sorted(found) and set(found) == {1, 2}


def test_a_kill_while_an_old_checkpoint_goes_leaves_nothing_of_it(toy, tmp_path):
    session, left = toy(), set()
    for operations in itertools.count(1):
        run = RunDir(tmp_path / f"run{operations}")
        for step in (1, 2):
            checkpoint.save(run, session.backend, State(step=step), 2)
        killed = cut_short(
            lambda run=run: checkpoint.save(run, session.backend, State(step=3), 2), operations, Killed()
        )
        checkpoint.finish_writing(run, 2)
        names = sorted(path.name for path in (run.path / "checkpoints").iterdir())
        assert names == [f"{step:06d}" for step in run.checkpoints()]
        left.add(tuple(run.checkpoints()))
        if not killed:
            break
    assert left == {(1, 2), (2, 3)}


def test_a_kill_while_a_killed_save_is_finished_leaves_one_whole_checkpoint(written_again):
    for operations in itertools.count(1):
        for again in itertools.count(1):
            run, save, check = written_again()
            killed = cut_short(save, operations, Killed())
            killed_again = cut_short(lambda run=run: checkpoint.finish_writing(run, 1), again, Killed())
            checkpoint.finish_writing(run, 1)
            check()
            if not killed_again:
                break
        if not killed:
            break
    assert operations > 8


def test_a_full_disk_at_any_file_operation_is_one_line_and_leaves_one_whole_checkpoint(written_again):
    for operations in itertools.count(1):
        run, save, check = written_again()
        full = cut_short(save, operations, OSError(errno.ENOSPC, "No space left on device"))
        checkpoint.finish_writing(run, 1)
        check()
        if not full:
            break
    assert operations > 8


def test_a_save_after_a_killed_one_needs_no_help(written_again):
    for operations in itertools.count(1):
        _, save, check = written_again()
        killed = cut_short(save, operations, Killed())
        save()
        check()
        if not killed:
            break


def test_a_kill_while_later_checkpoints_are_forgotten_leaves_none_that_is_half_gone(toy, tmp_path):
    session = toy()
    for operations in itertools.count(1):
        run = RunDir(tmp_path / f"run{operations}")
        for step in (2, 4, 6):
            checkpoint.save(run, session.backend, State(step=step), 3)
        killed = cut_short(lambda run=run: checkpoint.forget_after(run, 2), operations, Killed())
        for step in run.checkpoints():
            assert checkpoint.load(run, session.backend, step).step == step
        if not killed:
            break
    assert run.checkpoints() == [2]
    assert operations > 4


def test_a_reader_leaves_a_save_under_way_alone(written_again):
    run, _, check = written_again()
    part = run.path / "checkpoints" / "000004.part"
    part.mkdir()
    (part / "DONE").touch()
    assert check() == 1
    assert part.is_dir()


class Private(ToyBackend):
    """Writes what its owner alone may read, as safetensors does."""

    def save(self, folder):
        super().save(folder)
        for file in folder.iterdir():
            file.chmod(0o600)


@pytest.mark.parametrize("umask", [0o022, 0o027])
def test_the_files_of_a_checkpoint_have_the_mode_of_any_new_file(tmp_path, umask):
    before = os.umask(umask)
    try:
        folder = checkpoint.save(RunDir(tmp_path), Private(0), State(step=1), 1)
    finally:
        os.umask(before)
    modes = {path.name: path.stat().st_mode & 0o777 for path in folder.rglob("*")}
    assert set(modes.values()) == {0o666 & ~umask} and {"toy.npz", "state.json", "DONE"} <= set(modes)
