"""A tiny model that gives valid verdicts, made on the spot, so that a real server has something to serve.

Its chat template hands on the label of the answer and nothing else; the model has learned to copy it into a verdict.
"""

import torch
import transformers
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers

OPENING = '{"reason": "tiny", "candidate": "'
CLOSING = '", "scores": {"correct": 7, "clear": 7, "concise": 7}}'
HEX = "0123456789abcdef"
TEMPLATE = "{{ messages[-1]['content'].split('Labels: ')[-1][:8] }}{% if add_generation_prompt %}<go>{% endif %}"


def write_judge_model(folder, steps=300):
    """Train and write the model; return the share of verdicts that it gets right on new labels."""
    words = {word: i for i, word in enumerate(["<pad>", "<eos>", "<go>", *HEX, OPENING, CLOSING])}
    with torch.random.fork_rng():
        torch.manual_seed(0)
        settings = transformers.LlamaConfig(
            vocab_size=len(words), hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=4,
            max_position_embeddings=64, bos_token_id=None, eos_token_id=1, pad_token_id=0,
        )  # fmt: skip
        model = transformers.LlamaForCausalLM(settings)
        optimizer = torch.optim.AdamW(model.parameters(), 3e-3)
        for _ in range(steps):
            ids = _rows(words, 64)
            logits = model(input_ids=ids[:, :-1]).logits[:, 8:]  # from <go> on
            loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), ids[:, 9:].flatten())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        ids = _rows(words, 256)
        guessed = model(input_ids=ids[:, :-1]).logits[:, 8:].argmax(-1)
    model.save_pretrained(folder)
    _tokenizer(words).save_pretrained(folder)
    return float((guessed == ids[:, 9:]).all(dim=1).float().mean())


def _rows(words, count):
    label = torch.randint(words["0"], words["0"] + 16, (count, 8))

    def column(word):
        return torch.full((count, 1), words[word])

    return torch.cat([label, column("<go>"), column(OPENING), label, column(CLOSING), column("<eos>")], dim=1)


def _tokenizer(words):
    inner = Tokenizer(models.WordLevel(words, unk_token="<pad>"))
    inner.pre_tokenizer, inner.decoder = pre_tokenizers.Split(Regex("."), "isolated"), decoders.Fuse()
    inner.add_special_tokens(["<pad>", "<eos>", "<go>"])
    wrapped = transformers.PreTrainedTokenizerFast(tokenizer_object=inner, eos_token="<eos>", pad_token="<pad>")
    wrapped.chat_template = TEMPLATE
    return wrapped
