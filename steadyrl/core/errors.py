"""Every error that steadyrl raises on purpose.

A user can fix all of them: the command line prints such an error in one line and ends with exit code 2.
Each message says what was got, what was expected, and what to do next.
"""

from __future__ import annotations

import re
import sys
import sysconfig
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path

# C0 and C1 controls apart from newline and tab, the marks that reorder text, and halves of surrogate pairs.
_CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")
# The forms of keys that services hand out, and of what stands in a header in front of one.
_FORMS = re.compile(
    r"\b[spr]k[-_][\w-]{16,}|\b(?:hf|gsk|ghp|gho|ghs)_[A-Za-z0-9]{20,}|\b(?:xai|nvapi|glpat)-[\w-]{16,}"
    r"|\bAKIA[A-Z0-9]{12,}|\bAIza[\w-]{20,}|\beyJ[\w-]{10,}\.[\w-]{10,}"
    r"|\b(?i:bearer|basic)\s+(?=\S*\d)[\w.~+/=-]{16,}"
    r"|(?<=://)[^/\s@'\"]+(?=@)"  # user and password in an address
)
# A name under which programs keep keys, with its value behind it; special tokens of models stand in brackets.
_NAMED = re.compile(
    r"(?i)((?:api[-_]?key|access[-_]?key|secret|passw(?:or)?d|credentials?|authorization|cookie|(?<![a-z])token)"
    r"[\"']?\s*[:=]\s*[\"']?)((?:bearer\s+|basic\s+)?(?![<\[])[^\s\"',;&]{6,})"
)
_HIDDEN = "[key]"
_CELL = re.compile(r"python-input|ipykernel_")  # in the names under which notebooks and prompts compile, of no file
_LONGEST = 500  # characters of an exception's text


class SteadyError(Exception):
    """Anything that a user can fix."""

    def _render_traceback_(self) -> list[str]:  # is called by notebooks
        return users_traceback(self)


class ConfigError(SteadyError, ValueError):
    """A setting is unknown, of the wrong type, or out of range."""


class DataError(SteadyError, ValueError):
    """A corpus, a problem set or a reward gave something malformed."""


class ModelError(SteadyError, ValueError):
    """A model folder is missing, incomplete or of an unknown kind."""


class RunError(SteadyError, ValueError):
    """A folder is not a run directory, or a file in it cannot be read."""


class CheckpointError(SteadyError, ValueError):
    """A checkpoint is incomplete or damaged."""


class MissingExtraError(SteadyError, ImportError):
    """An optional package is not installed."""


class AccessError(SteadyError, OSError):
    """A file or folder cannot be written."""


class EngineError(SteadyError, ConnectionError):
    """An outside engine does not answer, or not with what is needed."""


class RankError(SteadyError, RuntimeError):
    """Another rank of a run on several GPUs died, failed or hangs; nothing can be computed any more."""


class DivergedError(SteadyError, ArithmeticError):
    """A gradient or a loss is not finite; the weights are left as they were before."""


class EpisodeError(SteadyError, RuntimeError):
    """The environment of an episode broke; its rollout is unscored, and the others go on."""


def printable(text: str) -> str:
    """Return a text whose control characters are replaced by their codes, so that a terminal obeys none of them."""
    return _CONTROLS.sub(lambda match: ascii(match.group())[1:-1], text)


def without_keys(text: str, named: bool = True) -> str:
    """Return a text with "[key]" in the place of what looks like a key, or like user and password in an address.

    Args:
        text: Anything that is shown or written.
        named: Also hide what stands behind a name such as api_key, in whatever form.
    """
    text = _FORMS.sub(_HIDDEN, text)
    return _NAMED.sub(rf"\1{_HIDDEN}", text) if named else text


def exception_line(error: BaseException) -> str:
    """Return what an exception says that code of somebody else raised, in one short line that is safe to print.

    The text of an exception may be megabytes long, act on terminals, or raise when it is asked for.
    """
    try:
        text = str(error)
    except Exception as second:  # whatever its __str__ does
        text = f"its text cannot be had, which raises {type(second).__name__}"
    line = without_keys(" ".join(text[: 4 * _LONGEST].split()))
    excerpt = line if len(line) <= _LONGEST else f"{line[:_LONGEST]} ..."
    return printable(f"{type(error).__name__:.100}: {excerpt}" if excerpt else type(error).__name__[:100])


