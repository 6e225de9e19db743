"""From the lines of timed steps to one record per workload and system, and to the table that compares them."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from workloads import CLOCK, EPOCHS, LORA, PRECISION

Record = Mapping[str, Any]
PARTS = ("step_s", "generate_s", "score_s", "update_s")
OURS = "steadyrl"


def by_system(lines: Sequence[Record]) -> Iterator[list[Record]]:
    """Split lines by workload and system, in the order in which they first came."""
    for key in dict.fromkeys((line["workload"], line["system"]) for line in lines):
        yield [line for line in lines if (line["workload"], line["system"]) == key]


def summarise(lines: Sequence[Record], limits: Record) -> dict[str, Any]:
    """Return what one system took for one workload.

    Args:
        lines: Its steps, of all rounds.
        limits: What limits.py printed.
    """
    first = lines[0]
    who, _, kind = first["system"].rpartition("-")
    found = {part: statistics.median(line[part] for line in lines) for part in PARTS if part in first}
    rounds = sorted({line["round"] for line in lines})
    record = {
        "workload": first["workload"],
        "kind": kind,
        "who": who,
        "steps": len(lines),
        **found,
        "step_s_by_round": [statistics.median(x["step_s"] for x in lines if x["round"] == r) for r in rounds],
        "samples_per_s": first["samples"] / found["step_s"],
        "generated_tokens_per_s": first["tokens"] / found["generate_s"],
        "peak_memory_mib": max(line["peak_memory_mib"] for line in lines),
        "times_floor": found["step_s"] / limits["floor_s"][first["workload"]][kind][PRECISION]["step"],
    }
    if "update_s" in found:
        record["update_tokens_per_s"] = EPOCHS[kind] * first["tokens"] / found["update_s"]
    return record


def markdown(result: Record) -> str:
    """Return the tables as text."""
    records, machine, limits = result["results"], result["machine"], result["limits"]
    gpu = f"{limits['gpu']}, " if limits.get("gpu") else ""
    pairs = list(dict.fromkeys((record["workload"], record["kind"]) for record in records))
    versions = "; ".join(
        f"{name} {', '.join(f'{key} {value}' for key, value in found.items() if key != 'version')}"
        for name, found in ((f"{n} {v['version']}:", v) for n, v in result["systems"].items())
    )
    lines = [
        f"# Step times beside TRL: {', '.join(dict.fromkeys(name for name, _ in pairs))} in {PRECISION}",
        "",
        f"{result['date']}, {gpu}{machine['processor']}, {machine['cores']} cores, torch threads: {result['threads']}, "
        f"{machine['system']}, Python {machine['python']}; steadyrl at {result['steadyrl_commit']}. "
        f"Medians of {result['rounds']} rounds of {result['steps']} steps, in turns, a process each; {setting()}.",
        *(
            ["", f"**Rough: others kept {result['busy_cores_before']:.1f} cores busy at the start.**"]
            if result["rough"]
            else []
        ),
        "",
        f"Versions: {versions}.",
    ]
    for workload, kind in pairs:
        rows = [record for record in records if (record["workload"], record["kind"]) == (workload, kind)]
        lines += ["", f"## {workload}, {kind}", "", *comparison(rows), "", floor_line(limits, workload, kind)]
    return "\n".join(lines) + "\n"


def setting() -> str:
    """Say what was measured: the precision, what is trained, and which time."""
    trained = f"LoRA of rank {LORA}" if LORA else "all weights"
    seconds = "seconds of processor time" if CLOCK == "processor" else "seconds of wall time"
    return f"{PRECISION}, {trained}, {seconds}"


COLUMNS = {
    "step, s": ("step_s", ".3f"),
    "generate, s": ("generate_s", ".3f"),
    "score, s": ("score_s", ".3f"),
    "update, s": ("update_s", ".3f"),
    "samples/s": ("samples_per_s", ".1f"),
    "generated tokens/s": ("generated_tokens_per_s", ".0f"),
    "update tokens/s": ("update_tokens_per_s", ".0f"),
    "peak memory, MiB": ("peak_memory_mib", ".0f"),
    "times the floor": ("times_floor", ".1f"),
}
RATES = {"samples_per_s", "generated_tokens_per_s", "update_tokens_per_s"}


def comparison(rows: Sequence[Record]) -> list[str]:
    """Return a table: a row per system, and how many times better ours is than the peer."""
    shown = {title: column for title, column in COLUMNS.items() if column[0] in rows[0]}
    lines = [f"| | {' | '.join(shown)} |", "|---|" + "---:|" * len(shown)]
    for row in rows:
        lines.append(f"| {row['who']} | {' | '.join(format(row[key], form) for key, form in shown.values())} |")
    ours = [row for row in rows if row["who"] == OURS]
    peers = [row for row in rows if row["who"] != OURS]
    if ours and peers:
        cells = [f"{better(ours[0], peers[0], key):.2f}" for key, _ in shown.values()]
        lines.append(f"| {OURS} is better by | {' | '.join(cells)} |")
        by_round = [p / o for p, o in zip(peers[0]["step_s_by_round"], ours[0]["step_s_by_round"], strict=True)]
        lines += ["", f"The step, by round: {', '.join(f'{ratio:.2f}' for ratio in by_round)} times as fast."]
    return lines


def better(ours: Record, peer: Record, key: str) -> float:
    """Return the factor by which ours is better: above 1 is good, of a rate as of a time."""
    ratio: float = peer[key] / ours[key]
    return 1 / ratio if key in RATES else ratio


def floor_line(limits: Record, workload: str, kind: str) -> str:
    """Say what the least time is made of."""
    parts = limits["floor_s"][workload][kind][PRECISION]
    gemm = max(limits["gemm_gflops"][PRECISION].values())
    named = ", ".join(f"{name} {seconds:.3f} s" for name, seconds in parts.items())
    return f"Floor at the measured {gemm:.0f} GFLOP/s and memory bandwidth: {named}."
