"""The run directory: the only interface between programs, and the only file that knows its file names.

    config.toml  resolved.json  run.json
    metrics.jsonl               one line per step, flushed
    findings.jsonl              what the doctor raised and cleared meanwhile, one line each
    actions.jsonl               what the autopilot did or advised, with its evidence, one line each
    curriculum.jsonl            which problems each step took, why, and what came of it; not for passes in order
    rollouts/000012.jsonl       prompts, completions, reward parts, stop reason; tokens/000050.jsonl: single tokens
    evaluations/before.jsonl    one line per held-out problem; after.jsonl likewise, baselines.json beside them
    checkpoints/000200/         policy/  value_head.safetensors  optimizer.safetensors  reference/  state.json  DONE
    trackers/  report/

Files are appended line by line or written whole and renamed. A torn last line is ignored by readers; a resumed run
appends with ``attempt`` + 1, and readers keep the highest attempt of each step.
"""

from __future__ import annotations

import errno
import hashlib
import json
import math
import os
import platform
import re
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from datetime import datetime
from pathlib import Path
from typing import Any, NoReturn

from steadyrl.core.arguments import checked
from steadyrl.core.errors import AccessError, RunError
from steadyrl.core.places import settings_read
from steadyrl.core.types import DECODINGS, Decoding
from steadyrl.core.words import counted

DONE = "DONE"
# Where another type would mislead whoever reads run.json; what a name may lack is None.
_KINDS_OF_INFO: dict[str, Any] = {
    **dict.fromkeys(("id", "status", "error", "task", "metric", "algorithm", "tokenizer"), str),
    **dict.fromkeys(("attempt", "heldout"), int),
    **dict.fromkeys(("packages", "machine", "process", "policy", "data", "code", "best", "stopped_early"), dict),
    "command": str | list,
    "processor_s": int | float,
    "accepted_data": list,
}
JOBS = "runs"  # in the folder of a study or a search: it holds a folder for each run
_MOST_STEPS = 10**9  # no run has more steps or attempts; a number beyond is no number of a step
_NO_LOCKS = "its file system has no locks (flock); set run.folder to a local disk, or mount it with locks"
_REMEDIES = {
    errno.EFBIG: "raise the limit of `ulimit -f`",
    errno.EISDIR: "expected the name of a file",
    errno.EROFS: "its file system is read-only; write to another folder, or use a copy that is elsewhere",
    **dict.fromkeys((errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS), _NO_LOCKS),
}
DEEPEST = 64  # lists and objects inside one another, in a file that is read
_LFS_POINTER = b"version https://git-lfs"  # how such a file begins
MOST_CHARACTERS = 1 << 26  # of a line of JSON that is read, or bytes


class _RunPath:
    """A file or folder of a run directory, by its name."""

    def __init__(self, name: str):
        self._name = name

    def __get__(self, run: RunDir, _: type[RunDir]) -> Path:
        return run.path / self._name