def raised_line(error: BaseException) -> str:
    """Return ``exception_line`` with the file and the line of the user's own code that raised it, where that did."""
    return exception_line(error) + users_line(traceback.extract_tb(error.__traceback__))


def users_traceback(error: BaseException) -> list[str]:
    """Return what a notebook shows of an exception that is no fault: the lines of the user's own code, and its text."""
    frames = filter(_is_users, traceback.extract_tb(error.__traceback__))
    lines = [f"{_place(frame)}\n    {frame.line}\n" for frame in frames]
    return [*lines, f"{type(error).__name__}: {printable(str(error))}".removesuffix(": ")]


def users_line(frames: traceback.StackSummary) -> str:
    """Return the file and the line of ``_users_frame`` in brackets, behind a space; "" where there is none."""
    frame = _users_frame(frames)
    return f" ({_place(frame)})" if frame else ""


def _users_frame(frames: traceback.StackSummary) -> traceback.FrameSummary | None:
    """Return the last frame of the user's own code, which may have called a library; None if this package came last."""
    last = next((frame for frame in reversed(frames) if _is_users(frame) or _is_ours(frame)), None)
    return None if last is None or _is_ours(last) else last


def _is_ours(frame: traceback.FrameSummary) -> bool:
    return Path(frame.filename).resolve().is_relative_to(Path(__file__).resolve().parent.parent)


def _is_users(frame: traceback.FrameSummary) -> bool:
    file = Path(frame.filename).resolve()
    if not file.is_file():
        return bool(_CELL.search(frame.filename))
    # Of installed code: the folders of Python itself, and all on its path that packages were installed into.
    return not _is_ours(frame) and not any(map(file.is_relative_to, _installed(tuple(sys.path))))


def _place(frame: traceback.FrameSummary, whole: bool = False) -> str:
    """Return the line of a frame with its file, whole or by its name, or with its cell as the notebook numbers it."""
    path = Path(frame.filename).resolve()
    name = str(path) if whole and path.is_file() else path.name
    ipython = sys.modules.get("IPython")
    compiler = getattr(ipython.get_ipython() if ipython else None, "compile", None)
    name_of = getattr(compiler, "format_code_name", lambda filename: None)  # which versions before 8 have not
    return f"{' '.join(name_of(frame.filename) or (name,))}, line {frame.lineno}"


@lru_cache(maxsize=1)  # a reward may fail for each of thousands of rollouts, and folders of packages are large
def _installed(path: tuple[str, ...]) -> tuple[Path, ...]:
    installed = [Path(folder) for folder in path if any(Path(folder or ".").glob("*.dist-info"))]
    return tuple(folder.resolve() for folder in (*map(Path, sysconfig.get_paths().values()), *installed))


@contextmanager
def users_errors() -> Iterator[None]:
    """Let an exception of the user's own code (a task, an algorithm, ...) come out as one line that says where.

    What this package raised, or a library that it called, is no fault of theirs and keeps its traceback.

    Raises:
        ConfigError: With the file and the line.
    """
    try:
        yield
    except (SteadyError, KeyboardInterrupt):
        raise
    except BaseException as error:  # whatever a user's code raises, as pytest.fail; the traceback tells whose it is
        if frame := _users_frame(traceback.extract_tb(error.__traceback__)):
            location = f"{_place(frame, whole=True)}, in {frame.name}"
            raise ConfigError(f"your own code raised {exception_line(error)} ({location}); fix it") from error
        raise


def require_posix(feature: str) -> None:
    """Refuse (SteadyError) what needs Linux or macOS: locks, limits and processes as POSIX has them."""
    if sys.platform == "win32":
        raise SteadyError(
            f"{feature} needs Linux or macOS, and this is Windows, where steadyrl only reads logs and runs (doctor, "
            "report, metrics, web); use WSL, a container or another machine"
        )
