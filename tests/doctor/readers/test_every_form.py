"""The same rows give the same quantities in every form, with the names of a trainer and with those of one's own."""

import json

import numpy as np
import pytest

from steadyrl.doctor.names.identify import holds_known_metric, identify
from steadyrl.doctor.readers.search import search
from tests.doctor.readers.forms import FORMS

TRAINERS = (
    "reward",
    "reward_std",
    "kl",
    "completions/mean_length",
    "completions/clipped_ratio",
    "frac_reward_zero_std",
)
OWN = ("avg_reward", "ref_kl", "policy_entropy", "mean_answer_len", "clip_rate", "rewards/structure")


def rows(names):
    rng = np.random.default_rng(5)
    return [
        {"step": 5 * i, **{name: round(float(rng.random()) + 100.0 * ("len" in name), 4) for name in names}}
        for i in range(1, 13)
    ]


def series_of(path):
    (log,) = search(path, holds_known_metric).logs
    return {
        (series.quantity, series.unit, *series.steps.tolist(), *series.values.tolist())
        for quantity in identify(log).series.values()
        for series in quantity
    }


@pytest.mark.parametrize("names", [TRAINERS, OWN], ids=["TRL", "own"])
@pytest.mark.parametrize("form", FORMS)
def test_a_form_changes_no_quantity_and_no_value(tmp_path, form, names):
    plain, written = tmp_path / "plain.jsonl", tmp_path / form
    plain.write_text("\n".join(map(json.dumps, rows(names))), encoding="utf-8")
    written.write_text(FORMS[form](rows(names), "step"), encoding="utf-8", newline="")
    assert series_of(written) == series_of(plain)
    assert len(series_of(plain)) == len(names)
