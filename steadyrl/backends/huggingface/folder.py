"""What a model folder says before anything of it is loaded: is it whole, can it be trained, how long may a text be?"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import jinja2
from huggingface_hub.errors import StrictDataclassError
from safetensors import SafetensorError, safe_open

from steadyrl.core.errors import ModelError, exception_line
from steadyrl.core.places import path_hint
from steadyrl.core.plugins import require
from steadyrl.core.rundir import is_lfs_pointer
from steadyrl.core.sections import ModelSection

log = logging.getLogger(__name__)

BASE_MODEL = Path(__file__).parent.parent / "base-model"
# A folder's files may hold anything, and transformers looks at few of them before it computes with them.
READING_ERRORS = (
    OSError, ValueError, TypeError, LookupError, AttributeError, ArithmeticError, AssertionError, ImportError,
    RuntimeError, SafetensorError, StrictDataclassError, jinja2.TemplateError,
)  # fmt: skip
_UNFIT = ("ForSequenceClassification", "ForTokenClassification", "ForQuestionAnswering", "RewardModel", "ForMaskedLM")
_MAX_ERROR_LENGTH = 300  # characters of an error of transformers that are shown
_TOKENIZERS, _VOCABULARIES = ("tokenizer", "vocab", "merges"), {".model", ".tiktoken"}  # how their files are called
INDEX = "model.safetensors.index.json"
_TOKENIZER = "tokenizer.json"
_MOST_GROWTH = 100  # times the length of a text; published tokenizers put a few characters in the place of one
_EMPTY = {"version": "1.0", "added_tokens": [], "model": {"type": "WordLevel", "vocab": {"?": 0}, "unk_token": "?"}}
_TEMPLATE = "chat_template.json"  # of what reads texts and images; transformers' tokenizers do not look for it
_FILES = ("config.json", "generation_config.json", "tokenizer_config.json", "tokenizer.json", _TEMPLATE, INDEX)
_PROCESSOR_FILES = ("preprocessor_config.json", "processor_config.json", "video_preprocessor_config.json", _TEMPLATE)
_FLOATS = ("F64", "F32", "F16", "BF16")  # as safetensors calls them
# What transformers says, by a part of it, and what is said instead: all of it would name its own classes and options.
_EXPLANATIONS = {
    "trust_remote_code": "it needs Python code that the folder brings along (auto_map); if you trust that code as your "
    "own, set model.trust_remote_code = true",
    "Unrecognized configuration class": "transformers knows no causal language model of this type; expected one, as "
    "Llama, Qwen and SmolLM are",
    "does not recognize this architecture": "this transformers does not know the model_type in config.json; upgrade "
    "transformers, or take a model that it knows",
    "ignore_mismatched_sizes": "its weights have other shapes than config.json says; expected both of one model",
    "Padding_idx must be within": "config.json has a pad_token_id that is no row of the embedding; expected one below "
    "its vocab_size, or none",
    "Couldn't instantiate the backend tokenizer": "its tokenizer is not whole; expected tokenizer.json, as it lies "
    "beside the model's weights",
}


def open_folder(section: ModelSection) -> tuple[str, Any]:
    """Return (path or hub name, configuration) of a model; nothing of its own code is run unless the setting says so.

    Raises:
        ModelError: The folder is missing, damaged, or of a kind that cannot be trained.
    """
    path = str(BASE_MODEL) if section.path == "base" else section.path
    check_files(path)
    transformers = require("transformers")
    with reading(section.path):
        config = transformers.AutoConfig.from_pretrained(path, trust_remote_code=section.trust_remote_code)
        # How its author's machine computed is no part of a model, and may need a package or a download of programs.
        config._attn_implementation, config.return_dict = None, True
        text = config.get_text_config()
        _check_numbers(text, section.path)
        if (reach := context_length(config)) is not None and reach < 1:
            raise ModelError(
                f"'{section.path}/config.json' gives positions for {reach} tokens; expected max_position_embeddings "
                "and the factor of its rope scaling above 0"
            )
        if transformers.utils.find_adapter_config_file(path):  # on the hub; transformers would put it into the model
            raise _adapter(section.path)
    names = config.architectures or []
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise ModelError(
            f"'{section.path}/config.json' has architectures = {names!r:.40}; expected names of classes, as "
            '["LlamaForCausalLM"]'
        )
    unsuited = [name for name in names if name.endswith(_UNFIT)]
    if unsuited:  # their body would load as a policy's where input and output embeddings are one
        raise ModelError(f"model.path = '{section.path}' is a {unsuited[0]}; expected a causal language model")
    if Path(path).is_dir():
        _check_weights(Path(path), getattr(config, "quantization_config", None) is not None)
    if getattr(config, "auto_map", None):
        runs = "it is run, for model.trust_remote_code is true" if section.trust_remote_code else "it is not run"
        log.warning("model.path = '%s' brings its own Python code (auto_map); %s", section.path, runs)
    if getattr(config, "quantization_config", None) and not section.lora_rank:
        raise ModelError(
            f"model.path = '{section.path}' holds quantised weights, which cannot be trained; set model.lora_rank = 16 "
            "to train an adapter, or use the folder with the full weights"
        )
    return path, config


@contextmanager
def reading(path: str) -> Iterator[None]:
    """Turn whatever a damaged folder makes transformers raise into one line, without its own warnings."""
    logging_of = require("transformers").utils.logging
    before = logging_of.get_verbosity()
    logging_of.disable_progress_bar()  # its bars would run through ours at every checkpoint
    logging_of.set_verbosity_error()
    try:
        yield
    except ModelError:
        raise
    except BaseException as error:
        panic = type(error).__name__ == "PanicException"  # of Rust, and no Exception
        of_reading = isinstance(error, READING_ERRORS) or type(error) is Exception  # tokenizers raises bare ones
        if not of_reading and not panic:
            raise
        first = " ".join(str(error).split())[:_MAX_ERROR_LENGTH] or type(error).__name__
        first = f"tokenizers stops at it ({first}); is tokenizer.json as it was published?" if panic else first
        if isinstance(error, KeyError):
            first = f"transformers looked for {first} and found nothing of that name" if " " not in first else first
        first = next((explanation for part, explanation in _EXPLANATIONS.items() if part in str(error)), first)
        raise ModelError(f"model.path = '{path}' cannot be loaded: {first}") from error
    finally:
        logging_of.set_verbosity(before)


def context_length(config: Any) -> int | None:
    """Return the number of tokens that the model's positions reach, or None where it counts none.

    Stretched rotations count: of "yarn" the original length times its factor, of "linear" and "dynamic" the stated
    length times theirs. "llama3" and "longrope" state the stretched length themselves.
    """
    text = config.get_text_config()
    stated = getattr(text, "max_position_embeddings", None)
    if not stated:
        return None
    rope = getattr(text, "rope_parameters", None) or {}
    if any(isinstance(value, dict) for value in rope.values()):  # one set for each type of layer
        rope = rope.get("full_attention") or {}
    kind, factor = rope.get("rope_type", "default"), float(rope.get("factor") or 1.0)
    if kind == "yarn":
        return max(int(stated), int((rope.get("original_max_position_embeddings") or stated) * factor))
    return int(stated * factor) if kind in {"linear", "dynamic"} else int(stated)


# No model is near these. Building a layer costs time, so that a million layers of 8 columns take hours.
_MOST_LAYERS, _LARGEST_SHAPE = 10_000, 10**9


def _check_numbers(text: Any, path: str) -> None:
    """Refuse shapes that no model has: transformers would fail on them anywhere, or not at all."""
    for name in ("vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads"):
        value = _of_all_layers(text, name, 1)
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise ModelError(f"'{path}/config.json' has {name} = {value!r:.40}; expected a whole number above 0")
        limit = _MOST_LAYERS if name == "num_hidden_layers" else _LARGEST_SHAPE
        if value > limit:
            raise ModelError(f"'{path}/config.json' has {name} = {value!r:.40}; expected a number up to {limit}")
    heads, width = _of_all_layers(text, "num_attention_heads", 1), _of_all_layers(text, "hidden_size", 0)
    if width % heads and _of_all_layers(text, "head_dim", 1) is None:
        raise ModelError(
            f"'{path}/config.json' divides hidden_size = {width} among num_attention_heads = {heads}, which leaves a "
            "rest; expected a multiple, or a head_dim"
        )
    keys = _of_all_layers(text, "num_key_value_heads", None)
    if isinstance(keys, int) and (keys < 1 or heads % keys):
        raise ModelError(
            f"'{path}/config.json' shares num_key_value_heads = {keys} among num_attention_heads = {heads}, which "
            "leaves a rest; expected a divisor"
        )


def _of_all_layers(text: Any, name: str, default: Any) -> Any:
    """Return a number of a configuration, or the default where it has none or layers have numbers of their own."""
    try:
        return getattr(text, name, default)
    except RuntimeError:  # of transformers, for the configuration of the whole (Gemma 4)
        return default


def read_tokenizer(path: str, trusted: bool = False) -> Any:
    """Return the tokenizer of a model, with the chat template that programs use which read texts and images with it."""
    transformers = require("transformers")
    cached_file = transformers.utils.cached_file
    if file := cached_file(path, _TOKENIZER, _raise_exceptions_for_missing_entries=False):
        _check_growth(Path(file))
    tokenizer = transformers.AutoTokenizer.from_pretrained(path, trust_remote_code=trusted)
    tokenizer("?")  # its settings are looked at when it is used
    if file := cached_file(path, _TEMPLATE, _raise_exceptions_for_missing_entries=False):
        stated = json.loads(Path(file).read_text(encoding="utf-8"))
        tokenizer.chat_template = stated.get("chat_template") or tokenizer.chat_template
    return tokenizer


def _check_growth(file: Path) -> None:
    """Refuse (ModelError) a tokenizer that blows texts up: one that doubles them 40 times hangs on a letter."""
    tokenizers = require("tokenizers")
    try:
        stated = json.loads(file.read_text(encoding="utf-8"))
        for stage in ("normalizer", "decoder"):
            steps = [step for step in _single_steps(stated.get(stage)) if step.get("type") in ("Replace", "Prepend")]
            text = "?" + "".join(str(pattern) for step in steps for pattern in (step.get("pattern") or {}).values())
            limit = _MOST_GROWTH * len(text)
            for step in steps:
                alone = tokenizers.Tokenizer.from_str(json.dumps(_EMPTY | {"normalizer": step}))
                text = alone.normalizer.normalize_str(text)
                if len(text) > limit:
                    raise ModelError(
                        f"the {stage} in '{file}' makes texts more than {_MOST_GROWTH} times as long; expected the "
                        "tokenizer.json that the model was published with"
                    )
    except ModelError:
        raise
    except Exception as error:  # tokenizers raises bare ones; transformers says what is wrong with the file
        log.debug("'%s' is not looked through (%s)", file, exception_line(error))


def _single_steps(stated: Any) -> Iterator[dict[str, Any]]:
    """Yield the single steps of a normalizer or a decoder, which may be sequences of sequences."""
    if isinstance(stated, dict) and stated.get("type") == "Sequence":
        for step in [*stated.get("normalizers", []), *stated.get("decoders", [])]:
            yield from _single_steps(step)
    elif isinstance(stated, dict):
        yield stated


def beside(path: str) -> dict[str, bytes]:
    """Return the files by which programs prepare images, and write chats with them, that lie in a model's folder."""
    cached_file = require("transformers").utils.cached_file
    files = {name: cached_file(path, name, _raise_exceptions_for_missing_entries=False) for name in _PROCESSOR_FILES}
    return {name: Path(file).read_bytes() for name, file in files.items() if file}


