"""The series shown with a finding is the one it speaks of, and a long one loses nothing that stands out."""

import numpy as np

from steadyrl.core.types import Finding
from steadyrl.doctor.deciding import deciding_series, envelope, thinned
from steadyrl.doctor.examine import BY_NAME
from steadyrl.doctor.series import Run, Series


def series(quantity, source, estimator="", values=(1.0, 2.0)):
    return Series(quantity, "", estimator, source, np.arange(len(values)), np.asarray(values, float))


def run(**several):
    return Run("made", "unknown", "", {name: tuple(found) for name, found in several.items()})


def finding(check, *evidence):
    return Finding(check, "warning", 1, "unknown", "seen", evidence, "mend it")


def test_the_series_that_the_evidence_names_is_shown():
    made = run(kl_ref=[series("kl_ref", "kl_k3"), series("kl_ref", "objective/kl")])
    assert deciding_series(made, finding("kl_runaway", "objective/kl is above 20"), BY_NAME).source == "objective/kl"
    assert deciding_series(made, finding("kl_runaway", "it is high"), BY_NAME).source == "kl_k3"


def test_a_negative_kl_is_shown_by_an_estimator_that_can_be_negative():
    made = run(kl_ref=[series("kl_ref", "kl_k3", "k3"), series("kl_ref", "kl_k1", "k1")])
    assert deciding_series(made, finding("negative_kl"), BY_NAME).source == "kl_k1"


def test_a_check_of_whatever_is_logged_is_shown_by_what_it_names():
    made = run(loss=[series("loss", "loss")], entropy=[series("entropy", "entropy")])
    assert deciding_series(made, finding("non_finite", "entropy: 3 times"), BY_NAME).source == "entropy"


def test_a_family_is_found_by_its_members():
    made = run(**{"heldout/f1": [series("heldout/f1", "eval_f1")]})
    assert deciding_series(made, finding("reward_hacking"), BY_NAME).source == "eval_f1"


def test_nothing_logged_gives_nothing():
    assert deciding_series(run(), finding("kl_runaway"), BY_NAME) is None
    assert (
        deciding_series(run(kl_ref=[series("kl_ref", "kl", values=(np.nan,))]), finding("kl_runaway"), BY_NAME) is None
    )


def test_a_single_spike_among_a_million_points_is_kept():
    values = np.zeros(1_000_000)
    values[777_777], values[5] = 9.0, -9.0
    long = series("loss", "loss", values=values)
    short = thinned(long, 1000)
    assert len(short) <= 1000
    assert (short.values.max(), short.values.min()) == (9.0, -9.0)
    assert short.steps[short.values.argmax()] == 777_777
    assert (np.diff(short.steps) > 0).all()
    _, low, high = envelope(long, 60)
    assert (high.max(), low.min()) == (9.0, -9.0)


def test_a_short_series_is_kept_as_it_is():
    short = series("loss", "loss", values=range(10))
    assert thinned(short, 10) is short
    steps, low, high = envelope(short, 60)
    assert steps.tolist() == low.tolist() == high.tolist() == list(range(10))
