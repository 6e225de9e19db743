"""The memory that training takes, counted by hand and beside what tensors really hold."""

import importlib.util
from dataclasses import replace
from pathlib import Path

import pytest

from steadyrl.backends.settings import MICRO_BATCH_TOKENS
from steadyrl.backends.torch.footprint import (
    MOST_TOKENS,
    Setup,
    Shape,
    Work,
    gradients,
    micro_batch_tokens,
    peak,
    resident_of,
    sampling_peak,
    update_peak,
)  # fmt: skip
from steadyrl.core import config
from tests import needs
from tests.backends.ppo_batch import ALGORITHM, train

torch = needs.package("torch")
needs.skip_without_packages("transformers", "peft", extra="torch")

from steadyrl.backends.torch.backend import TorchBackend  # noqa: E402

# peft reads a property of the model that transformers has renamed.
pytestmark = pytest.mark.filterwarnings("ignore:.is_gradient_checkpointing. is deprecated:FutureWarning")
QWEN = {
    "vocab_size": 151_936, "hidden_size": 896, "num_hidden_layers": 24, "num_attention_heads": 14,
    "num_key_value_heads": 2, "intermediate_size": 4864, "tie_word_embeddings": True,
}  # fmt: skip
ROOT = Path(__file__).parents[3]
# Two matrices of 10 x 8, one layer: queries and their way back 8 x 8, keys and values 8 x 4, three of 8 x 16.
SMALL = Shape(10, 8, 1, 8, 4, 16, tied=False)
WORK = Work(tokens=100, attended=100, chosen=50, rows=4, length=20)


def test_the_weights_of_a_known_model_are_counted():
    """Qwen2.5-0.5B has 494,032,768 weights, biases and norms included."""
    assert Shape.of_config(QWEN).parameters == pytest.approx(494_032_768, rel=2e-4)


def test_what_stays_is_counted_by_hand():
    assert SMALL.parameters == 160 + 128 + 64 + 384 == 736
    assert resident_of(SMALL, Setup()) == {"weights": 4 * 736, "optimizer": 8 * 736}
    assert resident_of(SMALL, Setup(bf16=True, reference=True)) == {
        "weights": 2 * 736, "reference": 2 * 736, "masters": 4 * 736, "optimizer": 8 * 736
    }  # fmt: skip
    assert gradients(736, Setup(bf16=True)) == 6 * 736
    # Of rank 2 on 8 x 8 twice, 8 x 4 twice and 8 x 16 three times: the sides add up to 32 + 24 + 72.
    adapter = 2 * (32 + 24 + 72)
    assert resident_of(SMALL, Setup(lora=True, reference=True), 2) == {
        "weights": 4 * 736, "adapter": 4 * adapter, "optimizer": 8 * adapter
    }  # fmt: skip
    in_four_bits = resident_of(SMALL, Setup(lora=True, quantized=True), 2)["weights"]
    assert in_four_bits == 4 * 160 + 576 / 2 + 4 * 576 / 64


def test_ranks_share_what_stays_and_gather_the_weights_to_sample():
    alone, shared = Setup(reference=True), Setup(reference=True, ranks=4)
    assert {name: size / 4 for name, size in resident_of(SMALL, alone).items()} == resident_of(SMALL, shared)
    assert sampling_peak(SMALL, shared, WORK) - sampling_peak(SMALL, alone, WORK) == 4 * 736 - 0.75 * (4 + 4 + 8) * 736


def test_activations_of_a_layer_are_counted_by_hand():
    """On a CPU norms and attention are in float32; on a GPU norms are rounded once and gates are not kept twice."""
    on_gpu, on_cpu = (Setup(lora=True, bf16=True, products=2, device=device) for device in ("cuda", "cpu"))
    # The stream and its norm twice, queries and outputs, keys and values, three of 16; and attention in rows.
    here = 2 * (8 + 8) * 2 + 2 * (2 * 8 + 2 * 4 + 3 * 16) + 2 * (2 * 8 + 2 * 4)
    # Norms' inputs in float32, their outputs; the same but for a fourth of 16; attention in float32, twice, all heads.
    there = 2 * 8 * 4 + 2 * 8 * 2 + 2 * (2 * 8 + 2 * 4 + 4 * 16) + 2 * 2 * 8 * 4
    assert update_peak(SMALL, on_cpu, WORK, 2) - update_peak(SMALL, on_gpu, WORK, 2) == 1.5 * 100 * (there - here)


