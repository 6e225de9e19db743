"""An update that takes the sampler's products for its own makes the step that it makes without them, and finds out
a sampler that multiplied something else."""

from dataclasses import replace

import numpy as np
import pytest

from steadyrl.types import Sampling
from tests import needs

torch = needs.package("torch")
needs.package("transformers")

from steadyrl.backends.torch import backend as torch_backend  # noqa: E402
from steadyrl.backends.torch.families import plan_of  # noqa: E402
from steadyrl.backends.torch.head import chosen_logprobs  # noqa: E402
from steadyrl.backends.torch.model import split_head  # noqa: E402
from steadyrl.backends.torch.packed import pack  # noqa: E402
from steadyrl.backends.torch.recording import GAP, HEAD, Recorded, Recording, able, room  # noqa: E402
from steadyrl.backends.torch.sampler import sample  # noqa: E402
from steadyrl.backends.torch.trunk import hidden_states  # noqa: E402
from tests.backends.torch.test_decoder import MODELS, batch_of, random_model  # noqa: E402
from tests.backends.torch.test_single_update import GRPO, ONE, SAMPLING, SEVERAL, drawn, opened, trained  # noqa: E402
from tests.rounding import NATS, of_gradients  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore:.is_gradient_checkpointing. is deprecated:FutureWarning")
CPU = torch.device("cpu")
# What ``drawn`` draws, for one update.
OF_A_STEP = ("rollout.prompts_per_step=6", "rollout.samples_per_prompt=4", "update.epochs=1", "update.minibatches=1")


def recorded(model, temperature=1.0):
    """Draw rows of many lengths, three prompts among eight rows; return their batch and the recording."""
    rng = np.random.default_rng(4)
    prompts = [rng.integers(3, 300, n).astype(np.int32) for n in (4, 7, 1)]
    prompts = [prompts[i] for i in (0, 1, 0, 2, 2, 1, 0, 1)]
    order = [1, 2, 3, 4, 5, 0, 7, 6]  # the batch need not have the sampler's
    recording, sampling = Recording(order, head=True), Sampling(max_new_tokens=9, temperature=temperature)
    ends = range(0, 300, 6)  # so that rows end, and leave, at many moments
    plan = plan_of(model.get_base_model() if hasattr(model, "get_base_model") else model)
    found = sample(split_head(model), plan, prompts, sampling, range(8), ends, 0, recording=recording)
    assert len({len(c.ids) for c in found}) > 2
    placed = np.argsort(order)
    return plan, batch_of([prompts[i] for i in placed], [found[i].ids for i in placed]), recording


def with_adapter(name):
    peft = needs.package("peft")
    of_gpt2 = {"target_modules": ["c_attn", "c_proj", "c_fc"], "fan_in_fan_out": True}
    which = of_gpt2 if name == "gpt2" else {"target_modules": "all-linear"}
    settings = peft.LoraConfig(r=4, lora_alpha=12, task_type="CAUSAL_LM", **which)
    with torch.random.fork_rng():
        torch.manual_seed(5)
        model = peft.get_peft_model(random_model(name), settings).eval()
    made = torch.Generator().manual_seed(5)
    for key, parameter in model.named_parameters():
        if "lora_B" in key:
            parameter.data.normal_(std=0.3, generator=made)
    return model


