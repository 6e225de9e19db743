"""Everything that this project promises of a GPU, tried on the one at hand: python3 bench/gpu/check.py [--minutes 8].

`make gpu-check` runs it. Every part is a process with a limit of its own: one that fails or takes too long ends alone.
A table is printed at the end, and written with all rows to gpu_check_DEVICE.json and .md in the folder of results.
`--device cpu` tries the same on small sizes. Exit code 0 if every part ended and every row keeps to its bound, 1 if
not, 2 if the command cannot begin.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import resource
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Any, Literal

from part import BESIDE, ROOT, Place, environment, skipped

WHOLE = {"cuda": 8.0, "cpu": 4.0}  # minutes
WHEN = ("first", "timed", "beside", "last")
SHORTEST = 5.0  # seconds: with less left a part is not begun
PROBE = "import sys, torch; torch.zeros(1, device=sys.argv[1]).item()"


@dataclass(frozen=True)
class Part:
    """What is run, from a module of this folder, and its longest time in seconds of the whole of ``WHOLE`` minutes.

    Parts run beside each other, but for those whose times count: they run alone, first or last. The limits add up to
    more than the whole, for most parts end long before: what comes first is what matters most, or takes longest.
    With 0 seconds a part is skipped.
    """

    run: str
    cuda_s: float
    cpu_s: float
    when: Literal["first", "timed", "beside", "last"] = "beside"


PARTS = {
    "machine": Part("machine:ceilings", 30, 20, "first"),
    "models": Part("machine:models", 120, 30, "first"),
    "speed": Part("speed:beside_trl", 240, 60, "timed"),
    "compiled": Part("compile_kernels:for_cards", 10, 90),
    "large": Part("agreement:large_models", 180, 60),
    "learning": Part("whole_runs:learning", 180, 90),
    "preflight": Part("whole_runs:preflight", 150, 80),
    "algorithms": Part("agreement:every_algorithm", 150, 90),
    "resume": Part("whole_runs:kill_and_resume", 120, 90),
    "export": Part("whole_runs:exported", 120, 60),
    "gap": Part("sampling:gap_by_precision", 100, 40),
    "kernels": Part("decoding:beside_pytorch", 120, 0),  # a CPU computes without them
    "sampling": Part("sampling:chosen_as_often_as_likely", 60, 40),
    "out of memory": Part("memory:halved", 60, 40),
    "entering": Part("decoding:entering", 90, 30, "last"),
    "adapter": Part("speed:adapter_of_7b", 200, 60, "last"),
    "colocate": Part("speed:colocated", 120, 30, "last"),
}


def main() -> int:
    """Run all parts, or the one that a process of this command is for."""
    args = parse()
    if args.rows is not None:
        return one_part(args.only[0], Place(args.device, Path.cwd(), args.minutes * 60), args.rows)
    check = Check(args.device, args.minutes or WHOLE[args.device], args.results)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    # Alone are those that need a whole GPU; on a CPU they try the way there, and their times say little.
    when_of = {
        name: "beside" if args.device == "cpu" and part.when in ("timed", "last") else part.when
        for name, part in PARTS.items()
    }
    names = {when: [name for name in args.only or PARTS if when_of[name] == when] for when in WHEN}
    beside = ThreadPoolExecutor(BESIDE[args.device])
    try:
        for name in (*names["first"], *names["timed"]):
            check.run(name)
        list(beside.map(check.run, names["beside"]))
        for name in names["last"]:
            check.run(name)
    finally:  # an interrupted check says what it has
        check.stop()
        beside.shutdown(cancel_futures=True)
        check.write()
    return check.code


def parse() -> argparse.Namespace:
    """Read the command line; choose the device."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", choices=["auto", *WHOLE], default="auto", help="auto is cuda where there is one")
    parser.add_argument("--minutes", type=float, default=0.0, help="of the whole: 8 on a GPU and 4 on a CPU, if 0")
    parser.add_argument("--only", nargs="+", choices=list(PARTS), metavar="PART", help=", ".join(PARTS))
    parser.add_argument("--results", type=Path, default=ROOT / "build" / "gpu-check", help="a folder")
    parser.add_argument("--rows", type=Path, help=argparse.SUPPRESS)  # where the process of a part writes
    args = parser.parse_args()
    if args.minutes < 0:
        parser.error(f"--minutes: got {args.minutes:g}; expected how long all parts may take, such as 8")
    if args.rows is None and args.device != "cpu":
        done = subprocess.run([sys.executable, "-c", PROBE, "cuda"], capture_output=True, text=True, check=False)
        if done.returncode and args.device == "cuda":
            last = (done.stderr.strip().splitlines() or ["no reason"])[-1]
            parser.error(f"--device cuda: PyTorch finds no GPU ({last}); use --device cpu, or see docs/gpu.md")
        args.device = "cpu" if done.returncode else "cuda"
    return args


def one_part(name: str, place: Place, file: Path) -> int:
    """Run a part in this process; every row is written as soon as it is there."""
    module, function = PARTS[name].run.split(":")
    with file.open("a", encoding="utf-8") as out:
        for row in getattr(importlib.import_module(module), function)(place):
            out.write(json.dumps(row.record()) + "\n")
            out.flush()
            print(row, flush=True)
    return 0