@checked
class RunDir:
    """Paths and records of one run."""

    info_file = _RunPath("run.json")  # what the run is: command, machine, packages, status, times
    resolved_file = _RunPath("resolved.json")  # every setting, defaults included
    config_file = _RunPath("config.toml")  # the user's own config, as it was given
    metrics_file = _RunPath("metrics.jsonl")  # one line per step
    findings_file = _RunPath("findings.jsonl")  # what the doctor raised and cleared meanwhile, one line each
    actions_file = _RunPath("actions.jsonl")  # what the autopilot did or advised, one line each
    curriculum_file = _RunPath("curriculum.jsonl")  # which problems each step took, and why, one line per step
    report_folder = _RunPath("report")  # where ``steadyrl report`` writes
    trackers_folder = _RunPath("trackers")  # how far each tracker was sent, and the files of those that write here

    def __init__(self, path: Path | str):
        self.path = Path(path)

    def __fspath__(self) -> str:
        """Return the path: a run stands wherever a path does, as in ``steadyrl.diagnose(run)``."""
        return str(self.path)

    def __repr__(self) -> str:
        return f"{type(self).__name__}('{self.path}')"

    @classmethod
    def create(cls, folder: Path | str, name: str) -> RunDir:
        """Make a new run directory ``<time>-<name>``; a second one in the same second gets a suffix.

        Raises:
            AccessError: The folder cannot be written.
        """
        stamp = datetime.now().strftime("%Y%m%d-%H%M%S")
        for suffix in ("", *(f"-{i}" for i in range(2, 100))):
            path = Path(folder) / f"{stamp}-{name}{suffix}"
            try:
                path.mkdir(parents=True)
            except OSError as error:
                if isinstance(error, FileExistsError) and path.is_dir():
                    continue
                raise AccessError(f"{not_written(path, error)}, or set run.folder to another folder") from error
            return cls(path)
        raise AccessError(f"could not find a free name for a run in '{folder}'; remove old runs or choose another")

    @classmethod
    def open(cls, path: Path | str) -> RunDir:
        """Open an existing run directory, or the only one in a folder: studies and searches make a folder for each run.

        Raises:
            RunError: It is none, or the folder holds several.
        """
        run = cls(path)
        if not run.path.is_dir():
            if run.path.is_file():
                raise RunError(
                    f"'{path}' is a file and no run directory; runs are made by `steadyrl train`, under runs/, and "
                    "`steadyrl doctor` reads logs of other trainers"
                )
            raise RunError(f"there is no run directory '{path}'; runs are made by `steadyrl train`, under runs/")
        if (only := cls.find(path)) is not None:
            return only
        runs = run._runs_below("*", "*/*", f"{JOBS}/*/*")  # the last two are those of a study or a search
        hint = f"; it holds {counted(len(runs), 'run')}, such as '{runs[-1]}': name one of them" if runs else ""
        raise RunError(f"'{path}' is not a run directory: it has no {run.info_file.name}{hint}")

    @classmethod
    def find(cls, path: Path | str) -> RunDir | None:
        """Return the run directory at a path, or the only one in the folder there; None for none or several."""
        run = cls(path)
        if run.info_file.is_file():
            return run
        runs = run._runs_below("*")
        return cls(runs[0]) if len(runs) == 1 else None

    def _runs_below(self, *patterns: str) -> list[Path]:
        files = (file for pattern in patterns for file in self.path.glob(f"{pattern}/{self.info_file.name}"))
        return sorted(file.parent for file in files)

    @contextmanager
    def writing(self) -> Iterator[None]:
        """Hold the run as its only writer, in a folder that is made where there is none.

        The system lets go of it when the process ends, however that happens.

        Raises:
            RunError: Another process holds it.
            AccessError: The lock cannot be written.
        """
        import fcntl  # not on Windows, where runs can still be read

        with ExitStack() as stack:
            path = self.path / "writer.lock"
            try:
                self.path.mkdir(parents=True, exist_ok=True)
                # "ab+", since "wb" would erase the holder's line before the lock is had.
                file = stack.enter_context(path.open("ab+", buffering=0))
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                file.truncate(0)
                file.write(f"{os.getpid()} on {platform.node()}\n".encode())
            except BlockingIOError as error:
                file.seek(0)
                holder = file.read().decode("utf-8", "replace").strip() or "unknown"
                raise RunError(
                    f"another process is training '{self.path}' (process {holder}); wait for it to end, or stop it"
                ) from error
            except OSError as error:
                raise not_written(path, error) from error
            yield

    def rollouts_file(self, step: int) -> Path:
        """Return the file of a step's recorded rollouts."""
        return self.path / "rollouts" / f"{step:06d}.jsonl"

    def tokens_file(self, step: int) -> Path:
        """Return the file of what was measured at single tokens of some rollouts of a step."""
        return self.path / "rollouts" / "tokens" / f"{step:06d}.jsonl"

    def evaluation_file(self, name: str, heldout_set: str = "") -> Path:
        """Return the file of a held-out evaluation ("before", "after", "baselines"), of a set of ``evaluate.sets``."""
        return self.path / "evaluations" / heldout_set / f"{name}.jsonl"

    def heldout_sets(self) -> list[str]:
        """Return the sets of ``evaluate.sets`` that have evaluations, sorted."""
        return sorted({file.parent.name for file in (self.path / "evaluations").glob("*/*.jsonl")})

    def checkpoint_folder(self, step: int) -> Path:
        """Return the folder of a checkpoint taken after ``step`` steps."""
        return self.path / "checkpoints" / f"{step:06d}"

    def checkpoints(self) -> list[int]:
        """Return the steps of complete checkpoints, oldest first."""
        root = self.path / "checkpoints"
        return sorted(int(p.name) for p in root.glob("*") if re.fullmatch(r"\d{6,}", p.name) and (p / DONE).is_file())

    def metrics(self) -> list[dict[str, Any]]:
        """Return one record per step, the highest attempt of each, in step order."""
        latest: dict[int, dict[str, Any]] = {}
        for record in read_lines(self.metrics_file):
            if is_metrics(record) and record["attempt"] >= latest.get(record["step"], record)["attempt"]:
                latest[record["step"]] = record
        return [latest[step] for step in sorted(latest)]

    def actions(self) -> list[dict[str, Any]]:
        """Return what the autopilot did or advised; what a resumed run repeated stands there once."""
        lines = (line for line in read_lines(self.actions_file) if _is_action(line))
        return list({json.dumps(line, sort_keys=True): line for line in lines}.values())

    def findings(self) -> list[dict[str, Any]]:
        """Return what the doctor raised and cleared while the run went on, oldest first."""
        return list(read_lines(self.findings_file))

    def evaluations(self, heldout_set: str = "") -> dict[str, list[dict[str, Any]]]:
        """Return the held-out evaluations by name ("before", "after", "baselines"), one record per problem."""
        folder = self.path / "evaluations" / heldout_set
        return {file.stem: list(read_lines(file)) for file in sorted(folder.glob("*.jsonl"))}

    @property
    def status(self) -> str:
        """Return "running", "finished", "interrupted" or "failed"; a killed run still says "running"."""
        return str(self.info().get("status", "unknown"))

    def info(self) -> dict[str, Any]:
        """Return run.json.

        Raises:
            RunError: It is missing or damaged.
        """
        info = read_json(self.info_file)
        for name, kinds in _KINDS_OF_INFO.items():
            if not isinstance(info.get(name), kinds | None):
                kind = type(info[name]).__name__
                raise RunError(f"'{self.info_file}' is damaged: '{name}' is {kind}; restore the file")
        accepted = info.get("accepted_data") or ()
        if not all(
            isinstance(acceptance, dict) and isinstance(acceptance.get("data"), dict) for acceptance in accepted
        ):
            raise RunError(f"'{self.info_file}' is damaged: 'accepted_data' holds no data; restore the file")
        return info

    def resolved(self) -> dict[str, Any]:
        """Return every setting of the run.

        Raises:
            RunError: The file is missing or damaged.
        """
        settings = read_json(self.resolved_file)
        settings_read(self.resolved_file)
        for name, section in settings.items():
            if not isinstance(section, dict):
                raise RunError(f"'{self.resolved_file}' is damaged: '{name}' is no section of settings; restore it")
        return settings

    @property
    def deploy(self) -> Decoding:
        """How the run's policy will be used (evaluate.deploy); "sampled" for runs that recorded no such setting.

        Raises:
            RunError: The file of its settings is damaged.
        """
        settings = self.resolved() if self.resolved_file.is_file() else {}
        recorded = settings.get("evaluate", {}).get("deploy", DECODINGS[0])
        for decoding in DECODINGS:
            if recorded == decoding:
                return decoding
        raise RunError(f"'{self.resolved_file}' is damaged: evaluate.deploy is {recorded!r}; restore it")