@pytest.mark.parametrize(("entropy", "scale"), [(False, 1.0), (True, 1.25)])
@pytest.mark.parametrize("name", [*MODELS, "llama, untied, biases + adapter", "gpt2 + adapter"])
def test_log_probs_entropies_and_gradients_of_a_recording_are_those_of_a_pass(name, entropy, scale):
    model = with_adapter(name.split(" + ")[0]) if "adapter" in name else random_model(name)
    plan, batch, recording = recorded(model, 1 / scale)
    assert able(plan)
    packed = pack(batch, CPU)
    assert packed.tails is not None
    leaves = [parameter for parameter in model.parameters() if parameter.requires_grad]
    weights = torch.randn(2, int(batch.completion_mask.sum()), generator=torch.Generator().manual_seed(1))
    chosen = torch.from_numpy(batch.tokens[batch.completion_mask].astype(np.int64))

    def measured(hidden, logits):
        logprobs, entropies = chosen_logprobs(hidden, plan.head, chosen, scale, None, entropy, logits)
        loss = (logprobs * weights[0]).sum() + (0.0 if entropies is None else (entropies * weights[1]).sum())
        return logprobs.detach(), entropies, torch.autograd.grad(loss, leaves, allow_unused=True)

    known = recording.of(batch, packed)
    hidden = hidden_states(plan, packed, recorded=known)
    logits = known.logits(plan.head, hidden.detach())
    assert 0 < known.gap < GAP / 10
    found, wanted = measured(hidden, logits), measured(hidden_states(plan, packed), None)
    torch.testing.assert_close(found[:2], wanted[:2], atol=NATS, rtol=0)
    for one, other in zip(found[2], wanted[2], strict=True):
        assert (one is None) == (other is None)
        if one is not None:
            torch.testing.assert_close(one, other, atol=of_gradients(wanted[2]), rtol=0)