def check_files(path: str) -> None:
    """Refuse (ModelError) a folder that lacks something, or is no model, by the names of its files."""
    folder = Path(path)
    if not folder.exists():
        if path.startswith((".", "/", "~")) or path.count("/") != 1:
            raise ModelError(
                f"there is no model folder '{path}'{path_hint(folder)}; give 'base', a folder in Hugging Face layout, "
                "or a hub name such as 'Qwen/Qwen2.5-0.5B-Instruct'"
            )
        logging.getLogger("huggingface_hub").setLevel(logging.ERROR)  # a line for every retry helps nobody
        where = path_hint(folder)
        log.warning("model.path = '%s' is no folder here%s; looking it up on the Hugging Face hub", path, where)
        return
    if (folder / "adapter_config.json").is_file():
        raise _adapter(path)
    if not (folder / "config.json").is_file():
        reason = "it has no config.json"
        if folder.suffix == ".gguf" or any(folder.glob("*.gguf")):
            reason = "GGUF is not read; expected the folder in Hugging Face layout that the file was made from"
        raise ModelError(f"'{path}' is not a model folder: {reason}")
    if not any((folder / name).is_file() for name in ("model.safetensors", INDEX)):
        raise ModelError(f"'{path}' holds no weights: expected model.safetensors{_other_weights(folder)}")
    files = [file for file in folder.iterdir() if file.name.startswith(_TOKENIZERS) or file.suffix in _VOCABULARIES]
    if not files:
        raise ModelError(f"'{path}' holds no tokenizer: expected tokenizer.json, as it lies beside the model's weights")
    for file in sorted(files):
        if _is_pointer(file):
            raise ModelError(f"'{file}' is a pointer of Git LFS, and not the file itself; run `git lfs pull`")
    for file in (folder / name for name in _FILES):
        if file.is_file():
            try:
                parsed = json.loads(file.read_text(encoding="utf-8"))
            except (ValueError, RecursionError) as error:
                raise ModelError(f"'{file}' is not valid JSON: {error}") from error
            except OSError as error:
                raise _unreadable(file, error) from error
            if not isinstance(parsed, dict):
                raise ModelError(f"'{file}' holds a {type(parsed).__name__}; expected a JSON object")


