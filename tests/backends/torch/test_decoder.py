"""Attention through ours against transformers' own forward, family by family, on random models made on the spot."""

import copy
import re
from dataclasses import replace

import numpy as np
import pytest

from steadyrl.core.types import Batch, Sampling
from tests import needs
from tests.rounding import NATS, OF_BFLOAT16, of_gradients, rounding

torch = needs.package("torch")
transformers = needs.package("transformers")

from steadyrl.backends.torch.draw.decoder import Decoder  # noqa: E402
from steadyrl.backends.torch.draw.graph import GraphDecoder, StepState  # noqa: E402
from steadyrl.backends.torch.draw.sampler import draw, sample  # noqa: E402
from steadyrl.backends.torch.load.fits import through_ours  # noqa: E402
from steadyrl.backends.torch.load.model import split_head  # noqa: E402
from steadyrl.backends.torch.read import products  # noqa: E402
from steadyrl.backends.torch.read import shared as torch_shared  # noqa: E402
from steadyrl.backends.torch.read.packed import pack  # noqa: E402
from steadyrl.backends.torch.read.products import quicken  # noqa: E402
from steadyrl.backends.torch.read.reader import read_packed  # noqa: E402
from steadyrl.backends.torch.read.reads import reads_of  # noqa: E402

# peft reads a property of the model that transformers has renamed.
pytestmark = pytest.mark.filterwarnings("ignore:.is_gradient_checkpointing. is deprecated:FutureWarning")

