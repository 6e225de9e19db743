"""What one call read is not read again by the next, and nothing that is drawn changes by it."""

import weakref
from itertools import chain

import numpy as np
import pytest

from steadyrl.core.types import Sampling
from steadyrl.loop.rollout.collect import collect
from steadyrl.loop.rollout.episode import Environment
from tests import needs
from tests.backends.ppo_batch import PROBLEMS, prompts_of

torch = needs.package("torch")
transformers = needs.package("transformers")

from steadyrl.backends.torch.draw import generation, sampler  # noqa: E402
from steadyrl.backends.torch.draw.cache import Cache  # noqa: E402
from steadyrl.backends.torch.draw.decoder import Decoder  # noqa: E402
from steadyrl.backends.torch.draw.graph import StepState  # noqa: E402
from steadyrl.backends.torch.draw.prefixes import Prefixes  # noqa: E402
from steadyrl.backends.torch.read import shared  # noqa: E402
from tests.backends.torch.test_backend import Answering, opened  # noqa: E402
from tests.backends.torch.test_decoder import NAMES, VOCABULARY, alone, padded, parts_of, random_model  # noqa: E402
from tests.rounding import NATS  # noqa: E402


@pytest.mark.halved
@pytest.mark.parametrize("captured", [False, True])
@pytest.mark.parametrize("name", NAMES)
@torch.no_grad()
def test_a_row_that_goes_on_from_what_was_read_equals_a_plain_forward_of_the_whole(name, captured):
    """Four rows, of which two go on from a read row and one step, one from a read row, and one from nothing."""
    model = random_model(name)
    ids, visible = padded()
    decoder = Decoder(parts_of(model), 4, 40)
    _, cache = decoder.prefill(ids, visible)
    decoder.step(torch.tensor([20, 21, 22, 23]), cache)
    texts = [[*ids[i, visible[i]].tolist(), 20 + i] for i in range(4)]
    known = [cache.prefix(0, len(texts[0])), cache.prefix(1, len(texts[1]) - 1), None, cache.prefix(3, len(texts[3]))]
    news = [[30, 31, 32], [21, 33], [*texts[2], 34], [35]]
    texts[1].pop()
    texts[2].clear()
    texts = [text + new for text, new in zip(texts, news, strict=True)]
    width = max(map(len, news))
    unread = torch.tensor([[0] * (width - len(new)) + new for new in news])
    seen = torch.tensor([[False] * (width - len(new)) + [True] * len(new) for new in news])
    logits, cache = decoder.prefill(unread, seen, known)
    state = StepState(cache) if captured else None
    steps = [(torch.arange(4) * 7 + t) % VOCABULARY for t in range(5)]
    expected = [
        alone(model, text + [int(tokens[i]) for tokens in steps])[len(text) - 1 :] for i, text in enumerate(texts)
    ]
    for t, tokens in enumerate(steps):
        for i, logp in enumerate(expected):
            assert (logits[i].log_softmax(-1) - logp[t]).abs().max().item() <= NATS, f"row {i}, {t}"
        logits = state.step(decoder, tokens, cache) if captured else decoder.step(tokens, cache)


@torch.no_grad()
def test_a_row_of_a_prompt_that_others_continue_too_is_the_prompt_and_its_own_tokens(monkeypatch):
    monkeypatch.setattr(shared, "LEAST_SPARED", 0)
    model = random_model("qwen3")
    ids, visible = padded()
    decoder = Decoder(parts_of(model), 4, 20)
    _, cache = decoder.prefill(ids, visible)
    cache.spread(torch.tensor([2, 0, 0, 3, 0]))
    decoder.step(torch.tensor([20, 21, 22, 23, 24]), cache)
    assert cache.prompts is not None
    for row, owner in enumerate([2, 0, 0, 3, 0]):
        text = [*ids[owner, visible[owner]].tolist(), 20 + row]
        found = cache.prefix(row, len(text))
        assert len(found) == len(text) and found.keys[0].shape[1] == len(text)
        logits, _ = decoder.prefill(torch.tensor([[40]]), torch.tensor([[True]]), [found])
        assert (logits[0].log_softmax(-1) - alone(model, [*text, 40])[-1]).abs().max().item() <= NATS


