"""Episodes per second in Chromium and without it, what a batch of them takes, and what thousands leave behind.

    python bench/browser_speed.py

Writes bench/results/browser.json and browser.md. The scripted expert plays the site's problems of all families and
levels. In the endurance run the browser of every 200th episode is killed in the midst of it.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import platform
import signal
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from steadyrl.backends.toy import ToyBackend
from steadyrl.core.errors import EpisodeError
from steadyrl.environments.browse.browser.find import find_chromium, playwright_api
from steadyrl.environments.browse.browser.settings import BrowserSettings
from steadyrl.environments.browse.episode import SiteEpisode
from steadyrl.environments.browse.families import FAMILIES, LEVELS, make_quest
from steadyrl.environments.browse.server import SiteServer
from steadyrl.environments.browse.settings import BrowseSettings
from steadyrl.environments.browse.site_suite import SiteInBrowser, show_in_process
from steadyrl.environments.browse.task import BrowseTask
from steadyrl.loop.rollout.collect import demonstrate
from steadyrl.loop.rollout.episode import Environment

RESULTS = Path(__file__).parent / "results"
PROBLEMS = [(family, level) for level in LEVELS for family in FAMILIES]
CONTEXTS = (1, 2, 4, 8)
KILL_EVERY = 200
MIB = 1024 * 1024


def main() -> None:
    """Measure and write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--episodes", type=int, default=2000, help="of the endurance run")
    parser.add_argument("--rounds", type=int, default=2, help="of the speed run: each plays 64 problems")
    parser.add_argument("--out", type=Path, default=RESULTS)
    args = parser.parse_args()
    found = {
        "machine": f"{os.cpu_count()} CPUs, {platform.machine()}, {platform.system()}",
        "load_before": os.getloadavg()[0],
        "inprocess": speed_in_process(args.rounds),
        "chromium": [speed_in_chromium(contexts, args.rounds) for contexts in CONTEXTS],
        "browsers": asyncio.run(shared_or_own()),
        "batch": batch(),
        "endurance": endurance(args.episodes),
    }
    args.out.mkdir(parents=True, exist_ok=True)
    (args.out / "browser.json").write_text(json.dumps(found, indent=2) + "\n", encoding="utf-8")
    (args.out / "browser.md").write_text(page(found), encoding="utf-8")
    print(page(found))


def play(show, family: str, level: int, seed: int) -> int:
    """Play one episode as the expert; return its number of turns."""
    episode = SiteEpisode(make_quest(family, level, seed), show, 600)
    episode.open()
    while not episode.step(episode.expert()).done:
        pass
    outcome = episode.close()
    assert outcome["success"] == 1.0, outcome
    return outcome["turns"]


def speed_in_process(rounds: int) -> dict:
    """Measure without a browser, one thread."""
    start, turns = time.perf_counter(), 0
    for seed in range(rounds):
        turns += sum(play(show_in_process, *problem, seed) for problem in PROBLEMS)
    return rates(rounds * len(PROBLEMS), turns, time.perf_counter() - start)


def speed_in_chromium(contexts: int, rounds: int) -> dict:
    """Measure so many browsers at the same time, each warmed up by one episode."""
    site = SiteInBrowser(BrowserSettings())
    jobs = [(*problem, seed) for seed in range(rounds) for problem in PROBLEMS]
    try:
        with ThreadPoolExecutor(contexts) as pool:
            list(pool.map(lambda job: play(site.show, *job), [jobs[0]] * contexts))
            start = time.perf_counter()
            turns = sum(pool.map(lambda job: play(site.show, *job), jobs))
            seconds = time.perf_counter() - start
        used = sum(tree_memory().values())
    finally:
        site.close()
    return {"contexts": contexts, **rates(len(jobs), turns, seconds), "memory_mib": used / MIB}


def rates(episodes: int, turns: int, seconds: float) -> dict:
    """Return episodes and turns by the second."""
    return {
        "episodes": episodes,
        "turns": turns,
        "episodes_per_second": episodes / seconds,
        "turns_per_second": turns / seconds,
    }