VOCABULARY = 300  # more than two blocks of tokens, and no whole number of them
# Weights far larger than usual, so that a wrong position, mask or head shows.
COMMON = {"vocab_size": VOCABULARY, "initializer_range": 0.2, "pad_token_id": 0, "eos_token_id": 1, "bos_token_id": 2}
ROTARY = {
    "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "max_position_embeddings": 64,
}  # fmt: skip
LLAMA3 = {
    "rope_type": "llama3", "rope_theta": 10000.0, "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 16,
}  # fmt: skip
WINDOW, WHOLE = "sliding_attention", "full_attention"  # kinds of layers, as transformers names them
ROPE = {"rope_type": "default", "rope_theta": 10000.0}
YARN = {"rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0, "original_max_position_embeddings": 16}
MODELS = {
    "llama": lambda: transformers.LlamaConfig(**COMMON, **ROTARY, tie_word_embeddings=True),
    "llama, untied, biases": lambda: transformers.LlamaConfig(
        **COMMON, **ROTARY, tie_word_embeddings=False, attention_bias=True, mlp_bias=True
    ),
    "llama, no shared keys": lambda: transformers.LlamaConfig(**COMMON, **(ROTARY | {"num_key_value_heads": 4})),
    "llama, one key head": lambda: transformers.LlamaConfig(**COMMON, **(ROTARY | {"num_key_value_heads": 1})),
    "llama, rope llama3": lambda: transformers.LlamaConfig(**COMMON, **ROTARY, rope_parameters=LLAMA3),
    "llama, rope yarn": lambda: transformers.LlamaConfig(**COMMON, **ROTARY, rope_parameters=YARN),
    "mistral, window": lambda: transformers.MistralConfig(**COMMON, **ROTARY, head_dim=8, sliding_window=5),
    "mistral, no window": lambda: transformers.MistralConfig(**COMMON, **ROTARY, head_dim=8, sliding_window=None),
    "qwen2": lambda: transformers.Qwen2Config(**COMMON, **ROTARY),
    "qwen2, one layer with a window": lambda: transformers.Qwen2Config(
        **COMMON, **ROTARY, use_sliding_window=True, sliding_window=4, max_window_layers=1
    ),
    "qwen3": lambda: transformers.Qwen3Config(**COMMON, **ROTARY, head_dim=16),
    "gemma": lambda: transformers.GemmaConfig(**COMMON, **ROTARY, head_dim=16),
    "gemma3, a window and a rotation by kind": lambda: transformers.Gemma3TextConfig(
        **COMMON,
        **ROTARY,
        head_dim=16,
        sliding_window=4,
        query_pre_attn_scalar=40,
        layer_types=[WINDOW, WHOLE],
        rope_parameters={WINDOW: ROPE, WHOLE: ROPE | {"rope_theta": 50.0}},
    ),
    "phi3, half of a head turns, window": lambda: transformers.Phi3Config(
        **COMMON, **ROTARY, partial_rotary_factor=0.5, sliding_window=5
    ),
    "olmo2": lambda: transformers.Olmo2Config(**COMMON, **ROTARY),
    "olmo3, windows": lambda: transformers.Olmo3Config(
        **COMMON, **ROTARY, sliding_window=4, layer_types=[WINDOW, WHOLE]
    ),
    "smollm3, one layer turns nothing": lambda: transformers.SmolLM3Config(**COMMON, **ROTARY, no_rope_layers=[1, 0]),
    "starcoder2, window": lambda: transformers.Starcoder2Config(**COMMON, **ROTARY, sliding_window=5),
    "ministral, one layer with a window": lambda: transformers.MinistralConfig(
        **COMMON, **ROTARY, head_dim=8, sliding_window=4, layer_types=[WINDOW, WHOLE]
    ),
    "seed_oss": lambda: transformers.SeedOssConfig(**COMMON, **ROTARY, head_dim=16, attention_out_bias=True),
    "exaone4, windows": lambda: transformers.Exaone4Config(
        **COMMON, **ROTARY, sliding_window=4, layer_types=[WINDOW, WHOLE]
    ),
    "exaone4, no window": lambda: transformers.Exaone4Config(
        **COMMON, **ROTARY, sliding_window=None, layer_types=[WHOLE, WHOLE]
    ),
    "ernie4_5": lambda: transformers.Ernie4_5Config(**COMMON, **ROTARY, head_dim=16, use_bias=True),
    "glm4": lambda: transformers.Glm4Config(**COMMON, **ROTARY, head_dim=16, attention_bias=True),
    "granite": lambda: transformers.GraniteConfig(
        **COMMON,
        **ROTARY,
        attention_multiplier=0.5,
        embedding_multiplier=3.0,
        residual_multiplier=0.6,
        logits_scaling=2.5,
    ),
    "nemotron": lambda: transformers.NemotronConfig(**COMMON, **ROTARY, head_dim=8),
    "stablelm": lambda: transformers.StableLmConfig(**COMMON, **ROTARY, use_qkv_bias=True),
    "stablelm, parallel": lambda: transformers.StableLmConfig(**COMMON, **ROTARY, use_parallel_residual=True),
    "phi": lambda: transformers.PhiConfig(**COMMON, **ROTARY),
    "phi, norms of heads": lambda: transformers.PhiConfig(**COMMON, **ROTARY, qk_layernorm=True),
    "gpt_neox": lambda: transformers.GPTNeoXConfig(**COMMON, **ROTARY),
    "gpt_neox, one half after the other": lambda: transformers.GPTNeoXConfig(
        **COMMON, **ROTARY, use_parallel_residual=False
    ),
    "gpt2": lambda: transformers.GPT2Config(**COMMON, n_embd=32, n_layer=2, n_head=4, n_positions=64),
    "gpt2, an activation of transformers": lambda: transformers.GPT2Config(
        **COMMON, n_embd=32, n_layer=2, n_head=4, n_positions=64, activation_function="gelu_fast"
    ),
}
# One of each kind: its norms, rotation, window, order of layers or activation is read by code of its own.
KINDS = {
    "llama", "llama, untied, biases", "llama, rope yarn", "mistral, window", "gemma3, a window and a rotation by kind",
    "phi3, half of a head turns, window", "olmo2", "smollm3, one layer turns nothing", "exaone4, windows", "granite",
    "stablelm, parallel", "phi, norms of heads", "gpt_neox", "gpt2",
}  # fmt: skip
NAMES = [pytest.param(name, marks=() if name in KINDS else pytest.mark.weekly) for name in MODELS]
LENGTHS = (3, 9, 1, 6)


def random_model(name):
    with torch.random.fork_rng():
        torch.manual_seed(3)
        model = transformers.AutoModelForCausalLM.from_config(MODELS[name](), attn_implementation="sdpa").eval()
        for parameter in model.parameters():  # biases and norms start at 0 and 1, which hides them
            if parameter.dim() == 1:
                parameter.data += 0.2 * torch.randn_like(parameter)
    return model


def parts_of(model):
    """Return the parts of a model whose attention goes through ours."""
    parts = through_ours(model, split_head(model))
    assert parts.ours
    return parts


def batch_of(prompts, completions):
    """A batch of rows prompt + completion; the mask holds the completion tokens."""
    rows = [np.concatenate([p, c]).astype(np.int32) for p, c in zip(prompts, completions, strict=True)]
    lengths = np.array([len(row) for row in rows], np.int32)
    tokens, mask = np.zeros((len(rows), lengths.max()), np.int32), np.zeros((len(rows), lengths.max()), bool)
    for i, (row, prompt) in enumerate(zip(rows, prompts, strict=True)):
        tokens[i, : len(row)], mask[i, len(prompt) : len(row)] = row, True
    return Batch(
        tokens=tokens, lengths=lengths, completion_mask=mask, sampling_logprobs=np.zeros(tokens.shape, np.float32),
        rewards=np.zeros(len(rows)), groups=np.zeros(len(rows), np.int32),
    )  # fmt: skip


def some_rows(sharing):
    """Rows of many lengths, two prompts among five rows or five prompts; one row has a single completion token."""
    rng = np.random.default_rng(4)
    prompts = [rng.integers(3, VOCABULARY, n) for n in (4, 7, 1, 3, 2)]
    chosen = (0, 1, 0, 0, 1) if sharing else range(5)
    lengths = (5, 8, 1, 11, 2)
    return batch_of([prompts[i] for i in chosen], [rng.integers(3, VOCABULARY, n) for n in lengths])


@pytest.mark.halved
@pytest.mark.parametrize("sharing", [False, True])
@pytest.mark.parametrize("name", NAMES)
def test_packed_hidden_states_and_gradients_equal_a_plain_forward_of_each_row(name, sharing, monkeypatch):
    """Rows that share prompts are read with their answers apart, and whole."""
    model, batch = random_model(name), some_rows(sharing)
    parts, weights = parts_of(model), torch.randn(int(batch.completion_mask.sum()), 32)
    unshared, leaves = sum(int(n) - 1 for n in batch.lengths), list(model.parameters())
    rows = []
    for i, length in enumerate(batch.lengths):
        ids = torch.from_numpy(batch.tokens[i, :length].astype(np.int64))[None]
        hidden = model.base_model(input_ids=ids).last_hidden_state[0]
        rows.append(hidden[np.flatnonzero(batch.completion_mask[i]) - 1])
    expected = torch.cat(rows)
    wanted = torch.autograd.grad((expected * weights).sum(), leaves, allow_unused=True)
    near = of_gradients(wanted)
    for whole in (False, True) if sharing else (False,):
        if whole:
            monkeypatch.setattr("steadyrl.backends.torch.read.packed.MASK_PLACES", 0)
        packed = pack(batch, torch.device("cpu"))
        assert (packed.answers is not None) == (sharing and not whole)
        assert len(packed.ids) == unshared - (7 + 4 + 4 if sharing else 0)
        found = read_packed(parts.body, packed)
        gradients = torch.autograd.grad((found * weights).sum(), leaves, allow_unused=True)
        torch.testing.assert_close(found, expected, atol=rounding(expected.abs().max().item()), rtol=0)
        for one, other in zip(gradients, wanted, strict=True):
            assert (one is None) == (other is None)
            if one is not None:
                torch.testing.assert_close(one, other, atol=near, rtol=0)


def test_a_float32_adapter_on_a_bfloat16_matrix_adds_what_peft_adds():
    peft = needs.package("peft")
    settings = peft.LoraConfig(r=4, lora_alpha=12, target_modules="all-linear", task_type="CAUSAL_LM")
    model = peft.get_peft_model(random_model("llama, untied, biases").bfloat16(), settings).eval()
    module = next(m for m in model.modules() if type(m).__name__ == "Linear" and hasattr(m, "lora_B"))
    made = torch.Generator().manual_seed(5)
    module.lora_B["default"].weight.data.normal_(std=0.3, generator=made)
    x = torch.randn(6, module.in_features, generator=made).bfloat16()
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        expected, plain = module(x), module.base_layer(x)
        quicken(model)
        found = module(x)
    assert module.lora_A["default"].weight.dtype == torch.float32 and found.dtype == torch.bfloat16
    near = rounding(expected.abs().max().item(), 3, OF_BFLOAT16)  # both products and their sum are rounded
    torch.testing.assert_close(found, expected, atol=near, rtol=0)
    assert (expected - plain).abs().max() > 2 * near


@pytest.mark.parametrize("name", ["llama, untied, biases", "gpt2"])
def test_packed_hidden_states_and_gradients_of_an_adapter_equal_its_own_forward(name):
    peft = needs.package("peft")
    targets = ["c_attn", "c_proj", "c_fc"] if name == "gpt2" else "all-linear"
    settings = peft.LoraConfig(
        r=4, lora_alpha=12, target_modules=targets, task_type="CAUSAL_LM", fan_in_fan_out=name == "gpt2"
    )
    model = peft.get_peft_model(random_model(name), settings).eval()
    with torch.random.fork_rng():
        torch.manual_seed(5)
        for key, parameter in model.named_parameters():
            if "lora_B" in key:
                parameter.data.normal_(std=0.3)
    inner, batch = model.get_base_model(), some_rows(sharing=False)
    leaves = [parameter for parameter in model.parameters() if parameter.requires_grad]
    weights = torch.randn(int(batch.completion_mask.sum()), 32, generator=torch.Generator().manual_seed(1))

    def of_rows():
        rows = []
        for i, length in enumerate(batch.lengths):
            ids = torch.from_numpy(batch.tokens[i, :length].astype(np.int64))[None]
            hidden = inner.base_model(input_ids=ids).last_hidden_state[0]
            rows.append(hidden[np.flatnonzero(batch.completion_mask[i]) - 1])
        return torch.cat(rows)

    body, expected = parts_of(model).body, of_rows()
    quicken(model)
    found = read_packed(body, pack(batch, torch.device("cpu")))
    torch.testing.assert_close(found, expected, atol=rounding(expected.abs().max().item()), rtol=0)
    pairs = [torch.autograd.grad((hidden * weights).sum(), leaves) for hidden in (found, expected)]
    near = of_gradients(pairs[1])
    for one, other in zip(*pairs, strict=True):
        assert other.abs().max() > 0
        torch.testing.assert_close(one, other, atol=near, rtol=0)
    with model.disable_adapter():
        off = read_packed(body, pack(batch, torch.device("cpu")))
        torch.testing.assert_close(off, of_rows(), atol=rounding(expected.abs().max().item()), rtol=0)
    assert (off - found).abs().max() > 1e-2


def test_rows_are_padded_with_rows_of_about_their_length():
    """Read are 9, 70, 12, 40 and 15 tokens: the last of each row is not. Up to 16, up to 64 and beyond go together."""
    rng = np.random.default_rng(0)
    batch = batch_of([rng.integers(3, VOCABULARY, n) for n in (8, 69, 9, 38, 11)],
                     [rng.integers(3, VOCABULARY, n) for n in (2, 2, 4, 3, 5)])  # fmt: skip
    packed = pack(batch, torch.device("cpu"))
    assert [(rows.rows, rows.width) for rows in packed.prompts] == [(3, 15), (1, 40), (1, 70)]
    assert packed.ids.tolist()[:9] == batch.tokens[0, :9].tolist()


def test_packing_long_rows_takes_memory_in_proportion_to_their_tokens():
    """Four of 3,000 tokens: a mask of what each may attend to would have 36 million places."""
    rng = np.random.default_rng(0)
    prompt = rng.integers(3, VOCABULARY, 100)
    batch = batch_of([prompt] * 4, [rng.integers(3, VOCABULARY, 2900) for _ in range(4)])
    packed = pack(batch, torch.device("cpu"))
    tensors = [
        packed.ids,
        packed.positions,
        packed.chosen,
        packed.prompts[0].back,
        packed.prompts[0].lay,
        packed.prompt_of,
    ]
    assert sum(t.numel() for t in tensors) < 6 * batch.tokens.size


def test_gradients_are_equal_to_the_last_bit_on_two_threads():
    """Two prompts of sixteen rows: what their tokens receive from eight rows each must be added in one order."""
    threads = torch.get_num_threads()
    rng = np.random.default_rng(0)
    prompts = [rng.integers(3, VOCABULARY, n) for n in (60, 90)]
    rows = batch_of([prompts[i % 2] for i in range(16)], [rng.integers(3, VOCABULARY, 24 + i) for i in range(16)])
    settings = transformers.LlamaConfig(
        **COMMON, **(ROTARY | {"hidden_size": 64, "num_hidden_layers": 1, "max_position_embeddings": 256})
    )
    model = transformers.AutoModelForCausalLM.from_config(settings).eval()
    body, packed, leaves = parts_of(model).body, pack(rows, torch.device("cpu")), list(model.parameters())
    torch.set_num_threads(2)
    try:
        found = []
        for _ in range(3):
            hidden = read_packed(body, packed)
            found.append(torch.autograd.grad((hidden * hidden.detach().roll(1, 0)).sum(), leaves, allow_unused=True))
    finally:
        torch.set_num_threads(threads)
    for repeated in found[1:]:
        for one, other in zip(found[0], repeated, strict=True):
            assert one is other is None or torch.equal(one, other)


def padded(lengths=LENGTHS):
    ids = np.random.default_rng(0).integers(3, VOCABULARY, (len(lengths), max(lengths)))
    visible = np.arange(max(lengths))[None] >= max(lengths) - np.array(lengths)[:, None]
    return torch.from_numpy(np.where(visible, ids, 0)), torch.from_numpy(visible)


def alone(model, row):
    """Return the log-probs [T, V] of one unpadded row by a plain forward pass without a cache."""
    return model(torch.tensor([row])).logits[0].log_softmax(-1)


@pytest.mark.parametrize("name", NAMES)
@torch.no_grad()
def test_prefill_and_steps_equal_a_plain_forward_of_each_row_alone(name):
    model = random_model(name)
    ids, visible = padded()
    decoder = Decoder(parts_of(model), 4, 20)
    logits, cache = decoder.prefill(ids, visible)
    steps = [(ids[:, -1] * 7 + t) % VOCABULARY for t in range(8)]
    rows = [ids[i, visible[i]].tolist() for i in range(4)]
    expected = [alone(model, row + [int(tokens[i]) for tokens in steps])[len(row) - 1 :] for i, row in enumerate(rows)]
    for t, tokens in enumerate(steps):
        for i, logp in enumerate(expected):
            assert (logits[i].log_softmax(-1) - logp[t]).abs().max().item() <= NATS, f"row {i}, token {t}"
        logits = decoder.step(tokens, cache)


@pytest.mark.parametrize("name", NAMES)
@torch.no_grad()
def test_the_step_that_a_graph_captures_equals_the_plain_step(name):
    """Its column, places and mask are tensors that stay where they are; what is behind the column must not count."""
    ids, visible = padded()
    decoder = Decoder(parts_of(random_model(name)), 4, 20)
    _, plain = decoder.prefill(ids, visible)
    _, static = decoder.prefill(ids, visible)
    for of_layer in (*static.keys.values(), *static.values.values()):
        of_layer[:, :, plain.used :] = 9.0
    state = StepState(static)
    for t in range(8):
        tokens = (ids[:, -1] * 5 + t) % VOCABULARY
        expected = decoder.step(tokens, plain).log_softmax(-1)
        assert (state.step(decoder, tokens, static).log_softmax(-1) - expected).abs().max().item() <= NATS
    state.rewind(static)
    again = state.step(decoder, ids[:, -1] * 5 % VOCABULARY, static)
    _, plain = decoder.prefill(ids, visible)
    torch.testing.assert_close(again, decoder.step(ids[:, -1] * 5 % VOCABULARY, plain), atol=NATS, rtol=0)


@torch.no_grad()
def test_a_model_whose_steps_cannot_be_captured_is_decoded_without_a_graph(monkeypatch):
    def refused(*args):
        raise RuntimeError("called a synchronizing CUDA operation")

    monkeypatch.setattr("steadyrl.backends.torch.draw.graph._Step", refused)
    ids, visible = padded()
    decoder = Decoder(parts_of(random_model("qwen3")), 4, 20)
    (_, cache), (_, plain) = decoder.prefill(ids, visible), decoder.prefill(ids, visible)
    graph = GraphDecoder(decoder)
    for tokens in (ids[:, -1], ids[:, -2]):
        torch.testing.assert_close(graph.step(tokens, cache), decoder.step(tokens, plain))
    assert (cache.used, cache.positions.tolist()) == (plain.used, plain.positions.tolist())


def test_modules_that_read_one_input_are_found_and_joined():
    body = random_model("llama, untied, biases").model
    reads = reads_of(body)
    expected = []
    for layer in body.layers:
        attention, mlp = layer.self_attn, layer.mlp
        expected += [[attention.q_proj, attention.k_proj, attention.v_proj], [mlp.gate_proj, mlp.up_proj]]
    assert [list(map(id, group)) for group in reads.siblings] == [list(map(id, group)) for group in expected]
    normed = [norm for layer in body.layers for norm in (layer.input_layernorm, layer.post_attention_layernorm)]
    assert list(map(id, reads.multiplied)) == list(map(id, normed))


@pytest.mark.parametrize(
    ("name", "per_layer"), [("qwen3", 2), ("gemma3, a window and a rotation by kind", 2), ("gpt_neox", 2)]
)
def test_norms_that_something_else_reads_are_not_rounded(name, per_layer):
    body = parts_of(random_model(name)).body
    names = {id(module): name for name, module in body.named_modules()}
    found = [names[id(norm)] for norm in reads_of(body).multiplied]
    assert len(found) == per_layer * body.config.num_hidden_layers
    assert not [name for name in found if re.search(r"q_norm|k_norm|post_feedforward|^norm|final", name)]


def test_joined_modules_share_one_product_of_each_input(monkeypatch):
    group = random_model("llama, untied, biases").model.layers[0].self_attn
    group = [group.q_proj, group.k_proj, group.v_proj]
    x, y = torch.randn(2, 3, 1, 32).unbind()
    alone = {id(z): [module(z) for module in group] for z in (x, y)}
    made, linear = [], products.F.linear
    monkeypatch.setattr(products.F, "linear", lambda *args: made.append(args) or linear(*args))
    q, k, v = (forward for _, forward in products.joined(group, torch.float32))
    for z in (x, y, y):
        for found, wanted in zip((q(z), k(z), v(z)), alone[id(z)], strict=True):
            torch.testing.assert_close(found, wanted)
    assert len(made) == 3
    torch.testing.assert_close(k(x), alone[id(x)][1])  # another order, and one that is left out
    torch.testing.assert_close(q(y), alone[id(y)][0])
    torch.testing.assert_close(q(x), alone[id(x)][0])
    torch.testing.assert_close(q(x), alone[id(x)][0])


@pytest.mark.parametrize("name", ["llama, untied, biases", "phi3, half of a head turns, window", "gpt_neox", "gpt2"])
@torch.no_grad()
def test_joined_products_decode_what_separate_ones_do(name, monkeypatch):
    monkeypatch.setattr(products, "lays_blocks", lambda *_: False)
    parts = parts_of(random_model(name))
    ids = torch.arange(12).view(3, 4) + 5
    logits = []
    for siblings in ((), reads_of(parts.body).siblings):
        with products.laid_out(parts.body, 3, torch.float32, siblings):
            decoder = Decoder(parts, 3, 7)
            _, cache = decoder.prefill(ids, torch.ones_like(ids, dtype=torch.bool))
            state = StepState(cache)
            logits.append(torch.stack([state.step(decoder, torch.tensor([7, 8, 9 + n]), cache) for n in range(2)]))
    assert not any("forward" in vars(linear) for linear in parts.body.modules() if type(linear) is torch.nn.Linear)
    torch.testing.assert_close(*logits, rtol=0, atol=rounding(logits[0].abs().max().item()))


@pytest.mark.gpu
def test_on_a_gpu_graphs_draw_what_plain_steps_draw():
    model = random_model("qwen3").cuda()
    prompts = [np.array(row, np.int32) for row in ([5, 6, 7], [8], [9, 10], [5, 6, 7])]
    graphs = sample(parts_of(model), prompts, Sampling(16), range(4), (1,), 0)
    plain = sample(split_head(model), prompts, Sampling(16), range(4), (1,), 0)
    assert [c.ids.tolist() for c in graphs] == [c.ids.tolist() for c in plain]


def wrong_mask(model):
    """Let a model see less than it says where attention is not transformers' own."""
    for layer in model.model.layers:
        attend = layer.self_attn.forward

        def changed(*args, attend=attend, **kwargs):
            if model.config._attn_implementation != "sdpa":
                kwargs["position_embeddings"] = tuple(x.roll(1, -2) for x in kwargs["position_embeddings"])
            return attend(*args, **kwargs)

        layer.self_attn.forward = changed


def one_number(model):
    """Give all layers one number, so that they share keys and values while they decode."""
    for layer in model.model.layers:
        layer.self_attn.layer_idx = 0


@pytest.mark.parametrize("broken", [wrong_mask, one_number])
@torch.no_grad()
def test_a_model_that_ours_does_not_fit_goes_on_as_before(broken):
    model = random_model("llama")
    broken(model)
    assert not through_ours(model, split_head(model)).ours
    assert model.config._attn_implementation == "sdpa"


@torch.no_grad()
def test_a_family_with_attention_of_its_own_is_not_read_by_ours():
    settings = transformers.GPTJConfig(**COMMON, n_embd=32, n_layer=2, n_head=4, rotary_dim=8)
    model = transformers.AutoModelForCausalLM.from_config(settings).eval()
    before = model.config._attn_implementation
    assert not through_ours(model, split_head(model)).ours and model.config._attn_implementation == before


@torch.no_grad()
def test_a_registered_model_that_is_called_as_any_other_gives_what_it_gave():
    model, (ids, visible) = random_model("mistral, window"), padded()
    before = model(input_ids=ids, attention_mask=visible.long()).logits[visible]
    parts_of(model)
    torch.testing.assert_close(model(input_ids=ids, attention_mask=visible.long()).logits[visible], before)


@pytest.mark.parametrize("kind", ["llama", "gemma", "olmo2", "gpt2"])
@torch.no_grad()
def test_a_quickened_model_and_its_copies_compute_what_they_did(kind):
    """A copy has norms of its own: those of the model train on."""
    model, ids = random_model(kind), torch.arange(3, 20)[None]
    before = model(ids).logits
    quicken(model)
    copied = copy.deepcopy(model)
    torch.testing.assert_close(model(ids).logits, before, atol=NATS, rtol=0)
    for parameter in model.parameters():
        parameter.mul_(1.5)
    assert (model(ids).logits - before).abs().max() > 0.1
    torch.testing.assert_close(copied(ids).logits, before, atol=NATS, rtol=0)


@torch.no_grad()
def test_a_cache_row_taken_twice_goes_on_in_two_ways():
    model = random_model("qwen3")
    ids, visible = padded()
    decoder = Decoder(parts_of(model), 4, 20)
    _, cache = decoder.prefill(ids, visible)
    cache.take(torch.tensor([1, 1, 3]))
    logits = decoder.step(torch.tensor([10, 11, 12]), cache)
    for found, row, token in zip(logits, (1, 1, 3), (10, 11, 12), strict=True):
        expected = alone(model, [*ids[row, visible[row]].tolist(), token])[-1]
        assert (found.log_softmax(-1) - expected).abs().max().item() <= NATS


@torch.no_grad()
@pytest.mark.parametrize("owner", [(0, 0, 1, 1, 2, 2, 3, 3), (3, 1, 0, 2), (2, 0, 2, 2, 3, 1, 0)])
@pytest.mark.parametrize("name", ["llama", "llama, one key head", "qwen3", "gemma", "gpt2"])
def test_a_prompt_kept_once_is_read_by_every_row_that_continues_it(name, owner, monkeypatch):
    monkeypatch.setattr(torch_shared, "LEAST_SPARED", 0)
    model = random_model(name)
    ids, visible = padded()
    decoder = Decoder(parts_of(model), 8, 20)
    _, cache = decoder.prefill(ids, visible)
    cache.spread(torch.tensor(owner))
    assert cache.prompts is not None
    texts = [ids[row, visible[row]].tolist() for row in owner]

    def check(rows, step):
        tokens = torch.tensor([20 + 7 * row + step for row in rows])
        logits = decoder.step(tokens, cache)
        for found, row, token in zip(logits, rows, tokens.tolist(), strict=True):
            texts[row].append(token)
            assert (found.log_softmax(-1) - alone(model, texts[row])[-1]).abs().max().item() <= NATS

    rows = list(range(len(owner)))
    check(rows, 0)
    check(rows, 1)
    for stay in ([0, 2], [1]):  # finished rows leave, and with the last row of a prompt the prompt
        cache.take(torch.tensor(stay))
        rows = [rows[i] for i in stay]
        check(rows, 2 + len(stay))
    assert {len(of_layer) for of_layer in cache.prompts.keys.values()} == {1}  # of the last row


@torch.no_grad()
def test_a_layer_with_a_window_shares_no_prompt(monkeypatch):
    monkeypatch.setattr(torch_shared, "LEAST_SPARED", 0)
    ids, visible = padded()
    _, cache = Decoder(parts_of(random_model("mistral, window")), 8, 20).prefill(ids, visible)
    cache.spread(torch.tensor([0, 0, 1]))
    assert cache.prompts is None


@pytest.mark.halved
@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("name", ["llama", "gpt2", "mistral, window"])
def test_the_fast_and_the_plain_path_draw_the_same(name, shared, monkeypatch):
    monkeypatch.setattr(torch_shared, "LEAST_SPARED", 0 if shared else 10**9)
    model = random_model(name)
    ids, visible = padded()
    prompts = [ids[i, visible[i]].numpy().astype(np.int32) for i in (0, 1, 1, 2, 3, 1)]
    for sampling in (Sampling(12), Sampling(12, temperature=0.6, top_k=30, top_p=0.9)):
        parts = parts_of(model)
        fast, plain = (sample(way, prompts, sampling, range(6), (1,), 0) for way in (parts, replace(parts, ours=False)))
        assert [c.ids.tolist() for c in fast] == [c.ids.tolist() for c in plain]
        assert len({tuple(c.ids.tolist()) for c in fast}) == 6, "one prompt, three seeds, three completions"
        for one, other in zip(fast, plain, strict=True):
            np.testing.assert_allclose(one.logprobs, other.logprobs, atol=NATS)


@torch.no_grad()
def test_an_adapter_is_decoded_with_its_weights():
    peft = needs.package("peft")
    for name, targets in (("llama", "all-linear"), ("gpt2", ["c_attn", "c_proj", "c_fc"])):
        model = random_model(name)
        settings = peft.LoraConfig(
            r=4, lora_alpha=16, target_modules=targets, task_type="CAUSAL_LM", fan_in_fan_out=name == "gpt2"
        )
        before = sample(parts_of(model), [np.array([5, 6], np.int32)], Sampling(8), [0], (1,), 0)[0]
        adapted = peft.get_peft_model(model, settings).eval()
        with torch.random.fork_rng():
            torch.manual_seed(5)
            for key, parameter in adapted.named_parameters():
                if "lora_B" in key:
                    parameter.data.normal_(std=0.3)
        parts, prompts = parts_of(adapted), [np.array([5, 6], np.int32), np.array([7], np.int32)]
        fast, plain = (
            sample(way, prompts, Sampling(8), range(2), (1,), 0) for way in (parts, replace(parts, ours=False))
        )
        assert [c.ids.tolist() for c in fast] == [c.ids.tolist() for c in plain]
        np.testing.assert_allclose(fast[0].logprobs, plain[0].logprobs, atol=NATS)
        assert abs(fast[0].logprobs[0] - before.logprobs[0]) > 1e-3 or fast[0].ids[0] != before.ids[0]


def test_draws_over_blocks_follow_the_distribution():
    """A distribution over 300 tokens: at u just above the sum of all before it, token k is drawn."""
    logits = torch.from_numpy(np.random.default_rng(1).normal(size=VOCABULARY).astype(np.float32) * 2)
    logits[[0, 5, 127, 128, 255, 256, 299]] = -torch.inf
    p = torch.softmax(logits.double(), -1)
    before = p.cumsum(-1) - p
    likely = [k for k in range(VOCABULARY) if p[k] > 1e-5]
    uniform = torch.tensor([float(before[k] + p[k] / 2) for k in likely], dtype=torch.float32)
    tokens, found = draw(logits.repeat(len(likely), 1), uniform)
    assert tokens.tolist() == likely
    np.testing.assert_allclose(found.numpy(), p[likely].log().numpy(), atol=NATS)


def test_what_has_no_probability_is_never_drawn():
    logits = torch.full((2, VOCABULARY), -torch.inf)
    logits[:, 140] = 3.0
    for u in (0.0, 0.5, 1 - 2.0**-24):
        tokens, logprobs = draw(logits, torch.full((2,), u))
        assert tokens.tolist() == [140, 140]
        assert logprobs.tolist() == [0.0, 0.0]
