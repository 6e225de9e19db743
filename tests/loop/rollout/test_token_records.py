import json

import numpy as np
import pytest

from steadyrl.core.metrics import repeatable
from steadyrl.core.rundir import RunDir
from steadyrl.loop.checkpoint import State
from steadyrl.loop.rollout import records
from steadyrl.loop.rollout.records import ROLLOUTS, TokenLook, token_texts
from steadyrl.loop.train import one_step, train
from tests import needs


def look_of(session):
    return TokenLook(session.backend, session.sampling, session.algorithm.needs)


def test_the_tokens_of_a_rollout_are_those_of_its_text_with_their_numbers(toy):
    session = toy("algorithm.args.kl_coef=0.1")
    look = look_of(session)
    groups, found = one_step(session, State(algorithm=dict(session.algorithm.state)), look)
    rollouts = [rollout for group in groups for rollout in group.rollouts]
    assert len(look.records) == len(rollouts)
    for record in look.records:
        rollout = rollouts[record["rollout"]]
        assert record["problem"] == rollout.problem_id
        assert "".join(record["tokens"]).strip() == rollout.text.strip()
        np.testing.assert_allclose(record["logprob"], rollout.sampling_logprobs, rtol=1e-3)
        assert len(record["advantage"]) == len(record["entropy"]) == len(record["tokens"])
    every = [value for record in look.records for value in record["logprob"]]
    assert np.mean(every) == pytest.approx(-found["entropy_sampled"], rel=1e-3)
    kl = [value for record in look.records for value in record["kl_ref_k1"]]
    assert np.mean(kl) == pytest.approx(found["kl_ref_k1"], abs=1e-3)


def test_the_ratio_is_of_the_policy_after_the_step(toy):
    still, moving = toy("update.learning_rate=0"), toy("update.learning_rate=0.5")
    ratios = []
    for session in (still, moving):
        look = look_of(session)
        one_step(session, State(algorithm=dict(session.algorithm.state)), look)
        ratios.append(np.array([value for record in look.records for value in record["ratio"]]))
    assert (ratios[0] == 1.0).all()
    assert np.abs(ratios[1] - 1.0).max() > 0.1


def test_the_best_and_the_worst_are_taken(toy):
    session = toy("rollout.prompts_per_step=20", "rollout.samples_per_prompt=4")
    look = look_of(session)
    groups, _ = one_step(session, State(algorithm=dict(session.algorithm.state)), look)
    rewards = [rollout.reward for group in groups for rollout in group.rollouts]
    taken = sorted(rewards[record["rollout"]] for record in look.records)
    half = ROLLOUTS // 2
    assert taken == sorted(rewards)[:half] + sorted(rewards)[-half:]


def test_looking_changes_no_number_of_a_run(toy, tmp_path):
    kept = []
    for every in (0, 1):
        run = RunDir(tmp_path / str(every))
        train(toy(f"run.token_details_every={every}", "run.steps=3"), run)
        kept.append([repeatable(line) for line in run.metrics()])
    assert kept[0] == kept[1]
    assert not RunDir(tmp_path / "0").tokens_file(0).parent.exists()
    files = [RunDir(tmp_path / "1").tokens_file(step) for step in range(3)]
    assert all(json.loads(file.read_text().splitlines()[0])["tokens"] for file in files)


def test_a_long_completion_is_cut_and_what_is_left_out_is_counted(toy, monkeypatch):
    monkeypatch.setattr(records, "TOKENS", 3)
    session = toy("rollout.prompts_per_step=4")
    look = look_of(session)
    groups, _ = one_step(session, State(algorithm=dict(session.algorithm.state)), look)
    lengths = [len(rollout.completion_ids) for group in groups for rollout in group.rollouts]
    assert max(lengths) > 3
    for record in look.records:
        assert len(record["tokens"]) == min(3, lengths[record["rollout"]])
        assert record["left_out"] == max(0, lengths[record["rollout"]] - 3)


class Bytes:
    """Writes texts as their bytes, as a tokenizer of bytes does."""

    def decode(self, ids):
        return bytes(ids.tolist()).decode("utf-8", "replace")


def test_a_character_of_several_tokens_stands_at_its_last_one():
    ids = np.frombuffer("aé€😀b".encode(), np.uint8)
    assert token_texts(Bytes(), ids) == ["a", "", "é", "", "", "€", "", "", "", "😀", "b"]


def test_pieces_of_a_real_tokenizer_are_the_text(tiny_models):
    transformers = needs.package("transformers")
    hf = transformers.AutoTokenizer.from_pretrained(tiny_models["llama"])

    class Real:
        def decode(self, ids):
            return hf.decode(ids.tolist(), skip_special_tokens=True)

    text = "the red cat sees a small dog, not green."
    ids = np.array(hf(text)["input_ids"], np.int32)
    assert "".join(token_texts(Real(), ids)) == text
