import json
from dataclasses import replace

import numpy as np
import pytest

from steadyrl.core import plugins
from steadyrl.core.config import resolve, validate
from steadyrl.core.errors import ConfigError, DataError
from steadyrl.core.metrics import batch_metrics
from steadyrl.core.rundir import RunDir
from steadyrl.core.types import Batch, Score, TokenScores
from steadyrl.loop.train import Watch, train
from steadyrl.maths.batch import loss_arrays, take_rows
from tests import needs

# Two groups of three rows; two completion tokens each, but the last row has one.
MASK = np.array([[0, 1, 1]] * 5 + [[0, 1, 0]], bool)
OLD = np.where(MASK, -1.0, 0.0)
REF = np.where(MASK, -1.5, 0.0)
REWARDS = (0.0, 0.5, 1.0, 0.2, 0.2, 0.5)  # group means 0.5 and 0.3


def six_rows(rewards=REWARDS, groups=(0, 0, 0, 1, 1, 1)):
    return Batch(
        tokens=np.ones((6, 3), np.int32),
        lengths=np.array([3, 3, 3, 3, 3, 2], np.int32),
        completion_mask=MASK,
        sampling_logprobs=OLD.astype(np.float32),
        rewards=np.array(rewards, float),
        groups=np.array(groups, np.int32),
        old=TokenScores(logprobs=OLD, ref_logprobs=REF),
    )


def built(name="rlaif", **settings):
    kind = plugins.load("algorithm", name)
    return kind.build(kind.Settings(**settings))


def first_tokens(batch):
    """The advantage of each row, which is the same at all its tokens."""
    for row, mask in zip(batch.advantages, MASK, strict=True):
        assert len(set(row[mask])) == 1
        assert not row[~mask].any()
    return batch.advantages[:, 1]


FILTERS = [
    ({"keep": "all"}, [-0.5, 0.0, 0.5, -0.1, -0.1, 0.2]),
    ({"keep": "best"}, [0, 0, 0.5, 0, 0, 0.2]),
    ({"keep": "top_k", "top_k": 2}, [0, 0, 0.5, -0.1, 0, 0.2]),
    ({"keep": "above", "reward_threshold": 0.5}, [0, 0, 0.5, 0, 0, 0.2]),
    ({"keep": "best", "reward_threshold": 0.6}, [0, 0, 0.5, 0, 0, 0]),
    ({"keep": "above", "reward_threshold": 2.0}, [0] * 6),
    # The kept of the first group are 0.5 and 1 with mean 0.75, of the second only 0.5.
    ({"keep": "above", "reward_threshold": 0.5, "baseline": "kept"}, [0, -0.25, 0.25, 0, 0, 0]),
    ({"keep": "above", "reward_threshold": 0.5, "baseline": "none"}, [0, 0.5, 1.0, 0, 0, 0.5]),
    ({"keep": "best", "baseline": "none"}, [0, 0, 1.0, 0, 0, 0.5]),
]


@pytest.mark.parametrize(("settings", "expected"), FILTERS)
def test_filters_and_baselines_by_hand(settings, expected):
    np.testing.assert_allclose(first_tokens(built(**settings).prepare(six_rows(), {})), expected, atol=1e-12)


def test_the_kept_rollouts_are_known_to_the_metrics():
    """Reward times surprise is a mean over what passes the filter: surprise 1 everywhere, so the kept rewards' mean."""
    batch = replace(six_rows(), old=TokenScores(logprobs=OLD, ref_logprobs=REF, entropy=-OLD))
    expected = {
        "rlaif": ({"keep": "above", "reward_threshold": 0.5}, 2 / 3),
        "raft": ({}, 0.4), "rwr": ({}, 0.4), "reinforce": ({"kl_coef": 0.0}, 0.4),
    }  # fmt: skip
    for name, (own, level) in expected.items():
        prepared = built(name, **own).prepare(batch, {})
        assert batch_metrics(prepared)["loss/reward_nll"] == pytest.approx(level), name
    assert "loss/reward_nll" not in batch_metrics(built("grpo", kl_coef=0.0).prepare(batch, {}))


