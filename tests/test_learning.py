"""The whole way on the generated corpus: a weak warm start, PPO through the command line's own path, held-out gain."""

import json
import random

import pytest

from steadyrl.core import config
from steadyrl.environments.search.generated import generated_corpus
from steadyrl.loop import record
from steadyrl.loop.train import open_session, train
from steadyrl.show.report.write import write_report
from tests import needs

torch = needs.package("torch")
transformers = needs.package("transformers")

PROMPT = "request: {request}\nquery:"
TRUE_SYNONYMS = 0.5  # of the words that the teacher adds; the others are any words


@pytest.fixture(scope="module")
def warm_model(tmp_path_factory):
    """Return the folder of a model that writes well-formed queries of the request's words and mostly wrong synonyms."""
    folder = tmp_path_factory.mktemp("warm")
    _, gold = generated_corpus()
    synonyms = {group.split()[0]: group.split()[::2] for query in gold.values() for group in _groups(query)}
    by_word = {word: group for group in synonyms.values() for word in group}
    tokenizer = _tokenizer(sorted(by_word))
    tokenizer.save_pretrained(folder)
    torch.manual_seed(0)
    shape = transformers.LlamaConfig(
        vocab_size=len(tokenizer), hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=4,
        tie_word_embeddings=True, bos_token_id=None, eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id, max_position_embeddings=64,
    )  # fmt: skip
    model = transformers.LlamaForCausalLM(shape)
    torch.nn.init.normal_(model.model.embed_tokens.weight, std=64**-0.5)
    _warm_start(model, tokenizer, by_word)
    model.save_pretrained(folder)
    return folder


def _groups(query):
    return [part.strip("() ") for part in query.split(" AND ")]


def _tokenizer(words):
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    pieces = [
        "<pad>",
        "<eos>",
        "<unk>",
        "request:",
        "query:",
        "documents",
        "about",
        "and",
        "(",
        ")",
        "OR",
        "AND",
        *words,
    ]
    tokenizer = Tokenizer(models.WordLevel({piece: i for i, piece in enumerate(pieces)}, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.decoder = decoders.WordPiece(prefix="##", cleanup=False)  # words with spaces between
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, eos_token="<eos>", pad_token="<pad>", unk_token="<unk>"
    )


def _warm_start(model, tokenizer, by_word):
    generator = random.Random(0)
    requests, words = [request.text for request in generated_corpus()[0].train], sorted(by_word)

    def guess(word):
        return generator.choice(by_word[word] if generator.random() < TRUE_SYNONYMS else words)

    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    for _ in range(450):
        rows = []
        for request in generator.sample(requests, 48):
            first, second = request.split()[2], request.split()[4]
            query = f"( {first} OR {guess(first)} ) AND ( {second} OR {guess(second)} )"
            rows.append(tokenizer(f"{PROMPT.format(request=request)} {query} <eos>")["input_ids"])
        ids = torch.tensor(rows)  # [48, T]: all requests have one length
        start = rows[0].index(tokenizer.convert_tokens_to_ids("query:")) + 1
        logits = model(ids).logits[:, start - 1 : -1]
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), ids[:, start:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


@pytest.mark.weekly
def test_ppo_learns_synonyms_from_what_queries_find_and_holds_on_unseen_requests(warm_model, tmp_path):
    settings = config.resolve(
        {
            "run": {"steps": 25, "folder": str(tmp_path), "checkpoint_every": 25},
            "model": {"path": str(warm_model)},
            "task": {"name": "search", "args": {"corpus": "generated"}},
            "rewards": {"retrieval": 1.0},
            "sampling": {"max_new_tokens": 16},
            "rollout": {"prompts_per_step": 256, "samples_per_prompt": 1},
            "algorithm": {"args": {"kl_coef": 0.002}},
            "update": {"learning_rate": 3e-3, "schedule": "linear"},
        }
    )
    session = open_session(settings)
    run = record.begin(settings, "")
    record.add_model(run, session)
    assert train(session, run) == "finished"
    record.close(run, "finished", settings)
    summary = json.loads((write_report(run.path) / "summary.json").read_text())
    assert summary["n"] == len(session.heldout) == 85
    assert summary["interval"][0] > 0.05, summary
    assert summary["after"] > 1.5 * summary["before"], summary
    assert summary["health"]["parseable"] > 0.9
    assert summary["health"]["kl_ref_exact_seq_min"] >= -1e-6
