"""A run that differs from another in training longer, and in nothing else, goes on from a copy of it.

Up to the end of the shorter one the two are the same run, to the last bit, so that its steps need not be made again.
"""

from __future__ import annotations

import shutil
from pathlib import Path

from steadyrl.core import config as configs
from steadyrl.core.config import Config
from steadyrl.core.errors import AccessError
from steadyrl.core.rundir import RunDir, read_json, write_json
from steadyrl.lab.study.plan import Job, Study, differences, job_of


def shorter(study: Study, job: Job) -> Job | None:
    """Return the run that a run goes on from, or None where it has to begin anew."""
    if job is study.warm or not (base := study.arm(job.arm).experiment.base):
        return None
    base_job = job_of(study, study.arm(base), job.config.run.seed)
    return base_job if _same_until(base_job.config, job.config) else None


def _same_until(short: Config, long: Config) -> bool:
    """Say whether a run is the beginning of another one."""
    end = short.run.steps
    if set(differences(short, long)) != {"run.steps"} or end >= long.run.steps or short.run.epochs:
        return False
    if any(":" in name for name in long.rewards):
        return False  # a function of the user's may ask how many steps are planned
    if short.evaluate.every and end % short.evaluate.every:
        return False  # the last step of a run is evaluated
    return all(short.update.rate(n, end) == long.update.rate(n, long.run.steps) for n in range(end))


def copied(run: RunDir, long: Config, place: Path) -> RunDir | None:
    """Copy a run that came to its end, with its last checkpoint, as one that was interrupted on its longer way.

    Args:
        run: The shorter one.
        long: Settings of the longer one.
        place: The folder in which the copy is put.

    Returns:
        The copy; None where the run did not come to its end.

    Raises:
        AccessError: It cannot be written.
    """
    done = run.checkpoints()
    if run.status != "finished" or not done or done[-1] != run.resolved()["run"]["steps"]:
        return None
    copy, last = RunDir(place / run.path.name), run.checkpoint_folder(done[-1])
    older = [folder.name for folder in last.parent.iterdir() if folder != last]
    # Without run.json it is no run to anybody, so that a copy that was cut is made again.
    skipped = shutil.ignore_patterns(run.info_file.name, run.resolved_file.name, "writer.lock", "report*", *older)
    try:
        shutil.copytree(run.path, copy.path, ignore=skipped, dirs_exist_ok=True)
    except OSError as error:  # shutil.Error too, a list of all that failed
        raise AccessError(
            f"cannot copy the run '{run.path}' to '{place}': {error!s:.200}; free some space, and start again"
        ) from error
    write_json(copy.resolved_file, configs.dump(long))
    write_json(copy.info_file, {**read_json(run.info_file), "status": "interrupted", "continues": str(run.path)})
    return copy