async def shared_or_own(episodes: int = 24, workers: int = 4) -> dict:
    """Load a page in fresh contexts of one browser, or of a browser per worker; pages by the second."""
    server = SiteServer()
    quest = make_quest("open", 2, 0)
    found = {}
    async with playwright_api().async_playwright() as driver:

        async def launch():
            return await driver.chromium.launch(executable_path=find_chromium(BrowserSettings()))

        async def worker(browser):
            for _ in range(episodes // workers):
                context = await browser.new_context()
                tab = await context.new_page()
                session, url = server.admit(quest.world, quest.start)
                await tab.goto(url, wait_until="domcontentloaded")
                server.dismiss(session)
                await context.close()

        for name, count in (("one browser", 1), ("a browser each", workers)):
            browsers = [await launch() for _ in range(count)]
            await asyncio.gather(*(worker(browsers[i % count]) for i in range(workers)))
            start = time.perf_counter()
            await asyncio.gather(*(worker(browsers[i % count]) for i in range(workers)))
            found[name] = episodes / (time.perf_counter() - start)
            for browser in browsers:
                await browser.close()
    server.close()
    return found


def batch(episodes: int = 64, workers: int = 2) -> dict:
    """Play a batch as training does; return the most browsers and the most memory that it took, every 0.25 s."""
    task = BrowseTask(BrowseSettings(engine="browser", workers=workers))
    problems = list(task.problems("train"))[:: max(1, len(task.problems("train")) // episodes)][:episodes]
    samples, over = [], threading.Event()

    def watch() -> None:
        while not over.wait(0.25):
            samples.append((browsers_below(os.getpid()), sum(tree_memory().values()) / MIB))

    watching = threading.Thread(target=watch)
    watching.start()
    start = time.perf_counter()
    try:
        groups = demonstrate(ToyBackend(), problems, task, (0, 0), Environment(task, 64))
        seconds = time.perf_counter() - start
    finally:
        over.set()
        watching.join()
        task.close()
    return {
        "episodes": len(groups),
        "workers": workers,
        "scored": sum(group.rollouts[0].unscored is None for group in groups),
        "seconds": seconds,
        "most_browsers": max(count for count, _ in samples),
        "most_memory_mib": max(memory for _, memory in samples),
    }


def browsers_below(ancestor: int) -> int:
    """Return how many Chromiums run among the descendants of a process; their helpers have a type."""
    found = 0
    for pid in descendants(ancestor):
        with contextlib.suppress(OSError):
            command = Path(f"/proc/{pid}/cmdline").read_text()
            found += "--remote-debugging-pipe" in command and "--type=" not in command
    return found


def endurance(episodes: int, workers: int = 2) -> dict:
    """Play thousands of episodes, kill the browser of every 200th, and count what is left of them."""
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        os.environ["TMPDIR"] = tempfile.tempdir = folder
        site = SiteInBrowser(BrowserSettings())
        try:
            with ThreadPoolExecutor(workers) as pool:
                return _endurance(site, pool, episodes, Path(folder))
        finally:
            tempfile.tempdir = None
            del os.environ["TMPDIR"]


def _endurance(site: SiteInBrowser, pool: ThreadPoolExecutor, episodes: int, folder: Path) -> dict:
    def one(number: int) -> str:
        killed = number % KILL_EVERY == KILL_EVERY - 1

        def show(quest):
            tab = site.show(quest)
            if killed:
                os.kill(tab.pid, signal.SIGKILL)
            return tab

        episode = SiteEpisode(make_quest(*PROBLEMS[number % len(PROBLEMS)], number), show, 600)
        lost = ""
        try:
            episode.open()
            while not episode.step(episode.expert()).done:
                pass
        except EpisodeError:
            lost = "lost"
        solved = episode.close()["success"] == 1.0
        assert bool(lost) == killed and solved != killed, f"episode {number}: killed {killed}, {lost or solved}"
        return lost

    start, marks, lost = time.perf_counter(), [], 0
    for first in range(0, episodes, KILL_EVERY):
        lost += sum(bool(one) for one in pool.map(one, range(first, min(first + KILL_EVERY, episodes))))
        memory = tree_memory()
        own = memory.pop(os.getpid())
        marks.append(
            {
                "episodes": min(first + KILL_EVERY, episodes),
                "own_mib": own / MIB,
                "browsers_mib": sum(memory.values()) / MIB,
                "processes": len(memory),
                "folders": len(list(folder.iterdir())),
            }
        )
        print(marks[-1], flush=True)
    seconds = time.perf_counter() - start
    site.close()
    time.sleep(1.0)
    left = tree_memory()
    left.pop(os.getpid())
    return {
        "episodes": episodes,
        "killed": episodes // KILL_EVERY,
        "lost": lost,
        "seconds": seconds,
        "marks": marks,
        "left_processes": len(left),
        "left_folders": len(list(folder.iterdir())),
    }


def tree_memory() -> dict[int, int]:
    """Return the memory of this process and of all living ones that descend from it, shared pages divided (PSS)."""
    return {pid: memory for pid in descendants(os.getpid()) if (memory := _pss(pid))}


def descendants(ancestor: int) -> set[int]:
    """Return a process and all living ones that descend from it."""
    parents = {}
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            if entry.name.isdigit():
                state, parent = (entry / "stat").read_text().rpartition(")")[2].split()[:2]
                if state != "Z":
                    parents[int(entry.name)] = int(parent)
    found, new = set(), {ancestor}
    while new:
        found |= new
        new = {pid for pid, parent in parents.items() if parent in new} - found
    return found


def _pss(pid: int) -> int:
    with contextlib.suppress(OSError):
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("Pss:"))
    return 0


def page(found: dict) -> str:
    """Return the results as a page."""
    lines = [
        "# The browser",
        "",
        f"`python bench/browser_speed.py` on {found['machine']}, load {found['load_before']:.1f} before. The scripted "
        "expert plays the site's problems of all families and levels.",
        "",
        "| | episodes/s | turns/s | memory, MiB |",
        "|---|---|---|---|",
        f"| without a browser, one thread | {found['inprocess']['episodes_per_second']:.0f} | "
        f"{found['inprocess']['turns_per_second']:.0f} | |",
    ]
    lines += [
        f"| Chromium, {row['contexts']} at a time | {row['episodes_per_second']:.1f} | {row['turns_per_second']:.1f} | "
        f"{row['memory_mib']:.0f} |"
        for row in found["chromium"]
    ]
    end, crowd = found["endurance"], found["batch"]
    rates_by = " and ".join(f"{rate:.1f} with {name}" for name, rate in found["browsers"].items())
    lines += [
        "",
        f"Fresh contexts with one page each, four at a time: {rates_by} per second.",
        "",
        f"A batch of {crowd['episodes']} episodes with `workers = {crowd['workers']}` takes {crowd['most_browsers']} "
        f"browsers, {crowd['most_memory_mib']:.0f} MiB and {crowd['seconds']:.0f} s at most.",
        "",
        "## Endurance",
        "",
        f"{end['episodes']} episodes in {end['seconds']:.0f} s, two at a time; {end['killed']} browsers killed by",
        f"SIGKILL amid an episode; {end['lost']} episodes lost, each of them one whose own browser was killed. After",
        f"closing: {end['left_processes']} processes and {end['left_folders']} folders left. Memory is PSS: pages that",
        "processes share are divided among them.",
        "",
        "| episodes | own memory, MiB | browsers, MiB | processes | temporary folders |",
        "|---|---|---|---|---|",
        *(
            f"| {m['episodes']} | {m['own_mib']:.0f} | {m['browsers_mib']:.0f} | {m['processes']} | {m['folders']} |"
            for m in end["marks"]
        ),
    ]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main()
