"""The preflight as a whole: sound sessions pass and stay as they are; tasks and completions are judged."""

import json
from dataclasses import replace

import numpy as np
import pytest

from steadyrl.backends.toy import ToyBackend
from steadyrl.core import config
from steadyrl.core.errors import ConfigError
from steadyrl.core.metrics import repeatable
from steadyrl.core.rundir import RunDir
from steadyrl.core.types import Finding
from steadyrl.loop.checkpoint import State
from steadyrl.loop.preflight.run import completions, gold_answer, preflight, rewards, summary_line
from steadyrl.loop.preflight.trial import begin_trial, score
from steadyrl.loop.train import one_step, open_session, train

# peft reads a property of the model that transformers has renamed.
pytestmark = pytest.mark.filterwarnings("ignore:.is_gradient_checkpointing. is deprecated:FutureWarning")

NAMES = [
    "data",
    "schedule",
    "targets",
    "completions",
    "rewards",
    "gold_answer",
    "sampler_parity",
    "sampled_entropy",
    "reference_parity",
    "gradient",
    "limits",
    "update",
    "continuation",
    "time",
    "memory",
    "disk",
]
NARROW = ("sampling.temperature=0.7", "sampling.top_p=0.9", "sampling.top_k=20")
WITHOUT_REFERENCE = ("algorithm.name=grpo", "algorithm.args.kl_coef=0.0")


def could_not_tell(verdicts):
    assert [(v.check, v.cause, v.message) for v in verdicts if v.state == "found"] == []
    return {v.check for v in verdicts if v.state == "unknown"}


def metrics(session, folder):
    """Train and return the metrics of every step, times left out."""
    folder.mkdir()
    run = RunDir(folder)
    train(session, run)
    return [repeatable(line) for line in run.metrics()]


@pytest.mark.parametrize("overrides", [(), NARROW, ("algorithm.name=grpo",), ("rollout.samples_per_prompt=1",)])
def test_a_sound_toy_session_passes(toy, overrides):
    verdicts = preflight(toy(*overrides))
    assert [verdict.check for verdict in verdicts] == NAMES
    assert could_not_tell(verdicts) == {"gold_answer"}


def test_what_does_not_apply_is_neither_good_nor_bad(toy):
    assert could_not_tell(preflight(toy(*WITHOUT_REFERENCE))) == {"gold_answer", "reference_parity"}


@pytest.mark.parametrize("algorithm", ["ppo", "grpo"])
def test_training_after_a_preflight_is_training_without_one(toy, tmp_path, algorithm):
    session = toy(f"algorithm.name={algorithm}")
    preflight(session)
    fresh = toy(f"algorithm.name={algorithm}")
    assert metrics(session, tmp_path / "after") == metrics(fresh, tmp_path / "without")


@pytest.fixture
def tiny(tiny_models, tmp_path):
    """Return a function that opens a session of a tiny torch model."""
    prompts = tmp_path / "prompts.jsonl"
    words = "the red cat sees a small dog and the old bird".split()
    texts = [" ".join(words[i % 7 : i % 7 + 1 + i % 4]) + f" {i}" for i in range(20)]
    prompts.write_text("".join(json.dumps({"prompt": text}) + "\n" for text in texts))

    def open_tiny(family, *overrides):
        settings = {
            "run": {"steps": 2, "folder": str(tmp_path / "runs")},
            "model": {"path": str(tiny_models[family])},
            "backend": {"device": "cpu", "threads": 1},
            "task": {"name": "prompts", "args": {"path": str(prompts)}},
            "rewards": {"length": 1.0},
            "sampling": {"max_new_tokens": 12},
            "rollout": {"prompts_per_step": 8, "samples_per_prompt": 2},
            "update": {"learning_rate": 1e-4},
            "evaluate": {"problems": 1},
        }
        return open_session(config.resolve(settings, overrides))

    return open_tiny