def _is_action(record: Mapping[str, Any]) -> bool:
    """Say whether a line of actions.jsonl has the form that the autopilot writes (see autopilot.action.action_line)."""
    texts = all(isinstance(record.get(name), str) for name in ("kind", "knob", "why"))
    numbers = all(type(record.get(name)) in (int, float, type(None)) for name in ("before", "after"))
    evidence = record.get("evidence")
    listed = isinstance(evidence, list) and all(isinstance(line, str) for line in evidence)
    return texts and numbers and listed and type(record.get("step")) is int


def append_line(path: Path, record: Mapping[str, Any]) -> None:
    """Append one JSON line and flush it; makes the folder if needed.

    Non-finite numbers are written as the strings "NaN", "Infinity", "-Infinity": JSON has none, and null is "unknown".
    A line that an earlier writer left torn is closed first, so that it costs no line but itself.

    Raises:
        AccessError: The file cannot be written.
    """
    line = _storable(json.dumps(_plain(record), ensure_ascii=False, allow_nan=False)) + b"\n"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("ab+") as file:
            if file.tell() > 0:
                file.seek(-1, os.SEEK_END)
                if file.read(1) != b"\n":
                    line = b"\n" + line
            file.write(line)
    except OSError as error:
        raise not_written(path, error) from error


