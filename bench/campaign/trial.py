"""What a trial is: an attack with a promise, and how its end is judged."""

from __future__ import annotations

import contextlib
import io
import json
import random
import signal
import sys
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from steadyrl.cli.main import main
from steadyrl.core.errors import SteadyError

Failure = str  # what broke the promise; empty where it held
Attack = Callable[[random.Random, Path], Failure]

LONGEST = 10_000  # characters on standard error of a command that refuses: notes, and one line
STRANGE: tuple[Any, ...] = (
    None, True, False, 0, 1, -1, 2**31, 2**63, 10**30, 10**400, 0.0, -0.5, 1e-300, 1e300, float("inf"), float("nan"),
    "", " ", "x", "~", "~/x", "/", "/dev/null", "a\0b", "ü\u202e\x1b[31m", "\ud800", "x" * 5000, "../" * 40, "{}",
    "1e9", [], [[]], [None], ["x", 1], {}, {"a": {"b": []}}, {"": None},
)  # fmt: skip


class TooSlowError(BaseException):
    """A trial used up its processor time; not an Exception, so that no code under attack can catch it as one."""


@contextlib.contextmanager
def processor_time(seconds: float) -> Iterator[None]:
    """Interrupt what takes longer; of processor time, so that a busy machine breaks no promise."""

    def stop(*_: object) -> None:
        raise TooSlowError

    before = signal.signal(signal.SIGPROF, stop)
    signal.setitimer(signal.ITIMER_PROF, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)


def refused_or_done(call: Callable[[], object], seconds: float) -> Failure:
    """Call something: it may do its work, or refuse it with one of our errors, within the time."""
    try:
        with processor_time(seconds):
            call()
    except SteadyError as error:
        return "" if str(error).strip() else f"{type(error).__name__} without a word"
    except TooSlowError:
        return f"not over after {seconds:g} s of processor time"
    except KeyboardInterrupt:
        raise
    except (
        BaseException
    ) as error:  # what no caller expects is what the campaign looks for; a panic of Rust is no Exception
        place = traceback.extract_tb(error.__traceback__)[-1]
        return f"{type(error).__name__} at {Path(place.filename).name}:{place.lineno}: {str(error)[:200]!r}"
    return ""


def command(arguments: list[str], seconds: float) -> Failure:
    """Run the command line in this process: exit code 0, 1 or 2, and with 2 exactly one line of error."""
    said, codes = io.StringIO(), []
    before, sys.argv = sys.argv, ["steadyrl", *arguments]

    def call() -> None:
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(said):
            try:
                main()
            except SystemExit as end:
                codes.append(end.code)

    try:
        failure = refused_or_done(call, seconds)
    finally:
        sys.argv = before
    if failure:
        return f"steadyrl {arguments[0]}: {failure}"
    if len(said.getvalue()) > LONGEST and codes == [2]:
        return f"steadyrl {arguments[0]}: {len(said.getvalue())} characters for one error: {said.getvalue()[:200]!r}"
    errors = [line for line in said.getvalue().splitlines() if line.startswith("error: ")]
    if codes not in ([0], [1], [2]) or (codes == [2]) != (len(errors) == 1):
        return f"steadyrl {arguments[0]}: exit codes {codes}, {len(errors)} errors: {said.getvalue()[-200:]!r}"
    return ""


def changed_value(value: Any, rng: random.Random) -> Any:
    """Return a JSON value with one place of it replaced, removed, repeated or nested."""
    if isinstance(value, dict) and value and rng.random() < 0.85:
        name = rng.choice(list(value))
        if rng.random() < 0.1:
            return {key: item for key, item in value.items() if key != name}
        return {**value, name: changed_value(value[name], rng)}
    if isinstance(value, list) and value and rng.random() < 0.85:
        at = rng.randrange(len(value))
        if rng.random() < 0.1:
            return value[:at] + value[at:] * 2
        return [*value[:at], changed_value(value[at], rng), *value[at + 1 :]]
    if isinstance(value, int | float) and abs(value) < 1e9 and rng.random() < 0.3:
        return rng.choice((-value, value * 10**6, value + 0.5, str(value), [value]))
    return rng.choice(STRANGE)


def changed_text(text: str, rng: random.Random) -> bytes:
    """Return the bytes of a file with some of them changed: torn, repeated, nested deep, or of another encoding."""
    data = bytearray(text.encode("utf-8", "surrogatepass"))
    for _ in range(rng.choice((1, 1, 2, 5))):
        at = rng.randrange(len(data) + 1)
        match rng.randrange(7):
            case 0:
                data[at : at + 1] = bytes([rng.randrange(256)])
            case 1:
                del data[at:]
            case 2:
                data[at : at + rng.randint(1, 30)] = b""
            case 3:
                data[at:at] = rng.choice(
                    (b"[", b"]", b"{", b"}", b'"', b",", b"\n", b"\0", b"\xff\xfe", b"1e999", b"-")
                )
            case 4:
                data[at:at] = b"[" * rng.choice((70, 2000, 100_000))
            case 5:
                data[at:at] = data[at : at + 200] * rng.choice((1, 2, 50))
            case _:
                data[at:at] = b'{"a":' * 3000 + b"1" + b"}" * 3000
    return bytes(data)


def changed_json(text: str, rng: random.Random) -> bytes:
    """Return a JSON text with a changed value, or with changed bytes."""
    if rng.random() < 0.4:
        return changed_text(text, rng)
    value = json.loads(text)
    for _ in range(rng.choice((1, 1, 2, 4))):
        value = changed_value(value, rng)
    return json.dumps(value).encode()


def changed_lines(text: str, rng: random.Random) -> bytes:
    """Return JSON lines of which some are changed, left out, repeated or in another order."""
    if rng.random() < 0.3:
        return changed_text(text, rng)
    lines = text.splitlines()
    for _ in range(rng.choice((1, 1, 2, 4))):
        if not lines:
            break
        at = rng.randrange(len(lines))
        match rng.randrange(5):
            case 0:
                del lines[at]
            case 1:
                lines.insert(rng.randrange(len(lines) + 1), lines[at])
            case _:
                with contextlib.suppress(ValueError):  # a line that was changed before and is no JSON any more
                    lines[at] = json.dumps(changed_value(json.loads(lines[at]), rng))
    return "".join(line + "\n" for line in lines).encode("utf-8", "surrogatepass")
