"""Shared set-up: one thread for torch, sessions of the toy backend, tiny models in Hugging Face layout."""

import gc
import importlib
import json
import os
import signal
from pathlib import Path

import hypothesis
import pytest

from steadyrl.core import config
from steadyrl.core.rundir import RunDir
from steadyrl.loop.train import Watch, open_session, train
from tests import needs
from tests.processes import sitecustomize
from tests.times import long_files, slow_tests

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("MLX_DISABLE_COMPILE", "1")  # it would call g++ for every new kernel
# How long an example takes says how busy the machine is.
# `make test` tries fewer examples than `make test-all`.
BUSY = {"deadline": None, "suppress_health_check": [hypothesis.HealthCheck.too_slow]}
hypothesis.settings.register_profile("busy", max_examples=25, **BUSY)
hypothesis.settings.register_profile("weekly", max_examples=100, **BUSY)

TEXT = "the red cat sees a small dog and the old bird hears two or three big blue cats, one is new, not green."
TEMPLATE = (
    "{% for message in messages %}<user>{{ message['content'] }}<eos>{% endfor %}"
    "{% if add_generation_prompt %}<bot>{% endif %}"
)
MARKED = type(pytest.param())  # values with marks of their own
PROCESSES = Path(sitecustomize.__file__).parent


def pytest_configure(config):
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # in a shell's background, and in all that a test starts
        signal.signal(signal.SIGINT, signal.default_int_handler)
    hypothesis.settings.load_profile("busy" if "not weekly" in config.option.markexpr else "weekly")
    for name, (what, _) in needs.MARKERS.items():
        config.addinivalue_line("markers", f"{name}: needs {what}")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items):
    """Begin with the longest files; mark the slow tests and half of the cases of some, before any are left out."""
    slow, seconds = slow_tests(), long_files()
    items.sort(key=lambda item: -seconds.get(item.nodeid.partition("::")[0], 0.0))
    for item in items:
        if item.nodeid.partition("[")[0] in slow:
            item.add_marker("slow")
        if item.get_closest_marker("halved") and sum(_places(item)) % 2:
            item.add_marker("weekly")