@pytest.mark.parametrize(
    ("family", "overrides"),
    [
        ("llama", NARROW),
        pytest.param("qwen3", ("algorithm.name=grpo",), marks=pytest.mark.weekly),
        pytest.param("gpt2", ("algorithm.name=grpo", "algorithm.args.kl_coef=0.0"), marks=pytest.mark.weekly),
        ("qwen2", ("model.lora_rank=4",)),
        pytest.param(
            "llama", ("backend.args.weights=bf16", "update.learning_rate=1e-2"), marks=pytest.mark.weekly
        ),  # a step above bfloat16's rounding
    ],
)
def test_a_sound_torch_session_passes_and_trains_as_without(tiny, tmp_path, family, overrides):
    session = tiny(family, *overrides)
    missing = {"reference_parity"} if "algorithm.args.kl_coef=0.0" in overrides else set()
    # Random weights end a text by chance, if ever: only how they end is left out.
    verdicts = [verdict for verdict in preflight(session) if verdict.check != "completions"]
    assert could_not_tell(verdicts) == {"gold_answer"} | missing
    assert metrics(session, tmp_path / "after") == metrics(tiny(family, *overrides), tmp_path / "without")


def test_dropout_in_a_torch_model_is_told(tiny):
    import torch

    def drop(module, inputs, out):
        return torch.nn.functional.dropout(out, 0.1, training=True)

    session = tiny("gpt2")
    for block in session.backend.model.transformer.h:
        block.mlp.c_proj.register_forward_hook(drop)
    with torch.random.fork_rng():
        found = {verdict.check: verdict for verdict in preflight(session)}
    assert found["sampler_parity"].cause == "dropout"
    assert found["continuation"].cause == "noise"


def test_an_algorithm_that_cannot_use_the_rollouts_is_wrong_input(toy):
    with pytest.raises(ConfigError, match="samples_per_prompt"):
        preflight(toy("algorithm.name=grpo", "rollout.samples_per_prompt=1"))


@pytest.mark.parametrize(
    ("overrides", "problems", "rollouts"),
    [
        (("rollout.samples_per_prompt=1",), 16, 16),  # no problem twice
        (("rollout.samples_per_prompt=8",), 8, 64),
        (("rollout.samples_per_prompt=8", "sampling.max_new_tokens=128"), 4, 32),  # 4096 tokens
        (("rollout.samples_per_prompt=8", "sampling.max_new_tokens=1000"), 2, 16),  # but at least 16 rollouts
        (("rollout.samples_per_prompt=500",), 2, 64),  # of two problems at least
    ],
)
def test_a_trial_is_small_whatever_a_step_is(toy, overrides, problems, rollouts):
    trial = begin_trial(toy("rollout.prompts_per_step=1000", *overrides))
    assert (len(trial.groups), len(trial.batch.lengths)) == (problems, rollouts)


class Counting(ToyBackend):
    """Counts rows: a pass through the model for each that is drawn or scored, three for each that is trained."""

    work = 0

    def generate(self, prompts, sampling, seeds):
        self.work += len(prompts)
        return super().generate(prompts, sampling, seeds)

    def score(self, batch, sampling, needs):
        self.work += len(batch.lengths) * (1 + ("ref_logprobs" in needs))
        return super().score(batch, sampling, needs)

    def step(self, batch, *rest):
        self.work += 3 * len(batch.lengths)
        return super().step(batch, *rest)


@pytest.mark.parametrize("overrides", [("algorithm.name=grpo", "algorithm.args.kl_coef=0.0"), ()])
@pytest.mark.parametrize(("large", "prompts"), [(True, 8), (True, 40), (False, 16), (False, 40)])
def test_a_preflight_costs_no_more_than_two_steps(toy, monkeypatch, overrides, large, prompts):
    monkeypatch.setattr("steadyrl.loop.preflight.trial.LARGE", 0 if large else 10**12)
    settings = (f"rollout.prompts_per_step={prompts}", "update.epochs=1", "update.minibatches=1")
    session = replace(toy(*settings, *overrides), backend=Counting())
    lines = []
    assert could_not_tell(preflight(session, lines.append)) - {"reference_parity"} == {"gold_answer"}
    spent, session.backend.work = session.backend.work, 0
    assert any("sampling" in line for line in lines) and any("updates" in line for line in lines)
    state = State(algorithm=dict(session.algorithm.state))
    for _ in range(2):
        one_step(session, state)
    assert 0 < spent <= session.backend.work


