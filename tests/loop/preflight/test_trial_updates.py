"""Updates that are taken back: each fault is put into a real backend or loss, and must be told by its cause."""

import os
import signal
from contextlib import contextmanager
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from steadyrl.backends.toy import ToyBackend
from steadyrl.core.errors import AccessError
from steadyrl.core.scratch import sweep
from steadyrl.loop.preflight import trial_updates as module
from steadyrl.loop.preflight.trial import begin_trial
from steadyrl.loop.preflight.trial_updates import make_trial_updates


def verdicts(session):
    return {verdict.check: verdict for verdict in make_trial_updates(begin_trial(session)).findings}


def causes(session):
    return {name: verdict.cause for name, verdict in verdicts(session).items() if verdict.state != "ok"}


def with_loss(session, loss):
    return replace(session, algorithm=replace(session.algorithm, loss=loss))


@pytest.mark.parametrize("algorithm", ["ppo", "grpo"])
def test_a_sound_session_passes(toy, algorithm):
    assert causes(toy(f"algorithm.name={algorithm}")) == {}


def test_a_threshold_above_every_reward_leaves_nothing_to_train(toy):
    keep = 'algorithm.args={keep="above",reward_threshold=9.0,baseline="none",kl_coef=0.1}'
    found = verdicts(toy("algorithm.name=rlaif", keep))["gradient"]
    assert (found.severity, found.cause) == ("critical", "nothing_kept")


@pytest.mark.parametrize(("limit", "minibatches", "cause"), [(1e-9, 4, "kl_old_limit"), (1e-9, 1, ""), (0.5, 4, "")])
def test_a_limit_that_the_first_update_passes_is_said(limit, minibatches, cause, toy):
    sizes = ("update.epochs=2", f"update.minibatches={minibatches}")
    assert verdicts(toy(*sizes, f"update.kl_old_limit={limit}"))["update"].cause == cause


def test_a_rate_at_which_no_run_could_move_is_said_with_one_that_moves_as_usual(toy):
    """The KL of a step grows with the square of the rate, so that the advised rate does not depend on the one tried."""
    found = [verdicts(toy("run.steps=20", f"update.learning_rate={rate}"))["update"] for rate in ("1e-4", "5e-5")]
    assert {(v.severity, v.cause) for v in found} == {("warning", "hardly_moves")}
    assert found[0].overrides == found[1].overrides
    advised = toy(*found[0].overrides)
    first, steps = begin_trial(advised), advised.config.update.epochs * advised.config.update.minibatches
    message = {v.check: v for v in make_trial_updates(first).findings}["update"].message
    moved = float(message.partition("took the policy ")[2].split()[0])
    assert 0.001 < moved * steps**2 < 0.02  # nats per token in a step
    far_below = verdicts(toy("run.steps=20", "update.learning_rate=1e-8"))["update"]
    assert far_below.overrides == ("update.learning_rate=0.0003",)  # the default


@pytest.mark.parametrize(
    ("setting", "cause", "overrides"),
    [
        ("update.max_grad_norm=1e-9", "gradient", ("update.max_grad_norm=1",)),
        ("update.reward_limit=1e-9", "rewards", None),
        ("update.kl_old_limit=1e-9", "step", ("update.kl_old_limit=0.05",)),
        ("autopilot.kl_band=[1e-12,1e-11]", "band", ("autopilot.kl_band=[0.06, 0.3]",)),
    ],
)
def test_a_limit_that_leaves_nothing_is_said_before_the_run(setting, cause, overrides, toy):
    found = verdicts(toy(setting, "autopilot.mode=act"))["limits"]
    assert (found.severity, found.cause) == ("warning", cause)
    if overrides is None:  # four standard deviations of the rewards
        rewards = [r.reward for group in begin_trial(toy()).groups for r in group.rollouts]
        assert float(found.overrides[0].partition("=")[2]) == pytest.approx(4 * np.std(rewards), rel=0.05)
    else:
        assert found.overrides == overrides


def test_a_gradient_that_is_clipped_to_nothing_is_no_fault_of_the_rate(toy):
    found = verdicts(toy("run.steps=20", "update.max_grad_norm=1e-13"))
    assert (found["update"].cause, found["update"].overrides) == ("hardly_moves", ())
    assert found["limits"].cause == "gradient"


def test_an_update_is_judged_at_the_rate_of_the_first_step(toy):
    """A warm-up of ten steps begins with a tenth of the rate."""
    message = verdicts(toy("update.learning_rate=0.2", "update.warmup_steps=10"))["update"].message
    assert "learning rate 0.02 " in message