def test_a_filter_leaves_every_rollout_in_the_batch():
    """The policy's part of the loss is divided by all 11 tokens, and the KL is that of all of them."""
    algorithm = built(keep="best", kl_coef=0.5)
    batch = algorithm.prepare(six_rows(), {})
    loss, sums = algorithm.loss(np, TokenScores(logprobs=OLD), loss_arrays(batch), 11.0)
    k3 = np.exp(-0.5) - 1 + 0.5  # log p is 0.5 above log ref everywhere
    policy = -(2 * 0.5 + 1 * 0.2)  # the best of the second group has one token
    assert float(sums["loss/policy"]) == pytest.approx(policy)
    assert float(sums["loss/kl"]) == pytest.approx(11 * k3)
    assert float(loss) == pytest.approx((policy + 0.5 * 11 * k3) / 11)


def test_the_gradient_is_the_filtered_advantage_and_the_pull_of_the_kl():
    """On the samples themselves: d loss / d logp = (-A + kl_coef * log(p / ref)) / count."""
    torch = needs.package("torch")
    algorithm = built(keep="best", kl_coef=0.5)
    arrays = {k: torch.tensor(v) for k, v in loss_arrays(algorithm.prepare(six_rows(), {})).items()}
    logprobs = torch.tensor(OLD, requires_grad=True)
    algorithm.loss(torch, TokenScores(logprobs=logprobs), arrays, 11.0)[0].backward()
    advantages = np.where(MASK, np.array([0, 0, 0.5, 0, 0, 0.2])[:, None], 0.0)
    np.testing.assert_allclose(logprobs.grad.numpy(), np.where(MASK, -advantages + 0.25, 0) / 11, atol=1e-12)


def test_ratios_are_clipped_in_later_updates():
    """All ratios are 2: the gain of a kept rollout counts for 1.2 times its advantage."""
    algorithm = built(keep="best", kl_coef=0.0)
    batch = algorithm.prepare(six_rows(), {})
    new = TokenScores(logprobs=np.where(MASK, OLD + np.log(2), 0.0))
    loss, sums = algorithm.loss(np, new, loss_arrays(batch), 11.0)
    assert float(loss) == pytest.approx(-1.2 * 1.2 / 11)
    assert float(sums["clip_fraction"]) == 3.0
    assert "loss/kl" not in sums


def test_without_a_kl_coefficient_no_reference_is_needed():
    assert built(kl_coef=0.0).needs == frozenset()
    assert built(kl_coef=0.1).needs == {"ref_logprobs"}


REFUSED = [
    ({"keep": "above"}, "a reward_threshold for keep = 'above'"),
    ({"keep": "best", "baseline": "kept"}, "it is its own mean"),
    ({"keep": "top_k", "top_k": 1, "baseline": "kept"}, "it is its own mean"),
    ({"keep": "worst"}, "'best'"),
]


@pytest.mark.parametrize(("settings", "message"), REFUSED)
def test_settings_that_leave_nothing_to_learn_from_are_refused(settings, message):
    with pytest.raises(ConfigError, match=message):
        validate(plugins.load("algorithm", "rlaif").Settings, settings, "algorithm.args")


@pytest.mark.parametrize(("name", "own"), [("rlaif", {"keep": "top_k"}), ("raft", {})])
def test_more_kept_rollouts_than_a_problem_has_are_refused(name, own):
    def with_top_k(top_k, **own):
        return resolve(
            {
                "task": {"name": "math"},
                "rewards": {"correct": 1.0},
                "rollout": {"samples_per_prompt": 4},
                "algorithm": {"name": name, "args": {**own, "top_k": top_k}},
            }
        )

    with pytest.raises(ConfigError, match=r"algorithm\.args\.top_k is 5 but a problem has only 4 rollouts"):
        with_top_k(5, **own)
    assert with_top_k(4, **own).algorithm.args.top_k == 4
    assert name == "raft" or with_top_k(5, keep="best").algorithm.args.top_k == 5  # which is not used then


def test_rollouts_without_others_of_their_problem_move_no_policy_where_the_baseline_is_their_mean():
    assert not built("rlaif").prepare(six_rows(groups=range(6)), {}).advantages.any()


