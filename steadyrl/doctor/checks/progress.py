"""Time: pauses, runs that ended early, steps that became slower."""

from __future__ import annotations

import numpy as np

from steadyrl.doctor.check import Cause, Check, Found, Result, Unknown
from steadyrl.doctor.series import Run, Series
from steadyrl.doctor.statistics.levels import measure
from steadyrl.doctor.statistics.measures import setting
from steadyrl.doctor.statistics.readings import number
from steadyrl.doctor.statistics.signals import MIN_STEPS, head
from steadyrl.doctor.statistics.units import together

PAUSE_STEPS, PAUSE_SECONDS = 30.0, 600.0  # both have to be passed: long evaluations are no pause
NEARLY = 0.98  # of the planned steps
FASTEST = 0.2  # of the last steps: what slows the run itself slows these too
SLOWER, MUCH_SLOWER = 1.3, 2.0  # times the first steps' time, per token where that is known


def _stalled(run: Run) -> Result | list[Result]:
    clock, planned = run.get("time_logged"), setting(run, "steps")
    if clock is None and planned is None:
        why = "the log has neither times nor the planned number of steps"
        return Unknown(why, ("time_logged", "steps"))
    return [_paused(clock) if clock is not None else None, _ended_early(run, planned) if planned else None]


def _paused(clock: Series) -> Result:
    gaps = np.diff(clock.values)
    if len(gaps) < 5:
        return None
    usual = float(np.median(gaps))
    long = np.flatnonzero((gaps > PAUSE_STEPS * usual) & (gaps > PAUSE_SECONDS))
    if not len(long):
        return None
    worst = long[np.argmax(gaps[long])]
    return Found(
        "paused",
        "info",
        int(clock.steps[long[0]]),
        f"{len(long)} pauses of {number(float(gaps[long].sum()) / 3600)} hours in all, the longest after step "
        f"{clock.steps[worst]}",
        (f"a step takes {number(usual)} s usually; this one {number(float(gaps[worst]))} s",),
    )


def _ended_early(run: Run, planned: float) -> Result:
    ends = [int(several[0].steps[-1]) for several in run.series.values() if several and len(several[0])]
    if not ends or max(ends) + 1 >= NEARLY * planned:
        return None
    return Found(
        "ended_early",
        "info",
        max(ends),
        f"the log ends at step {max(ends)} of {planned:g}",
        (f"last step {max(ends)}, planned {planned:g}",),
    )


stalled = Check(
    name="stalled", topic="Speed",
    title="The run paused for long, or ended before its planned steps.",
    symptom="The log's clock jumps, or its last step is not the planned one. Neither harms what was learned, so both "
    "are worth knowing only.",
    healthy="The run goes on to its last planned step, without long pauses.",
    causes=(
        Cause("paused", "between two steps lie more than 30 usual steps and more than ten minutes: a queue, a "
              "sleeping machine, a restart, an engine that did not answer",
              "Read what the trainer printed at that time."),
        Cause("ended_early", "the last logged step is below 98 % of the planned ones: it is still running, was "
              "stopped, or died",
              "If it is not running any more, go on from its last checkpoint."),
    ),
    find=_stalled, shows=("time_logged",),
    source="SageMaker Debugger's rule for stalled training watches the same thing with a fixed half hour; the run's "
    "own settings",
)  # fmt: skip


def _decay(run: Run) -> Result:
    series = _seconds_per_token(run)
    levels = measure(series)
    assert levels is not None, "min_steps"
    start, end = head(series), float(np.quantile(series.values[-max(10, len(series) // 5) :], FASTEST))
    if not levels.rose or start <= 0 or end < SLOWER * start:
        return None
    return Found(
        "slower",
        "warning" if end > MUCH_SLOWER * start else "info",
        int(levels.steps[np.argmax(levels.means > SLOWER * start)]),
        f"a token takes {number(end / start)} times as long at the end as at the start",
        (
            f"{series.source}: the fastest fifth of the last steps and the median of the first ones differ by a factor "
            f"{number(end / start)}",
        ),
    )


def _seconds_per_token(run: Run) -> Series:
    """Return the time of a token, up to a factor: from the throughput, or from the step's time and the length."""
    speed, step, length = run.get("tokens_per_second"), run.get("time_step"), run.get("length")
    if speed is not None and (speed.values > 0).all():
        return Series("time_token", "s", "", speed.source, speed.steps, 1.0 / speed.values)
    assert step is not None, "a need"
    if length is None:
        return step
    step, length = together(step, length)
    return Series("time_token", "s", "", step.source, step.steps, step.values / np.maximum(length.values, 1.0))


throughput_decay = Check(
    name="throughput_decay", topic="Speed",
    title="Steps take ever longer.",
    symptom="At the end a token takes 1.3 times as long as at the start or more (a warning from 2 times on), in "
    "nearly all steps: the fastest fifth of the last steps counts, against the median of the first ones, so that a "
    "machine that was halted or lent to others in between raises nothing. A step's time is divided by the mean length "
    "where both are logged, because longer texts take longer.",
    healthy="A token takes as long at the end as at the start.",
    causes=(
        Cause("slower", "each token takes longer: memory that fills up (leak, fragmentation), a machine that heats up "
              "or is shared, an engine or index that grows",
              "Look at memory over time; go on from a checkpoint in a fresh process and see whether it is fast again."),
    ),
    find=_decay, needs=("time_step|tokens_per_second",), min_steps=MIN_STEPS, follows=("length_explosion",),
    source="steadyrl's own rule",
)  # fmt: skip
