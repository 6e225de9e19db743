"""Logs that other people published, where they lie beside the project: each is read. They are not the project's."""

import json
from pathlib import Path

import numpy as np
import pytest

from steadyrl.doctor.names.identify import holds_known_metric, identify
from steadyrl.doctor.readers.search import search
from tests import needs

WILD = needs.WILD_LOGS.parent
LABELS = needs.WILD_LOGS.read_text().splitlines() if needs.WILD_LOGS.is_file() else []
FILES = [json.loads(line)["file"] for line in LABELS] or ["none there"]
# Names that no training run has, but a printed text may: if they became metrics, ordinary text was read as a log.
WORDS = {"Prompt length", "Ground truth", "pred", "eos_token_id", "train_runtime", "num_cpus"}


@pytest.mark.wild_logs
@pytest.mark.parametrize("name", FILES)
def test_a_published_log_is_read(name):
    found = search(WILD / name, holds_known_metric)
    assert not found.unreadable
    for log in found.logs:
        run = identify(log)
        assert {"reward", "loss", "loss_policy"} & run.series.keys()
        assert not WORDS & log.columns.keys()
        assert all((np.diff(series.steps) > 0).all() for several in run.series.values() for series in several)
        assert run.series


@pytest.mark.wild_logs
def test_published_logs_in_one_folder_stay_apart():
    found = search(WILD / "runs", holds_known_metric)
    assert {Path(log.path.partition("#")[0]).name for log in found.logs} == {Path(name).name for name in FILES}