def test_a_threshold_alone_needs_no_groups():
    algorithm = built(keep="above", reward_threshold=0.5, baseline="none")
    batch = algorithm.prepare(six_rows(groups=range(6)), {})
    np.testing.assert_allclose(first_tokens(batch), [0, 0.5, 1.0, 0, 0, 0.5])


def test_rwr_weighs_by_the_exponential_within_the_group():
    """Temperature 0.5 / ln 2: every 0.5 of reward doubles the weight: 1, 2, 4 over 7/3; 0.3 is a factor 2^0.6."""
    got = first_tokens(built("rwr", temperature=0.5 / np.log(2)).prepare(six_rows(), {}))
    factor = 2**0.6
    second = np.array([1, 1, factor]) / ((2 + factor) / 3)
    np.testing.assert_allclose(got, [3 / 7, 6 / 7, 12 / 7, *second])


def test_likelihood_losses_by_hand():
    """SFT: the mean of -log p; RWR: weighed; the distance from the old policy only where that wrote the text."""
    batch = six_rows()
    new = TokenScores(logprobs=np.where(MASK, -2.0, 0.0))
    loss, sums = built("sft").loss(np, new, loss_arrays(batch), 11.0)
    assert (float(loss), set(sums)) == (2.0, {"loss/nll"})
    weighed = replace(batch, advantages=np.where(MASK, np.array([3, 0, 0, 0, 0, 1.0])[:, None], 0.0))
    for name in ("rwr", "raft"):
        loss, sums = built(name).loss(np, new, loss_arrays(weighed), 11.0)
        assert float(loss) == pytest.approx((3 * 2 + 1) * 2 / 11)
        assert float(sums["loss/nll"]) == pytest.approx(14.0)
        assert float(sums["kl_old_k1"]) == pytest.approx(11.0)  # log old - log new is 1 at every token


def test_parts_of_a_minibatch_add_up_for_every_algorithm():
    for name in ("rlaif", "raft", "rwr", "sft"):
        algorithm = built(name)
        batch = algorithm.prepare(six_rows(), {})
        new = TokenScores(logprobs=np.where(MASK, -1.3, 0.0))
        whole, _ = algorithm.loss(np, new, loss_arrays(batch), 11.0)
        parts = []
        for rows in ([5, 0], [1, 2, 3], [4]):
            part = take_rows(batch, np.array(rows))
            scores = TokenScores(logprobs=np.where(part.completion_mask, -1.3, 0.0))
            parts.append(float(algorithm.loss(np, scores, loss_arrays(part), 11.0)[0]))
        assert sum(parts) == pytest.approx(float(whole))


LEARNING = [
    ("rlaif", "{}", 8),
    pytest.param("rlaif", '{keep="all"}', 8, marks=pytest.mark.weekly),
    pytest.param("rlaif", '{keep="top_k"}', 8, marks=pytest.mark.weekly),
    pytest.param(
        "rlaif", '{keep="above", reward_threshold=0.3, baseline="none", kl_coef=0.0}', 1, marks=pytest.mark.weekly
    ),
    ("raft", "{}", 8),
    ("rwr", "{}", 8),
]


@pytest.mark.parametrize(("name", "args", "samples"), LEARNING)
def test_every_algorithm_learns_to_write_the_letter_a(toy, tmp_path, name, args, samples):
    run = RunDir(tmp_path / "run")
    steps = 30 if samples > 1 else 160
    settings = (f"algorithm.name={name}", f"algorithm.args={args}", f"rollout.samples_per_prompt={samples}")
    assert train(replace(toy(*settings, f"run.steps={steps}"), heldout=[]), run) == "finished"
    rewards = [record["reward/mean"] for record in run.metrics()]
    assert np.mean(rewards[:3]) < 0.2
    assert np.mean(rewards[-5:]) > 0.3


