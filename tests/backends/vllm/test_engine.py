"""The engine that asks a vLLM server, against a small server of the same API that samples from a tiny model."""

import json
import logging
import socket
from dataclasses import replace

import numpy as np
import pytest

from steadyrl.algorithms import ppo
from steadyrl.core import config
from steadyrl.core.errors import AccessError, ConfigError, EngineError, SteadyError
from steadyrl.core.metrics import batch_metrics
from steadyrl.core.protocols import Update
from steadyrl.core.rundir import RunDir
from steadyrl.core.types import Problem, Sampling
from steadyrl.loop.checkpoint import Safeguard, State
from steadyrl.loop.evaluate import greedy_sampling
from steadyrl.loop.rollout.collect import collect
from steadyrl.loop.train import Watch, open_session, run_steps
from steadyrl.maths.batch import make_batch
from tests import needs

torch = needs.package("torch")
transformers = needs.package("transformers")

from steadyrl.backends.torch.backend import TorchBackend  # noqa: E402
from steadyrl.backends.vllm import http as vllm_http  # noqa: E402
from steadyrl.backends.vllm.untied import copy_untied  # noqa: E402
from tests.backends.vllm.served import load, serving, settings  # noqa: E402
from tests.rounding import NATS  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore:.is_gradient_checkpointing. is deprecated:FutureWarning")

ALGORITHM = ppo.build(ppo.Settings())
PROBLEMS = [Problem(str(i), text) for i, text in enumerate(("the", "a red cat sees two", "one dog", "three old"))]
SAMPLING = Sampling(max_new_tokens=8, temperature=0.8)
NONE = frozenset()
SERVER_INFO = "/server_info?config_format=json"


@pytest.fixture
def server(tiny_models, monkeypatch):
    """A server of the llama model; ``served`` is what it does."""
    monkeypatch.setattr(vllm_http, "FIRST_WAIT_S", 0.01)
    with serving(tiny_models["llama"]) as http:
        yield http


@pytest.fixture
def opened(server, tiny_models, tmp_path):
    """Return a function that opens a backend whose completions come from the server."""

    def open_backend(*overrides, model="llama", algorithm=ALGORITHM):
        return TorchBackend(settings(server, tiny_models[model], tmp_path, *overrides), algorithm)

    return open_backend


def drawn(backend, sampling=SAMPLING, seed=0, samples=2):
    """A batch of the server's completions, with rewards of both signs."""
    groups = collect(backend, PROBLEMS, samples, sampling, (seed, 0))
    rewards = iter(np.random.default_rng(seed).normal(size=samples * len(PROBLEMS)))
    groups = [replace(g, rollouts=tuple(replace(r, reward=next(rewards)) for r in g.rollouts)) for g in groups]
    return make_batch(groups, backend.tokenizer.pad_id)


def gap(backend, batch, sampling=SAMPLING):
    found = backend.score(batch, sampling, NONE).logprobs
    return np.abs(found - batch.sampling_logprobs)[batch.completion_mask]


def train_once(backend, batch, rate=1e-2):
    batch = ALGORITHM.prepare(replace(batch, old=backend.score(batch, SAMPLING, ALGORITHM.needs)), ALGORITHM.state)
    backend.step(batch, Update(ALGORITHM.loss, SAMPLING, ALGORITHM.needs, rate, 1e9))


def failure(backend):
    with pytest.raises(EngineError) as caught:
        drawn(backend)
    message = str(caught.value)
    assert "\n" not in message and isinstance(caught.value, SteadyError)
    return message


def test_tokens_and_log_probs_come_through_exactly(server, opened):
    backend = opened()
    prompts = [backend.tokenizer.encode_prompt(p.prompt) for p in PROBLEMS]
    found = backend.generate(prompts, SAMPLING, [3, 2**64 - 1, 5, 6])
    for prompt, seed, completion in zip(prompts, [3, 2**63 - 1, 5, 6], found, strict=True):
        body = next(b for path, b in server.served.asked if path == "/v1/completions" and b["seed"] == seed)
        assert (body["prompt"], body["model"], body["max_tokens"]) == (prompt.tolist(), "tiny", 8)
        said = server.served.complete(body)
        assert completion.ids.tolist() == said["token_ids"]
        assert completion.logprobs.tolist() == [np.float32(x) for x in said["logprobs"]["token_logprobs"]]