def _places(item):
    """Yield the place of a case's values among the values of each of its parametrizations."""
    for mark in item.iter_markers("parametrize"):
        names, cases = mark.args
        names = [name.strip() for name in names.split(",")] if isinstance(names, str) else names
        values = [item.callspec.params[name] for name in names]
        listed = [case.values if isinstance(case, MARKED) else case if len(names) > 1 else (case,) for case in cases]
        yield [list(case) for case in listed].index(values)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_collection():
    """Keep what is imported and collected out of garbage collections: a million objects that live to the end."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()
        gc.set_threshold(50_000)  # a collection at every 700 objects takes a fiftieth of the time of the tests


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item, nextitem):
    """Let a test and its fixtures go without what it has no marker for, and the commands that it runs as well.

    Without ``browser`` they see no Chromium; without ``pictures`` reports draw nothing, which takes a second or two.
    """
    without = [marker for marker in sitecustomize.CHANGES if item.get_closest_marker(marker) is None]
    with pytest.MonkeyPatch.context() as patch:
        for name, change in map(sitecustomize.CHANGES.get, without):
            change(importlib.import_module(name), patch.setattr)
        patch.setenv(sitecustomize.VARIABLE, " ".join(without))
        patch.setenv("PYTHONPATH", os.pathsep.join(filter(None, (str(PROCESSES), os.environ.get("PYTHONPATH")))))
        outcome = yield
    if nextitem is None or nextitem.path != item.path:
        gc.collect()
        gc.freeze()  # and what the tests of a file imported, such as the models of transformers
    return outcome


def pytest_runtest_setup(item):
    """Skip a test where the machine lacks what one of its markers stands for."""
    for marker in item.iter_markers():
        if marker.name in needs.MARKERS:
            needs.skip_without(marker.name)


@pytest.fixture
def whole_and_broken(tmp_path):
    """Return a function that trains twice, once without a break and once stopped after some steps and resumed.

    It takes a function that opens a session, and returns both runs.
    """

    def train_both(opened, after=3):
        whole, broken = RunDir(tmp_path / "whole"), RunDir(tmp_path / "broken")
        train(opened(), whole)
        done = []
        assert train(opened(), broken, 0, Watch(step=done.append, stop=lambda: len(done) == after)) == "interrupted"
        assert train(opened(), broken, 1) == "finished"
        return whole, broken

    return train_both


@pytest.fixture
def toy(tmp_path, monkeypatch):
    """Return a function that opens a small session of the toy backend; overrides are those of the command line."""
    monkeypatch.syspath_prepend(Path(__file__).parent)
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text("".join(json.dumps({"prompt": letter * 3}) + "\n" for letter in "abcdefghijklmnopqrst"))

    def open_toy(*overrides, reward="toy_rewards:share_of_a"):
        settings = {
            "run": {"steps": 6, "checkpoint_every": 100, "folder": str(tmp_path / "runs")},
            "backend": {"name": "toy"},
            "task": {"name": "prompts", "args": {"path": str(prompts)}},
            "rewards": {reward: 1.0},
            "sampling": {"max_new_tokens": 6},
            "rollout": {"prompts_per_step": 8, "samples_per_prompt": 2},
            "update": {"learning_rate": 0.1, "warmup_steps": 0, "kl_old_limit": 10.0},
        }
        return open_session(config.resolve(settings, overrides))

    return open_toy


@pytest.fixture(scope="session")
def tiny_models(tmp_path_factory):
    """Return the folders of four random models by name, made on the spot.

    llama has grouped queries, tied embeddings and a chat template; qwen2 no pad token; gpt2's tokenizer closes every
    text with the end token.
    """
    needs.package("torch")
    needs.package("transformers")
    root = tmp_path_factory.mktemp("models")
    return {name: _write_model(name, root / name) for name in ("llama", "qwen2", "qwen3", "gpt2")}


def _write_model(name, folder):
    import torch
    import transformers

    tokenizer = _tokenizer(closes=name == "gpt2")
    if name == "llama":
        tokenizer.chat_template = TEMPLATE
    if name == "qwen2":
        tokenizer.pad_token = None
    # Weights far larger than usual: next-token distributions have to be far from uniform, and to depend on
    # everything before, for a wrong position or mask to show.
    shape = {"vocab_size": len(tokenizer), "initializer_range": 0.4, "eos_token_id": 1, "bos_token_id": None}
    rotary = {
        "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4,
        "num_key_value_heads": 2, "max_position_embeddings": 64,
    }  # fmt: skip
    settings = {
        "llama": lambda: transformers.LlamaConfig(**shape, **rotary, tie_word_embeddings=True),
        "qwen2": lambda: transformers.Qwen2Config(**shape, **rotary, tie_word_embeddings=False),
        "qwen3": lambda: transformers.Qwen3Config(**shape, **rotary, head_dim=8, tie_word_embeddings=True),
        "gpt2": lambda: transformers.GPT2Config(**shape, n_embd=32, n_layer=2, n_head=2, n_positions=64),
    }[name]()
    with torch.random.fork_rng():
        torch.manual_seed(7)
        model = transformers.AutoModelForCausalLM.from_config(settings)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def _tokenizer(closes):
    import tokenizers
    import transformers

    special = ["<pad>", "<eos>", "<user>", "<bot>"]
    bytewise = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    inner = tokenizers.Tokenizer(tokenizers.models.BPE())
    inner.pre_tokenizer, inner.decoder = bytewise, tokenizers.decoders.ByteLevel()
    trainer = tokenizers.trainers.BpeTrainer(vocab_size=60, special_tokens=special, show_progress=False)
    inner.train_from_iterator([TEXT], trainer)
    if closes:
        end = [("<eos>", special.index("<eos>"))]
        inner.post_processor = tokenizers.processors.TemplateProcessing(single="$A <eos>", special_tokens=end)
    return transformers.PreTrainedTokenizerFast(tokenizer_object=inner, eos_token="<eos>", pad_token="<pad>")


@pytest.fixture
def hub_snapshot(tmp_path, monkeypatch):
    """Return a function that makes the cached folder of a data set of the hub, which cannot be reached."""
    needs.package("huggingface_hub")
    constants = importlib.import_module("huggingface_hub.constants")
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    commit = "0123456789" * 4

    def snapshot(owner, name):
        repository = tmp_path / "hub" / f"datasets--{owner}--{name}"
        (repository / "refs").mkdir(parents=True)
        (repository / "refs" / "main").write_text(commit)
        folder = repository / "snapshots" / commit
        folder.mkdir(parents=True)
        return folder

    return snapshot
