import base64
import email.utils
import http.client
import json
import subprocess
import threading
import time
import urllib.parse

import pytest

from steadyrl.core.errors import ConfigError
from steadyrl.loop.rewards.judge.client import ChatClient, NoReplyError, retry_after
from steadyrl.loop.rewards.judge.settings import JudgeSettings
from tests import judge_server as servers
from tests import needs
from tests.judge_server import judge_server

KEY = "sk-test-0123456789abcdef"
HELLO = [{"role": "user", "content": "hello"}]
# A limit that does not hold lasts the 20 seconds of ``ask`` or longer, whatever else the machine does.
SOON = 12.0


def client(url, **settings):
    return ChatClient(JudgeSettings(base_url=url, model="m", **settings))


def ask(url, seconds=20.0, **settings):
    return client(url, **settings).ask(HELLO, time.monotonic() + seconds)


def refusal(url, seconds=20.0, **settings):
    """Return why there was no reply, how many requests were made, and the seconds that it took."""
    began = time.monotonic()
    with pytest.raises(NoReplyError) as caught:
        ask(url, seconds, **settings)
    return str(caught.value), caught.value.requests, time.monotonic() - began


def in_turn(*responses):
    return lambda exchange: responses[min(exchange.number, len(responses) - 1)](exchange)


def says(text):
    return lambda exchange: text


def test_the_text_and_the_token_counts_come_back():
    with judge_server(says("well")) as server:
        reply = ask(server.url, request={"temperature": 0.5})
    assert (reply.text, reply.tokens, reply.requests) == ("well", (100, 20), 1)
    assert server.exchanges[0].body == {"temperature": 0.5, "model": "m", "messages": HELLO}


def test_an_endpoint_that_counts_no_tokens_leaves_them_unknown():
    def respond(exchange):
        servers.send(exchange, 200, servers.chat("well", usage=False))

    with judge_server(respond) as server:
        assert ask(server.url).tokens is None


@pytest.mark.parametrize("fault", [servers.status(500), servers.status(429), servers.hang_up, servers.half])
def test_what_may_succeed_is_tried_again(fault):
    with judge_server(in_turn(fault, says("well"))) as server:
        reply = ask(server.url)
    assert (reply.text, reply.requests) == ("well", 2)


@pytest.mark.parametrize("code", [400, 401, 404, 422])
def test_what_cannot_succeed_is_not_tried_again(code):
    with judge_server(servers.status(code)) as server:
        reason, requests, _ = refusal(server.url)
    assert requests == 1
    assert f"it answers {code}: no: {code}" in reason


def test_an_address_or_a_model_that_is_not_there_names_its_settings():
    with judge_server(servers.status(404)) as server:
        assert refusal(server.url)[0].endswith("look at rewards.judge.base_url and rewards.judge.model")


def test_garbage_in_place_of_a_completion_is_named():
    def respond(exchange):
        servers.send(exchange, 200, b"<html>Bad gateway</html>")

    with judge_server(respond) as server:
        reason, requests, _ = refusal(server.url, retries=1)
    assert requests == 2
    assert "no chat completion: <html>Bad gateway</html>" in reason


def test_a_storm_of_429_ends_after_the_tries():
    with judge_server(servers.status(429)) as server:
        reason, requests, seconds = refusal(server.url, retries=2)
    assert (requests, len(server.exchanges)) == (3, 3)
    assert "429" in reason
    assert 0.75 <= seconds < SOON  # half of 0.5 s and of 1 s at least


def test_retry_after_is_waited_for():
    with judge_server(in_turn(servers.status(429, Retry_After=1), says("well"))) as server:
        began = time.monotonic()
        ask(server.url)
        assert time.monotonic() - began >= 1.0


def test_retry_after_holds_for_all_requests_of_the_client():
    with judge_server(in_turn(servers.status(503, Retry_After=1), says("well"))) as server:
        shared = client(server.url)
        first = threading.Thread(target=shared.ask, args=(HELLO, time.monotonic() + 20))
        began = time.monotonic()
        first.start()
        while shared._not_before == 0:
            time.sleep(0.01)
        shared.ask(HELLO, time.monotonic() + 20)
        first.join()
        assert time.monotonic() - began >= 1.0
        assert len(server.exchanges) == 3


