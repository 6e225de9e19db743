"""What `steadyrl web` takes: python bench/web.py [--runs 500] writes bench/results/web.json.

A folder of many runs, one long run and one large file of rollouts are made, served by a process of its own, and opened.
Times are of whole answers, as a browser would wait for them; each is the first answer after the server has started.
Beside each stands the processor time that the server took for it, which says more on a machine that others use.
Memory is the greatest that the server held. What a page that is open costs a training is measured twice: the processor
time that the server uses in a minute, and the processor time of a training's steps with and without such a page.
"""

from __future__ import annotations

import argparse
import http.client
import json
import math
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from steadyrl.core.rundir import RunDir, write_json
from steadyrl.loop import launch
from steadyrl.loop.train import Watch

HERE = Path(__file__).parent
NAMES = 55  # metrics of a step, as a PPO run of the search task has
FOLLOWED_S = 60.0
BLOCKS, BLOCK_STEPS = 16, 25  # of a training, with and without a page that follows it


def make_run(path: Path, steps: int, seed: int) -> RunDir:
    run = RunDir(path)
    info = {"id": path.name, "task": "search", "algorithm": "ppo", "model": "base", "metric": "retrieval"}
    write_json(run.info_file, {**info, "status": "finished", "started": 1.7e9, "attempt": 0})
    write_json(run.resolved_file, {"run": {"steps": steps, "seed": seed}, "update": {"learning_rate": 1e-4}})
    generator = random.Random(seed)
    with run.metrics_file.open("w") as file:
        for step in range(steps):
            row = {"step": step, "attempt": 0, "time": 1.7e9 + step, "reward/mean": math.tanh(step / steps)}
            row |= {f"group{i % 9}/metric_{i}": generator.random() for i in range(NAMES)}
            file.write(json.dumps(row) + "\n")
    return run


def copy_runs(folder: Path, count: int, steps: int) -> None:
    """Make many runs; their metrics are the same bytes, for they are not read where the table is shown."""
    first = make_run(folder / "run-0000", steps, 0)
    metrics = first.metrics_file.read_bytes()
    for i in range(1, count):
        run = RunDir(folder / f"run-{i:04d}")
        run.path.mkdir()
        for file in (first.info_file, first.resolved_file):
            (run.path / file.name).write_bytes(file.read_bytes())
        run.metrics_file.write_bytes(metrics)


def make_rollouts(run: RunDir, mebibytes: int) -> int:
    generator, count = random.Random(1), 0
    path = run.rollouts_file(10)
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w") as file:
        while file.tell() < mebibytes << 20:
            words = " ".join(generator.choices(("alpha", "beta", "gamma", "<b>", "delta\n"), k=800))
            record = {"problem": f"p{count // 8}", "prompt": "write", "completion": words, "reward": generator.random()}
            more = {"parts": {"length": 1.0}, "unscored": None, "note": "", "stop_reason": "stop", "tokens": 800}
            file.write(json.dumps({**record, **more}) + "\n")
            count += 1
    return count


class Server:
    """`steadyrl web` in a process of its own."""

    def __init__(self, folder: Path):
        command = [sys.executable, "-m", "steadyrl", "web", str(folder), "--port", "0", "--no-token"]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        self.port = int(line.rsplit(":", 1)[1].strip().strip("/"))

    def get(self, path: str) -> bytes:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=120)
        connection.request("GET", path, headers={"accept": "text/html"})
        answer = connection.getresponse()
        data = answer.read()
        assert answer.status == 200, (path, answer.status, data[:300])
        connection.close()
        return data

    def timed(self, found: dict[str, object], name: str, path: str) -> bytes:
        """Ask for a page, and note how long it took and what it took of the processor."""
        began, used = time.monotonic(), self.processor_s()
        data = self.get(path)
        found[f"{name}_s"], found[f"{name}_processor_s"] = time.monotonic() - began, self.processor_s() - used
        print(name, found[f"{name}_s"], found[f"{name}_processor_s"], file=sys.stderr, flush=True)
        return data

    def processor_s(self) -> float:
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def peak_mib(self) -> float:
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        return int(status.partition("VmHWM:")[2].split()[0]) / 1024

    def close(self) -> None:
        self.process.terminate()
        self.process.wait()


def measure(folder: Path, runs: int, steps: int, long_steps: int, mebibytes: int) -> dict[str, object]:
    many, long = folder / "many", folder / "long"
    many.mkdir()
    long.mkdir()
    copy_runs(many, runs, steps)
    one = make_run(long / "long", long_steps, 7)
    count = make_rollouts(one, mebibytes)
    found: dict[str, object] = {"runs": runs, "steps_each": steps, "long_steps": long_steps, "rollouts": count,
                                "long_mib": round(one.metrics_file.stat().st_size / 2**20)}  # fmt: skip
    server = Server(many)
    page = server.timed(found, "table", "/")
    assert page.count(b"/run/run-") >= min(runs, 100)
    server.timed(found, "table_sorted", "/?sort=step")
    server.timed(found, "run", "/run/run-0000")
    found["table_peak_mib"] = server.peak_mib()
    server.close()
    server = Server(long)
    server.timed(found, "long_page", "/run/long")
    found["long_first_is_sample"] = not json.loads(server.timed(found, "long_curves", "/run/long/curves"))["complete"]
    began = time.monotonic()
    while not json.loads(server.get("/run/long/curves"))["complete"]:
        time.sleep(0.5)
    found["long_complete_after_s"] = time.monotonic() - began
    server.timed(found, "long_zoom", f"/run/long/curves?from={long_steps // 2}&to={long_steps // 2 + 500}")
    server.timed(found, "rollouts", "/run/long/rollouts?order=worst")
    server.timed(found, "rollout", f"/run/long/rollouts/10/{count - 1}")
    server.timed(found, "search", "/run/long/rollouts?q=alpha+gamma")
    found["long_peak_mib"] = server.peak_mib()
    server.close()
    return found | follow(folder / "followed") | beside(folder / "beside")