def cache_of(*lengths):
    """A cache whose rows hold their own number as keys."""
    width = max(lengths)
    keys = {0: torch.arange(len(lengths)).view(-1, 1, 1, 1).expand(-1, 1, width, 2).float()}
    return Cache(None, width, torch.tensor(lengths), width, keys, keys)


def number(known):
    return None if known is None else int(known.keys[0][0, 0, 0])


def test_a_prompt_goes_on_from_the_longest_sequence_that_it_begins_with():
    prefixes, cache = Prefixes(limit=9), cache_of(*[5] * 6)
    rows = ([1, 2], [1, 2, 3], [1, 2, 3, 9, 9], [256, 2], [7], [1])
    for place, ids in enumerate(rows):
        prefixes.keep(np.array(ids), cache, place)
    asked = ([1, 2, 3, 4], [1, 2, 4], [1, 2, 3], [256, 2, 3], [7], [8, 8], [1, 2, 3, 9, 9, 9])
    found = prefixes.hand_over([np.array(ids, np.int32) for ids in asked])
    assert [number(one) for one in found] == [1, 0, 0, 3, None, None, 2]
    assert [len(one) for one in found if one is not None] == [3, 2, 2, 2, 5]
    assert prefixes.hand_over([np.array([1, 2, 3, 4], np.int32)]) == [None]  # a call knows the call before it alone


def test_no_more_sequences_are_kept_than_may_be():
    prefixes, cache = Prefixes(limit=1), cache_of(2, 2)
    prefixes.keep(np.array([1]), cache, 0)
    prefixes.keep(np.array([2]), cache, 1)
    assert [number(one) for one in prefixes.hand_over([np.array([i, 3]) for i in (1, 2)])] == [0, None]


def test_where_turns_do_not_come_together_a_prompt_goes_on_from_an_older_call():
    prefixes, cache = Prefixes(limit=2, together=False), cache_of(2, 2, 2)
    prefixes.keep(np.array([1]), cache, 0)
    prefixes.keep(np.array([2]), cache, 1)
    assert [number(one) for one in prefixes.hand_over([np.array([2, 5])])] == [1]
    prefixes.keep(np.array([3]), cache, 2)
    assert [number(one) for one in prefixes.hand_over([np.array([i, 5]) for i in (1, 2, 3)])] == [0, None, 2]
    for place, ids in enumerate(([1], [2], [3])):
        prefixes.keep(np.array(ids), cache, place)
    # The oldest went, for there was no room.
    assert [number(one) for one in prefixes.hand_over([np.array([i, 5]) for i in (1, 2, 3)])] == [None, 1, 2]


@pytest.fixture
def read(monkeypatch):
    """The number of prompt tokens that each call of prefill reads."""
    counted, prefill = [], Decoder.prefill

    def counting(self, ids, visible, known=(), start=0, room=None):
        counted.append(int(visible.sum()))
        return prefill(self, ids, visible, known, start, room)

    monkeypatch.setattr(Decoder, "prefill", counting)
    return counted


def talk(backend, sampling):
    """Say three turns after each of three prompts, four times each; return them, and what each came after.

    Every other row is answered at length.
    """
    contexts, said, before = [prompt for prompt in prompts_of(backend)[:3] for _ in range(4)], [], []
    for turn in range(3):
        before.append({context.tobytes(): len(context) for context in contexts})
        said.append(backend.generate(contexts, sampling, [100 * turn + i for i in range(len(contexts))]))
        answers = [np.arange(4 + turn, 5 + turn + 5 * (i % 2), dtype=np.int32) for i in range(len(contexts))]
        contexts = [np.concatenate(parts) for parts in zip(contexts, (c.ids for c in said[-1]), answers, strict=True)]
    return said, before


def counts(said, before):
    """Return how many tokens three calls must read: the prompts, then what was drawn last and the answers."""
    assert [len(lengths) for lengths in before[1:]] == [12, 12], "all turns are different"
    return sum(before[0].values()) + sum(12 + 6 * (1 + 6) for _ in said[1:])