def test_a_wait_past_the_deadline_is_not_begun():
    with judge_server(servers.status(429, Retry_After=3600)) as server:
        reason, requests, seconds = refusal(server.url)
    assert requests == 1
    assert seconds < SOON
    assert "3600 s would come after rewards.judge.deadline_s" in reason


@pytest.mark.parametrize("fault", [servers.drip, servers.drip_headers])
def test_a_slow_drip_ends_at_the_limit_of_one_answer(fault):
    with judge_server(fault) as server:
        reason, requests, seconds = refusal(server.url, request_s=0.5, read_s=10.0, retries=0)
    assert 0.4 <= seconds < SOON
    assert requests == 1
    assert "not complete after rewards.judge.request_s = 0.5 s" in reason


def test_a_drip_behind_a_slow_connection_ends_at_once(monkeypatch):
    connect = http.client.HTTPConnection.connect

    def slowly(self):
        time.sleep(0.7)
        connect(self)

    monkeypatch.setattr(http.client.HTTPConnection, "connect", slowly)
    with judge_server(servers.drip) as server:
        reason, _, seconds = refusal(server.url, request_s=0.3, read_s=10.0, retries=0)
    assert 0.6 <= seconds < SOON
    assert "not complete after rewards.judge.request_s = 0.3 s" in reason


def test_the_deadline_of_a_verdict_holds_over_all_its_tries():
    with judge_server(servers.drip) as server:
        _, _, seconds = refusal(server.url, seconds=1.5, request_s=0.6, retries=20)
    assert seconds < SOON


def test_a_server_that_says_nothing_ends_at_the_limit_of_one_read():
    def respond(exchange):
        time.sleep(30)

    with judge_server(respond) as server:
        reason, _, seconds = refusal(server.url, read_s=0.3, retries=0)
    assert 0.2 <= seconds < SOON
    assert "rewards.judge.read_s = 0.3 s" in reason


def test_an_endless_answer_is_not_read_to_its_end():
    def respond(exchange):
        exchange.handler.send_response(200)
        exchange.handler.end_headers()
        for _ in range(200):
            exchange.handler.wfile.write(b" " * (1 << 16))

    with judge_server(respond) as server:
        reason, _, _ = refusal(server.url, retries=0)
    assert "more than 4 MiB" in reason


def test_a_dead_server_is_named():
    with judge_server(says("")) as server:
        pass
    reason, requests, _ = refusal(server.url, retries=1)
    assert requests == 2
    assert f"no server answers at {server.url} (connection refused)" in reason


def test_a_client_that_is_stopped_waits_no_longer():
    with judge_server(servers.status(429, Retry_After=15)) as server:
        asking = client(server.url)
        threading.Timer(0.3, asking.stop).start()
        began = time.monotonic()
        with pytest.raises(NoReplyError, match="the run stopped asking"):
            asking.ask(HELLO, began + 60)
        assert time.monotonic() - began < SOON


def test_redirects_are_not_followed_so_that_no_key_goes_astray(monkeypatch):
    monkeypatch.setenv("A_KEY", KEY)
    with judge_server(says("thief")) as thief, judge_server(servers.status(302, Location=thief.url)) as server:
        reason, _, _ = refusal(server.url, key_env="A_KEY")
        assert thief.exchanges == []
    assert "302" in reason


def test_the_key_is_sent_as_bearer_and_only_where_one_is_named(monkeypatch):
    monkeypatch.setenv("A_KEY", f" {KEY}\n")
    with judge_server(says("well")) as server:
        ask(server.url, key_env="A_KEY")
        ask(server.url)
    assert server.exchanges[0].headers["Authorization"] == f"Bearer {KEY}"
    assert "Authorization" not in server.exchanges[1].headers


