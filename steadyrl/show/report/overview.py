"""The first lines of a report: what was trained, on what, how, for how long, at what cost, and what came of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np

from steadyrl.doctor.examine import Diagnosis
from steadyrl.loop.tasks.data_line import data_line
from steadyrl.show.page import markup
from steadyrl.show.report.evidence import Evidence
from steadyrl.show.review.epochs import finite_number, series

MILLION, HOUR_S, GIB = 1e6, 3600.0, 2**30


def overview(evidence: Evidence, summary: Mapping[str, Any], diagnosis: Diagnosis) -> list[tuple[str, str]]:
    """Return the lines of the block, each with its name; what the run did not record is left out.

    Args:
        evidence: Of the run.
        summary: See ``figures.summarise``.
        diagnosis: Of the run.
    """
    info, settings = evidence.info, evidence.settings
    lines = {
        "verdict": _verdict(summary, diagnosis),
        "model": _model(info, settings),
        "task": str(info.get("task") or ""),
        "data": _data(info.get("data") or {}),
        "algorithm": _algorithm(info, settings),
        "steps": _steps(evidence),
        "time": _time(evidence),
        "cost": _cost(evidence),
        "memory": memory(info),
    }
    return [(name, text) for name, text in lines.items() if text]


def moment(seconds: Any) -> str:
    """Return seconds since 1970 as a date, "" for anything else."""
    number = finite_number(seconds)
    try:
        return "" if number is None else datetime.fromtimestamp(number, UTC).strftime("%Y-%m-%d %H:%M UTC")
    except (ValueError, OverflowError, OSError):
        return ""


def _verdict(summary: Mapping[str, Any], diagnosis: Diagnosis) -> str:
    held_out = f"held-out answers: {summary['verdict']}" if summary["verdict"] else "held-out answers: not compared"
    doctor = f"the doctor: {diagnosis.verdict}"
    first = next((finding for finding in diagnosis.findings if finding.harms), None)
    return f"{held_out}; {doctor}" + (f" ({first.check}: {first.message})" if first else "")


def _model(info: Mapping[str, Any], settings: Mapping[str, Any]) -> str:
    name, policy = _name(str(info.get("model") or "")), info.get("policy") or {}
    total, trained = (finite_number(policy.get(key)) for key in ("parameters", "trained"))
    if total is None:
        return name
    rank = (settings.get("model") or {}).get("lora_rank") or 0
    way = f"a LoRA adapter of rank {rank} trained ({_count(trained)})" if rank and trained else "all trained"
    return f"{name}, {_count(total)} parameters, {way}"


def _name(path: str) -> str:
    """Return a path without its folder, which means nothing to a reader elsewhere."""
    return Path(path).name if path.startswith(("/", "~")) else path


def _data(data: Mapping[str, Any]) -> str:
    sourced = {
        split: {**counts, "source": _name(str(counts["source"]))}
        for split, counts in data.items()
        if isinstance(counts, Mapping) and counts.get("source")
    }
    return data_line({**data, **sourced})


def _count(parameters: float) -> str:
    return f"{parameters / MILLION:,.3g} million" if parameters >= MILLION else f"{parameters:,.0f}"


def _algorithm(info: Mapping[str, Any], settings: Mapping[str, Any]) -> str:
    rollout, update = settings.get("rollout") or {}, settings.get("update") or {}
    prompts, samples = (finite_number(rollout.get(key)) for key in ("prompts_per_step", "samples_per_prompt"))
    text = str(info.get("algorithm") or "")
    if text and prompts and samples:
        text += f", {prompts:g} prompts a step with {samples:g} answer{'' if samples == 1 else 's'} each"
    rate = finite_number(update.get("learning_rate"))
    return f"{text}, learning rate {rate:g}" if text and rate is not None else text


def _steps(evidence: Evidence) -> str:
    planned, done = finite_number((evidence.settings.get("run") or {}).get("steps")), len(evidence.metrics)
    of = f" of {planned:.0f}" if planned is not None and planned != done else ""
    sampled = series(evidence.metrics, "tokens/sampled")
    tokens = f"; {np.nansum(sampled):,.0f} tokens sampled" if np.isfinite(sampled).any() else ""
    return f"{done}{of}{tokens}"


def elapsed(evidence: Evidence) -> float | None:
    """Return the seconds that a run took; of a run that was resumed, those of its steps."""
    started, ended = (finite_number(evidence.info.get(key)) for key in ("started", "ended"))
    if not evidence.info.get("attempt") and started is not None and ended is not None:
        return ended - started
    steps = series(evidence.metrics, "time/step")
    return float(np.nansum(steps)) if np.isfinite(steps).any() else None


def _time(evidence: Evidence) -> str:
    seconds, began = elapsed(evidence), moment(evidence.info.get("started"))
    if seconds is None:
        return f"began {began}" if began else ""
    return f"{timedelta(seconds=round(seconds))} (hours:minutes:seconds)" + (f", began {began}" if began else "")


def _cost(evidence: Evidence) -> str:
    """Return the hours of processors or of the GPU, and what the judge's tokens cost where they have a price.

    Those of processors were measured: a run may wait for others, or leave threads idle.
    """
    policy = evidence.info.get("policy") or {}
    device, ranks = str(policy.get("device") or "cpu"), finite_number(policy.get("ranks")) or 1
    on_gpu = not device.startswith("cpu")
    seconds = elapsed(evidence) if on_gpu else finite_number(evidence.info.get("processor_s"))
    parts = []
    if seconds:
        hours = markup.number(seconds / HOUR_S * ranks)
        parts.append(f"{hours} {'GPU' if on_gpu else 'processor'} hours ({device})")
    parts += _judge_cost(evidence.metrics)
    return "; ".join(parts)


def memory(info: Mapping[str, Any]) -> str:
    """Return the most memory that the process of a run used, "" where run.json does not say."""
    recorded = info.get("memory")
    if not isinstance(recorded, Mapping):
        return ""
    peak, total = (finite_number(recorded.get(name)) for name in ("peak", "total"))
    if not peak or not total:
        return ""
    return f"{peak / GIB:.2f} of {total / GIB:.1f} GiB at most ({markup.clean(str(recorded.get('place')))})"


def _judge_cost(metrics: Sequence[Mapping[str, Any]]) -> list[str]:
    cost = series(metrics, "judge/cost")
    if not np.isfinite(cost).any():
        return []
    return [
        f"{markup.number(float(np.nansum(cost)))} for the judge's tokens, in the currency of rewards.judge.price_in"
    ]