@pytest.mark.halved
@pytest.mark.parametrize("least_spared", [0, 10**9])
@pytest.mark.parametrize("settings", [(), ("backend.args.generate_rows=5",), ("model.lora_rank=4",)])
@pytest.mark.parametrize("family", ["llama", pytest.param("qwen3", marks=pytest.mark.weekly)])
def test_turns_are_what_they_would_be_if_all_was_read_again(
    tiny_models, family, settings, least_spared, read, monkeypatch
):
    monkeypatch.setattr(shared, "LEAST_SPARED", least_spared)
    backend = opened(tiny_models[family], *settings)
    sampling = Sampling(max_new_tokens=6, temperature=1.3, top_p=0.95)
    expected, _ = talk(backend, sampling)
    read.clear()
    with backend.prefix_cache(True):
        found, before = talk(backend, sampling)
    if "backend.args.generate_rows=5" not in settings:
        assert sum(read) == counts(found, before)
    assert any(len({len(c.ids) for c in turn}) > 1 for turn in found), "some rows leave before others"
    for one, other in zip(chain(*expected), chain(*found), strict=True):
        assert one.ids.tolist() == other.ids.tolist() and one.stop_reason == other.stop_reason
        np.testing.assert_allclose(one.logprobs, other.logprobs, atol=NATS)
    read.clear()
    backend.generate([np.frombuffer(ids, np.int32) for ids in before[-1]], sampling, range(12))
    assert sum(read) == sum(before[-1].values()), "outside nothing is known"


@pytest.mark.parametrize("together", [True, False])
def test_an_episode_reads_every_token_once_whatever_the_number_of_its_turns(tiny_models, read, together):
    """Prompts and answers once, and what was drawn last in a turn, which is read with the answer to it."""
    backend, sampling = opened(tiny_models["llama"]), Sampling(max_new_tokens=3, temperature=1.5)
    read.clear()  # of the check of the model
    environment = Environment(Answering(), 3, together=together)
    groups = collect(backend, PROBLEMS[:4], 1, sampling, (0, 0), environment=environment)
    rollouts = [group.rollouts[0] for group in groups]
    assert all(len(rollout.turns) == 3 for rollout in rollouts)
    written = sum(len(rollout.prompt_ids) + int((~rollout.completion_mask).sum()) for rollout in rollouts)
    assert sum(read) == written + 4 * 2


def test_what_a_call_goes_on_from_takes_no_memory_beside_its_cache(tiny_models, monkeypatch):
    backend, alive = opened(tiny_models["llama"]), []
    prompts, turn, decode = prompts_of(backend)[:3], Sampling(max_new_tokens=3), sampler.decode
    with backend.prefix_cache(True):
        said = backend.generate(prompts, turn, range(3))
        kept = [weakref.ref(one) for one in backend._generation._prefixes._cached.values()]
        assert len(kept) == 3 and all(one() is not None for one in kept)

        def counting(*args):
            alive.append(sum(one() is not None for one in kept))
            return decode(*args)

        monkeypatch.setattr(sampler, "decode", counting)
        news = [np.concatenate([p, c.ids, [5]]).astype(np.int32) for p, c in zip(prompts, said, strict=True)]
        backend.generate(news, turn, range(3))
    assert alive == [0]


def test_a_call_that_runs_out_of_memory_reads_again_what_it_had_been_handed(tiny_models, monkeypatch):
    backend, turn = opened(tiny_models["llama"]), Sampling(max_new_tokens=6, temperature=1.3)
    expected, _ = talk(backend, turn)
    real, failed = generation.sample, []

    def failing(parts, prompts, *rest):
        handed = sum(one is not None for one in rest[-4])
        if handed and not failed:  # as late as it can be: what was handed is gone
            failed.append(handed)
            real(parts, prompts, *rest[:-1], lambda number, completion: None)
            raise MemoryError
        return real(parts, prompts, *rest)

    monkeypatch.setattr(generation, "sample", failing)
    with backend.prefix_cache(True):
        found, _ = talk(backend, turn)
    assert failed == [12]
    for one, other in zip(chain(*expected), chain(*found), strict=True):
        assert one.ids.tolist() == other.ids.tolist()