def test_no_completion_is_drawn_twice(toy):
    session = replace(toy(), backend=Counting())
    drawn = begin_trial(session)
    warm, scored = 2, 2 * 2 * len(drawn.batch.lengths)  # by policy and reference: as training does, and by the trainer
    assert session.backend.work == warm + sum(len(group.rollouts) for group in drawn.groups) + scored


def test_the_trainer_measures_each_row_once(tiny, monkeypatch):
    session = tiny("llama")
    trial = begin_trial(session)
    measured, measure_all = [], type(session.backend).measure

    def counted(backend, batch, *rest):
        measured.append(len(batch.lengths))
        return measure_all(backend, batch, *rest)

    monkeypatch.setattr(type(session.backend), "measure", counted)
    score(session, trial.batch)
    assert measured == [len(trial.batch.lengths)]


def test_the_groups_that_teach_are_measured_of_a_large_model(toy, monkeypatch):
    monkeypatch.setattr("steadyrl.loop.preflight.trial.LARGE", 0)
    trial = begin_trial(toy("rollout.prompts_per_step=16"))
    assert len(trial.groups) == 16 and sum(len(group.rollouts) for group in trial.measured) == 8
    left = [group for group in trial.groups if group not in trial.measured]
    differs = [len({r.reward for r in group.rollouts}) > 1 for group in trial.measured]
    assert all(differs) or not any(len({r.reward for r in group.rollouts}) > 1 for group in left)


def finding_of(check, trial):
    (finding,) = check(trial)
    return finding


def cause_of(verdict):
    assert verdict.state == "found"
    assert verdict.remedy
    return verdict.cause


def test_rewards_that_are_all_equal_are_told(toy):
    verdict = finding_of(rewards, begin_trial(toy(reward="toy_rewards:nothing")))
    assert cause_of(verdict) == "constant"


@pytest.fixture
def imitates(tmp_path):
    """Return the overrides of a session that imitates good answers."""
    path = tmp_path / "answered.jsonl"
    path.write_text(
        "".join(json.dumps({"prompt": letter * 3, "gold": "b"}) + "\n" for letter in "abcdefghijklmnopqrst")
    )
    return "algorithm.name=sft", f'task.args={{path="{path}"}}'


def test_what_imitates_good_answers_needs_no_rewards_that_differ(toy, imitates):
    verdict = finding_of(rewards, begin_trial(toy(*imitates, reward="toy_rewards:nothing")))
    assert verdict.state == "ok"
    assert "good answers are imitated" in verdict.message
    assert "32 of 32 rollouts scored, mean 0, standard deviation 0" in verdict.message


@pytest.mark.parametrize(("name", "share"), [("always_fails", "0 of 32"), ("refuses_odd_lengths", " of 32")])
def test_rewards_that_fail_are_told_with_the_reason(toy, name, share):
    verdict = finding_of(rewards, begin_trial(toy("sampling.max_new_tokens=5", reward=f"toy_rewards:{name}")))
    assert cause_of(verdict) == "unscored"
    assert share in verdict.message
    assert f"{name} raised RuntimeError" in verdict.message


def by_problem(trial):
    """Give the rollouts of each problem one reward, another for each problem."""
    groups = [
        replace(group, rollouts=tuple(replace(rollout, reward=float(i)) for rollout in group.rollouts))
        for i, group in enumerate(trial.groups)
    ]
    return replace(trial, groups=groups)


def test_rewards_that_differ_between_problems_only_are_no_signal_to_groups(toy):
    verdict = finding_of(rewards, by_problem(begin_trial(toy())))
    assert cause_of(verdict) == "no_signal"
    assert "0% of 16 groups" in verdict.message
    assert verdict.overrides == ("rollout.samples_per_prompt=8",)


