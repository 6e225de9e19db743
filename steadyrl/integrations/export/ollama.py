"""The Modelfile with which Ollama serves a GGUF file: prompts and sampling as in training."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from jinja2 import TemplateError

from steadyrl.core.errors import ModelError
from steadyrl.core.plugins import require

_SYSTEM, _USER = "@system@", "@user@"  # stand for the texts while the template is read


def write_modelfile(folder: Path, model: str, record: Mapping[str, Any]) -> None:
    """Write a Modelfile for a GGUF file into an exported folder; ``record`` is that of export.json.

    Raises:
        ModelError: The chat template cannot be written as one of Ollama.
    """
    tokenizer = require("transformers").AutoTokenizer.from_pretrained(folder)
    sampling = require("transformers").GenerationConfig.from_pretrained(folder)
    template = chat_template(tokenizer, record.get("template_args") or {}) if record["chat"] else "{{ .Prompt }}"
    lines = [f"FROM ./{model}", f"TEMPLATE {_quoted(template)}"]
    messages: Sequence[Mapping[str, str]] = record.get("messages_before") or ()
    for number, message in enumerate(messages):
        word = "SYSTEM" if number == 0 and message["role"] == "system" else f"MESSAGE {message['role']}"
        lines.append(f"{word} {_quoted(message['content'])}")
    values = {
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        "top_k": sampling.top_k,
        "num_predict": record["max_new_tokens"],
        "repeat_penalty": 1.0,  # Ollama's own 1.1 is none that was trained with
    }
    lines += [f"PARAMETER {name} {value}" for name, value in values.items() if value is not None]
    ends = [*(end["text"] for end in record["end_tokens"]), *record.get("stop", ())]
    lines += [f"PARAMETER stop {_quoted(end)}" for end in dict.fromkeys(ends) if end]
    (folder / "Modelfile").write_text("\n".join(lines) + "\n", encoding="utf-8")


def chat_template(tokenizer: Any, template_args: Mapping[str, Any]) -> str:
    """Return a chat template in Ollama's language, read off from what the tokenizer's own makes of two messages."""
    user = {"role": "user", "content": _USER}

    def rendered(*messages: Mapping[str, str]) -> str:
        text = tokenizer.apply_chat_template(
            list(messages), tokenize=False, add_generation_prompt=True, **template_args
        )
        return str(text).removeprefix(tokenizer.bos_token or "")  # which the GGUF file adds itself, where it is wanted

    before, _, after = rendered(user).partition(_USER)
    try:
        with_system = rendered({"role": "system", "content": _SYSTEM}, user)
    except TemplateError:  # some templates refuse system messages
        with_system = ""
    first, _, after_system = with_system.partition(_SYSTEM)
    middle, _, end = after_system.partition(_USER)
    if "{{" in before + after or '"""' in before + after:
        raise ModelError("the chat template writes braces or quotes that Ollama's cannot; write a Modelfile by hand")
    start = before
    if after_system and end == after:  # else the template puts the system message elsewhere than Ollama can
        start = f"{{{{ if .System }}}}{first}{{{{ .System }}}}{middle}{{{{ else }}}}{before}{{{{ end }}}}"
    return f"{start}{{{{ .Prompt }}}}{after}{{{{ .Response }}}}"


def _quoted(text: str) -> str:
    return f'"""{text}"""' if "\n" in text or '"' in text else f'"{text}"'
