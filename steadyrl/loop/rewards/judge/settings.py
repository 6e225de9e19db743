"""The judge's settings, and what is wrong with them; and a key, which must stand in none of them, in whatever form."""

from __future__ import annotations

import base64
import json
import os
import re
from collections.abc import Iterator, Mapping
from typing import Any, Literal
from urllib.parse import urlsplit

from pydantic import Field

from steadyrl.core.sections import FolderText, PathText, RewardSettings

_HIDDEN = "[key]"
# Characters. Encoded forms of a shorter key stand in any text, and servers that check nothing take "x" or "none", which
# stand in many names.
_SHORTEST_KEY = 8
_KEY_NAMES = ("authorization", "apikey", "secret", "password", "passwd", "cookie", "credential", "bearer", "accesskey")


class JudgeSettings(RewardSettings):
    """The AI judge (see rewards/judge.md)."""

    costly = True
    confidential = True
    free_on_resume = frozenset({"base_url", "key_env", "workers", "retries", "max_failed"})  # the server may move

    mode: Literal["scalar", "pairwise", "group", "likelihood"] = Field("scalar")
    """'scalar' grades each rollout by the criteria. 'pairwise' compares two rollouts in both orders. 'group' grades all
    rollouts of a problem in one request. 'likelihood' scores with a local model and needs no server."""
    base_url: str = ""
    """Address of an OpenAI-compatible chat endpoint, such as http://localhost:8000/v1. An address that must stay secret
    stands in an environment variable: '$JUDGE_URL'."""
    model: PathText = ""
    """Name of the model at the endpoint. For 'likelihood': a Hugging Face model folder, or 'base'."""
    key_env: str = Field("", description="Name of the environment variable that holds the API key. Empty sends no key.")
    criteria: dict[str, str] = Field(
        default_factory=lambda: {
            "correct": "it does what the request asks, in every case",
            "clear": "a reader understands it at once",
            "concise": "nothing in it could be left out",
        }
    )
    """What the judge looks for, by name. 'scalar' grades each criterion. 'pairwise' and 'group' weigh them together."""
    request: dict[str, Any] = Field(default_factory=lambda: {"temperature": 0.0, "max_tokens": 512})
    """Additional fields of every request, as the endpoint defines them."""
    gate: str = ""
    """Name of a reward of the task. Rollouts for which it is below 1 get 0 from the judge without a request. Empty
    disables the gate."""
    opponents: int = Field(2, ge=1, le=64)
    """For 'pairwise': maximum number of comparisons that each rollout starts. It takes part in up to twice as many."""
    workers: int = Field(8, ge=1, le=256, description="Maximum number of requests at the same time.")
    connect_s: float = Field(5.0, gt=0, le=600, description="Seconds to wait for a connection.")
    read_s: float = Field(60.0, gt=0, le=3600, description="Seconds to wait for the next bytes of an answer.")
    request_s: float = Field(90.0, gt=0, le=3600, description="Maximum seconds for one complete answer.")
    deadline_s: float = Field(240.0, gt=0, le=86400)
    """Maximum seconds for one verdict, including retries, waits and the repair request."""
    retries: int = Field(3, ge=0, le=20)
    """Number of retries after status 429, status 5xx, or a broken connection."""
    max_failed: float = Field(0.5, ge=0, lt=1)
    """Share of verdicts that may fail within the window. A larger share stops the run."""
    window: int = Field(10, ge=1, le=100)
    """Number of recent scorings (one per step) over which max_failed is measured."""
    cache: FolderText = Field("runs/judge-cache")
    """Folder in which verdicts are cached by content. Runs can share it. Empty disables the cache."""
    price_in: float = Field(0.0, ge=0, description="Price of a million input tokens, for the metric judge/cost.")
    price_out: float = Field(0.0, ge=0, description="Price of a million output tokens.")
    baseline: PathText = ""
    """For 'likelihood': a second model folder to compare with. Empty compares with the same model without the
    request."""
    nats: float = Field(1.0, gt=0)
    """For 'likelihood': log-likelihood ratio in nats per token at which the score is 0.73."""


def problems(settings: JudgeSettings) -> list[str]:
    """Return what is wrong with the settings of a judge."""
    defects = [*_address_problems(os.path.expandvars(settings.base_url)), *_key_problems(settings)]
    if settings.key_env and not re.fullmatch(r"[A-Z_][A-Z0-9_]*", settings.key_env):
        defects.append(
            "rewards.judge.key_env: expected the name of an environment variable in capitals, such as OPENAI_API_KEY; "
            "the key itself must not stand in a config"
        )
    reserved = {"model", "messages", "stream", "n", "api_key"} & set(settings.request)
    if reserved:
        defects.append(
            f"rewards.judge.request: '{min(reserved)}' cannot be set here; expected fields such as temperature"
        )
    if not _is_json(settings.request):
        defects.append("rewards.judge.request holds a date or a number that is not finite; expected what JSON can hold")
    if not settings.criteria:
        defects.append(
            "rewards.judge.criteria is empty; expected at least one, as in correct = 'it does what is asked'"
        )
    if not settings.model:
        defects.append("rewards.judge.model is empty; give the name of the model that judges")
    if settings.mode != "likelihood" and not settings.base_url:
        defects.append(
            "rewards.judge.base_url is empty; give the address of a chat endpoint, such as http://localhost:8000/v1, "
            "or set rewards.judge.mode = 'likelihood' for a judge that needs none"
        )
    return defects