def test_a_completion_ends_with_the_end_token_or_at_the_limit(opened):
    backend, sampling = opened(), Sampling(max_new_tokens=24, temperature=1.5)
    prompt = backend.tokenizer.encode_prompt("the")
    found = backend.generate([prompt] * 12, sampling, range(12))
    assert {c.stop_reason for c in found} == {"stop", "length"}
    for completion in found:
        assert (completion.ids[-1] == 1) == (completion.stop_reason == "stop")
        assert completion.stop_reason == "stop" or len(completion.ids) == 24
        assert len(completion.logprobs) == len(completion.ids) and 1 not in completion.ids[:-1]


def test_equal_seeds_give_equal_completions_in_any_order(opened):
    backend = opened()
    prompt = backend.tokenizer.encode_prompt("one dog")
    one, other = (backend.generate([prompt] * 4, SAMPLING, seeds) for seeds in ([1, 2, 3, 4], [4, 3, 2, 1]))
    assert [c.ids.tolist() for c in one] == [c.ids.tolist() for c in reversed(other)]


def test_greedy_answers_keep_the_one_token_each(opened):
    found = opened().generate([np.array([5, 6], np.int32)], greedy_sampling(SAMPLING), [0])[0]
    assert [kept.tolist() for kept in found.kept_ids] == [[token] for token in found.ids.tolist()]


def test_the_first_completions_are_compared_once_and_agree(opened, caplog):
    backend = opened()
    with caplog.at_level(logging.INFO, logger="steadyrl.backends.vllm"):
        drawn(backend)
        drawn(backend, seed=1)
    said = [record.getMessage() for record in caplog.records if record.name.startswith("steadyrl.backends.vllm")]
    assert [text.split(" ")[0] for text in said] == ["push", "log-probs"]
    assert "log-probs of the vLLM server at http://" in caplog.text


@pytest.mark.parametrize("lora_rank", [0, 4])
def test_after_an_update_the_server_samples_from_the_new_policy(server, opened, lora_rank):
    backend = opened(f"model.lora_rank={lora_rank}")
    before = drawn(backend)
    assert gap(backend, before).max() < NATS
    train_once(backend, before)
    assert gap(backend, before).mean() > 0.05, "the update has to move the policy for this test to tell anything"
    after = drawn(backend, seed=1)
    assert gap(backend, after).max() < NATS
    paths = server.served.paths()
    changes = [path for path in paths if path not in {"/v1/models", "/v1/completions", SERVER_INFO}]
    if lora_rank:
        assert changes == ["/v1/load_lora_adapter", "/v1/unload_lora_adapter", "/v1/load_lora_adapter"]
        assert len(server.served.adapters) == 1
    else:
        push = ["/collective_rpc", "/reset_prefix_cache", "/update_weight_version", "/weight_info"]
        assert changes == push * 2


def test_weights_are_sent_when_they_have_changed_and_no_oftener(server, opened, tmp_path):
    backend = opened()
    batch = drawn(backend)
    drawn(backend, seed=1)
    assert server.served.paths().count("/collective_rpc") == 1
    folder = tmp_path / "checkpoint"
    folder.mkdir()
    backend.save(folder)
    train_once(backend, batch)
    train_once(backend, batch)
    drawn(backend)
    assert server.served.paths().count("/collective_rpc") == 2
    backend.load(folder)
    again = drawn(backend)
    assert server.served.paths().count("/collective_rpc") == 3
    assert again.tokens.tolist() == batch.tokens.tolist()
    assert len(list((tmp_path / "served").iterdir())) == 1, "older weights are removed"


def test_a_server_that_keeps_its_old_weights_shows_in_the_sampler_gap(server, opened):
    backend = opened()
    batch = drawn(backend)
    server.served.reloads = False
    train_once(backend, batch)
    stale = drawn(backend, seed=1, samples=8)
    scores = backend.score(stale, SAMPLING, ALGORITHM.needs)
    assert batch_metrics(replace(stale, old=scores))["sampler_gap"] > 0.05
    plain = backend.score(stale, SAMPLING, NONE).logprobs
    np.testing.assert_allclose(scores.logprobs, plain, atol=NATS)


def test_other_weights_are_told_at_the_start(server, opened, caplog):
    server.served.reloads = False
    with torch.no_grad():
        for parameter in server.served.model.parameters():
            parameter.mul_(1.2)
    drawn(opened())
    assert "the server has other weights" in caplog.text


