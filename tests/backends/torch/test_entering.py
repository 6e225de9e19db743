"""Prompts that enter the places of rows that have ended: every completion is what it is when its prompt is alone."""

import numpy as np
import pytest

from steadyrl.backends.stops import StopStrings
from steadyrl.core.types import Sampling
from tests import needs

torch = needs.package("torch")
transformers = needs.package("transformers")

from steadyrl.backends.torch.draw.batch import _turnover  # noqa: E402
from steadyrl.backends.torch.draw.decoder import Decoder  # noqa: E402
from steadyrl.backends.torch.draw.graph import Captured, StepState  # noqa: E402
from steadyrl.backends.torch.draw.sampler import sample  # noqa: E402
from steadyrl.backends.torch.draw.waiting import Waiting  # noqa: E402
from steadyrl.backends.torch.read import shared  # noqa: E402
from tests.backends.ppo_batch import prompts_of  # noqa: E402
from tests.backends.torch.elsewhere import pretended  # noqa: E402
from tests.backends.torch.test_backend import opened  # noqa: E402
from tests.backends.torch.test_decoder import VOCABULARY, alone, padded, parts_of, random_model  # noqa: E402
from tests.rounding import NATS  # noqa: E402

ENDS = tuple(range(0, VOCABULARY, 12))  # a twelfth of all tokens: completions have very different lengths
NAMES = ("gpt2", "gemma3, a window and a rotation by kind")


def prompts_in_groups():
    """Twelve prompts of 1 to 30 tokens, the longest first; some are there two or three times."""
    rng = np.random.default_rng(7)
    texts = [rng.integers(3, VOCABULARY, length).astype(np.int32) for length in (30, 21, 14, 7, 3, 1)]
    return [texts[i] for i in (0, 0, 0, 1, 2, 2, 3, 3, 3, 4, 4, 5)]


TRUNCATED = Sampling(20, temperature=0.7, top_k=40, top_p=0.9)


@pytest.mark.parametrize(
    ("name", "sharing", "sampling", "stop"),
    [
        ("llama", True, TRUNCATED, ("25",)),
        (NAMES[0], False, Sampling(20), ()),
        pytest.param(NAMES[1], False, Sampling(20), (), marks=pytest.mark.weekly),
    ],
)
def test_a_completion_depends_neither_on_its_row_nor_on_its_neighbours(name, sharing, sampling, stop, monkeypatch):
    monkeypatch.setattr(shared, "LEAST_SPARED", 0 if sharing else 10**9)
    parts, prompts = parts_of(random_model(name)), prompts_in_groups()
    stops = StopStrings(stop, lambda ids: " ".join(map(str, ids))) if stop else None
    lone = [sample(parts, [p], sampling, [i], ENDS, 0, stops=stops)[0] for i, p in enumerate(prompts)]
    lengths = [len(completion.ids) for completion in lone]
    assert min(lengths) <= 3 and max(lengths) >= 18, lengths
    finished = {}
    found = sample(
        parts, prompts, sampling, range(12), ENDS, 0, stops=stops, most_rows=5,
        finished=finished.__setitem__,
    )  # fmt: skip
    for one, other in zip(found, lone, strict=True):
        assert (one.ids.tolist(), one.stop_reason) == (other.ids.tolist(), other.stop_reason)
        np.testing.assert_allclose(one.logprobs, other.logprobs, atol=NATS)
        assert list(map(list, one.kept_ids or ())) == list(map(list, other.kept_ids or ()))
    assert sorted(finished) == list(range(12)) and all(finished[i] is found[i] for i in finished)


def test_rows_stay_busy_while_prompts_wait_and_each_prompt_is_read_once(monkeypatch):
    """Two rows, 23 prompts: a pair would go on until the longer one of its completions has ended."""
    parts, reads, steps = parts_of(random_model("llama")), [], []
    prefill, step = Decoder.prefill, Decoder.step

    def reading(self, ids, *rest, **room):
        reads.append(len(ids))
        return prefill(self, ids, *rest, **room)

    def stepping(self, tokens, cache):
        steps.append(len(tokens))
        return step(self, tokens, cache)

    monkeypatch.setattr(Decoder, "prefill", reading)
    monkeypatch.setattr(Decoder, "step", stepping)
    prompts = [np.array([5 + i], np.int32) for i in range(23)]
    found = sample(parts, prompts, Sampling(40), range(23), ENDS, 0, most_rows=2)
    assert sum(reads) == 23 and max(reads) == 2
    tokens = sum(len(completion.ids) for completion in found)
    assert sum(steps) <= 1.25 * tokens
    batches = sum(max(len(found[i].ids), len(found[i + 1].ids if i < 22 else ())) for i in range(0, 23, 2))
    assert len(steps) < 0.8 * batches


