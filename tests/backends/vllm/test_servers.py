"""Several vLLM servers, and one that does not do what it says, against small servers of the same API."""

import logging

import numpy as np
import pytest

from steadyrl.algorithms import ppo
from steadyrl.core.errors import ConfigError, EngineError
from steadyrl.core.types import Sampling
from tests import needs

torch = needs.package("torch")

from steadyrl.backends.torch.backend import TorchBackend  # noqa: E402
from steadyrl.backends.vllm import http as vllm_http  # noqa: E402
from tests.backends.vllm.served import serving, settings  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore:.is_gradient_checkpointing. is deprecated:FutureWarning")

SAMPLING = Sampling(max_new_tokens=8, temperature=0.8)
PROMPTS = [np.array([5, 6, 7 + i], np.int32) for i in range(6)]


@pytest.fixture
def two(tiny_models, tmp_path, monkeypatch):
    """Two servers of the llama model, and a backend whose completions come from them."""
    monkeypatch.setattr(vllm_http, "FIRST_WAIT_S", 0.01)
    folder = tiny_models["llama"]
    with serving(folder) as one, serving(folder) as other:
        urls = f'sampler.args.url=["{one.url}", "{other.url}"]'
        yield one, other, lambda: TorchBackend(settings(one, folder, tmp_path, urls), ppo.build(ppo.Settings()))


def drawn(backend):
    return [c.ids.tolist() for c in backend.generate(PROMPTS, SAMPLING, range(len(PROMPTS)))]


def moved(backend, rate):
    """Move the policy as an update does."""
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in backend.model.parameters():
            parameter += rate * torch.randn(parameter.shape, generator=generator)
    backend._weights_changed()


def asked(server, path="/v1/completions"):
    return server.served.paths().count(path)


def test_rows_go_round_the_servers_and_both_have_the_weights(two):
    one, other, backend = two
    drawn(backend())
    assert (asked(one), asked(other)) == (3, 3)
    assert one.served.version == other.served.version != "default"


def test_completions_of_a_batch_share_connections(two):
    one, _, backend = two
    backend = backend()
    before = one.connections
    for _ in range(3):
        drawn(backend)
    assert asked(one) == 9 and one.connections - before <= 3 * 4, "four requests are open at a time"


def test_the_rows_of_a_server_that_dies_go_to_the_other_and_it_comes_back_with_the_next_weights(two, caplog):
    one, other, backend = two
    backend = backend()
    whole = drawn(backend)
    other.served.dead = True
    assert drawn(backend) == whole
    assert "no vLLM server answers at " + other.url in caplog.text
    assert "while it draws a completion" in caplog.text and "it is left out, 1 of 2 servers go on" in caplog.text
    assert drawn(backend) == whole and caplog.text.count("is left out") == 1
    other.served.dead = False
    moved(backend, 1e-3)
    before = asked(other)
    drawn(backend)
    assert f"the vLLM server at {other.url} answers again and takes part" in caplog.text
    assert asked(other) == before + 3 and other.served.version == one.served.version


def test_a_server_that_is_dead_at_the_start_is_left_out(two, caplog):
    one, other, backend = two
    one.served.dead = True
    drawn(backend())
    assert "it is left out, 1 of 2 servers go on" in caplog.text and asked(other) == 6


def test_the_last_server_ends_the_run(two):
    one, other, backend = two
    backend = backend()
    drawn(backend)
    one.served.dead = other.served.dead = True
    with pytest.raises(EngineError, match="no vLLM server answers at"):
        drawn(backend)


def test_a_refusal_ends_the_run_whichever_server_it_is_from(two):
    _, other, backend = two
    backend = backend()
    other.served.answers["/v1/completions"] = [(400, {"error": {"message": "too long", "code": 400}})]
    with pytest.raises(EngineError, match="answers 400: too long"):
        drawn(backend)


def test_a_server_that_was_started_again_is_found_by_the_name_of_its_weights(two, caplog):
    _, other, backend = two
    backend = backend()
    drawn(backend)
    other.served.version = "default"
    drawn(backend)
    assert f"at {other.url} has the weights 'default'; expected '" in caplog.text and "is left out" in caplog.text


def test_a_server_that_keeps_some_weights_is_left_out_by_the_growing_difference(two, caplog):
    _, other, backend = two
    other.served.keeps = frozenset({"lm_head.weight"})
    backend = backend()
    with caplog.at_level(logging.INFO, logger="steadyrl.backends.vllm"):
        for _ in range(3):
            drawn(backend)
            moved(backend, 3e-3)
        before = asked(other)
        drawn(backend)
    assert (
        f"log-probs of the vLLM server at {other.url} and of the trainer differ more from push to push" in caplog.text
    )
    assert "it does not take all weights over" in caplog.text
    assert asked(other) == before, "it does not come back with the next weights"


@pytest.mark.parametrize("urls", ["[]", '["http://a", "http://a"]', '["http://a:b"]', '["a:1"]'])
def test_addresses_that_are_none_are_refused(two, tmp_path, tiny_models, urls):
    with pytest.raises(ConfigError, match=r"sampler\.args\.url: got .*; expected "):
        settings(two[0], tiny_models["llama"], tmp_path, f"sampler.args.url={urls}")