@pytest.mark.parametrize(
    ("sampling", "change"),
    [
        ("sampling.top_k=1", "sampling.top_k=0"),
        ("sampling.top_p=0.000001", "sampling.top_p=1.0"),
        ("sampling.temperature=0.000001", "sampling.temperature=1.0"),
    ],
)
def test_where_all_completions_of_a_problem_are_the_same_the_advice_is_other_sampling(toy, sampling, change):
    session = toy("algorithm.name=grpo", sampling)
    (gradient,) = [finding for finding in preflight(session) if finding.check == "gradient"]
    assert (gradient.cause, gradient.overrides) == ("no_signal", (change,))
    verdict = finding_of(rewards, by_problem(begin_trial(session)))
    assert verdict.cause == "no_signal"
    assert change in verdict.overrides


def test_with_one_sample_per_problem_rewards_are_compared_over_the_batch(toy):
    assert finding_of(rewards, by_problem(begin_trial(toy("rollout.samples_per_prompt=1")))).state == "ok"


@pytest.fixture
def with_gold(toy, tmp_path):
    """Return a function that begins a trial on problems whose good answer is "aaa bbb"."""
    prompts = tmp_path / "gold.jsonl"
    prompts.write_text("".join(json.dumps({"prompt": f"say {i}", "gold": "aaa bbb"}) + "\n" for i in range(20)))
    return lambda reward: begin_trial(toy(f"task.args.path={json.dumps(str(prompts))}", reward=reward))


def test_a_good_answer_that_beats_the_empty_one_passes(with_gold):
    verdict = finding_of(gold_answer, with_gold("toy_rewards:share_of_a"))
    assert verdict.state == "ok"
    assert "good answers earn 0.4286, empty ones 0," in verdict.message  # three of seven characters


def test_a_reward_that_silence_wins_is_told_by_name(with_gold):
    """Two words earn 2 - 2/16, none earns 2."""
    verdict = finding_of(gold_answer, with_gold("length"))
    assert cause_of(verdict) == "empty_wins"
    assert "good answers earn 1.875, empty ones 2," in verdict.message
    assert "'length' pays the empty answer 0.125 more" in verdict.message


def test_good_answers_that_cannot_be_scored_leave_it_open(with_gold):
    assert finding_of(gold_answer, with_gold("toy_rewards:always_fails")).state == "unknown"


def favouring(token, logit):
    """Return a toy backend that likes, or avoids, one token after every other."""
    backend = ToyBackend(0)
    index = backend.tokenizer.end_id if token == "eos" else backend.tokenizer.characters.index(token)
    backend.parameters["logits"][:, index] = logit
    return backend


@pytest.mark.parametrize(("token", "logit", "cause"), [("eos", -30.0, "never_ends"), ("eos", 30.0, "empty")])
def test_completions_that_never_end_or_say_nothing_are_told(toy, token, logit, cause):
    assert cause_of(finding_of(completions, begin_trial(replace(toy(), backend=favouring(token, logit))))) == cause


@pytest.mark.parametrize(("pays", "severity"), [("b", "warning"), ("Q", "critical")])
def test_answers_that_never_end_stop_a_run_only_where_they_do_not_teach(toy, pays, severity):
    """The toy writes no capitals: where a letter is paid for, the rewards of answers that are cut off differ."""
    trial = begin_trial(replace(toy(), backend=favouring("eos", -30.0)))
    paid = [[replace(r, reward=float(r.text.count(pays))) for r in group.rollouts] for group in trial.groups]
    groups = [replace(group, rollouts=tuple(r)) for group, r in zip(trial.groups, paid, strict=True)]
    found = finding_of(completions, replace(trial, groups=groups))
    assert (found.cause, found.severity) == ("never_ends", severity)


def test_the_ends_of_a_policy_that_imitates_do_not_stop_it(toy, imitates):
    """An untrained policy that never ends is why good answers are imitated."""
    session = replace(toy(*imitates), backend=favouring("eos", -30.0))
    verdict = finding_of(completions, begin_trial(session))
    assert verdict.state == "ok"
    assert "100% truncated" in verdict.message