def test_the_gain_is_the_mean_of_advantage_times_change(toy):
    """A loss that is the sum of a's log-probs alone, at a rate so small that the change is its gradient's sign."""
    session = toy("update.learning_rate=1e-6")
    trial = begin_trial(session)
    before = session.backend.parameters["logits"].copy()
    message = {v.check: v for v in make_trial_updates(trial).findings}["update"].message
    np.testing.assert_array_equal(session.backend.parameters["logits"], before)
    batch = trial.training
    twin = ToyBackend(0)
    twin.step(batch, session.update_at(1e-6))
    after = twin.score(batch, session.sampling, frozenset()).logprobs
    total, tokens = 0.0, 0
    for row, column in zip(*np.nonzero(batch.completion_mask), strict=True):
        total += batch.advantages[row, column] * (after[row, column] - trial.scores.logprobs[row, column])
        tokens += 1
    assert float(message.rpartition("by ")[2]) == pytest.approx(total / tokens, rel=1e-2)


def test_a_loss_of_the_wrong_sign_is_told(toy):
    session = toy()

    def negated(xp, new, arrays, count):
        total, sums = session.algorithm.loss(xp, new, arrays, count)
        return 0.0 - total, sums

    assert causes(with_loss(session, negated)) == {"update": "loss_sign"}


class Overshoots(ToyBackend):
    """Beyond a rate of 0.05 its updates go the wrong way."""

    def step(self, batch, update):
        rate = update.learning_rate
        signed = rate if rate <= 0.05 else -rate
        return super().step(batch, replace(update, learning_rate=signed))


def test_a_learning_rate_that_is_too_high_is_told_with_one_that_is_not(toy):
    session = replace(toy("update.learning_rate=1.0"), backend=Overshoots())
    verdict = verdicts(session)["update"]
    assert (verdict.cause, verdict.overrides) == ("learning_rate", ("update.learning_rate=0.01",))
    assert verdict.severity == "critical"


@pytest.mark.parametrize(("mode", "severity"), [("act", "warning"), ("advise", "critical")])
def test_a_rate_that_is_too_high_does_not_stop_a_run_whose_autopilot_lowers_it(toy, mode, severity):
    session = replace(toy("update.learning_rate=0.5", f"autopilot.mode={mode}"), backend=Overshoots())
    verdict = verdicts(session)["update"]
    assert (verdict.cause, verdict.severity) == ("learning_rate", severity)


def test_a_leap_is_no_update_even_if_it_is_one_for_the_better(toy):
    """At a rate of 10 Adam moves every logit by 10: what was unlikely is then impossible."""
    session = toy("update.learning_rate=10.0", "update.kl_old_limit=0.05")
    verdict = verdicts(session)["update"]
    assert verdict.cause == "learning_rate"
    rate = float(verdict.overrides[0].removeprefix("update.learning_rate="))
    assert 0.05 < rate < 10


class LeapsAtAnyRate(ToyBackend):
    """However small the rate is, its updates go far, and the wrong way."""

    def step(self, batch, update):
        return super().step(batch, replace(update, learning_rate=-10.0))


def test_a_step_that_leaves_the_policy_is_the_learning_rate_even_if_no_smaller_one_helps(toy):
    verdict = verdicts(replace(toy("update.learning_rate=10.0"), backend=LeapsAtAnyRate()))["update"]
    assert (verdict.state, verdict.cause, verdict.overrides) == ("found", "learning_rate", ())
    assert "no rate down to 1e-05 makes the mean rise" in verdict.message


class NeedsATinyRate(ToyBackend):
    """Beyond a rate of a ten-thousandth its updates go the wrong way, by little."""

    def step(self, batch, update):
        rate = update.learning_rate
        signed = rate if rate <= 1.01e-4 else -min(rate, 0.01)
        return super().step(batch, replace(update, learning_rate=signed))


def test_much_smaller_rates_are_tried_before_the_sign_is_blamed(toy):
    verdict = verdicts(replace(toy("update.learning_rate=10.0"), backend=NeedsATinyRate()))["update"]
    assert (verdict.cause, verdict.overrides) == ("learning_rate", ("update.learning_rate=0.0001",))


class DoesNothing(ToyBackend):
    def step(self, batch, update):
        return super().step(batch, replace(update, learning_rate=0.0))


def test_a_step_that_changes_nothing_is_told(toy):
    assert causes(replace(toy(), backend=DoesNothing())) == {"update": "no_update"}


def test_at_a_rate_of_zero_no_update_is_judged(toy):
    found = verdicts(toy("update.learning_rate=0.0"))
    states = {name: v.state for name, v in found.items()}
    assert states == {"gradient": "ok", "limits": "ok", "update": "unknown", "continuation": "ok"}