def test_a_tied_head_is_not_left_to_a_server_on_a_cpu(server, opened, tmp_path):
    server.served.device = "cpu"
    assert "would keep the head of the weights that it was started with" in failure(opened())
    assert "python -m steadyrl.backends.vllm.untied MODEL COPY" in failure(opened())
    assert server.served.paths().count("/collective_rpc") == 0 and not any((tmp_path / "served").iterdir())


def test_a_head_of_its_own_is_pushed_with_a_tied_policy(server, opened, tiny_models, tmp_path):
    copy_untied(tiny_models["llama"], tmp_path / "untied")
    server.served.device, server.served.model = "cpu", load(tmp_path / "untied")
    backend = opened()
    first = drawn(backend)
    assert gap(backend, first).max() < NATS
    train_once(backend, first)
    assert gap(backend, drawn(backend, seed=1)).max() < NATS
    weights = server.served.model.state_dict()
    assert weights["lm_head.weight"].data_ptr() != weights["model.embed_tokens.weight"].data_ptr()


def test_a_server_on_a_cpu_is_sent_no_more_than_it_reads_at_once(server, opened, tmp_path, tiny_models, caplog):
    copy_untied(tiny_models["llama"], tmp_path / "untied")
    server.served.device, server.served.model = "cpu", load(tmp_path / "untied")
    server.served.budget = 40
    backend = opened()
    prompts = [np.arange(5, 15, dtype=np.int32)] * 8  # with their completions 18 tokens: two of them fit, not three
    backend.generate(prompts, SAMPLING, range(8))
    assert server.served.most_at_once <= 2
    assert "it is sent 2 requests at a time instead of 4; --max-num-batched-tokens 72 allows all" in caplog.text
    server.served.budget = 17
    with pytest.raises(
        EngineError, match=r"up to 18 tokens, and it reads 17 at a time; start it with --max-num-batche"
    ):
        opened().generate(prompts, SAMPLING, range(8))


def test_servers_sleep_while_the_policy_trains_and_wake_weights_first(server, opened):
    backend = opened("sampler.args.sleep=true")
    train_once(backend, drawn(backend))
    drawn(backend, seed=1)
    drawn(backend, seed=2)
    steps = [path for path, _ in server.served.asked if path not in {"/v1/models", "/weight_info", SERVER_INFO}]
    named = {"/sleep?level=1": "sleep", "/wake_up?tags=weights": "wake weights", "/wake_up?tags=kv_cache": "wake cache"}
    named |= {"/collective_rpc": "push", "/v1/completions": "draw"}
    steps = [named[path] for path in steps if path in named]
    short = [step for at, step in enumerate(steps) if step != "draw" or steps[at - 1] != "draw"]
    pushed = ["wake weights", "push", "wake cache", "draw", "sleep"]
    # the comparison after a push scores, before which they sleep; without new weights nothing is scored here
    assert short == ["sleep", *pushed, *pushed, "wake weights", "wake cache", "draw"]


def test_a_server_that_cannot_sleep_is_told_at_the_start(server, opened):
    server.served.answers["/sleep?level=1"] = [(404, {"detail": "Not Found"})]
    with pytest.raises(EngineError, match=r"/sleep\?level=1 answers 404: .*_DEV_MODE=1 and --enable-sleep-mode"):
        opened("sampler.args.sleep=true")


def test_raw_log_probs_are_told_at_the_start(server, opened, caplog):
    server.served.raw = True
    drawn(opened())
    assert "before the temperature; start it with --logprobs-mode processed_logprobs" in caplog.text


def test_another_precision_is_told_at_the_start(server, opened, caplog):
    def rounded(choice):
        logprobs = [x + 0.01 for x in choice["logprobs"]["token_logprobs"]]
        return choice | {"logprobs": {"token_logprobs": logprobs}}

    server.served.change = rounded
    drawn(opened())
    assert "differ by 0.01 nats on average" in caplog.text and "--dtype float32" in caplog.text


def test_a_server_that_is_not_there_is_one_line_with_how_to_start_it(opened, monkeypatch):
    monkeypatch.setattr(vllm_http, "FIRST_WAIT_S", 0.01)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{free.getsockname()[1]}"
    for rank, start in ((0, "VLLM_SERVER_DEV_MODE=1 vllm serve"), (4, "VLLM_ALLOW_RUNTIME_LORA_UPDATING=True vllm")):
        with pytest.raises(EngineError) as caught:
            opened(f"sampler.args.url={url}", f"model.lora_rank={rank}")
        message = str(caught.value)
        assert message.startswith(f"no vLLM server answers at {url} (") and start in message
        assert "--logprobs-mode processed_logprobs" in message and "sampler.engine = 'own'" in message


