"""What must not be seen: a key, in whatever form a server sends it back, and what is named like one in a request."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

_HIDDEN = "[key]"
_SHORTEST = 8  # characters of a key whose encoded forms are looked for; of a shorter one they stand in any text
_NAMES = ("authorization", "apikey", "secret", "password", "passwd", "cookie", "credential", "bearer", "accesskey")


class Secret:
    """A key, to be found and hidden: as it is, quoted for an address, escaped in JSON or HTML, in base64 or as hex."""

    def __init__(self, key: str):
        """Take the key; an empty one stands nowhere."""
        forms = ["".join(map(_spellings, key))]
        if len(key) >= _SHORTEST:
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
            if token or any(part in plain for part in _NAMES):
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
    for before in range(3):
        encoded = base64.b64encode(b"\0" * before + data).decode().rstrip("=")
        first = -(-8 * before // 6)
        last = 8 * (before + len(data)) // 6
        part = encoded[first:last]
        yield from {part, part.replace("+", "-").replace("/", "_")}
