import math

import numpy as np

from steadyrl.doctor.series import Run, Series


def series(quantity, steps, values, unit=""):
    return Series(quantity, unit, "", quantity, np.array(steps, np.int64), np.array(values, np.float64))


def test_the_last_row_is_raw_and_of_one_step():
    run = Run(
        "made",
        "unknown",
        "",
        {
            "reward": (series("reward", [1, 2, 3], [0.1, 0.2, math.nan]),),
            "kl_ref": (series("kl_ref", [1, 3], [0.5, math.inf]), series("kl_ref", [3], [7.0], "nats/token")),
            "loss": (series("loss", [1, 2], [4.0, 5.0]),),
            "heldout/acc": (series("heldout/acc", [4], [0.9]),),
        },
    )
    assert run.last_row.keys() == {"reward", "kl_ref"}
    assert math.isnan(run.last_row["reward"])
    assert run.last_row["kl_ref"] == math.inf


def test_a_run_without_points_has_no_last_row():
    assert Run("made", "unknown", "", {"loss": (series("loss", [], []),)}).last_row == {}