def _other_weights(folder: Path) -> str:
    """Return what to do with what lies there in the place of weights."""
    shards = sorted(folder.glob("model-*-of-*.safetensors"))
    if shards:
        return f" or {INDEX}, which says what {shards[0].name} and the other parts hold; download it too"
    pickled = sorted(folder.glob("pytorch_model*.bin"))
    if pickled:
        return (
            f"; {pickled[0].name} is not read, for such a file can run code: if you trust it, load it by transformers, "
            "whose save_pretrained writes safetensors"
        )
    return " (other formats are not read)"


def _is_pointer(file: Path) -> bool:
    try:
        return is_lfs_pointer(file)
    except OSError as error:
        raise _unreadable(file, error) from error


def _adapter(path: str) -> ModelError:
    return ModelError(
        f"'{path}' holds an adapter (adapter_config.json), and model.path takes a whole model; merge the adapter into "
        "its model first: `steadyrl export RUN --merge` if steadyrl trained it, merge_and_unload() of PEFT if not"
    )


def files_of(index: Mapping[str, Any]) -> list[str]:
    """Return the names of the files that an index of weights names; none where it is damaged, or leads elsewhere."""
    named = index.get("weight_map")
    if not isinstance(named, dict) or not all(isinstance(n, str) and n == Path(n).name for n in named.values()):
        return []
    return sorted(set(named.values()))