def _is_json(value: Any) -> bool:
    try:
        json.dumps(value, allow_nan=False)
    except (TypeError, ValueError):
        return False
    return True


def _key_problems(settings: JudgeSettings) -> list[str]:
    """Say where a key stands, or what looks like one: settings are written into every run and shown on screens."""
    advice = "export it in the environment variable that rewards.judge.key_env names, and remove it here"
    defects = []
    if any(named_like_a_key(settings.request)):
        defects.append(f"rewards.judge.request has a field that is named like a key; {advice}")
    key = os.environ.get(settings.key_env, "").strip()
    secret = Secret(key if len(key) >= _SHORTEST_KEY else "")
    for name in ("base_url", "model", "request", "criteria", "gate", "cache", "baseline"):
        if secret.stands_in(json.dumps(getattr(settings, name), default=str)):
            defects.append(f"rewards.judge.{name} holds a key; {advice}")
    return defects


def _address_problems(address: str) -> list[str]:
    if not address:
        return []
    expected = ["rewards.judge.base_url: expected an address such as http://localhost:8000/v1"]
    if not address.isascii() or re.search(r"[\s\x00-\x1f\x7f]", address):
        return expected  # urlsplit would drop some of it, and ask elsewhere than the text says
    try:
        url = urlsplit(address)
        (url.hostname or "").encode("idna")  # a part of a name has at most 63 letters
        if url.scheme not in ("http", "https") or not url.hostname or url.port == 0:
            return expected
    except ValueError:  # half an IPv6 address, or a port that is no number up to 65535
        return expected
    if url.username or url.password or url.query or url.fragment:
        return [
            "rewards.judge.base_url has a user, a password or a query in it, which would be written into every run; "
            "expected the plain address, and the key in the environment variable that rewards.judge.key_env names"
        ]
    return []


class Secret:
    """A key, to be found and hidden: as it is, quoted for an address, escaped in JSON or HTML, in base64 or as hex."""

    def __init__(self, key: str):
        """Take the key; an empty one stands nowhere."""
        forms = ["".join(map(_spellings, key))]
        if len(key) >= _SHORTEST_KEY:
            data = key.encode()
            forms += [data.hex(), *map(re.escape, _base64_parts(data))]
        self._pattern = re.compile("|".join(forms), re.IGNORECASE) if key else None

    def hide(self, text: str) -> str:
        """Return a text without the key."""
        return self._pattern.sub(_HIDDEN, text) if self._pattern else text

    def stands_in(self, text: str) -> bool:
        """Say whether the key is in a text."""
        return self._pattern is not None and self._pattern.search(text) is not None


def named_like_a_key(value: Any) -> Iterator[str]:
    """Yield the names, however deep in tables and lists, under which programs keep keys."""
    if isinstance(value, Mapping):
        for name, inner in value.items():
            plain = re.sub(r"[^a-z0-9]", "", str(name).lower())
            # max_tokens and stop_token_ids are fields of requests, and add_bos_token is true or false.
            token = plain.endswith("token") and isinstance(inner, str)
            if token or any(part in plain for part in _KEY_NAMES):
                yield str(name)
            yield from named_like_a_key(inner)
    elif isinstance(value, list | tuple):
        for inner in value:
            yield from named_like_a_key(inner)


def _spellings(letter: str) -> str:
    """Return a pattern of one letter in all the ways in which texts write it."""
    code = ord(letter)
    ways = [
        re.escape(letter),
        re.escape(json.dumps(letter)[1:-1]),
        rf"(?:\\u00|\\x|%(?:25)*){code:02x}",
        rf"&\#0*{code};",
        rf"&\#x0*{code:x};",
    ]
    return f"(?:{'|'.join(dict.fromkeys(ways))})"


def _base64_parts(data: bytes) -> Iterator[str]:
    """Yield what base64 makes of data wherever they begin in a longer text, without the letters shared with others."""
    for before in range(3):  # base64 writes three bytes at a time
        encoded = base64.b64encode(b"\0" * before + data).decode().rstrip("=")
        first = -(-8 * before // 6)
        last = 8 * (before + len(data)) // 6
        inner = encoded[first:last]
        yield from {inner, inner.replace("+", "-").replace("/", "_")}
