"""What a model is, read from its files before it is loaded: how large, how long its texts may be, whether it chats."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from safetensors import safe_open

from steadyrl.backends.huggingface.folder import INDEX, context_length, files_of, open_folder, read_tokenizer, reading
from steadyrl.core.plugins import require
from steadyrl.core.sections import ModelSection

_WEIGHTS = "model.safetensors"


@dataclass(frozen=True)
class ModelFacts:
    """What settings may depend on."""

    parameters: int  # numbers in the files of its weights
    context: int | None  # tokens that its positions reach; None where it counts none
    chats: bool  # whether its tokenizer has a chat template
    longest_answer: int  # tokens of the longest of the answers that were asked about; 0 where there are none


def model_facts(section: ModelSection, answers: Iterable[str] = ()) -> ModelFacts:
    """Read what a model is, and count tokens of answers; one on the hub is downloaded, as training would do.

    Raises:
        ModelError: The model cannot be read.
    """
    path, config = open_folder(section)
    cached_file = require("transformers").utils.cached_file
    with reading(section.path):
        tokenizer = read_tokenizer(path, section.trust_remote_code)
        index = cached_file(path, INDEX, _raise_exceptions_for_missing_entries=False)
        names = files_of(json.loads(Path(index).read_text(encoding="utf-8"))) if index else [_WEIGHTS]
        parameters = sum(_count(cached_file(path, name)) for name in names)
        lengths = (len(tokenizer(text, add_special_tokens=False)["input_ids"]) for text in answers)
        return ModelFacts(parameters, context_length(config), bool(tokenizer.chat_template), max(lengths, default=0))


def _count(file: str) -> int:
    with safe_open(file, "np") as weights:
        return sum(math.prod(weights.get_slice(name).get_shape()) for name in weights.keys())  # noqa: SIM118