def _check_weights(folder: Path, quantised: bool) -> None:
    """Refuse weights that are not all there; of each file only the table at its beginning is read."""
    names = ["model.safetensors"]
    if not (folder / names[0]).is_file():
        names = files_of(json.loads((folder / INDEX).read_text(encoding="utf-8")))
        if not names:
            raise ModelError(
                f"'{folder / INDEX}' has no 'weight_map' from the weights to files beside it; download it again"
            )
    lacking = [name for name in names if not (folder / name).is_file()]
    if lacking:
        raise ModelError(
            f"'{folder}' lacks {len(lacking)} of the {len(names)} files that {INDEX} names, such as {lacking[0]}; "
            "download them too"
        )
    for file in (folder / name for name in names):
        try:
            with safe_open(file, "np") as weights:
                kinds = {name: weights.get_slice(name).get_dtype() for name in weights.keys()}  # noqa: SIM118
        except (OSError, SafetensorError) as error:
            cure = "it is a pointer of Git LFS: run `git lfs pull`" if _is_pointer(file) else "download it again"
            raise ModelError(f"'{file}' is damaged or cut short ({error}); {cure}") from error
        odd = [name for name, kind in kinds.items() if name.endswith(".weight") and kind not in _FLOATS]
        if odd and not quantised:
            raise ModelError(
                f"'{file}' holds {odd[0]} as {kinds[odd[0]]}, and config.json has no quantization_config that says "
                "what it means; expected floating-point weights"
            )


def _unreadable(file: Path, error: OSError) -> ModelError:
    return ModelError(f"'{file}' cannot be read ({error.strerror}); expected a file, as it was published")