def test_a_model_that_is_not_served_is_refused_with_those_that_are(server, opened):
    server.served.models = ["tiny", "small"]
    server.served.adapters = {"adapter": None}
    with pytest.raises(
        EngineError, match=r"sampler.args.model = 'large' is not served at .*; expected one of: tiny, small"
    ):
        opened("sampler.args.model=large")
    drawn(opened("sampler.args.model=small"))
    asked = [body["model"] for path, body in server.served.asked if path == "/v1/completions"]
    assert set(asked) == {"small"}


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        ((200, {"data": []}), "serves no model; start it with"),
        ((200, {"models": []}), "/v1/models answers {'models': []}; expected vLLM's list of models"),
        ((200, "<html>hello</html>"), "answers b'<html>hello</html>'; expected JSON: is this a vLLM server?"),
        ((401, {"error": "Unauthorized"}), "answers 401: Unauthorized; set the environment variable VLLM_API_KEY"),
    ],
)
def test_what_is_no_vllm_server_is_told(server, opened, answer, message):
    server.served.answers["/v1/models"] = [answer]
    with pytest.raises(EngineError) as caught:
        opened()
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"token_ids": None}, "gives no token ids; expected 'token_ids', as vLLM returns them since"),
        pytest.param({"logprobs": None}, "gives no log-prob for some of", marks=pytest.mark.weekly),
        ({"logprobs": {"token_logprobs": [None]}, "token_ids": [1]}, "gives no log-prob for some of 1 tokens"),
        pytest.param({"finish_reason": "abort"}, "with 'abort' at token", marks=pytest.mark.weekly),
        (
            {"finish_reason": "stop", "token_ids": [7], "logprobs": {"token_logprobs": [-1.0]}},
            "after 1 tokens with 'stop' at token 7; expected the tokenizer's end token 1",
        ),
        (
            {"finish_reason": "length", "token_ids": [7], "logprobs": {"token_logprobs": [-1.0]}},
            "after 1 tokens with 'length' at token 7; expected the tokenizer's end token 1, or 8 tokens",
        ),
    ],
)
def test_a_completion_that_cannot_be_used_is_refused(server, opened, change, message):
    server.served.change = lambda choice: choice | change
    assert message in failure(opened())


@pytest.mark.parametrize(
    ("path", "answer", "message"),
    [
        (
            "/v1/completions",
            (400, {"error": {"message": "maximum context length is 64", "code": 400}}),
            "/v1/completions answers 400: maximum context length is 64",
        ),
        ("/v1/completions", (500, "Internal Server Error"), "/v1/completions answers 500: Internal Server Error"),
        ("/v1/completions", (200, {"choices": []}), "/v1/completions answers {'choices': []}; expected a completion"),
        (
            "/collective_rpc",
            (404, {"detail": "Not Found"}),
            "/collective_rpc answers 404: Not Found; start the server with VLLM_SERVER_DEV_MODE=1",
        ),
        ("/reset_prefix_cache", (404, {"detail": "Not Found"}), "/reset_prefix_cache answers 404: Not Found; start"),
    ],
)
def test_a_refusal_is_told_with_what_the_server_says(server, opened, path, answer, message):
    backend = opened()
    server.served.answers[path] = [answer] * 8
    assert message in failure(backend)


def test_a_server_without_runtime_adapters_is_told(server, opened):
    backend = opened("model.lora_rank=4")
    server.served.answers["/v1/load_lora_adapter"] = [(404, {"detail": "Not Found"})]
    assert "answers 404: Not Found; start the server with VLLM_ALLOW_RUNTIME_LORA_UPDATING=True" in failure(backend)


def test_a_busy_server_is_asked_again_and_not_for_ever(server, opened):
    backend = opened()
    server.served.answers["/collective_rpc"] = [(503, "busy")] * 2
    drawn(backend)
    assert server.served.paths().count("/collective_rpc") == 3
    server.served.answers["/v1/completions"] = [(503, "still busy")] * 99
    assert "/v1/completions answers 503: still busy" in failure(backend)


