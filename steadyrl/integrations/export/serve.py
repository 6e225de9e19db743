"""The commands that serve an exported policy with vLLM, transformers and llama.cpp. Nothing is served here."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from steadyrl.core.errors import RunError
from steadyrl.core.rundir import RunDir, read_json
from steadyrl.core.sections import BackendSection
from steadyrl.core.types import plain_text
from steadyrl.core.words import shell_command
from steadyrl.integrations.export.model import DEFAULT_FOLDER, RECORD, require_exportable

VLLM_RANKS = (8, 16, 32, 64, 128, 256, 320, 512)  # what its --max-lora-rank may be
QUESTION = "your request"
_REQUEST = "{request}"  # in the template of a prompt


def serve_lines(run: RunDir, folder: Path | None = None) -> list[str]:
    """Return what a user has to run, with comments, to export into a folder (None: the usual one) and to serve it.

    Raises:
        RunError: The folder holds something else.
        ConfigError: The run has a backend whose policy cannot be exported.
    """
    target = folder or run.path / DEFAULT_FOLDER
    lora = int((run.resolved().get("model") or {}).get("lora_rank") or 0)
    if not target.is_dir() or not any(target.iterdir()):
        require_exportable(str((run.resolved().get("backend") or {}).get("name") or BackendSection().name))
        words = [run.path, *["--merge"] * bool(lora), *(["--to", folder] if folder else [])]
        return [
            "# First export the policy. Then run `steadyrl serve` again: it prints the commands, the tokens that end",
            "# an answer, and the way to prompt it.",
            shell_command("export", *words),
        ]
    if not (target / RECORD).is_file():
        raise RunError(f"'{target}' is no export of steadyrl: it has no {RECORD}; give the folder of `steadyrl export`")
    record = read_json(target / RECORD)
    name, ends, text = str(record["run"]), record["end_tokens"], record.get("prompt")
    joined = [f"step {member['step']} of {member['run']}" for member in record.get("joined", ())]
    origin = f"joins the policies after {', '.join(joined)}"
    if not joined:
        origin = f"holds the policy after step {record['step']} of {name}"
    lines = [
        f"# '{target}' {origin}.",
        "# An answer ends with: " + ", ".join(f"{end['text']!r} (id {end['id']})" for end in ends),
        "# Prompts go through the chat template."
        if record["chat"]
        else "# Prompts are given as they are, without a chat template: use /v1/completions, not /v1/chat/completions.",
        f"# In training it had at most {record['max_new_tokens']} tokens. generation_config.json keeps this limit and",
        "# the sampling of training, and the servers take both from there.",
        *([f"# In training a request stood in this text: {json.dumps(text, ensure_ascii=False)}"] if text else []),
        "",
        "# vLLM",
    ]
    if record["kind"] == "adapter":
        return lines + _adapter_commands(target, record, run)
    lines += [shlex.join(["vllm", "serve", str(target), "--served-model-name", name]), _ask(8000, name, record), ""]
    lines += ["# transformers (pip install 'transformers[serving]')"]
    lines += [shlex.join(["transformers", "serve", str(target)]), _ask(8000, str(target), record), ""]
    lines += ["# llama.cpp, with the converter of its repository; a GGUF file names one end token only"]
    gguf = str(target / "model.gguf")
    convert = shlex.join(["python", "convert_hf_to_gguf.py", str(target), "--outfile", gguf])
    server = shlex.join(["llama-server", "--model", gguf, *(["--jinja"] if record["chat"] else [])])
    stop = [*(end["text"] for end in ends), *record.get("stop", ())]
    return [*lines, f"{convert} && {server}", _ask(8080, name, record, stop=stop)]


def _adapter_commands(folder: Path, record: Mapping[str, Any], run: RunDir) -> list[str]:
    name, rank = str(record["run"]), int(record["lora_rank"])
    base = record["base_folder"] or record["base"]
    max_rank = next((allowed for allowed in VLLM_RANKS if allowed >= rank), rank)
    command = ["vllm", "serve", str(base), "--enable-lora", "--max-lora-rank", str(max_rank)]
    command += ["--lora-modules", f"{name}={folder}"]
    runs = [str(member["path"]) for member in record.get("joined", ())] or [str(run.path)]
    steps = {member["step"] for member in record.get("joined", ())} or {record["step"]}
    checkpoint_option = ["--checkpoint", str(*steps)] if len(steps) == 1 else []
    merge = shell_command("export", *runs, "--merge", *checkpoint_option, "--to", f"{folder}-merged")
    return [
        shlex.join(command),
        # The server reads the base model's generation config, which may lack the template's end of turn.
        _ask(8000, name, record, stop_token_ids=[end["id"] for end in record["end_tokens"]]),
        "",
        "# transformers serve and llama.cpp need whole weights. Merge the adapter first:",
        merge,
        shell_command("serve", run.path, "--folder", f"{folder}-merged"),
    ]


def _ask(port: int, model: str, record: Mapping[str, Any], **extra_fields: Sequence[Any]) -> str:
    body: dict[str, Any] = {"model": model}
    question = (record.get("prompt") or _REQUEST).replace(_REQUEST, QUESTION)
    messages = [*record.get("messages_before", ()), {"role": "user", "content": question}]
    if record["chat"]:
        path, body["messages"] = "chat/completions", messages
    else:
        path, body["prompt"] = "completions", plain_text(messages)
    if record.get("template_args"):
        body["chat_template_kwargs"] = record["template_args"]
    if record.get("stop"):
        body["stop"] = list(record["stop"])
    content = json.dumps({**body, **extra_fields}, ensure_ascii=False)
    url = f"http://localhost:{port}/v1/{path}"
    return shlex.join(["curl", url, "-H", "Content-Type: application/json", "-d", content])