def test_a_micro_batch_takes_its_share_of_a_gpu():
    qwen, setup = Shape.of_config(QWEN), Setup(reference=True, products=2)
    card = 85e9  # bytes of an H100
    assert micro_batch_tokens(qwen, setup, card) == MOST_TOKENS
    assert micro_batch_tokens(qwen, setup, 8e9) == MICRO_BATCH_TOKENS
    larger = replace(qwen, hidden=1536, layers=28, queries=1536, keys=256, inner=8960)
    tokens = micro_batch_tokens(larger, setup, card)
    assert MICRO_BATCH_TOKENS < tokens < MOST_TOKENS
    assert update_peak(larger, setup, Work(tokens, tokens, tokens, 0, 0)) <= 0.75 * card
    assert update_peak(larger, setup, Work(tokens + 2048, tokens + 2048, tokens + 2048, 0, 0)) > 0.75 * card
    assert micro_batch_tokens(larger, replace(setup, checkpointing=True), card) == MOST_TOKENS


def test_offloaded_activations_leave_one_layer_s_input_on_the_device():
    three, frugal = replace(SMALL, layers=3), Setup(checkpointing=True)
    away = replace(frugal, offload=True)
    assert update_peak(three, frugal, WORK) - update_peak(three, away, WORK) == 2 * 100 * 8 * 4
    on_cpu = replace(frugal, device="cpu")
    assert update_peak(three, on_cpu, WORK) == update_peak(three, replace(on_cpu, offload=True), WORK)


def test_truncated_sampling_takes_a_byte_for_each_id_of_a_token():
    shape = Shape.of_config(QWEN)
    assert update_peak(shape, Setup(truncated=True), WORK) - update_peak(shape, Setup(), WORK) == 50 * 151936


def test_less_is_needed_with_what_saves_memory():
    shape, work = Shape.of_config(QWEN), Work(8192, 8192, 6144, 64, 1024)
    whole = peak(shape, Setup(), work)
    for change in ({"checkpointing": True}, {"optimizer_bits": 8}, {"products": 2}, {"lora": True}, {"ranks": 4}):
        assert peak(shape, Setup(**change), work, 16) < whole
    assert update_peak(shape, Setup(), work) - update_peak(shape, Setup(optimizer_bits=8), work) == pytest.approx(
        6 * shape.parameters, rel=0.02
    )


@pytest.mark.parametrize("overrides", [(), ("backend.args.weights=bf16",), ("model.lora_rank=4",)])
def test_a_backend_says_what_it_really_holds(tiny_models, overrides):
    settings = {"model": {"path": str(tiny_models["llama"])}, "backend": {"device": "cpu", "threads": 1}}
    resolved = config.resolve({**settings, "rewards": {"length": 1.0}}, overrides)
    backend = TorchBackend(resolved, ALGORITHM)
    train(backend, range(1))
    lora, masters = "model.lora_rank=4" in overrides, backend._masters.named
    base = [p for p in backend.model.parameters() if not (lora and p.requires_grad)]
    moments = [x for s in backend.optimizer.state.values() for name, x in s.items() if name != "step"]
    found = {"weights": size(base), "optimizer": size(moments)}
    if lora:
        found["adapter"] = size(backend.trainable().values())
    else:
        found["reference"] = size(backend.reference.model.parameters())
    if "backend.args.weights=bf16" in overrides:
        found["masters"] = size(masters.values())
    said = backend.describe()["memory"]
    assert said == pytest.approx(found, rel=0.005)  # the value head has weights of its own
    assert all(p.grad is None for p in (*backend.trainable().values(), *masters.values())), "sampling needs the room"


def size(tensors):
    return sum(tensor.nbytes for tensor in tensors)


def test_the_table_of_the_docs_is_what_the_script_writes():
    spec = importlib.util.spec_from_file_location("memory", ROOT / "scripts" / "memory.py")
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    text = script.PAGE.read_text(encoding="utf-8")
    assert script.page(text) == text
    assert "| 7B | LoRA, 4-bit base |" in text