@pytest.mark.parametrize(("products", "part"), [(9, 16), (33, 16), (48, 24), (1000, 64)])
def test_a_recording_multiplies_one_token_in_sixteen_or_fewer_where_many_products_meet_it(products, part, monkeypatch):
    plan, batch, recording = recorded(random_model("llama"))
    recording._made |= {(2 + number, "of no layer"): None for number in range(products - len(recording._made))}
    packed, lines = pack(batch, CPU), []
    real = torch.nn.Linear.forward

    def counting(self, x):
        lines.append(len(x))
        return real(self, x)

    monkeypatch.setattr(torch.nn.Linear, "forward", counting)
    hidden_states(plan, packed, recorded=recording.of(batch, packed))
    assert len(lines) == 2 * 7 and max(lines) == -(-len(packed.ids) // part)


@pytest.mark.parametrize("wrong", [1.01, float("nan")])
@pytest.mark.parametrize("name", [(0, "qkv"), (0, "out"), (1, "mlp_in"), (1, "mlp_out"), HEAD])
def test_a_product_of_other_weights_is_found_out(name, wrong):
    plan, batch, recording = recorded(random_model("llama"))
    recording._made[name] = recording._made[name] * wrong
    known = recording.of(batch, pack(batch, CPU))
    hidden = hidden_states(plan, pack(batch, CPU), recorded=known)
    known.logits(plan.head, hidden.detach())
    assert known.gap > GAP


def test_rows_that_were_exchanged_are_found_out():
    """Each product is one of the weights, but the attention before it was another row's."""
    plan, batch, recording = recorded(random_model("llama"))
    recording._made[0, "out"] = recording._made[0, "out"].roll(1, 0)
    known = recording.of(batch, pack(batch, CPU))
    hidden_states(plan, pack(batch, CPU), recorded=known)
    assert known.gap > GAP


def test_a_recording_of_other_rows_or_one_that_was_used_holds_nothing():
    _, batch, recording = recorded(random_model("llama"))
    other = batch.tokens.copy()
    other[2, batch.lengths[2] - 1] += 1
    changed = replace(batch, tokens=other)
    assert recording.of(changed, pack(changed, CPU)) is None
    assert isinstance(recording.of(batch, pack(batch, CPU)), Recorded)
    assert recording.of(batch, pack(batch, CPU)) is None


def test_a_recording_is_no_larger_than_what_one_pass_reads():
    plan = plan_of(random_model("llama"))
    prompts = [np.arange(5), np.arange(3)]
    assert room(range(2), prompts, 10, plan, 30) is not None and room(range(2), prompts, 10, plan, 29) is None


@pytest.mark.filterwarnings("ignore:fan_in_fan_out is set to False")
@pytest.mark.parametrize("lora", [0, 2])
@pytest.mark.parametrize("name", ["llama", "qwen3", "gpt2"])
def test_the_only_update_of_a_step_is_the_same_with_a_recording(tiny_models, name, lora, monkeypatch):
    settings = [f"model.lora_rank={lora}", "sampling.temperature=1.0"]
    with_it, without = opened(tiny_models[name], *settings, *OF_A_STEP), opened(tiny_models[name], *settings)
    seen = []
    with_it._parts.body.register_forward_hook(lambda *_: seen.append(True))
    batch = drawn(with_it)
    np.testing.assert_array_equal(drawn(without).tokens, batch.tokens)
    assert with_it._generation.recording is not None and without._generation.recording is None
    multiplied, real = [], torch_backend.logits_of
    monkeypatch.setattr(torch_backend, "logits_of", lambda *args: (multiplied.append(True), real(*args))[1])
    found = trained(with_it, batch, ONE)
    of_reference = len(multiplied)
    wanted = trained(without, batch, ONE)
    assert len(multiplied) == 2 * of_reference + 1  # the policy's logits of rechecked rows are known
    np.testing.assert_allclose(found[0].old.logprobs, wanted[0].old.logprobs, atol=NATS)
    np.testing.assert_allclose(found[0].old.entropy, wanted[0].old.entropy, atol=NATS)
    assert found[1]["grad_norm"][0] == pytest.approx(wanted[1]["grad_norm"][0], rel=1e-4)
    assert with_it._generation.recording is None and not seen


@pytest.mark.parametrize(
    ("override", "kept"),
    [
        ("update.epochs=1", True),
        ("update.epochs=2", False),
        ("update.minibatches=2", False),
        ("rollout.ahead=1", False),
        ("update.old_logprobs=recompute", False),
        ("backend.precision=bf16", False),
        ("backend.args.gradient_checkpointing=true", False),
        ("backend.args.micro_batch_tokens=100", False),
        ("backend.args.generate_rows=23", False),
        ("rollout.samples_per_prompt=5", False),
    ],
)
def test_products_are_kept_only_where_a_single_update_of_the_drawn_rows_follows(tiny_models, override, kept):
    backend = opened(tiny_models["llama"], *OF_A_STEP, override)
    drawn(backend)
    assert (backend._generation.recording is not None) is kept


@pytest.mark.parametrize("change", ["weights", "products"])
def test_an_update_reads_rows_whose_recording_is_of_other_weights(tiny_models, change, caplog):
    stale, fresh = opened(tiny_models["llama"], *OF_A_STEP), opened(tiny_models["llama"])
    batch, _ = drawn(stale), drawn(fresh)
    if change == "weights":
        for backend in (stale, fresh):
            backend.set_weights(backend.weights() * 1.1)
        assert stale._generation.recording is None
    else:
        made = stale._generation.recording._made
        made[1, "mlp_in"] *= 1.1
    scores = [backend.score(batch, SAMPLING, ONE) for backend in (stale, fresh)]
    np.testing.assert_array_equal(scores[0].logprobs, scores[1].logprobs)
    assert ("products are not those of the weights" in caplog.text) == (change == "products")
    batch = GRPO.prepare(replace(batch, old=scores[0]), GRPO.state)
    found, wanted = (backend.step(batch, GRPO.loss, SAMPLING, ONE, 1e-2, 1e9) for backend in (stale, fresh))
    assert found == wanted


def test_rows_are_read_again_where_memory_ran_out_in_a_recording(tiny_models, monkeypatch):
    backend, plain = opened(tiny_models["llama"], *OF_A_STEP), opened(tiny_models["llama"])
    batch, failed, real = drawn(backend), [], Recorded.multiply

    def failing(self, layer, *rest):
        if layer == 1 and not failed:
            failed.append(True)
            raise MemoryError
        return real(self, layer, *rest)

    monkeypatch.setattr(Recorded, "multiply", failing)
    scores = backend.score(batch, SAMPLING, ONE)
    assert failed
    np.testing.assert_allclose(scores.logprobs, plain.score(batch, SAMPLING, SEVERAL).logprobs, atol=NATS)
