"""Small tokenizers that know the marks of a model's family: bytes, a few merges, and a token for each mark."""

from steadyrl.backends.huggingface.tokenizer import HFTokenizer
from steadyrl.core.sections import ModelSection
from tests import needs

CHATML = "<|im_start|> <|im_end|> <|endoftext|>"
CALLS = "<think> </think> <tool_call> </tool_call> <tool_response> </tool_response>"
# The end token of each family, and its marks.
MARKS = {
    "hermes": ("<|im_end|>", CHATML),
    "qwen3": ("<|im_end|>", f"{CHATML} {CALLS}"),
    "qwen3.5": ("<|im_end|>", f"{CHATML} {CALLS} <|vision_start|> <|vision_end|> <|image_pad|> <|video_pad|>"),
    "llama-3": (
        "<|eot_id|>",
        "<|begin_of_text|> <|start_header_id|> <|end_header_id|> <|eot_id|> <|end_of_text|> <|eom_id|> <|python_tag|>",
    ),
    "glm-4.5": (
        "<|endoftext|>",
        f"<sop> [gMASK] <|system|> <|user|> <|assistant|> <|observation|> <|endoftext|> {CALLS} <arg_key> </arg_key> "
        "<arg_value> </arg_value> /nothink",
    ),
    "deepseek-v3": (
        "<｜end▁of▁sentence｜>",
        "<｜begin▁of▁sentence｜> <｜end▁of▁sentence｜> <｜User｜> <｜Assistant｜> <｜tool▁calls▁begin｜> "
        "<｜tool▁calls▁end｜> <｜tool▁call▁begin｜> <｜tool▁call▁end｜> <｜tool▁sep｜> <｜tool▁outputs▁begin｜> "
        "<｜tool▁outputs▁end｜> "
        "<｜tool▁output▁begin｜> <｜tool▁output▁end｜> <think> </think>",
    ),
    "kimi-k2": (
        "<|im_end|>",
        "<|im_assistant|> <|im_end|> <|im_middle|> <|im_system|> <|im_user|> <|tool_call_argument_begin|> "
        "<|tool_call_begin|> <|tool_call_end|> <|tool_calls_section_begin|> <|tool_calls_section_end|> [BOS] [EOS]",
    ),
}
MERGES = [("o", "o"), ("l", "i"), ("s", "t"), ("li", "st"), ("Ġ", "list")]
# That of SmolLM2-135M-Instruct.
SMOLLM2 = """{% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}{{ '<|im_start|>system
You are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>
' }}{% endif %}{{'<|im_start|>' + message['role'] + '
' + message['content'] + '<|im_end|>' + '
'}}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant
' }}{% endif %}"""


def fast_tokenizer(family, template=None):
    """Return a tokenizer of transformers."""
    tokenizers, transformers = needs.package("tokenizers"), needs.package("transformers")
    end, marks = MARKS[family]
    alphabet = sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet())
    words = [*alphabet, *("".join(pair) for pair in MERGES)]
    tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE({word: i for i, word in enumerate(words)}, MERGES))
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = tokenizers.decoders.ByteLevel()
    hf = transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, eos_token=end, additional_special_tokens=marks.split()
    )
    hf.chat_template = template
    return hf


def chat_tokenizer(family, template=None, **section):
    """Return the tokenizer of a model of that family."""
    return HFTokenizer(fast_tokenizer(family, template), ModelSection(**section))


def unmerged(hf, ids):
    """Return the same text in other tokens, as a policy may write it: every merge is taken apart."""
    apart = {"".join(pair): pair for pair in MERGES}

    def pieces(token):
        return [token] if token not in apart else [piece for part in apart[token] for piece in pieces(part)]

    return [hf.convert_tokens_to_ids(piece) for id in ids for piece in pieces(hf.convert_ids_to_tokens(id))]