def echoes_the_key(exchange):
    return f"you said {exchange.headers['Authorization']}"


def refuses_with_the_key(exchange):
    # 190 characters before it: cutting first would leave a part of the key
    said = {"error": {"message": "x" * 190 + exchange.headers["Authorization"].split()[1]}}
    servers.send(exchange, 401, json.dumps(said).encode())


def garbage_with_the_key(exchange):
    servers.send(exchange, 200, ("y" * 190 + exchange.headers["Authorization"].split()[1]).encode())


def escapes_the_key(exchange):
    key = "z" * 190 + "".join(f"\\u{ord(letter):04x}" for letter in KEY)
    servers.send(exchange, 401, f'{{"error": {{"message": "{key}"}}}}'.encode())


def test_a_key_that_the_server_sends_back_is_taken_out_of_the_text(monkeypatch):
    monkeypatch.setenv("A_KEY", KEY)
    with judge_server(echoes_the_key) as server:
        assert ask(server.url, key_env="A_KEY").text == "you said Bearer [key]"


@pytest.mark.parametrize("respond", [refuses_with_the_key, garbage_with_the_key, escapes_the_key])
def test_a_key_that_the_server_sends_back_is_in_no_error(respond, monkeypatch):
    monkeypatch.setenv("A_KEY", KEY)
    with judge_server(respond) as server:
        reason, _, _ = refusal(server.url, key_env="A_KEY", retries=0)
    assert KEY[:10] not in reason


def test_a_missing_key_names_the_variable():
    with pytest.raises(ConfigError, match="the environment variable NO_SUCH_KEY is not set"):
        client("http://localhost:1", key_env="NO_SUCH_KEY")


def test_a_key_that_no_header_can_carry_is_refused_without_being_shown(monkeypatch):
    monkeypatch.setenv("A_KEY", "sk-secret\nX-Other: 1")
    with pytest.raises(ConfigError, match="no header can carry") as caught:
        client("http://localhost:1", key_env="A_KEY")
    assert "secret" not in str(caught.value)


def test_retry_after_is_a_number_or_a_date_and_never_negative():
    now = 1_800_000_000.0
    assert retry_after("7", now) == 7.0
    assert retry_after(email.utils.formatdate(now + 90, usegmt=True), now) == 90.0
    assert retry_after(email.utils.formatdate(now - 90, usegmt=True), now) == 0.0
    assert [retry_after(text, now) for text in (None, "", "soon", "-3", "inf", "nan")] == [0.0] * 6


@pytest.fixture
def certificate(tmp_path, monkeypatch):
    """Make a certificate for 127.0.0.1 that the system trusts meanwhile; return certificate and key."""
    needs.skip_without("openssl")
    crt, key = tmp_path / "crt.pem", tmp_path / "key.pem"
    command = [
        "openssl",
        "req",
        "-x509",
        "-newkey",
        "ec",
        "-pkeyopt",
        "ec_paramgen_curve:prime256v1",
        "-nodes",
        "-days",
        "2",
    ]
    command += ["-subj", "/CN=judge", "-addext", "subjectAltName=IP:127.0.0.1", "-keyout", str(key), "-out", str(crt)]
    subprocess.run(command, check=True, capture_output=True)
    monkeypatch.setenv("SSL_CERT_FILE", str(crt))
    return crt, key


def test_tls_is_spoken_under_the_same_deadline(certificate):
    with judge_server(in_turn(says("well"), servers.drip), certificate) as server:
        assert server.url.startswith("https://")
        asking = client(server.url, request_s=0.5, retries=0)
        assert asking.ask(HELLO, time.monotonic() + 20).text == "well"
        began = time.monotonic()
        with pytest.raises(NoReplyError, match=r"judge\.request_s = 0\.5 s"):
            asking.ask(HELLO, began + 20)
        assert time.monotonic() - began < SOON


def test_certificates_are_read_where_the_address_asks_for_tls_only(monkeypatch):
    reads = []
    monkeypatch.setattr("ssl.create_default_context", lambda: reads.append(1))
    client("http://127.0.0.1:1/v1")
    assert reads == []
    client("HTTPS://127.0.0.1:1/v1")
    assert reads == [1]