def mostly_empty(trial, share):
    """Return the trial with 32 rollouts, of which a share end at once, which is empty; the others are cut."""
    eos = trial.session.backend.tokenizer.end_id
    rollouts = [rollout for group in trial.groups for rollout in group.rollouts]
    count = round(share * len(rollouts))
    short = [
        replace(r, completion_ids=np.array([eos]), completion_mask=np.ones(1, bool), text="", stop_reason="stop")
        for r in rollouts[:count]
    ]
    cut = [
        replace(r, completion_ids=np.full(6, 1), completion_mask=np.ones(6, bool), text="b", stop_reason="length")
        for r in rollouts[count:]
    ]
    return replace(trial, groups=[replace(trial.groups[0], rollouts=(*short, *cut))])


def test_the_shares_of_completions_are_counted(toy):
    verdict = finding_of(completions, mostly_empty(begin_trial(toy()), 6 / 32))
    assert verdict.state == "ok"
    assert "81% truncated, 19% ended by an end token, 19% empty" in verdict.message


@pytest.mark.parametrize(("share", "cause"), [(0.65, None), (0.95, "empty")])
def test_a_policy_may_begin_with_many_empty_answers_but_not_with_hardly_a_text(toy, share, cause):
    """As SmolLM2 does on sums, where GRPO goes from 4 to 69 % right."""
    verdict = finding_of(completions, mostly_empty(begin_trial(toy()), share))
    assert (verdict.state, verdict.cause or None) == ("ok" if cause is None else "found", cause)


def test_text_after_the_end_and_a_missing_end_are_told(toy):
    trial = begin_trial(toy())
    eos = trial.session.backend.tokenizer.end_id

    def judged(ids, reason, environment=()):
        """Return the cause for completions of these ids; the environment answered those at the places named."""
        mask = np.array([i not in environment for i in range(len(ids))])
        told = {"completion_ids": np.array(ids), "completion_mask": mask, "stop_reason": reason}
        rollouts = tuple(replace(r, **told) for r in trial.groups[0].rollouts)
        return finding_of(completions, replace(trial, groups=[replace(trial.groups[0], rollouts=rollouts)])).cause

    assert judged([1, eos, 2, 3], "length") == "text_after_end"
    # Of several turns each has its end, and running out of turns is no text cut off.
    assert judged([1, eos, 4, 4, 2, eos], "length", environment=(2, 3)) == ""
    assert judged([1, eos, 4, 4, 2, 3], "length", environment=(2, 3)) == "never_ends"
    assert judged([1, eos, 2, 4, 2, eos], "stop", environment=(3,)) == "text_after_end"
    assert judged([1, 2, 3], "stop") == "end_token_missing"


def test_the_summary_names_what_failed_and_how_long_the_run_takes():
    verdicts = [
        Finding("rewards", state="ok", message="fine"),
        Finding("update", "critical", message="worse", cause="learning_rate", remedy="lower it"),
        Finding("gold_answer", state="unknown", message="unknown"),
        Finding("time", state="ok", message="about 3 min 20 s: 300 steps of 0.6 s"),
    ]
    assert summary_line(verdicts) == (
        "preflight: 2 of 4 passed; FAILED: update (learning_rate); could not tell: gold_answer; "
        "the run takes about 3 min 20 s"
    )


@pytest.mark.parametrize(
    ("template", "advice"),
    [
        ("auto", ("sampling.max_new_tokens=12",)),
        ("never", ("sampling.max_new_tokens=12", "model.chat_template=auto")),
    ],
)
def test_advice_is_never_what_is_in_force(toy, template, advice):
    session = replace(toy(f"model.chat_template={template}"), backend=favouring("eos", -30.0))
    (found,) = [f for f in preflight(session) if f.check == "completions"]
    assert (found.cause, found.overrides) == ("never_ends", advice)
    assert ("template" in found.remedy) == (template == "never")
