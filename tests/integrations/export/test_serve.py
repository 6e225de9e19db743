"""The commands that serve an exported policy: each one's words, and what must come first."""

import json
import shlex

import pytest

from steadyrl.core.errors import RunError
from steadyrl.core.rundir import RunDir, write_json
from steadyrl.integrations.export.serve import serve_lines

ENDS = [{"id": 2, "text": "<|im_end|>"}, {"id": 0, "text": "<|endoftext|>"}]
RECORD = {
    "run": "a-run", "step": 4, "kind": "weights", "base": "org/model", "base_folder": None, "chat": True,
    "messages_before": [], "template_args": {}, "max_new_tokens": 32, "end_tokens": ENDS, "lora_rank": 0,
}  # fmt: skip


def exported(tmp_path, **changes):
    """Return a run and the commands for its exported policy, each split as a shell does."""
    run = RunDir(tmp_path / "run")
    write_json(run.resolved_file, {"model": {"lora_rank": changes.get("lora_rank", 0)}})
    write_json(run.path / "export" / "export.json", {**RECORD, **changes})
    lines = serve_lines(run)
    return run, [shlex.split(line, comments=True) for line in lines if line and not line.startswith("#")], lines


def body(command):
    return json.loads(command[-1])


@pytest.mark.parametrize(("rank", "more"), [(0, []), (8, ["--merge"])])
def test_a_policy_that_is_not_exported_is_exported_first(tmp_path, rank, more):
    run = RunDir(tmp_path / "run")
    write_json(run.resolved_file, {"model": {"lora_rank": rank}})
    assert shlex.split(serve_lines(run)[-1]) == ["steadyrl", "export", str(run.path), *more]
    to = tmp_path / "a folder"
    assert shlex.split(serve_lines(run, to)[-1]) == ["steadyrl", "export", str(run.path), *more, "--to", str(to)]


def test_a_folder_of_something_else_is_refused(tmp_path):
    run = RunDir(tmp_path / "run")
    write_json(run.resolved_file, {})
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(RunError, match=r"is no export of steadyrl: it has no export.json"):
        serve_lines(run, tmp_path)


def test_whole_weights_have_one_command_for_each_server_and_one_to_ask_it(tmp_path):
    run, commands, lines = exported(tmp_path)
    folder = str(run.path / "export")
    vllm, ask_vllm, transformers, ask_transformers, llama, ask_llama = commands
    assert vllm == ["vllm", "serve", folder, "--served-model-name", "a-run"]
    assert transformers == ["transformers", "serve", folder]
    gguf = f"{folder}/model.gguf"
    assert llama == [
        *["python", "convert_hf_to_gguf.py", folder, "--outfile", gguf, "&&"],
        *["llama-server", "--model", gguf, "--jinja"],
    ]
    assert ask_vllm[1] == "http://localhost:8000/v1/chat/completions"
    assert ask_llama[1] == "http://localhost:8080/v1/chat/completions"
    assert (body(ask_vllm)["model"], body(ask_transformers)["model"]) == ("a-run", folder)
    assert body(ask_vllm)["messages"][0]["role"] == "user"
    assert body(ask_llama)["stop"] == ["<|im_end|>", "<|endoftext|>"], "a GGUF file names one end only"
    assert "# An answer ends with: '<|im_end|>' (id 2), '<|endoftext|>' (id 0)" in lines


def test_without_a_template_the_servers_are_asked_for_completions(tmp_path):
    _, commands, lines = exported(tmp_path, chat=False)
    asked = [command for command in commands if command[0] == "curl"]
    assert all(command[1].endswith("/v1/completions") and "prompt" in body(command) for command in asked)
    assert "--jinja" not in commands[4]
    assert any("use /v1/completions" in line for line in lines)


@pytest.mark.parametrize(("rank", "room"), [(4, "8"), (16, "16"), (48, "64"), (600, "600")])
def test_an_adapter_is_served_beside_its_base_model_by_vllm_and_merged_for_the_others(tmp_path, rank, room):
    run, commands, _ = exported(tmp_path, kind="adapter", lora_rank=rank)
    folder = str(run.path / "export")
    vllm, ask, merge, again = commands
    assert vllm == [
        *["vllm", "serve", "org/model", "--enable-lora", "--max-lora-rank", room],
        *["--lora-modules", f"a-run={folder}"],
    ]
    assert body(ask)["stop_token_ids"] == [2, 0], "the base model's own config may lack one"
    assert merge == ["steadyrl", "export", str(run.path), "--merge", "--checkpoint", "4", "--to", f"{folder}-merged"]
    assert again == ["steadyrl", "serve", str(run.path), "--folder", f"{folder}-merged"]


def test_an_adapter_of_a_folder_names_the_folder(tmp_path):
    _, commands, _ = exported(tmp_path, kind="adapter", lora_rank=8, base="base", base_folder="/models/a b")
    assert commands[0][2] == "/models/a b"


def test_a_server_is_asked_as_the_policy_was_in_training(tmp_path):
    before = [{"role": "user", "content": "red"}, {"role": "assistant", "content": "blue"}]
    own = {"messages_before": before, "template_args": {"enable_thinking": False}, "stop": ["\n\n"]}
    _, commands, _ = exported(tmp_path, **own)
    ask_vllm, ask_llama = body(commands[1]), body(commands[5])
    assert ask_vllm["messages"] == [*before, {"role": "user", "content": "your request"}]
    assert (ask_vllm["chat_template_kwargs"], ask_vllm["stop"]) == ({"enable_thinking": False}, ["\n\n"])
    assert ask_llama["stop"] == ["<|im_end|>", "<|endoftext|>", "\n\n"]
    _, commands, _ = exported(tmp_path, **own, chat=False)
    assert body(commands[1])["prompt"] == "red blue\n\nyour request"


def test_a_request_stands_in_the_text_that_the_task_puts_it_into(tmp_path):
    _, commands, lines = exported(tmp_path, chat=False, prompt="request: {request}\nfound: {found}\nquery:")
    assert body(commands[1])["prompt"] == "request: your request\nfound: {found}\nquery:"
    assert any("a request stood in this text" in line and "{found}" in line for line in lines)


def test_the_servers_are_asked_with_the_messages_and_arguments_of_training(tmp_path):
    before = [{"role": "system", "content": "Be brief."}]
    _, commands, _ = exported(tmp_path, messages_before=before, template_args={"enable_thinking": False})
    for asked in (body(command) for command in commands if command[0] == "curl"):
        assert asked["messages"] == [*before, {"role": "user", "content": "your request"}]
        assert asked["chat_template_kwargs"] == {"enable_thinking": False}
    _, commands, _ = exported(tmp_path)
    assert "chat_template_kwargs" not in body(commands[1])
