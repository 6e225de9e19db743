"""Take docs/pictures/web-*.png of the runs in a folder: python scripts/web_pictures.py runs [--out FOLDER]

The folder has to hold two runs of one task that were evaluated after training, one of them with token details, a run of
a task with several turns, a study with a report, and a log of another trainer. The newest of each kind is shown.
"""

from __future__ import annotations

import argparse
import secrets
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import uvicorn
from playwright.sync_api import Browser, Page, sync_playwright

from steadyrl.core.rundir import RunDir, read_lines
from steadyrl.environments.browse.browser.find import find_chromium
from steadyrl.environments.browse.browser.settings import BrowserSettings
from steadyrl.show.web.app import create
from steadyrl.show.web.folder import Folder, RunRef
from steadyrl.show.web.serve import Guard, listen
from steadyrl.show.web.studies_page import find_studies

OUT = Path(__file__).parent.parent / "docs" / "pictures"
WIDTH, NARROW = 1240, 390
SLOW_MS = 60_000


@dataclass(frozen=True)
class Shown:
    """What is shown: runs by their ids, a step and numbers of rollouts, a study, a log."""

    runs: tuple[str, str]
    tokens: tuple[str, int, int]
    problem: tuple[str, str]
    episode: tuple[str, int, int]
    study: str
    log: RunRef


