"""vLLM in the trainer's process, with a stand-in for its package that samples from a tiny model."""

import sys
from dataclasses import dataclass
from types import ModuleType, SimpleNamespace
from typing import Literal

import numpy as np
import pytest

from steadyrl.core import config
from steadyrl.core.errors import ConfigError, EngineError, MissingExtraError
from steadyrl.core.types import Sampling
from tests import needs
from tests.backends.ppo_batch import ALGORITHM, prompts_of, scored_batch, step
from tests.backends.vllm.served import Served
from tests.rounding import NATS

torch = needs.package("torch")
transformers = needs.package("transformers")

from steadyrl.backends.torch.backend import TorchBackend  # noqa: E402

# peft reads a property of the model that transformers has renamed.
pytestmark = pytest.mark.filterwarnings("ignore:.is_gradient_checkpointing. is deprecated:FutureWarning")
PLAIN = Sampling(max_new_tokens=6)


@dataclass
class LoRARequest:
    """As vllm.lora.request.LoRARequest of 0.32.0."""

    lora_name: str
    lora_int_id: int
    lora_path: str


class LLM:
    """As vllm.LLM of 0.32.0: what it was asked, in order, and completions of transformers' plain forward."""

    newest = None

    def __init__(self, model, **settings):
        LLM.newest, self.settings, self.asked = self, settings, []
        self.awake, self.keeps = {"weights", "kv_cache"}, frozenset()
        changed = transformers.AutoConfig.from_pretrained(model, **settings.get("hf_overrides", {}))
        self.served = Served(model, eos_id=1)
        if settings.get("load_format") == "dummy":  # not one weight of the folder
            with torch.random.fork_rng():
                torch.manual_seed(1)
                self.served.model = transformers.AutoModelForCausalLM.from_config(changed).eval()

    def sleep(self, level):
        self.asked.append(f"sleep {level}")
        self.awake = set()
        if level == 2:
            for weight in self.served.model.parameters():
                weight.data.fill_(torch.nan)

    def wake_up(self, tags):
        self.asked.append(f"wake {' '.join(tags)}")
        self.awake |= set(tags)

    def collective_rpc(self, method, kwargs):
        assert method == "reload_weights" and "weights" in self.awake
        self.asked.append(method)
        own = dict(self.served.model.named_parameters())
        for name, weight in kwargs["weights_iterator"]:
            if name not in self.keeps:
                own[name].data.copy_(weight)

    def reset_prefix_cache(self):
        self.asked.append("forget")

    def generate(self, prompts, params, use_tqdm, lora_request):
        assert self.awake == {"weights", "kv_cache"} and not use_tqdm
        self.asked.append(f"generate {len(prompts)}")
        if lora_request and lora_request.lora_name not in self.served.adapters:
            adapter = {"lora_name": lora_request.lora_name, "lora_path": lora_request.lora_path}
            assert self.served.answer("/v1/load_lora_adapter", adapter)[0] == 200
        outputs = []
        for prompt, values in zip(prompts, params, strict=True):
            name = lora_request.lora_name if lora_request else "tiny"
            body = {"model": name, "prompt": prompt["prompt_token_ids"], "return_token_ids": True, **values}
            found = self.served.complete(body)
            ids, logprobs = found["token_ids"], found["logprobs"]["token_logprobs"]
            each = [{token: SimpleNamespace(logprob=logprob)} for token, logprob in zip(ids, logprobs, strict=True)]
            done = SimpleNamespace(token_ids=tuple(ids), logprobs=each, finish_reason=found["finish_reason"])
            outputs.append(SimpleNamespace(outputs=[done]))
        return outputs


class Platform:
    cpu = False

    def is_sleep_mode_available(self):
        return not self.cpu

    def is_cpu(self):
        return self.cpu


@pytest.fixture
def vllm(monkeypatch):
    """A package ``vllm`` that samples from tiny models."""
    package, platforms, lora = (ModuleType(name) for name in ("vllm", "vllm.platforms", "vllm.lora.request"))
    ranks = ModuleType("vllm.config.lora")
    ranks.MaxLoRARanks = Literal[1, 8, 16]
    package.LLM, package.SamplingParams, package.__version__ = LLM, dict, "0.32.0"
    platforms.current_platform, lora.LoRARequest = Platform(), LoRARequest
    for module in (package, platforms, lora, ranks, ModuleType("vllm.lora"), ModuleType("vllm.config")):
        monkeypatch.setitem(sys.modules, module.__name__, module)
    return package


@pytest.fixture
def opened(tiny_models, tmp_path):
    """Return a function that opens a backend whose completions come from vLLM in this process."""

    def open_one(*overrides, family="llama"):
        settings = {
            "model": {"path": str(tiny_models[family])},
            "backend": {"device": "cpu", "threads": 1},
            "sampler": {"engine": "vllm", "args": {"mode": "colocate", "folder": str(tmp_path / "served")}},
            "rewards": {"length": 1.0},
        }
        return TorchBackend(config.resolve(settings, overrides), ALGORITHM)

    return open_one


def drawn(backend, sampling=PLAIN):
    return backend.generate(prompts_of(backend), sampling, range(6))