def test_rewards_that_do_not_differ_leave_no_gradient(toy):
    session = toy("algorithm.name=grpo", "algorithm.args.kl_coef=0.0", reward="toy_rewards:nothing")
    found = verdicts(session)
    assert (found["gradient"].cause, found["update"].state) == ("no_signal", "unknown")
    assert found["update"].message == "the gradient is 0: no update can be judged"


def test_a_loss_without_the_policy_in_it_is_told(toy):
    def constant(xp, new, arrays, count):
        return (new.logprobs * arrays["mask"]).sum() * 0.0, {}

    assert causes(with_loss(toy(), constant))["gradient"] == "no_gradient"


def test_a_gradient_that_the_doctor_would_take_for_none_is_none(toy):
    def faint(xp, new, arrays, count):
        return (new.logprobs * arrays["mask"] * arrays["advantages"]).sum() * 1e-16, {}

    assert causes(with_loss(toy(), faint))["gradient"] == "no_gradient"


def test_the_advice_for_more_samples_is_not_the_number_in_force(toy):
    settings = ("algorithm.name=grpo", "algorithm.args.kl_coef=0.0", "rollout.samples_per_prompt=8")
    found = verdicts(toy(*settings, reward="toy_rewards:nothing"))
    assert found["gradient"].overrides == ("rollout.samples_per_prompt=32",)


def test_a_gradient_that_is_not_finite_is_told_by_where_it_begins(toy):
    session = toy()

    def broken(xp, new, arrays, count):
        return (new.logprobs * arrays["mask"]).sum() * float("nan"), {}

    assert verdicts(with_loss(session, broken))["gradient"].cause == "overflow"

    def prepare(batch, numbers):
        found = session.algorithm.prepare(batch, numbers)
        return replace(found, advantages=np.where(found.completion_mask, np.nan, 0.0))

    found = verdicts(replace(session, algorithm=replace(session.algorithm, prepare=prepare)))
    assert found["gradient"].cause == "not_finite_inputs"
    assert "advantages" in found["gradient"].message
    assert (found["update"].state, found["continuation"].state) == ("unknown", "unknown")


def test_without_a_scored_rollout_nothing_can_be_told(toy):
    found = verdicts(toy(reward="toy_rewards:always_fails"))
    assert [verdict.state for verdict in found.values()] == ["unknown"] * 4


class Forgets(ToyBackend):
    """Loading leaves some things as they are."""

    def __init__(self, kept):
        super().__init__()
        self._kept = kept

    def load(self, folder):
        before = {name: value.copy() for name, value in {**self.parameters, **self._moments}.items()}
        super().load(folder)
        for name in self._kept:
            (self.parameters if name in self.parameters else self._moments)[name] = before[name]


class LosesCount(ToyBackend):
    """Saves Adam's moments without the number of its updates."""

    def load(self, folder):
        super().load(folder)
        self._updates = 0


class Noisy(ToyBackend):
    """Updates see other log-probs every time, as with dropout."""

    size = 0.05

    def __init__(self):
        super().__init__()
        self._noise = np.random.default_rng(0)

    def step(self, batch, update):
        noise = self._noise.normal(0, self.size, batch.tokens.shape)
        noisy = replace(batch, old=replace(batch.old, logprobs=batch.old.logprobs + noise))
        return super().step(noisy, update)


@pytest.mark.parametrize(
    ("backend", "cause"),
    [
        (lambda: Forgets(["logits"]), "weights"),
        (lambda: Forgets(["values"]), "value_head"),
        (lambda: Forgets(["m.logits", "v.logits"]), "optimizer"),
        (LosesCount, "optimizer"),
        (Noisy, "noise"),
    ],
)
def test_what_a_checkpoint_loses_is_told(toy, backend, cause):
    assert causes(replace(toy(), backend=backend()))["continuation"] == cause


class Reorders(Noisy):
    """Updates whose last digits change, as on a GPU that adds up in another order every time."""

    size = 1e-3


def test_digits_that_change_without_loading_are_no_fault_of_it(toy):
    found = verdicts(replace(toy(), backend=Reorders()))["continuation"]
    assert found.state == "ok"
    assert "repeated without loading" in found.message


class CannotRepeat(Reorders):
    """Asked to repeat itself, it finds an operation without a deterministic kernel."""

    asked, message = False, "bincount_cuda does not have a deterministic implementation"

    @contextmanager
    def repeating(self):
        self.asked = True
        yield
        self.asked = False

    def step(self, batch, update):
        if self.asked:
            self.asked = False
            raise RuntimeError(self.message)
        return super().step(batch, update)