class Check:
    """All parts so far.

    Args:
        device: "cuda" or "cpu".
        minutes: That all parts may take together.
        results: Folder for the files.
    """

    def __init__(self, device: str, minutes: float, results: Path):
        self._device, self._minutes, self._results = device, minutes, results
        self._began, self._parts = time.monotonic(), dict[str, dict[str, Any]]()
        self._running = set[subprocess.Popen[bytes]]()
        results.mkdir(parents=True, exist_ok=True)

    def run(self, name: str) -> None:
        """Run a part as a process, until it ends or its time is over."""
        left = self._minutes * 60 - (time.monotonic() - self._began)
        whole = PARTS[name].cuda_s if self._device == "cuda" else PARTS[name].cpu_s
        if not whole:
            self._parts[name] = ended("done", skipped(name, f"there is nothing to try on {self._device}").record())
            return
        limit = min(left, whole * self._minutes / WHOLE[self._device])
        if limit < SHORTEST:
            self._parts[name] = ended("not begun: the time was over")
            return
        print(f"{name}: at most {limit:.0f} s", flush=True)
        began = time.monotonic()
        with tempfile.TemporaryDirectory() as folder:
            rows, log = Path(folder) / "rows.jsonl", self._results / f"{name.replace(' ', '_')}.log"
            status = self._process(name, limit, folder, rows, log)
            lines = rows.read_text(encoding="utf-8").splitlines() if rows.is_file() else []
        seconds = time.monotonic() - began
        self._parts[name] = ended(status, *map(json.loads, lines), seconds=seconds)
        print(f"{name}: {status}, {seconds:.0f} s, {len(lines)} rows", flush=True)

    def _process(self, name: str, limit: float, folder: str, rows: Path, log: Path) -> str:
        """Return how a part's process ended."""
        command = [sys.executable, __file__, "--only", name, "--device", self._device, "--rows", str(rows)]
        with log.open("w", encoding="utf-8") as out:
            process = subprocess.Popen(
                [*command, "--minutes", str(limit / 60)], cwd=folder, stdout=out, stderr=subprocess.STDOUT,
                env=environment({"DEVICE": self._device}), start_new_session=True,
            )  # fmt: skip
            self._running.add(process)
            try:
                code = process.wait(limit)
            except subprocess.TimeoutExpired:
                return f"ended after {limit:.0f} s"
            finally:  # whatever it has started ends with it
                end(process)
                self._running.discard(process)
        if code < 0:
            return f"killed by {signal.Signals(-code).name}"
        if code:
            tail = log.read_text(encoding="utf-8", errors="replace").strip().splitlines()[-1:]
            return f"failed with {code}: {' '.join(tail)[:300]}"
        return "done"

    def stop(self) -> None:
        """End the parts that are running."""
        for process in list(self._running):
            end(process)

    @property
    def code(self) -> int:
        """0 if all parts are done and no row is beyond its bound."""
        rows = [row for part in self._parts.values() for row in part["rows"]]
        whole = all(part["status"] == "done" for part in self._parts.values())
        return 0 if whole and all(row["ok"] is not False for row in rows) else 1

    def write(self) -> None:
        """Print the table; write it, and everything as JSON."""
        used = resource.getrusage(resource.RUSAGE_CHILDREN)
        result = {
            "date": date.today().isoformat(),
            "device": self._device,
            "minutes": (time.monotonic() - self._began) / 60,
            "processor_minutes": (used.ru_utime + used.ru_stime) / 60,  # all cores together: others may slow a part
            "ok": self.code == 0,
            "parts": {name: self._parts[name] for name in PARTS if name in self._parts},
        }
        text, file = table(result), self._results / f"gpu_check_{self._device}"
        file.with_suffix(".json").write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
        file.with_suffix(".md").write_text(text, encoding="utf-8")
        print(f"\n{text}\nWritten to {file}.json and .md; a part's output is beside them.", flush=True)


def ended(status: str, *rows: Mapping[str, Any], seconds: float = 0.0) -> dict[str, Any]:
    """Return what is written of a part."""
    return {"status": status, "seconds": seconds, "rows": list(rows)}


def end(process: subprocess.Popen[bytes]) -> None:
    """Kill a process and all that it has started."""
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        return
    finally:
        process.wait()


def table(result: Mapping[str, Any]) -> str:
    """Return the table as Markdown."""
    lines = [
        f"# GPU check on {result['device']}, {result['date']}",
        "",
        f"{result['minutes']:.1f} minutes, {result['processor_minutes']:.1f} of processor time; "
        f"{'all is well' if result['ok'] else '**not all is well**'}.",
        "",
        "| part | what | value | bound | |",
        "|---|---|---:|---|---|",
    ]
    for name, part in result["parts"].items():
        shown = name
        for row in part["rows"]:
            lines.append(f"| {shown} | {row['what']} | {value(row)} | {row['bound']} | {mark(row)} |")
            shown = ""
        if part["status"] != "done":
            lines.append(f"| {shown} | | | | **{plain(part['status'])}** |")
    return "\n".join(lines) + "\n"


def value(row: Mapping[str, Any]) -> str:
    """Return a row's value and unit as text."""
    got = row["value"]
    number = f"{got:.4g}" if isinstance(got, float) else "" if got is None else str(got)
    return plain(f"{number} {row['unit']}".strip())


def mark(row: Mapping[str, Any]) -> str:
    """Say whether a row keeps to its bound, and its note."""
    words: Sequence[str] = [{True: "ok", False: "**no**", None: ""}[row["ok"]], plain(row["note"])]
    return ", ".join(word for word in words if word)


def plain(text: str) -> str:
    """Return text that fits a cell."""
    return " ".join(text.replace("|", "/").split())


if __name__ == "__main__":
    sys.exit(main())