def test_it_sleeps_while_the_policy_trains_and_wakes_up_with_the_new_weights(vllm, opened):
    backend = opened("sampler.args.llm={gpu_memory_utilization = 0.5, max_model_len = 64}")
    llm = LLM.newest
    assert llm.settings["gpu_memory_utilization"] == 0.5 and llm.settings["max_model_len"] == 64
    assert llm.settings["logprobs_mode"] == "processed_logprobs" and llm.settings["enable_sleep_mode"]
    awake = ["wake weights", "reload_weights", "forget", "wake kv_cache", "generate 6"]
    before = drawn(backend)
    assert llm.asked == ["sleep 2", *awake, "sleep 2"], "the comparison scores, so that it sleeps again"
    llm.asked.clear()
    again = drawn(backend)
    assert llm.asked == awake, "the weights were dropped, and the same need no second comparison"
    for one, other in zip(before, again, strict=True):
        assert one.ids.tolist() == other.ids.tolist() and len(one.ids) in range(1, 7)
        np.testing.assert_array_equal(one.logprobs, other.logprobs)
    llm.asked.clear()
    step(backend, scored_batch(backend, PLAIN))
    assert llm.asked == ["generate 6", "sleep 2"]
    drawn(backend)
    assert llm.asked[2:] == [*awake, "sleep 2"]
    for name, weight in llm.served.model.named_parameters():
        assert torch.isnan(weight).all(), f"{name} is no weight that is kept while the policy trains"


@pytest.mark.parametrize("adapter", [pytest.param(False, marks=pytest.mark.weekly), True])
def test_log_probs_are_those_of_the_policy_after_each_update(vllm, opened, adapter, tmp_path, caplog):
    caplog.set_level("INFO", logger="steadyrl.backends.vllm")
    backend = opened(*(["model.lora_rank=4"] if adapter else []))
    for _ in range(3):
        batch = scored_batch(backend, PLAIN)
        gap = np.abs(batch.sampling_logprobs - batch.old.logprobs)[batch.completion_mask]
        assert gap.max() <= NATS
        step(backend, batch)
    assert sum("log-probs of vLLM in this process and of the trainer" in text for text in caplog.messages) == 3
    if adapter:
        assert LLM.newest.settings["max_lora_rank"] == 8 and "load_format" not in LLM.newest.settings
        assert LLM.newest.asked.count("sleep 1") == 4 and "reload_weights" not in LLM.newest.asked
        assert len(list((tmp_path / "served").iterdir())) == 1, "the folder before is removed"
    else:
        assert not (tmp_path / "served").exists(), "nothing is written"


def test_weights_that_are_not_taken_over_end_the_run(vllm, opened, monkeypatch):
    monkeypatch.setattr(Platform, "is_sleep_mode_available", lambda platform: False)  # it would drop what it keeps
    backend = opened()
    drawn(backend)
    LLM.newest.keeps = frozenset(dict(backend.model.named_parameters()))
    with pytest.raises(EngineError, match=r"log-probs of vLLM in this process and of the trainer differ more"):
        for _ in range(4):
            with torch.no_grad():
                for weight in backend.model.parameters():
                    weight.mul_(1.2)
            backend._weights_changed()
            drawn(backend)


def test_on_a_cpu_a_shared_head_is_given_as_one_of_its_own_and_nothing_sleeps(vllm, opened, monkeypatch):
    monkeypatch.setattr(Platform, "cpu", True)
    backend = opened()
    tied = backend.model.config.tie_word_embeddings
    batch = scored_batch(backend, PLAIN)
    assert tied and LLM.newest.settings["hf_overrides"] == {"tie_word_embeddings": False}
    assert LLM.newest.asked == ["reload_weights", "forget", f"generate {len(batch.tokens)}"]
    assert np.abs(batch.sampling_logprobs - batch.old.logprobs)[batch.completion_mask].max() <= NATS


def test_what_is_missing_or_does_not_fit_is_one_clear_line(vllm, opened, monkeypatch):
    vllm.__version__ = "0.11.2"
    with pytest.raises(EngineError, match=r"vLLM 0\.11\.2 is installed; .*'colocate' needs 0\.32 or newer"):
        opened()
    vllm.__version__ = "0.32.1+cpu"

    def broken(model, **settings):
        raise ValueError("Free memory on device cuda:0 (3/80 GiB) is less than desired\nsecond line")

    monkeypatch.setattr(vllm, "LLM", broken)
    with pytest.raises(
        EngineError, match=r"fails while it loads the model: Free memory .* desired second line; its settings"
    ):
        opened()
    del vllm.LLM
    with pytest.raises(EngineError, match=r"cannot be imported: .*LLM.*; its release must fit the installed torch"):
        opened()
    monkeypatch.setitem(sys.modules, "vllm", None)
    with pytest.raises(MissingExtraError, match=r"'vllm' is not installed but needed here; .* pip install vllm"):
        opened()


def test_an_engine_that_fails_says_what_it_was_doing(vllm, opened):
    backend = opened()

    def failing(*args, **kwargs):
        raise RuntimeError("EngineCore encountered an issue")

    LLM.newest.generate = failing
    with pytest.raises(EngineError, match="vLLM in this process fails while it draws completions: EngineCore"):
        drawn(backend)


def test_settings_of_the_engine_need_its_mode():
    with pytest.raises(ConfigError, match=r"sampler\.args\.llm has no effect with sampler\.args\.mode = 'server'"):
        config.resolve(
            {"sampler": {"engine": "vllm", "args": {"llm": {"dtype": "float32"}}}, "rewards": {"length": 1.0}}
        )