@pytest.mark.parametrize("captured", [False, True])
@pytest.mark.parametrize("name", ["llama", "gpt2", "mistral, window", NAMES[1]])
@torch.no_grad()
def test_a_prompt_that_enters_a_running_cache_equals_a_plain_forward_of_it(name, captured):
    """It takes the place of row 1 of four; columns are dropped later, and another prompt takes that of row 3."""
    model = random_model(name)
    ids, visible = padded()
    decoder = Decoder(parts_of(model), 4, 22)
    logits, cache = decoder.prefill(ids, visible)
    texts = [ids[i, visible[i]].tolist() for i in range(4)]
    state = StepState(cache) if captured else None

    def advance(steps):
        nonlocal logits
        for _ in range(steps):
            tokens = logits.argmax(-1)
            for text, token in zip(texts, tokens.tolist(), strict=True):
                text.append(token)
            logits = state.step(decoder, tokens, cache) if captured else decoder.step(tokens, cache)
            if captured:  # as GraphDecoder does
                cache.used, cache.positions = cache.used + 1, cache.positions + 1
        for text, found in zip(texts, logits, strict=True):
            assert (found.log_softmax(-1) - alone(model, text)[-1]).abs().max().item() <= NATS

    def enter(row, text):
        nonlocal logits
        more, new = decoder.prefill(torch.tensor([text]), torch.ones(1, len(text), dtype=torch.bool), room=0)
        cache.enter(torch.tensor([row]), new, torch.tensor([0]), 0)
        texts[row], logits = list(text), logits.index_copy(0, torch.tensor([row]), more)
        if captured:
            state.rewind(cache)

    advance(5)
    enter(1, [30, 31, 32, 33])
    advance(4)
    keys, used = cache.keys, cache.used
    enter(3, [40, 41])
    enter(0, [50, 51, 52])
    enter(2, [60])
    assert cache.keys is keys and cache.used < used, "in place, without the columns that no row sees"
    advance(4)


def test_samples_of_one_prompt_enter_together_and_the_longest_of_those_that_wait_counts():
    prompts = [np.array(ids, np.int32) for ids in ([1, 2, 3, 4], [1, 2], [1, 2], [1, 2], [9, 9], [9, 9])]
    waiting = Waiting(prompts, [None] * 6, 0, torch.device("cpu"))
    assert (len(waiting), waiting.columns) == (6, 4)
    assert [waiting.fitting(free, 8) for free in (1, 2, 3, 4, 5, 6, 7)] == [1, 1, 1, 4, 4, 6, 6]
    read = []
    waiting.read(1, lambda ids, visible, known: (read.append(ids.tolist()), (torch.zeros(1, 3), None))[1])
    assert (len(waiting), waiting.columns) == (5, 2)
    assert [waiting.fitting(free, 8) for free in (1, 2, 3, 4)] == [0, 0, 3, 4 - 1]
    assert waiting.fitting(2, 4) == 2, "half of the rows: no longer waits for the third"
    numbers, logits, _, owner = waiting.read(
        4, lambda ids, visible, known: (read.append(ids.tolist()), (torch.tensor([[1.0], [2.0]]), None))[1]
    )
    assert read == [[[1, 2, 3, 4]], [[1, 2], [9, 9]]]
    assert (numbers, owner.tolist(), logits[:, 0].tolist()) == ([1, 2, 3, 4], [0, 0, 0, 1], [1.0, 1.0, 1.0, 2.0])


def moves(over, full, waits):
    waiting = Waiting([np.array([n], np.int32) for n in range(waits)], [None] * waits, 0, torch.device("cpu"))
    marks = [np.array([c == "x" for c in rows]) for rows in (over, full)]
    return [places.tolist() for places in _turnover(*marks, waiting, "cuda")]


def test_rows_that_are_full_leave_at_once_and_others_when_enough_have_ended():
    assert moves("x.......", "........", 5) == [[], []], "an eighth: it is not worth reading a prompt"
    assert moves("x.x.....", "........", 5) == [[0, 2], []]
    assert moves("x.x.....", "........", 1) == [[0], []], "the other place stays until the batch is made smaller"
    assert moves("x.xxx...", "........", 0) == [[], [0, 2, 3, 4]]
    assert moves("x.x..x..", "..x.....", 1) == [[2], []], "those that are full are the first"
    assert moves("x.x.....", "..x.....", 0) == [[], [2, 0]]
    assert moves("xx......", "xx......", 1) == [[0], [1]]
    assert moves("xxxxxxxx", "........", 3) == [[0, 1, 2], [3, 4, 5, 6, 7]]


def test_on_a_device_prompts_enter_without_another_graph(tiny_models, monkeypatch):
    """Of 24 prompts eight are decoded at a time; graphs are captured for eight rows, and for fewer at the end."""
    rows, init = [], Captured.__init__

    def capturing(self, function, inputs, *more):
        rows.append((type(self).__name__, len(inputs[0])))
        init(self, function, inputs, *more)

    monkeypatch.setattr(Captured, "__init__", capturing)
    sampling = Sampling(max_new_tokens=20, temperature=1.5)

    def drawn(device):
        backend = opened(tiny_models["llama"], f"backend.device={device}", "backend.args.generate_rows=8",
                         "backend.precision=fp32")  # fmt: skip
        backend.tokenizer.end_ids = tuple(range(0, backend.split.head.out_features, 8))
        return backend.generate(prompts_of(backend) * 4, sampling, range(24))

    expected = drawn("cpu")
    with pretended():
        found = drawn("cuda")
    assert [completion.ids.tolist() for completion in found] == [completion.ids.tolist() for completion in expected]
    steps = [count for name, count in rows if name == "_Step"]
    assert steps[0] == 8 and steps == sorted(set(steps), reverse=True) and len(steps) <= 4