def open_page(port: int, run: str) -> None:
    """Follow a run as a page in a browser does: ask every 0.9 s, and take what is new.

    Each step is printed with the moment at which it was shown.
    """
    pages, last, version = http.client.HTTPConnection("127.0.0.1", port, timeout=60), -1, ""
    while True:
        pages.request("GET", f"/run/{run}/live", headers={"accept": "text/html", "if-none-match": version})
        live = pages.getresponse()
        live.read()
        if live.status == 200:
            version = live.headers["etag"]
            pages.request("GET", f"/run/{run}/curves?after={last}")
            curves = json.loads(pages.getresponse().read())
            last = curves["last"] if curves["last"] is not None else last
            print(json.dumps({"at": time.monotonic(), "steps": curves["steps"]}), flush=True)
        time.sleep(0.9)


class Page:
    """A page that is open, in a process of its own."""

    def __init__(self, server: Server, run: str):
        command = [sys.executable, __file__, "--open-page", str(server.port), run]
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert self._process.stdout is not None
        self._lines = self._process.stdout
        self._first = self._lines.readline()

    def close(self) -> dict[int, float]:
        """Close it, and return when each step was shown."""
        self._process.terminate()
        lines = [json.loads(line) for line in (self._first, *self._lines) if line.endswith("\n")]
        self._process.wait()
        return {step: line["at"] for line in lines for step in line["steps"]}


def follow(folder: Path) -> dict[str, float]:
    """Follow a run that writes two steps a second, and measure how late they are shown and what the server uses."""
    run = make_run(folder / "live", 200, 3)
    server = Server(folder)
    server.get("/run/live")
    line = json.loads(run.metrics_file.read_text().splitlines()[-1])
    page, began, used, written = Page(server, "live"), time.monotonic(), server.processor_s(), {}
    for step in range(200, 200 + int(FOLLOWED_S / 0.5)):
        with run.metrics_file.open("a") as file:
            file.write(json.dumps({**line, "step": step}) + "\n")
        written[step] = time.monotonic()
        time.sleep(0.5)
    passed = time.monotonic() - began
    used = server.processor_s() - used
    seen = page.close()
    server.close()
    delays = sorted(seen[step] - at for step, at in written.items() if step in seen)
    return {
        "live_delay_median_s": delays[len(delays) // 2],
        "live_delay_worst_s": delays[-1],
        "live_server_processor_s_a_minute": 60 * used / passed,
    }


def beside(folder: Path) -> dict[str, float]:
    """Train with and without a page that follows, in turns, and compare the processor time of the steps.

    Processor time leaves out what other programs take. So what is left is what the server costs through caches and
    disks; what it takes itself is measured by ``follow``.
    """
    folder.mkdir()
    prompts = folder / "prompts.jsonl"
    prompts.write_text("".join(json.dumps({"prompt": f"{a}{b}"}) + "\n" for a in "abcdefgh" for b in "abcdefgh"))
    settings = {
        "run": {"steps": BLOCKS * BLOCK_STEPS, "folder": str(folder), "preflight": "off", "checkpoint_every": 10**6},
        "backend": {"name": "toy"},
        "task": {"name": "prompts", "args": {"path": str(prompts)}},
        "rewards": {"length": 1.0},
        "sampling": {"max_new_tokens": 64},
        "rollout": {"prompts_per_step": 16, "samples_per_prompt": 4},
    }
    server, page = Server(folder), None
    times: dict[bool, list[float]] = {False: [], True: []}
    last = time.thread_time()

    def step(record: dict[str, Any]) -> None:
        nonlocal last, page
        times[page is not None].append(time.thread_time() - last)
        if (record["step"] + 1) % BLOCK_STEPS == 0:
            if page is None:
                page = Page(server, next(path.parent.name for path in folder.glob("*/run.json")))
            else:
                page.close()
                page = None
        last = time.thread_time()

    launch.run(settings, watch=Watch(step=step))
    if page is not None:
        page.close()
    server.close()
    # The quickest quarter: what other programs do to caches makes steps slower, and none quicker.
    quick = {followed: statistics.quantiles(found, n=4)[0] for followed, found in times.items()}
    halves = [statistics.quantiles(times[False][part::2], n=4)[0] for part in (0, 1)]  # apart by chance alone
    return {
        "step_processor_ms_alone": 1000 * quick[False],
        "step_processor_ms_followed": 1000 * quick[True],
        "step_slower": quick[True] / quick[False] - 1.0,
        "step_apart_by_chance": abs(halves[1] / halves[0] - 1.0),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=500)
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument("--long", type=int, default=100_000)
    parser.add_argument("--mebibytes", type=int, default=50)
    parser.add_argument("--open-page", nargs=2, metavar=("PORT", "RUN"), help="only follow a run, as a page does")
    asked = parser.parse_args()
    if asked.open_page:
        open_page(int(asked.open_page[0]), asked.open_page[1])
        return
    with tempfile.TemporaryDirectory() as folder:
        found = measure(Path(folder), asked.runs, asked.steps, asked.long, asked.mebibytes)
    found = {name: round(value, 3) if isinstance(value, float) else value for name, value in found.items()}
    found["load_1min"] = round(os.getloadavg()[0], 1)
    write_json(HERE / "results" / "web.json", found)
    print(json.dumps(found, indent=2))


if __name__ == "__main__":
    main()