@pytest.mark.parametrize(
    ("lora_rank", "path"),
    [pytest.param(0, "/reset_prefix_cache", marks=pytest.mark.weekly), (4, "/v1/load_lora_adapter")],
)
def test_weights_that_failed_to_arrive_are_sent_again(server, opened, lora_rank, path):
    backend = opened(f"model.lora_rank={lora_rank}")
    train_once(backend, drawn(backend))
    server.served.answers[path] = [(500, "out of luck")]
    assert "out of luck" in failure(backend)
    assert gap(backend, drawn(backend)).max() < NATS
    assert server.served.paths().count(path) == 3


def test_an_answer_that_takes_too_long_is_told(server, opened):
    backend = opened("sampler.args.timeout_s=0.2")
    server.served.slow_s = 0.5
    message = failure(backend)
    assert "/collective_rpc does not answer within 0.2 s while it takes over weights; raise sampler.args." in message
    server.served.slow_s = 0.0


def test_a_folder_that_cannot_be_written_is_told(opened, tmp_path):
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(AccessError, match=r"cannot write the weights for vLLM into '.*file"):
        drawn(opened(f"sampler.args.folder={tmp_path / 'file'}"))


def test_a_key_is_taken_from_the_environment(server, opened, monkeypatch):
    opened()
    monkeypatch.setenv("VLLM_API_KEY", "abc")
    opened()
    assert server.served.keys == [None, None, "Bearer abc", "Bearer abc"]


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("sampling.top_p=0.9", "vLLM does not report which tokens truncation left"),
        ("sampling.top_k=5", "vLLM does not report which tokens truncation left"),
        ("sampling.logprobs=raw", "is measured by sampler.engine = 'own' only"),
        ("backend.name=toy", "serves the weights of backend.name = 'torch'; got 'toy'"),
        (
            "sampler.args.url=localhost:8000",
            "sampler.args.url: got 'localhost:8000'; expected an address such as http://",
        ),
    ],
)
def test_settings_that_the_engine_cannot_serve_are_refused(override, message):
    with pytest.raises(ConfigError) as caught:
        config.resolve({"rewards": {"length": 1.0}, "sampler": {"engine": "vllm"}}, [override])
    assert message in str(caught.value)


def short_training(server, folder, tmp_path, *overrides):
    """Train three steps on the four problems; return the lines of metrics."""
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text("".join(json.dumps({"prompt": p.prompt}) + "\n" for p in PROBLEMS))
    session = open_session(
        settings(
            server, folder, tmp_path, "task.name=prompts", f"task.args.path={prompts}", "run.steps=3",
            "rollout.prompts_per_step=4", "update.minibatches=1", "sampling.max_new_tokens=6",
            f"run.folder={tmp_path / 'runs'}", *overrides,
        )
    )  # fmt: skip
    lines = []
    run = RunDir.create(tmp_path / "runs", "short")
    guard = Safeguard(run, session.backend, session.config, lines.append)
    state = State(algorithm=dict(session.algorithm.state))
    assert run_steps(session, run, state, 0, Watch(step=lines.append), guard)
    return lines


@pytest.mark.parametrize("algorithm", ["ppo", pytest.param("grpo", marks=pytest.mark.weekly)])
def test_a_short_training_runs_through_the_loop(server, tiny_models, tmp_path, algorithm):
    lines = short_training(server, tiny_models["llama"], tmp_path, f"algorithm.name={algorithm}")
    assert len(lines) == 3 and all(line["sampler_gap"] < NATS for line in lines)
    assert server.served.paths().count("/collective_rpc") == 3
    assert server.served.paths().count("/v1/completions") == 3 * 8


def test_completions_are_drawn_beside_the_update_by_the_policy_before_it(server, tiny_models, tmp_path, caplog):
    """Each step's first weights are sent once, and compared on eight short completions before they change."""
    fast = ("rollout.ahead=1", "update.learning_rate=2e-3", "update.warmup_steps=0")
    with caplog.at_level(logging.INFO):
        lines = short_training(server, tiny_models["llama"], tmp_path, "algorithm.name=grpo", *fast)
    assert [line["staleness"] for line in lines] == [0, 2, 2]
    assert lines[0]["sampler_gap"] < NATS and all(line["sampler_gap"] > 1e-3 for line in lines[1:])
    assert all(0.5 < line["correction/weight"] < 2 for line in lines[1:])
    assert server.served.paths().count("/collective_rpc") == 3
    assert server.served.paths().count("/v1/completions") == 8 + 3 * 8 + 2 * 8  # at first, ahead, and compared
    gaps = [message for message in caplog.messages if "log-probs of the vLLM server at" in message]
    assert len(gaps) == 3
