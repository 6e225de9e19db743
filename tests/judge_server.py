"""A scripted chat endpoint: answers as a test says, honestly or with every fault that servers have."""

import json
import re
import socket
import ssl
import struct
import threading
import time
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import SimpleNamespace


@contextmanager
def judge_server(respond, certificate=None):
    """Serve ``respond(exchange)`` on a free port; yields url, exchanges so far, and a way to stop it for good.

    An exchange has ``body``, ``headers``, ``number`` (from 0) and ``handler``; what ``respond`` returns as text is sent
    as the assistant's message, None means that it has answered by itself. With a certificate and its key it speaks TLS.
    """
    exchanges, lock = [], threading.Lock()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self):
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            with lock:
                exchange = SimpleNamespace(body=body, headers=self.headers, number=len(exchanges), handler=self)
                exchanges.append(exchange)
            text = state.respond(exchange)
            if text is not None:
                send(exchange, 200, chat(text))

        def log_message(self, *_):
            pass

    class Server(ThreadingHTTPServer):
        daemon_threads = True
        request_queue_size = 64

        def handle_error(self, *_):  # the client went away, as it should in some tests
            pass

    server = Server(("127.0.0.1", 0), Handler)
    if certificate is not None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(*certificate)
        server.socket = context.wrap_socket(server.socket, server_side=True)
    url = f"http{'s' if certificate else ''}://127.0.0.1:{server.server_address[1]}/v1"
    state = SimpleNamespace(url=url, exchanges=exchanges, respond=respond, stop=None)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()

    def stop():
        server.shutdown()
        server.server_close()

    state.stop = stop
    try:
        yield state
    finally:
        stop()
        thread.join()


def chat(text, usage=True, ended="stop"):
    """Return the body of a chat completion."""
    choice = {"index": 0, "message": {"content": text}, "finish_reason": ended}
    found = {"id": "x", "object": "chat.completion", "choices": [choice]}
    if usage:
        found["usage"] = {"prompt_tokens": 100, "completion_tokens": 20, "total_tokens": 120}
    return json.dumps(found).encode()


def send(exchange, status, body, **headers):
    """Answer with a status and a whole body."""
    handler = exchange.handler
    handler.send_response(status)
    for name, value in {"Content-Length": len(body), **headers}.items():
        handler.send_header(name.replace("_", "-"), str(value))
    handler.end_headers()
    handler.wfile.write(body)


def seen(exchange):
    """Return what a judge sees: the request, its answers by label, the label of a tie, the fence."""
    text = exchange.body["messages"][1]["content"]
    fence = re.search(r"code of all fences here is (\w+)\.", text)[1]
    answers = re.findall(rf"^{fence} begin answer with the label (\w+)\n(.*?)\n{fence} end$", text, re.M | re.S)
    request = re.search(rf"^{fence} begin request\n(.*?)\n{fence} end$", text, re.M | re.S)
    tie = re.search(r"label for a tie is (\w+)\.", text)
    return SimpleNamespace(request=request[1], answers=dict(answers), tie=tie and tie[1], fence=fence, text=text)


def scalar(grade, criteria=("correct", "clear", "concise")):
    """Return an honest judge of single answers: ``grade(text)`` from 0 to 10, for every criterion."""

    def respond(exchange):
        ((label, text),) = seen(exchange).answers.items()
        return json.dumps({"reason": "so it is", "candidate": label, "scores": dict.fromkeys(criteria, grade(text))})

    return respond


def pairwise(better):
    """Return a judge of two: ``better(first, second)`` is 0, 1 or None for a tie."""

    def respond(exchange):
        found = seen(exchange)
        (a, first), (b, second) = found.answers.items()
        winner = {0: a, 1: b, None: found.tie}[better(first, second)]
        return json.dumps({"reason": "so it is", "winner": winner})

    return respond


def group(grade):
    """Return a judge of many: ``grade(text)`` from 0 to 100."""

    def respond(exchange):
        scores = {label: grade(text) for label, text in seen(exchange).answers.items()}
        return json.dumps({"reason": "so it is", "scores": scores})

    return respond


def status(code, **headers):
    """Return a server that refuses everything."""

    def respond(exchange):
        send(exchange, code, json.dumps({"error": {"message": f"no: {code}"}}).encode(), **headers)

    return respond


def drip(exchange):
    """Send a byte now and then, forever; no single read takes long."""
    handler = exchange.handler
    handler.send_response(200)
    handler.send_header("Content-Length", "100000")
    handler.end_headers()
    _slowly(handler, b" " * 100_000)


def drip_headers(exchange):
    """Send the headers a byte at a time, forever."""
    _slowly(exchange.handler, b"HTTP/1.1 200 OK\r\nX-Slow: " + b"a" * 60_000)


def _slowly(handler, data):
    for byte in data:
        handler.wfile.write(bytes([byte]))
        handler.wfile.flush()
        time.sleep(0.02)


def hang_up(exchange):
    """Close without an answer, as a server does that is killed."""
    connection = exchange.handler.connection
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    connection.close()


def half(exchange):
    """Promise more than is sent, then close only one direction."""
    handler = exchange.handler
    handler.send_response(200)
    handler.send_header("Content-Length", "5000")
    handler.end_headers()
    handler.wfile.write(chat("cut")[:40])
    handler.wfile.flush()
    handler.connection.shutdown(socket.SHUT_WR)