def write_lines(path: Path, records: list[dict[str, Any]]) -> None:
    """Write a whole file of JSON lines: beside its place first, then renamed."""
    text = "".join(json.dumps(_plain(r), ensure_ascii=False, allow_nan=False) + "\n" for r in records)
    write_text(path, text)


def write_json(path: Path, record: Mapping[str, Any]) -> None:
    """Write a whole JSON file: beside its place first, then renamed."""
    write_text(path, json.dumps(_plain(record), ensure_ascii=False, allow_nan=False, indent=2) + "\n")


def write_text(path: Path, text: str) -> None:
    """Write a whole text file in UTF-8, see ``write_bytes``."""
    write_bytes(path, _storable(text))


def write_bytes(path: Path, content: bytes) -> None:
    """Write a whole file: beside its place first, then renamed, so that readers see the old or the new.

    A device or a pipe, such as /dev/stdout, is written as it is.

    Raises:
        AccessError: The folder cannot be written.
    """
    temporary = path.parent / f"{path.name}.part"  # with_name raises for the current folder, which has no name
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.exists() and not path.is_file():
            path.write_bytes(content)
            return
        temporary.write_bytes(content)
        temporary.replace(path)
    except OSError as error:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)
        raise not_written(path, error) from error


def readable_as_usual(folder: Path) -> None:
    """Let those read the files of a folder who may read what this process writes: safetensors lets its owner alone."""
    probe = folder / ".mode"
    probe.touch()
    usual = probe.stat().st_mode  # as the umask says, which cannot be asked for without changing it
    probe.unlink()
    for file in folder.rglob("*"):
        if file.is_file() and not file.is_symlink():
            file.chmod(file.stat().st_mode | usual)


def _storable(text: str) -> bytes:
    # Halves of surrogate pairs, which models and servers write, become the escapes of JSON.
    return text.encode("utf-8", "backslashreplace")


def not_written(path: Path, error: OSError) -> AccessError:
    """Return the error of a file or folder that cannot be written, with what is in the way."""
    if file := next((parent for parent in path.parents if os.path.lexists(parent) and not parent.is_dir()), None):
        obstacle = "a file" if file.exists() else "a link that leads nowhere"
        return AccessError(f"cannot write '{path}': '{file}' is {obstacle}; expected a folder, or a name not yet taken")
    remedy = _REMEDIES.get(error.errno or 0, "free some space or fix the permissions")
    return AccessError(f"cannot write '{path}': {error.strerror or error}; {remedy}")


def appended(path: Path, start: int = 0) -> Iterator[tuple[int, int, dict[str, Any]]]:
    """Yield the lines of a JSON-lines file from a byte on: where each begins and ends, and its record.

    The record of a line that is no object, or of a part of a line that is too long, is empty. A last line without its
    end is still being written, and is left for later.
    """
    for line in _lines(path, start):
        if not line.endswith(b"\n") and len(line) < MOST_CHARACTERS:
            return
        begin, start = start, start + len(line)
        yield begin, start, json_object(line) or {}


