"""Strings that end a completion."""

import numpy as np
import pytest

from steadyrl.backends.toy import ToyBackend
from steadyrl.core import config
from steadyrl.core.errors import ConfigError
from steadyrl.core.types import Problem, Sampling
from steadyrl.loop.rollout.collect import collect
from steadyrl.loop.rollout.episode import text_of
from tests import needs
from tests.rounding import NATS

torch = needs.package("torch")
transformers = needs.package("transformers")

from steadyrl.backends.torch.backend import TorchBackend  # noqa: E402


@pytest.fixture(scope="module")
def backend(tiny_models):
    from steadyrl.algorithms import grpo

    settings = {"model": {"path": str(tiny_models["llama"])}, "rewards": {"length": 1.0}, "backend": {"device": "cpu"}}
    settings |= {"task": {"name": "search", "args": {"corpus": "generated"}}}
    return TorchBackend(config.resolve(settings), grpo.build(grpo.Settings()))


def drawn(backend, **settings):
    prompts = [backend.tokenizer.encode_prompt("the cat")] * 16
    return backend.generate(prompts, Sampling(max_new_tokens=24, **settings), range(16))


@pytest.mark.parametrize("kind", ["torch", "toy"])
def test_a_completion_is_the_unstopped_one_up_to_the_token_that_completes_the_string(backend, kind):
    policy = backend if kind == "torch" else ToyBackend()
    free = drawn(policy)
    texts = [policy.tokenizer.decode(one.ids) for one in free]
    # Two characters that occur in the middle of some texts and are missing in others.
    pairs = {text[i : i + 2] for text in texts for i in range(2, len(text) - 4)}
    stop = min(pairs, key=lambda pair: (abs(sum(pair in text for text in texts) - 8), pair))
    stopped = drawn(policy, stop=(stop, "never written"))
    assert 0 < sum(stop in text for text in texts) < 16
    for before, after, text in zip(free, stopped, texts, strict=True):
        np.testing.assert_array_equal(after.ids, before.ids[: len(after.ids)])
        np.testing.assert_allclose(after.logprobs, before.logprobs[: len(after.ids)], atol=NATS)
        if stop not in text:
            assert len(after.ids) == len(before.ids) and after.stop_reason == before.stop_reason
            continue
        assert after.stop_reason == "stop"
        assert stop in policy.tokenizer.decode(after.ids)
        assert stop not in policy.tokenizer.decode(after.ids[:-1])


def test_rewards_see_the_text_before_the_string(backend):
    free = drawn(backend)
    text = max((backend.tokenizer.decode(one.ids) for one in free), key=len)
    stop = text[6:9]
    sampling = Sampling(max_new_tokens=24, stop=(stop,))
    (group,) = collect(backend, [Problem("a", "the cat")], 16, sampling, (0,))
    assert all(stop not in rollout.text for rollout in group.rollouts)
    ids = backend.tokenizer.encode_answer("red cat, one cat, new cat", "x")
    assert text_of(backend.tokenizer, ids, (" cat", "one")) == "red"
    assert text_of(backend.tokenizer, ids, ("green",)) == "red cat, one cat, new cat"


def test_finished_rows_leave_the_batch_as_they_do_at_an_end_token(backend):
    free = drawn(backend, top_p=0.9)
    stop = backend.tokenizer.decode(free[0].ids)[3:5]
    stopped = drawn(backend, top_p=0.9, stop=(stop,))
    for before, after in zip(free, stopped, strict=True):
        assert len(after.kept_ids) == len(after.ids)
        np.testing.assert_array_equal(after.ids, before.ids[: len(after.ids)])


def test_an_empty_string_is_refused_and_vllm_refuses_all():
    settings = {"rewards": {"retrieval": 1.0}, "sampling": {"stop": [""]}}
    with pytest.raises(ConfigError, match=r"sampling\.stop\.0: got ''"):
        config.resolve(settings)
    settings = {"rewards": {"retrieval": 1.0}, "sampling": {"stop": ["\n\n"]}, "sampler": {"engine": "vllm"}}
    settings["sampler"]["args"] = {"url": "http://localhost:8000", "folder": "x", "model": "m"}
    with pytest.raises(ConfigError, match=r"sampling\.stop ends completions of sampler\.engine = 'own' only"):
        config.resolve(settings)