def main() -> None:
    """Serve a folder and take all pictures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--out", type=Path, default=OUT)
    asked = parser.parse_args()
    shown = choose(Folder(asked.folder))
    asked.out.mkdir(parents=True, exist_ok=True)
    with serving(asked.folder) as (address, token), sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=find_chromium(BrowserSettings()), args=["--no-sandbox", "--hide-scrollbars"]
        )
        take(Camera(browser, address, token, asked.out), shown)
        browser.close()


def choose(folder: Folder) -> Shown:
    """Return what a folder has to show; end with what it lacks."""
    refs = sorted((ref for ref in folder.runs() if ref.kind == "run"), key=lambda ref: -_began(ref))
    plain = [ref for ref in refs if not ref.id.startswith("studies~")]
    evaluated = [ref for ref in plain if RunDir(ref.path).evaluation_file("after").is_file()]
    evaluated.sort(key=_happened, reverse=True)  # the run in which most happened is shown
    pairs = [(a, b) for a in evaluated for b in evaluated if a != b and _task(a) == _task(b)]
    tokens = next(((ref, *found) for ref in plain if (found := _with_tokens(RunDir(ref.path)))), None)
    episode = next(((ref.id, *found) for ref in plain if (found := _with_turns(RunDir(ref.path)))), None)
    studies = [one for one in find_studies(folder) if (one.path / "report" / "summary.json").is_file()]
    logs = [ref for ref in folder.runs() if ref.kind == "log"]
    lacks = {"two evaluated runs of one task": pairs, "token details": tokens, "a task of several turns": episode,
             "a study with a report": studies, "a log of another trainer": logs}  # fmt: skip
    if missing := [what for what, found in lacks.items() if not found]:
        sys.exit(f"'{folder.root}' lacks {', '.join(missing)}")
    assert tokens and episode, "it lacks nothing"
    ref, step, number = tokens
    return Shown((pairs[0][0].id, pairs[0][1].id), (ref.id, step, number), _often_drawn(refs), episode,
                 studies[0].id, logs[0])  # fmt: skip


def _began(ref: RunRef) -> float:
    return float(RunDir(ref.path).info().get("started") or 0.0)


def _happened(ref: RunRef) -> int:
    run = RunDir(ref.path)
    return len(run.findings()) + len(run.actions())


def _task(ref: RunRef) -> object:
    return RunDir(ref.path).info().get("task")


def _with_tokens(run: RunDir) -> tuple[int, int] | None:
    """Return the newest step of a run with token details, and the longest rollout among them."""
    steps = sorted((int(path.stem) for path in run.tokens_file(0).parent.glob("*.jsonl")), reverse=True)
    for step in steps:
        rewards = [record.get("reward") or 0.0 for record in read_lines(run.rollouts_file(step))]
        lengths = {int(record["rollout"]): len(record["tokens"]) for record in read_lines(run.tokens_file(step))}
        if lengths and not any(record.get("turns") for record in read_lines(run.rollouts_file(step))):
            return step, max(lengths, key=lambda number: (lengths[number], rewards[number]))
    return None


def _often_drawn(refs: Iterable[RunRef]) -> tuple[str, str]:
    """Return the run and the problem that were recorded together at the most steps."""
    count: Counter[tuple[str, str]] = Counter()
    for ref in refs:
        for path in RunDir(ref.path).rollouts_file(0).parent.glob("*.jsonl"):
            count.update({(ref.id, str(record["problem"])) for record in read_lines(path)})
    return count.most_common(1)[0][0]


def _with_turns(run: RunDir) -> tuple[int, int] | None:
    """Return the newest step of a run with episodes of several turns, and one of them with at least two pages."""
    for path in sorted(run.rollouts_file(0).parent.glob("*.jsonl"), reverse=True):
        for number, record in enumerate(read_lines(path)):
            if len(record.get("seen") or []) >= 2:
                return int(path.stem), number
    return None


@contextmanager
def serving(folder: Path) -> Iterator[tuple[str, str]]:
    """Yield the address and the token of a server of the folder, as `steadyrl web` starts it."""
    listening, token = listen("127.0.0.1", 0), secrets.token_urlsafe(24)
    port = listening.getsockname()[1]
    guarded = Guard(create(folder), "127.0.0.1", port, token)
    server = uvicorn.Server(uvicorn.Config(guarded, log_level="error", lifespan="off", timeout_graceful_shutdown=1))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]})
    thread.start()
    try:
        yield f"http://127.0.0.1:{port}", token
    finally:
        server.should_exit = True
        thread.join()
        listening.close()


@dataclass(frozen=True)
class Camera:
    """Opens pages and takes their pictures."""

    browser: Browser
    address: str
    token: str
    out: Path

    def take(
        self,
        name: str,
        path: str,
        height: int,
        dark: bool = False,
        narrow: bool = False,
        do: Callable[[Page], Any] | None = None,
    ) -> None:
        """Take web-NAME.png of a page."""
        scheme = "dark" if dark else "light"
        context = self.browser.new_context(
            viewport={"width": NARROW if narrow else WIDTH, "height": height}, color_scheme=scheme
        )
        page = context.new_page()
        page.set_default_timeout(SLOW_MS)
        page.goto(f"{self.address}/?token={self.token}")
        page.goto(self.address + path)
        if do:
            do(page)
        chart = page.locator(".chart").first  # a page draws only what is in sight
        if chart.count() and chart.evaluate("(box) => box.getBoundingClientRect().top < innerHeight"):
            page.wait_for_selector(".chart canvas")
        page.wait_for_timeout(1500)
        page.screenshot(path=self.out / f"web-{name}.png")
        print(f"web-{name}.png", flush=True)
        context.close()


def take(camera: Camera, shown: Shown) -> None:
    """Take all pictures."""
    first, second = shown.runs
    run, step, number = shown.tokens
    episode, at, turn = shown.episode
    comparison = f"/compare?run={first}&run={second}"

    def down_to(what: str) -> Callable[[Page], Any]:
        return lambda page: page.evaluate(f"document.querySelector({what!r}).scrollIntoView()")

    def diagnose(page: Page) -> None:
        page.fill("#log", shown.log.path.read_text(encoding="utf-8"))
        page.click("text=Diagnose")
        page.wait_for_selector("#result .diagnosis")

    camera.take("runs", "/?sort=-heldout", 520)
    camera.take("run", f"/run/{first}", 860)
    camera.take("run-dark", f"/run/{second}", 860, dark=True)
    camera.take("narrow", f"/run/{first}", 820, narrow=True)
    camera.take("rollouts", f"/run/{run}/rollouts?step={step}&order=best", 640)
    camera.take("rollout", f"/run/{run}/rollouts/{step}/{number}?colour=ratio", 620)
    camera.take("episode", f"/run/{episode}/rollouts/{at}/{turn}", 760, do=down_to(".talk"))
    often, problem = shown.problem
    camera.take("problem", f"/run/{often}/problem?{urlencode({'problem': problem})}", 520)
    camera.take("compare", comparison, 860)
    camera.take("study", f"/study/{shown.study}", 760)
    camera.take("doctor", "/doctor", 700, do=diagnose)
    camera.take("report", f"/run/{first}/report", 760)


if __name__ == "__main__":
    main()
