import pytest

from tests import needs
from tests.rounding import NATS

torch = needs.package("torch")
transformers = needs.package("transformers")

from steadyrl.backends.torch.read.likelihood import LikelihoodRatio  # noqa: E402  # after the check that torch is there
from steadyrl.core.errors import ModelError  # noqa: E402

PAIRS = [
    ("the red cat", "sees a small dog"),
    ("two or three", "big blue cats, one is new, not green."),
    ("hears", "a"),
    ("the old bird", "and the red cat"),
]


def mean_logprob(folder, request, text):
    """Read one text by itself, without padding or batches."""
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    model = transformers.AutoModelForCausalLM.from_pretrained(folder).eval()
    if tokenizer.chat_template:
        message = [{"role": "user", "content": request}]
        request = tokenizer.apply_chat_template(message, add_generation_prompt=True, tokenize=False)
    prompt = tokenizer(request, add_special_tokens=False)["input_ids"] or [tokenizer.eos_token_id]
    answer = tokenizer(text, add_special_tokens=False)["input_ids"]
    with torch.no_grad():
        logprobs = model(torch.tensor([prompt + answer])).logits[0].log_softmax(-1)
    return sum(float(logprobs[len(prompt) + i - 1, token]) for i, token in enumerate(answer)) / len(answer)


@pytest.mark.parametrize("name", ["llama", "gpt2"])
def test_the_ratio_is_that_of_the_text_with_and_without_its_request(tiny_models, name):
    found = LikelihoodRatio(str(tiny_models[name]))(PAIRS)
    expected = [
        mean_logprob(tiny_models[name], request, text) - mean_logprob(tiny_models[name], "", text)
        for request, text in PAIRS
    ]
    assert found == pytest.approx(expected, abs=2 * NATS)


def test_with_a_second_model_the_ratio_is_between_the_two(tiny_models):
    first, second = tiny_models["llama"], tiny_models["qwen3"]
    found = LikelihoodRatio(str(first), str(second))(PAIRS)
    expected = [mean_logprob(first, *pair) - mean_logprob(second, *pair) for pair in PAIRS]
    assert found == pytest.approx(expected, abs=2 * NATS)


def test_a_model_compared_with_itself_is_indifferent(tiny_models):
    folder = str(tiny_models["llama"])
    assert LikelihoodRatio(folder, folder)(PAIRS) == [0.0] * len(PAIRS)


def test_what_is_longer_than_the_model_can_read_is_unknown(tiny_models):
    found = LikelihoodRatio(str(tiny_models["llama"]))([("the red cat", "dog " * 100), PAIRS[0]])
    assert found[0] is None
    assert found[1] is not None


def test_a_folder_that_is_no_model_is_named(tmp_path):
    with pytest.raises(ModelError, match="no model folder"):
        LikelihoodRatio(str(tmp_path / "nothing"))