@pytest.mark.parametrize("name", ["rlaif", "raft", "rwr"])
def test_a_resumed_run_equals_the_unbroken_one(toy, whole_and_broken, name):
    settings = (f"algorithm.name={name}", "run.steps=6", "rollout.samples_per_prompt=4")
    whole, broken = whole_and_broken(lambda: toy(*settings))
    for key in ("reward/mean", "grad_norm", "loss/total"):
        assert [r[key] for r in broken.metrics()] == [r[key] for r in whole.metrics()]
    assert len({r["grad_norm"] for r in whole.metrics()}) == 6


@pytest.fixture
def with_answers(toy, tmp_path):
    """Return a function that opens a session on prompts whose good answer is known, but for the first."""
    lines = [{"prompt": "zzz"}] + [{"prompt": letter * 3, "gold": "aaaa"} for letter in "bcdefghijklmnopqrst"]
    path = tmp_path / "answered.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    task = f'task.args={{path="{path}"}}'
    return lambda *overrides: toy(task, "algorithm.name=sft", "rollout.samples_per_prompt=1", *overrides)


def test_sft_without_any_good_answer_is_refused_before_it_begins(toy):
    with pytest.raises(DataError, match=r"'prompts' knows no good answer to any of 16 problems.*gold_column"):
        toy("algorithm.name=sft")


def test_sft_learns_to_write_the_answers_and_to_end_them(with_answers, tmp_path):
    run = RunDir(tmp_path / "run")
    session = with_answers("run.steps=100", "evaluate.every=100")
    assert train(session, run) == "finished"
    lines = run.metrics()
    assert all(line["reward/mean"] == 1.0 for line in lines)  # of the answers, which are right
    assert lines[0]["loss/nll"] > 3.0 > 1.2 > lines[-1]["loss/nll"]
    assert lines[-1]["heldout/reward"] > 0.6
    assert "kl_old_k3" not in lines[0]


def test_sft_scores_its_answers_only_for_what_reads_the_scores(with_answers, tmp_path, monkeypatch):
    def run(name, needs, *overrides):
        session, scored = with_answers("run.steps=3", "run.token_details_every=0", *overrides), []
        score = session.backend.score
        monkeypatch.setattr(session.backend, "score", lambda *arguments: scored.append(1) or score(*arguments))
        directory = RunDir(tmp_path / name)
        train(replace(session, algorithm=replace(session.algorithm, needs=frozenset(needs))), directory)
        return len(scored), directory.metrics()

    (calls, plain), (calls_asked, asked) = run("plain", ()), run("asked", ["old_logprobs"])
    calls_advised, advised = run("advised", (), "autopilot.mode=advise")
    assert (calls, calls_asked, calls_advised) == (0, 3, 6)  # the autopilot measures after the updates, too
    losses = [[line["loss/nll"] for line in lines] for lines in (plain, asked, advised)]
    assert losses[0] == losses[1] == losses[2] and len(set(losses[0])) == 3
    assert "entropy" in asked[0] and "entropy" not in plain[0]
    assert "kl_step_k3" in advised[0]


def test_an_answer_without_a_reward_is_left_out_and_the_run_goes_on(with_answers, tmp_path):
    """As of a judge that could not be asked."""
    session, run = with_answers("run.steps=2"), RunDir(tmp_path / "run")
    lacking = {problem.id for problem in session.problems[::2]}
    (term,) = session.terms

    def score(missing):
        return Score(None, unscored="no verdict") if missing else Score(1.0)

    half = replace(term, reward=lambda pairs: [score(p.id in lacking) for p, _ in pairs])
    assert train(replace(session, terms=[half]), run) == "finished"
    assert all(0 < line["reward/unscored"] < 1 for line in run.metrics())


def test_a_resumed_sft_equals_the_unbroken_one(with_answers, tmp_path):
    whole, broken = RunDir(tmp_path / "whole"), RunDir(tmp_path / "broken")
    train(with_answers("run.steps=6"), whole)
    done = []
    watch = Watch(step=done.append, stop=lambda: len(done) == 3)
    assert train(with_answers("run.steps=6"), broken, 0, watch) == "interrupted"
    assert train(with_answers("run.steps=6"), broken, 1) == "finished"
    assert [r["loss/nll"] for r in broken.metrics()] == [r["loss/nll"] for r in whole.metrics()]
    assert len({r["loss/nll"] for r in whole.metrics()}) == 6