def read_lines(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the records of a JSON-lines file; lines that are torn, too long or no object are skipped."""
    for line in _lines(path, 0) if path.is_file() else ():
        if (record := json_object(line)) is not None:
            yield {key: _NON_FINITE.get(v, v) if isinstance(v, str) else v for key, v in record.items()}


def _lines(path: Path, start: int) -> Iterator[bytes]:
    """Yield the lines of a file from a byte on, those that are too long in parts; nothing where there is no file."""
    with suppress(FileNotFoundError), path.open("rb") as file:
        file.seek(start)
        yield from iter(lambda: file.readline(MOST_CHARACTERS), b"")


def read_json(path: Path) -> dict[str, Any]:
    """Return a JSON object.

    Raises:
        RunError: It is missing or damaged.
    """
    try:
        with path.open(encoding="utf-8-sig") as file:  # some editors begin a file with a byte-order mark
            text = file.read(MOST_CHARACTERS + 1)
        if len(text) > MOST_CHARACTERS:
            raise ValueError(f"it has more than {MOST_CHARACTERS:,} characters")
        record = parse_json(text)
    except (OSError, ValueError) as error:
        raise RunError(f"cannot read '{path}' ({error}); is it the run directory of `steadyrl train`?") from error
    if not isinstance(record, dict):
        raise RunError(f"'{path}' holds {type(record).__name__}; expected a JSON object: the file is damaged")
    return record


def parse_json(text: str, strict: bool = False) -> Any:
    """Return what a JSON text holds, at most ``DEEPEST`` lists and objects inside one another.

    Args:
        text: The JSON.
        strict: Refuse what Python reads without a word: NaN and the infinities, and a key that an object has twice.

    Raises:
        ValueError: It is no JSON, or nested deeper.
    """
    try:
        parsed = _STRICT.decode(text) if strict else json.loads(text)
    except RecursionError as error:
        raise ValueError(f"it is nested deeper than {DEEPEST} levels") from error
    # Brackets are counted first, which is much faster: hardly a line has so many.
    if text.count("[") + text.count("{") > DEEPEST and too_deep(parsed):
        raise ValueError(f"it is nested deeper than {DEEPEST} levels")
    return parsed


def _no_number(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a JSON number")


def _distinct(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    entries = dict(pairs)
    if len(entries) < len(pairs):  # a second value must not replace the first unseen
        twice = max(entries, key=[key for key, _ in pairs].count)
        raise ValueError(f"the key '{twice:.80}' stands twice in an object")
    return entries


_STRICT = json.JSONDecoder(parse_constant=_no_number, object_pairs_hook=_distinct)


def json_object(line: str | bytes) -> dict[str, Any] | None:
    """Return the object of a line of JSON; None for a line that is torn, too deep or no object."""
    try:
        record = parse_json(line if isinstance(line, str) else line.decode("utf-8-sig", "replace"))
    except ValueError:
        return None
    return record if isinstance(record, dict) else None


def stamp(file: Path | str) -> tuple[int, int]:
    """Return size and time of change of a file, which tell whether it has to be read again; zeros where it is gone."""
    try:
        stat = os.stat(file)
    except OSError:
        return 0, 0
    return stat.st_size, stat.st_mtime_ns


def file_digests(files: Mapping[str, Path]) -> dict[str, str]:
    """Return a digest of each of the files that are there, by its name."""
    return {name: hashlib.sha256(file.read_bytes()).hexdigest() for name, file in files.items() if file.is_file()}


def last_line(file: Path) -> str:
    """Return the last line of a file that is not blank; "" where there is none."""
    lines = file.read_text(encoding="utf-8", errors="replace").split("\n") if file.is_file() else []
    return next((line.strip() for line in reversed(lines) if line.strip()), "")


def is_lfs_pointer(file: Path) -> bool:
    """Return whether a file is what Git LFS leaves in the place of a large one that it has not fetched.

    Raises:
        OSError: It is a folder, a link to nowhere, or a file that may not be read.
    """
    with file.open("rb") as opened:
        return opened.read(len(_LFS_POINTER)) == _LFS_POINTER


def is_step(value: Any) -> bool:
    """Say whether a value of a file is the number of a step, or of an attempt."""
    return type(value) is int and 0 <= value < _MOST_STEPS


def is_metrics(record: Mapping[str, Any]) -> bool:
    """Say whether an object is a line of metrics.jsonl."""
    return is_step(record.get("step")) and is_step(record.get("attempt"))


def error_message(body: str) -> str:
    """Return what the body of an HTTP server's error says: its "error", "message" or "detail", or all of it."""
    try:
        answer = parse_json(body)
    except ValueError:
        return body
    for key in ("error", "message", "detail"):  # vLLM and OpenAI nest the message under "error"
        if isinstance(answer, dict) and answer.get(key):
            answer = answer[key]
    return answer if isinstance(answer, str) else json.dumps(answer)


def too_deep(value: Any) -> bool:
    """Say whether more than ``DEEPEST`` lists and objects stand inside one another."""
    nodes: list[Any] = [value] if isinstance(value, dict | list) else []
    for _ in range(DEEPEST):  # level by level: a recursion would end at a limit of its own
        children = (child for node in nodes for child in (node.values() if isinstance(node, dict) else node))
        nodes = [child for child in children if isinstance(child, dict | list)]
        if not nodes:
            return False
    return True


_NON_FINITE = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else ("Infinity" if value > 0 else "-Infinity")
    return value.item() if hasattr(value, "item") else value