def test_a_certificate_that_nobody_vouches_for_is_refused_before_the_key_is_sent(certificate, monkeypatch):
    monkeypatch.delenv("SSL_CERT_FILE")
    monkeypatch.setenv("A_KEY", KEY)
    with judge_server(says("well"), certificate) as server:
        reason, _, _ = refusal(server.url, key_env="A_KEY", retries=0)
        assert server.exchanges == []
    assert "CERTIFICATE_VERIFY_FAILED" in reason or "certificate verify failed" in reason


def sends_raw(data):
    """Return a server that writes bytes in place of HTTP and closes."""

    def respond(exchange):
        exchange.handler.wfile.write(data)
        exchange.handler.close_connection = True

    return respond


SPELLED = {
    "as it is": KEY,
    "for an address": urllib.parse.quote_plus("".join(f"%{ord(letter):02X}" for letter in KEY)),
    "for JSON": "".join(f"\\u{ord(letter):04X}" for letter in KEY),
    "for HTML": "".join(f"&#{ord(letter)};" for letter in KEY),
    "in base64": base64.b64encode(KEY.encode()).decode(),
    "in base64, with the name of the scheme": base64.b64encode(f"Bearer {KEY}".encode()).decode(),
    "in base64, as a user's": base64.urlsafe_b64encode(f":{KEY}:x".encode()).decode(),
    "as hex": KEY.encode().hex(),
    "in other letters": KEY.upper(),
}


@pytest.mark.parametrize("form", SPELLED)
def test_the_key_leaves_the_client_in_no_form(form, monkeypatch):
    monkeypatch.setenv("A_KEY", KEY)
    echo = SPELLED[form]
    with judge_server(says(f"well: {echo}.")) as server:
        text = ask(server.url, key_env="A_KEY").text
    assert "[key]" in text
    assert echo[8:-8] not in text
    with judge_server(sends_raw(f"{'x' * 180}{echo}\r\n".encode())) as server:  # a malformed status line
        reason, _, _ = refusal(server.url, key_env="A_KEY", retries=0)
    assert "BadStatusLine" in reason
    assert all(echo[at : at + 8] not in reason for at in range(len(echo) - 8))


@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.1 302 Found\r\nLocation: http://[bad\r\nContent-Length: 0\r\n\r\n",
        b"HTTP/1.1 308 Found\r\nLocation: \xff:\x01//\r\nContent-Length: 0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n-5\r\nabc\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nfffffffffffffffffff\r\nabc\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 99999999999999999999\r\n\r\nabc",
        b"HTTP/1.1 500 Bad\r\nTransfer-Encoding: chunked\r\n\r\n-5\r\nabc\r\n",
        b"HTTP/1.1 503 Wait\r\nRetry-After: Mon, 99 Foo 99999999999 99:99:99 -9999\r\nContent-Length: 0\r\n\r\n",
        b"\x00\xff\xfe",
    ],
)
def test_an_answer_that_is_hardly_http_is_a_failure_like_any_other(answer):
    with judge_server(sends_raw(answer)) as server:
        _, requests, _ = refusal(server.url, retries=0)
    assert requests == 1


@pytest.mark.parametrize("count", [10**400, -1, True, "7", None, 1.5])
def test_token_counts_that_are_none_are_unknown(count):
    body = {"choices": [{"message": {"content": "well"}}], "usage": {"prompt_tokens": count, "completion_tokens": 1}}

    def respond(exchange):
        servers.send(exchange, 200, json.dumps(body).encode())

    with judge_server(respond) as server:
        assert ask(server.url).tokens is None


def test_an_answer_nested_without_end_is_no_completion():
    def respond(exchange):
        servers.send(exchange, 200, b"[" * 100_000)

    with judge_server(respond) as server:
        reason, _, _ = refusal(server.url, retries=0)
    assert "no chat completion" in reason