def test_updates_that_cannot_be_repeated_are_made_as_they_come(toy):
    found = verdicts(replace(toy(), backend=CannotRepeat()))["continuation"]
    assert found.state == "ok"
    assert "repeated without loading" in found.message
    backend = CannotRepeat()
    backend.message = "an error of its own"
    with pytest.raises(RuntimeError, match="an error of its own"):
        verdicts(replace(toy(), backend=backend))


class Rounds(ToyBackend):
    """What was loaded differs in its last digits from what was saved, as a product of two threads does."""

    size = 1e-7

    def load(self, folder):
        super().load(folder)
        self.parameters["logits"] = self.parameters["logits"] * (1 + self.size)


class LosesDigits(Rounds):
    size = 1e-4


@pytest.mark.parametrize(("backend", "state"), [(Rounds, "ok"), (LosesDigits, "found")])
def test_rounding_is_told_from_what_a_checkpoint_loses(toy, backend, state):
    assert verdicts(replace(toy(), backend=backend()))["continuation"].state == state


def test_the_state_is_as_it_was_even_if_an_update_fails(toy):
    session = toy()
    trial = begin_trial(session)
    before = {name: array.copy() for name, array in session.backend.parameters.items()}
    steps = []

    def fails_later(xp, new, arrays, count):
        steps.append(count)
        if len(steps) == 2:
            raise RuntimeError("no memory")
        return session.algorithm.loss(xp, new, arrays, count)

    with pytest.raises(RuntimeError, match="no memory"):
        make_trial_updates(replace(trial, session=with_loss(session, fails_later)))
    for name, array in before.items():
        np.testing.assert_array_equal(session.backend.parameters[name], array)


def test_too_little_room_for_the_state_is_refused_before_anything_is_saved(toy, monkeypatch):
    usage = SimpleNamespace(total=100, used=99, free=1)
    monkeypatch.setattr(module.shutil, "disk_usage", lambda path: usage)
    with pytest.raises(AccessError, match="set TMPDIR"):
        make_trial_updates(begin_trial(toy()))


def test_what_a_killed_preflight_keeps_is_removed_by_the_next_program(toy, tmp_path, monkeypatch):
    class Dies(ToyBackend):
        def save(self, folder):
            super().save(folder)
            os.kill(os.getpid(), signal.SIGKILL)

    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(folder))
    trial = begin_trial(replace(toy(), backend=Dies()))
    child = os.fork()
    if child == 0:
        make_trial_updates(trial)
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL
    assert list(folder.iterdir())
    sweep()
    assert not list(folder.iterdir())


def test_room_is_asked_for_what_is_trained_and_not_for_what_is_loaded(toy, monkeypatch):
    """A LoRA adapter of 10 million on a model of 7.6 billion: two copies take 240 MB, not 180 GB."""

    class Adapted(ToyBackend):
        def describe(self):
            return super().describe() | {"parameters": 7_600_000_000, "trained": 10_000_000}

    usage = SimpleNamespace(total=10**12, used=0, free=240_000_000)
    monkeypatch.setattr(module.shutil, "disk_usage", lambda path: usage)
    trial = begin_trial(replace(toy(), backend=Adapted()))
    assert make_trial_updates(trial).saved_bytes
    usage.free -= 1
    with pytest.raises(AccessError, match=r"two copies of the state \(0\.2 GiB\)"):
        make_trial_updates(trial)


class RoundsCoarsely(ToyBackend):
    """Rounds as bfloat16 does: whatever changes in the weights moves each log-prob by 0.03 nats, up or down."""

    precision = "bf16"

    def describe(self):
        return super().describe() | {"precision": self.precision}

    def score(self, batch, sampling, needs):
        found = super().score(batch, sampling, needs)
        seed = int(np.abs(self.parameters["logits"][:, :5]).sum() * 1e12) % 2**32
        noise = np.random.default_rng(seed).normal(0.0, 0.03, found.logprobs.shape) * batch.completion_mask
        return replace(found, logprobs=found.logprobs + noise)


def test_an_update_smaller_than_rounding_is_not_blamed_on_the_learning_rate(toy):
    """Over ten runs chance alone makes the mean fall in about half; in float32 the same would be a fault."""
    found = []
    for seed in range(10):
        session = toy("update.learning_rate=1e-7", "algorithm.args.value_start=zero", f"run.seed={seed}")
        found.append(verdicts(replace(session, backend=RoundsCoarsely(seed)))["update"])
    assert {verdict.state for verdict in found} == {"ok", "unknown"}
    assert any("too little to tell from the rounding of bfloat16" in verdict.message for verdict in found)
    exact = RoundsCoarsely(0)
    exact.precision = "fp32"
    lost = [verdicts(replace(toy("update.learning_rate=1e-7", f"run.seed={s}"), backend=exact)) for s in range(4)]
    assert any(verdict["update"].state == "found" for verdict in lost)
