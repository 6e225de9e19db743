"""The table of shared bounds: every experiment is measured against each, whether it names it or not."""

from types import SimpleNamespace

from steadyrl.core.rundir import RunDir
from steadyrl.lab.study.file import Expect, Experiment, Rule
from steadyrl.lab.study.outcome import ArmResult, SeedRun
from steadyrl.lab.study.plan import Arm
from steadyrl.show.page.records import plain, strong
from steadyrl.show.report.study import criteria

STUDY = SimpleNamespace(file=SimpleNamespace(metric="reward/mean", rule=Rule()))
REACHES = Expect(says="It reaches 1.", be="at least", value=1.0)
MISSES = Expect(says="It stays below 1.", be="at most", value=1.0)
STEADY = Expect(says="It is steady.", metric="kl", take="max", be="at most", value=0.5)
HIGHER = Expect(says="It is higher.", be="higher")


def outcome(folder, name, expect, *ends):
    runs = []
    for seed, (reward, kl) in enumerate(ends):
        record = {"step": 0, "attempt": 0, "reward/mean": reward, "kl": kl}
        runs.append(SeedRun(seed, RunDir(folder / f"{name}-{seed}"), "finished", 1, "", "", [record]))
    return ArmResult(Arm(Experiment(name=name, title=name, expect=expect), None, {}), tuple(runs), (), ())


def test_every_experiment_is_measured_against_the_bounds_that_several_name(tmp_path):
    found = [
        outcome(tmp_path, "a", [REACHES, STEADY, HIGHER], (1.5, 0.1), (2.5, 0.2)),
        outcome(tmp_path, "b", [MISSES], (0.5, 0.3), (1.5, 0.9)),
        outcome(tmp_path, "c", [REACHES, STEADY], (0.5, None)),
        outcome(tmp_path, "d", []),
    ]
    *_, table = criteria(STUDY, found)
    heads = [column.name for column in table.heads]
    assert heads == ["experiment", "It reaches 1. (reward/mean, at least 1)", "It is steady. (kl, at most 0.5)"]
    cells = {row[0].text: [(plain(cell), cell == strong(plain(cell))) for cell in row[1:]] for row in table.rows}
    assert cells == {
        "a": [("2.000, met in 2 of 2", True), ("0.150, met in 2 of 2", True)],
        "b": [("1.000, met in 1 of 2", False), ("0.600, met in 1 of 2", False)],
        "c": [("0.500, missed", False), ("not measured", False)],
        "d": [("no run yet", False), ("no run yet", False)],
    }


def test_a_bound_of_one_experiment_makes_no_table(tmp_path):
    assert criteria(STUDY, [outcome(tmp_path, "a", [REACHES, HIGHER]), outcome(tmp_path, "b", [STEADY])]) == []
