import json

import pytest

from steadyrl.core.config import resolve
from steadyrl.core.errors import ConfigError, without_keys
from steadyrl.loop.rewards.judge.panel import VerdictCache
from steadyrl.loop.rewards.judge.settings import JudgeSettings, Secret, named_like_a_key
from steadyrl.loop.rewards.judge.verdicts import Verdict

KEY = "sk-proj-0123456789abcdefXYZ"
BASE = {"model": "m", "base_url": "http://localhost:8000/v1"}


def refusal(**settings):
    """Return why the settings of a judge are refused."""
    with pytest.raises(ConfigError) as caught:
        resolve({"task": {"args": {"corpus": "generated"}}, "rewards": {"judge": {**BASE, **settings}}})
    return str(caught.value)


@pytest.mark.parametrize(
    "settings",
    [
        {"request": {"Authorization": f"Bearer {KEY}"}},
        {"request": {"extra_headers": {"X-Api-Key": "plain-text-1"}}},
        {"request": {"a": [{"b": {"session_token": "plain-text-1"}}]}},
        {"request": {"client-secret": "plain-text-1"}},
        {"request": {"Set-Cookie": "plain-text-1"}},
        {"request": {"userPassword": "plain-text-1"}},
        {"request": {"note": f"use {KEY}"}},
        {"request": {f"{KEY}": 1}},
        {"model": KEY},
        {"base_url": f"http://localhost:8000/{KEY}/v1"},
        {"criteria": {"correct": f"say {KEY}"}},
        {"model": [KEY]},
        {"base_url": {"at": KEY}},
        {"key_env": [KEY]},
        {"key_env": KEY},
        {"request": KEY},
        {"workers": KEY},
        {"mode": KEY},
        {"criteria": {"correct": [KEY]}},
    ],
)
def test_what_may_be_a_key_is_refused_and_never_shown(settings):
    said = refusal(**settings)
    assert "rewards.judge." in said
    assert all(part not in said for part in (KEY[8:], "plain-text"))


def test_a_judge_that_is_a_key_is_refused_and_not_shown():
    with pytest.raises(ConfigError) as caught:
        resolve({"rewards": {"judge": KEY}})
    assert KEY[8:] not in str(caught.value)


@pytest.mark.parametrize("name", ["model", "base_url", "request"])
def test_the_key_of_the_environment_is_refused_in_settings_whatever_its_form(name, monkeypatch):
    monkeypatch.setenv("A_KEY", "correct horse".replace(" ", "-"))
    texts = {
        "model": "correct-horse",
        "base_url": "http://localhost/v1/correct%2Dhorse",
        "request": {"u": "CORRECT-horse"},
    }
    said = refusal(**{name: texts[name]}, key_env="A_KEY")
    assert f"rewards.judge.{name} holds a key" in said
    assert "horse" not in said


def test_ordinary_fields_of_requests_are_no_keys():
    request = {
        "max_tokens": 5,
        "stop_token_ids": [1],
        "add_bos_token": True,
        "skip_special_tokens": False,
        "logit_bias": {"7": 1},
    }
    assert not list(named_like_a_key(request))
    names = "gpt-4o-mini Qwen/Qwen2.5-0.5B-Instruct meta-llama/Llama-3.1-8B hf-internal-testing/tiny-random-gpt2"
    for text in (*names.split(), "basic arithmetic-without-tables"):
        assert without_keys(text) == text
    resolve({"task": {"args": {"corpus": "generated"}}, "rewards": {"judge": {**BASE, "request": request}}})


def test_a_text_without_the_key_stays_as_it_is():
    text = json.dumps({"reason": "so it is ü\ud800"}) + "%41&#65;\\u0041"
    assert Secret(KEY).hide(text) == text
    assert Secret("").hide(text) == text


DAMAGED = [
    '{"values": [0.5], "parts": [1], "reason": ""}',
    '{"values": [1' + "0" * 400 + '], "parts": {}, "reason": ""}',
    '{"values": [7], "parts": {}, "reason": ""}',
    '{"values": 1, "parts": {}}',
    "[" * 100_000,
    "[]",
]


@pytest.mark.parametrize("entry", DAMAGED)
def test_an_entry_of_the_cache_that_is_none_is_asked_for_again(entry, tmp_path):
    cache = VerdictCache(JudgeSettings(cache=str(tmp_path), **BASE))
    cache.put("request", ["text"], Verdict((0.5,), reason="fine"))
    assert cache.get("request", ["text"]) == Verdict((0.5,), reason="fine")
    (file,) = tmp_path.rglob("*.json")
    file.write_text(entry)
    assert cache.get("request", ["text"]) is None


@pytest.mark.parametrize("address", [f"http://{'a' * 64}.org/v1", "http://ü.org/v1", "http://localhost/ü"])
def test_an_address_that_no_request_can_name_is_refused(address):
    assert "rewards.judge.base_url: expected an address" in refusal(base_url=address)
