"""Writes a search as a page: the settings to use, and reward and stability against the rate."""

from __future__ import annotations

import math
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from steadyrl.core.rundir import read_json, write_text
from steadyrl.core.words import counted
from steadyrl.lab.tune.rate_range import RATE
from steadyrl.lab.tune.tune import RESULT
from steadyrl.show.page import markdown, markup
from steadyrl.show.page.records import Code, Heading, Note, Picture, Record, Table, numbers
from steadyrl.show.report.pictures import plots
from steadyrl.show.report.pictures.curves import TEXT_STAYS


def write_tune(folder: Path) -> Path:
    """Write tune.md and its picture from result.json, and return the page's path.

    Raises:
        RunError: The search has not ended.
        AccessError: The folder cannot be written.
    """
    result = read_json(folder / RESULT)
    write_text(folder / "tune.svg", draw(result))
    write_text(folder / "tune.md", markdown.page(tune_view(result)))
    return folder / "tune.md"


def tune_view(result: Mapping[str, Any]) -> list[Record]:
    """Return what every page shows of a search."""
    overrides = [f"{name}={value:.3g}" for name, value in result["settings"].items()]
    other_settings = [name for name in result["settings"] if name != RATE]
    trials = sorted(result["trials"], key=lambda trial: trial["settings"][RATE])
    paused = (
        f" Its run in the search was paused after {counted(result['paused'], 'step')}, in favour of a rate that ended "
        "lower: watch the end of the first whole run."
    ) * bool(result.get("paused"))
    return [
        Heading("The rate that was found", 1),
        Code(shlex.join(("steadyrl", "train", *result["words"], *overrides))),
        Note(
            f"Held-out score {markup.number(result['score'])} (by seed: "
            f"{', '.join(map(markup.number, result['scores']))}), with {result['samples']:,} samples for the whole "
            f"search. {_lead_sentence(result)}{paused}"
        ),
        *([Note(f"Critical findings remain: {', '.join(result['critical'])}.", "note")] if result["critical"] else []),
        Picture("tune.svg", "Score, KL of a step and entropy against the rate"),
        Table(
            (*numbers("rate", *other_settings, "score", "steps"), "end", "critical findings"),
            [
                (
                    f"{trial['settings'][RATE]:.2e}",
                    *(markup.number(trial["settings"].get(name)) for name in other_settings),
                    markup.number(trial["score"]),
                    f"{trial['steps']}",
                    trial["state"],
                    ", ".join(trial["critical"]) or "–",
                )
                for trial in trials
            ],
        ),
    ]


def _lead_sentence(result: Mapping[str, Any]) -> str:
    lead = result["lead"]
    if lead is None or lead["low"] is None:
        return "There is no interval: more seeds of the finalists are needed to say how sure it is."
    bounds = markup.interval([lead["low"], lead["high"]])
    if lead["low"] > 0:
        return f"It is ahead of the second for certain: {markup.signed(lead['difference'])} {bounds} over seeds."
    lead_text = f"{markup.signed(lead['difference'])} {bounds}"
    return f"It is not certainly ahead of the second ({lead_text} over seeds): both will do."


def draw(result: Mapping[str, Any]) -> str:
    """Return the picture as SVG: scores above, the range test below, against the same rates."""

    def draw_panels(figure: Figure) -> None:
        above, below = figure.subplots(2, 1, sharex=True)
        scored = [t for t in result["trials"] if t["score"] is not None]
        for state, mark, colour in (("finished", "o", plots.BLUE), ("paused", "x", plots.GREY)):
            trials = [t for t in scored if t["state"] == state]
            x, y = [t["settings"][RATE] for t in trials], [t["score"] for t in trials]
            if trials:
                above.plot(x, y, mark, color=colour, label=state, zorder=3)
        if sick := [t for t in scored if t["critical"]]:
            x, y = [t["settings"][RATE] for t in sick], [t["score"] for t in sick]
            above.plot(x, y, "o", color=plots.VERMILLION, fillstyle="none", markersize=11, label="critical finding")
        above.axvline(result["settings"][RATE], color=plots.GREEN, linewidth=1.4, label="chosen")
        above.set_title("Held-out score of the trials")
        above.set_ylabel("score")
        plots.legend(above)
        points = [p for p in result["range"]["points"] if p["kl"]]
        below.plot([p["rate"] for p in points], [p["kl"] for p in points], "o-", color=plots.BLUE, label="KL of a step")
        below.axvline(result["range"]["centre"], color=plots.GREY, linestyle="--", linewidth=1.0, label="centre")
        if points:  # the very first step may have broken the policy
            below.set_yscale("log")
        below.set_xscale("log")
        below.xaxis.set_major_formatter("{x:g}")
        below.yaxis.set_major_formatter("{x:g}")
        below.set_title("Range test")
        below.set_xlabel("learning rate")
        below.set_ylabel("nats/token")
        share = below.twinx()
        with_entropy = [p for p in points if p["entropy"] is not None and math.isfinite(p["entropy"])]
        x, y = [p["rate"] for p in with_entropy], [p["entropy"] for p in with_entropy]
        share.plot(x, y, "s-", color=plots.ORANGE, markersize=4, label="entropy, share of that before")
        share.set_ylabel("share")
        share.grid(visible=False)
        handles = [*below.get_legend_handles_labels()[0], *share.get_legend_handles_labels()[0]]
        below.legend(handles=handles, loc="lower right", bbox_to_anchor=(1.0, 1.005), ncols=3, borderaxespad=0.0)

    return plots.svg(draw_panels, 5.6, **TEXT_STAYS)
