"""Uploads to the hub, with the hub's own client against a server on this machine that stores what it gets."""

import base64
import json
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from steadyrl.core.errors import AccessError, ConfigError
from steadyrl.integrations.export.deliver import open_hub, push
from tests import needs


class Hub(BaseHTTPRequestHandler):
    """Answers as the hub does: a repository, how to upload each file, and a commit; wrong tokens are refused."""

    def do_POST(self):
        body = self.rfile.read(int(self.headers["Content-Length"]))
        store = self.server.store
        store["tokens"].add(self.headers.get("Authorization"))
        if self.headers.get("Authorization") != "Bearer hf_right":
            return self.answer({"error": "Invalid user token."}, 401)
        if self.path == "/api/repos/create":
            store["repository"] = json.loads(body)
            return self.answer({"url": f"{self.server.address}/me/policy", "name": "me/policy"})
        if self.path.endswith("/preupload/main"):
            files = [{**file, "uploadMode": "regular", "shouldIgnore": False} for file in json.loads(body)["files"]]
            return self.answer({"files": files})
        if self.path.endswith("/commit/main"):
            lines = [json.loads(line) for line in body.splitlines()]
            files = [line["value"] for line in lines if line["key"] == "file"]
            store["files"] |= {file["path"]: base64.b64decode(file["content"]) for file in files}
            commit = {"commitUrl": f"{self.server.address}/me/policy/commit/1", "commitOid": "1", "success": True}
            return self.answer(commit)
        return self.answer({})

    def do_GET(self):
        self.answer({"id": "me/policy", "sha": "0", "siblings": []})

    def answer(self, record, status=200):
        content = json.dumps(record).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *args):
        """Say nothing."""


@pytest.fixture
def hub(monkeypatch):
    needs.package("huggingface_hub")
    server = HTTPServer(("127.0.0.1", 0), Hub)
    server.address = f"http://127.0.0.1:{server.server_port}"
    server.store = {"files": {}, "tokens": set()}
    threading.Thread(target=server.serve_forever, daemon=True).start()
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", server.address)
    monkeypatch.setattr("huggingface_hub.hf_api.constants.ENDPOINT", server.address)
    monkeypatch.setenv("HF_TOKEN", "hf_right")
    yield server
    server.shutdown()
    server.server_close()


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "README.md").write_text("---\nlicense: apache-2.0\n---\n# a policy\n")
    (tmp_path / "out" / "model.safetensors").write_bytes(bytes(range(256)))
    return tmp_path / "out"


def test_a_folder_is_uploaded_into_a_private_repository(hub, folder):
    address = push(open_hub("me/policy"), folder, "me/policy", lambda line: None)
    assert address.endswith("/me/policy")
    assert hub.store["files"] == {path.name: path.read_bytes() for path in folder.iterdir()}
    repository = hub.store["repository"]
    assert repository["name"] == "policy"
    assert repository.get("private") is True or repository.get("visibility") == "private"  # as newer clients say it


def test_a_token_that_the_hub_refuses_is_one_error_with_the_way_on(hub, folder, monkeypatch):
    monkeypatch.setenv("HF_TOKEN", "hf_wrong")
    with pytest.raises(AccessError, match=r"is exported, but was not uploaded to me/policy.*hf upload me/policy"):
        push(open_hub("me/policy"), folder, "me/policy", lambda line: None)
    assert hub.store["files"] == {}


def test_a_hub_that_cannot_be_reached_is_one_error(hub, folder):
    client = open_hub("me/policy")
    client.endpoint = "http://127.0.0.1:9"
    with pytest.raises(AccessError, match="check the network"):
        push(client, folder, "me/policy", lambda line: None)


def test_without_a_token_or_with_no_name_nothing_is_exported(hub, monkeypatch, tmp_path):
    monkeypatch.setattr("huggingface_hub.get_token", lambda: None)
    with pytest.raises(ConfigError, match="there is no token"):
        open_hub("me/policy")
    with pytest.raises(ConfigError, match="expected OWNER/NAME"):
        open_hub("me/policy/more of it")
