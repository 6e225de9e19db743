"""A small server of vLLM's API that samples from a tiny model, and what a test sets wrong on it."""

import copy
import functools
import json
import threading
import time
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from steadyrl.core import config
from tests import needs

torch = needs.package("torch")
transformers = needs.package("transformers")


LOADING = threading.Lock()  # transformers does not load two models at the same time


@functools.cache
def first(folder):
    """Return the model that servers start with, of which each has a copy."""
    return load(folder)


def load(folder):
    with LOADING:
        return transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()


class Served:
    """What the server does: sampling with transformers' plain forward, and what a test sets wrong."""

    def __init__(self, folder, eos_id):
        self.counting, self.open, self.most_at_once = threading.Lock(), 0, 0
        self.lock, self.asked, self.answers, self.keys = threading.Lock(), [], {}, []
        self.models, self.adapters = ["tiny"], {}
        self.model = self.base = copy.deepcopy(first(folder))
        self.folder, self.eos_id = folder, eos_id
        self.raw, self.reloads, self.slow_s = False, True, 0.0
        self.change = lambda choice: choice
        self.version = "default"
        self.device, self.budget, self.transfer = "cuda", 32768, None
        self.dead = False  # what it does not answer any more
        self.keeps = frozenset()  # names of weights that it does not take over, though it says so

    def answer(self, path, body):
        """Return (status, body) for a request; ``answers`` holds what a test wants said instead, in order."""
        with self.counting:
            self.open += path == "/v1/completions"
            self.most_at_once = max(self.most_at_once, self.open)
        try:
            return self.answer_alone(path, body)
        finally:
            with self.counting:
                self.open -= path == "/v1/completions"

    def answer_alone(self, path, body):
        with self.lock:
            self.asked.append((path, body))
            time.sleep(self.slow_s)
            if self.answers.get(path):
                return self.answers[path].pop(0)
            if path == "/v1/models":
                loaded = [{"id": name, "parent": "tiny"} for name in self.adapters]
                return 200, {"data": [*loaded, *({"id": name, "parent": None} for name in self.models)]}
            if path == "/v1/completions":
                return 200, {"choices": [self.change(self.complete(body))]}
            if path == "/collective_rpc":
                assert body["method"] == "reload_weights"
                if self.reloads:
                    new, old = load(body["kwargs"]["weights_path"]), self.model.state_dict()
                    new.load_state_dict({n: old[n] if n in self.keeps else t for n, t in new.state_dict().items()})
                    self.model = new
                return 200, {"results": [None]}
            if path.startswith("/server_info"):
                settings = {"device_config": {"device": self.device}}
                settings["scheduler_config"] = {"max_num_batched_tokens": self.budget}
                settings["weight_transfer_config"] = {"backend": self.transfer} if self.transfer else None
                return 200, {"vllm_config": settings}
            if path == "/get_world_size":
                return 200, {"world_size": 2}
            if path == "/weight_checker":
                return 200, {"checksums": {f"dp0:tp0:{name}": "" for name, _ in self.model.named_parameters()}}
            if path == "/update_weight_version":
                self.version = body["new_version"]
            if path == "/weight_info":
                return 200, {"weight_version": self.version}
            if path == "/v1/load_lora_adapter":
                import peft

                assert body["lora_name"] not in self.adapters
                adapted = peft.PeftModel.from_pretrained(copy.deepcopy(first(self.folder)), body["lora_path"]).eval()
                self.adapters[body["lora_name"]] = adapted
            if path == "/v1/unload_lora_adapter":
                del self.adapters[body["lora_name"]]
            return 200, "Success"

    def complete(self, body):
        model = self.adapters.get(body["model"], self.model)
        generator = torch.Generator().manual_seed(body["seed"])
        ids, logprobs, reason = list(body["prompt"]), [], "length"
        for _ in range(body["max_tokens"]):
            with torch.no_grad():
                logits = model(torch.tensor([ids])).logits[0, -1]
            warped = logits / body["temperature"]
            if body["top_k"]:
                warped = warped.masked_fill(warped < warped.topk(body["top_k"]).values[-1], -torch.inf)
            token = int(torch.multinomial(warped.softmax(-1), 1, generator=generator))
            logprobs.append(float((logits if self.raw else warped).log_softmax(-1)[token]))
            ids.append(token)
            if token in body["stop_token_ids"] or (token == self.eos_id and not body["ignore_eos"]):
                reason = "stop"
                break
        new = ids[len(body["prompt"]) :] if body["return_token_ids"] else None
        return {"token_ids": new, "logprobs": {"token_logprobs": logprobs}, "finish_reason": reason, "text": "..."}

    def paths(self):
        return [path for path, _ in self.asked]


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"  # connections are kept, as vLLM keeps them
    timeout = 5  # seconds: one that the client forgot must not keep the test waiting for ever

    def do_GET(self):
        self.reply(None)

    def do_POST(self):
        self.reply(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))

    def reply(self, body):
        if self.server.served.dead:
            self.close_connection = True
            return
        self.server.served.keys.append(self.headers["Authorization"])
        status, found = self.server.served.answer(self.path, body)
        raw = found if isinstance(found, bytes) else (found if isinstance(found, str) else json.dumps(found)).encode()
        try:
            self.send_response(status)
            self.send_header("Content-Length", str(len(raw)))
            self.end_headers()
            self.wfile.write(raw)
        except ConnectionError:  # the client has stopped waiting
            self.close_connection = True

    def log_message(self, *args):
        pass


class Server(ThreadingHTTPServer):
    request_queue_size = 64
    connections = 0
    daemon_threads = False  # closing waits for them: the next test must not load a model at the same time

    def get_request(self):
        self.connections += 1
        return super().get_request()


@contextmanager
def serving(folder):
    """Serve the model of a folder; ``served`` is what the server does, ``url`` where it is."""
    with Server(("127.0.0.1", 0), Handler) as http:
        http.served = Served(folder, eos_id=1)
        http.url = f"http://127.0.0.1:{http.server_port}"
        thread = threading.Thread(target=http.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield http
        finally:
            http.shutdown()
            thread.join()


def settings(server, folder, tmp_path, *overrides):
    """Return the settings of a run whose completions come from a server."""
    return config.resolve(
        {
            "model": {"path": str(folder)},
            "backend": {"device": "cpu", "threads": 1},
            "sampler": {
                "engine": "vllm",
                "args": {"url": server.url, "folder": str(tmp_path / "served"), "requests": 4},
            },
            "rewards": {"length": 1.0},
        },
        overrides,
    )
