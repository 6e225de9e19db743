"""One server's HTTP, against a plain server: kept connections, and which failures are whose."""

import socket
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from steadyrl.backends.vllm import http as vllm_http
from steadyrl.backends.vllm.http import Absent, Http, ServerDown
from steadyrl.core.errors import EngineError


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    timeout = 5

    def do_GET(self):
        code = int(self.path.rsplit("/", 1)[1])
        self.server.asked.append(self.path)
        self.send_response(code)
        body = b'{"error": {"message": "so it is"}}' if code >= 400 else b'"fine"'
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
        self.close_connection = self.server.forgets

    def log_message(self, *args):
        pass


class Server(ThreadingHTTPServer):
    daemon_threads = False
    forgets, connections = False, 0

    def get_request(self):
        self.connections += 1
        return super().get_request()


@pytest.fixture
def server(monkeypatch):
    monkeypatch.setattr(vllm_http, "FIRST_WAIT_S", 0.01)
    with Server(("127.0.0.1", 0), Handler) as plain:
        plain.asked = []
        thread = threading.Thread(target=plain.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        plain.http = Http(f"http://127.0.0.1:{plain.server_port}/prefix/", 5.0, "start it")
        yield plain
        plain.http.close()
        plain.shutdown()
        thread.join()


def test_one_connection_serves_many_requests(server):
    assert [server.http.json("/200", None, "testing") for _ in range(5)] == ["fine"] * 5
    assert server.asked == ["/prefix/200"] * 5 and server.connections == 1


def test_requests_that_must_not_be_made_twice_are_made_once_each_on_their_own_connection(server):
    once = Http(server.http.url, 5.0, "start it", once=True)
    assert [once.json("/200", None, "testing") for _ in range(3)] == ["fine"] * 3
    with pytest.raises(ServerDown):
        once.ask("/503", None, "testing")
    assert server.connections == len(server.asked) == 4


def test_a_connection_that_the_server_has_closed_is_replaced_at_once(server, monkeypatch):
    monkeypatch.setattr(vllm_http, "ATTEMPTS", 1)
    server.forgets = True  # it does not say so in its answers
    assert [server.http.json("/200", None, "testing") for _ in range(3)] == ["fine"] * 3
    assert server.connections == 3


@pytest.mark.parametrize(
    ("code", "kind", "tried"), [(400, EngineError, 1), (404, Absent, 1), (500, ServerDown, 1), (503, ServerDown, 3)]
)
def test_a_failure_is_the_servers_or_the_requests(server, code, kind, tried):
    with pytest.raises(EngineError, match=f"/prefix/{code} answers {code}: so it is") as caught:
        server.http.ask(f"/{code}", None, "testing")
    assert type(caught.value) is kind and len(server.asked) == tried


def test_a_server_that_is_gone_is_one_line_with_the_phase():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        http = Http(f"http://127.0.0.1:{free.getsockname()[1]}", 5.0, "vllm serve it")
    with pytest.raises(ServerDown, match=r"no vLLM server answers at .* while testing; start one with `vllm serve it`"):
        http.ask("/200", None, "testing")


def test_a_late_answer_is_one_line_with_the_phase_and_is_not_asked_for_again():
    with socket.create_server(("127.0.0.1", 0)) as silent:
        http = Http(f"http://127.0.0.1:{silent.getsockname()[1]}", 0.1, "vllm serve it")
        with pytest.raises(ServerDown, match=r"/200 does not answer within 0.1 s while testing; raise sampler\.args\."):
            http.ask("/200", None, "testing")
        silent.accept()[0].close()
        silent.settimeout(0.05)
        with pytest.raises(TimeoutError):
            silent.accept()
