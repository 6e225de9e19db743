"""Files that the real libraries wrote: those kept beside the tests, and fresh ones where the library is installed."""

import gzip
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from steadyrl.doctor.readers.search import search
from tests import needs

HERE = Path(__file__).parent
DATA = HERE / "data"
SIX = [1.0, 1 / 2, 1 / 3, 1 / 4, 1 / 5, 1 / 6]
TENS = [10, 20, 30, 40, 50, 60]


def read(path):
    """Return the logs of a file or folder, whatever their metrics."""
    return list(search(path, lambda log: True).logs)


def assert_is_the_short_run(log, steps, rtol=1e-12):
    np.testing.assert_array_equal(log.columns["loss"].steps, steps)
    np.testing.assert_allclose(log.columns["loss"].values, SIX, rtol=rtol)
    np.testing.assert_array_equal(log.columns["kl"].values, [0, -0.5, -1, -1.5, -2, -2.5])
    np.testing.assert_array_equal(log.columns["reward/mean"].values, [0, 0.25, 0.5, np.nan, np.inf, 1.25])


def unpacked(name, folder):
    target = folder / name.removesuffix(".gz")
    target.write_bytes(gzip.decompress((DATA / name).read_bytes()))
    return target


def written_now(kind, folder, *packages):
    needs.skip_without_packages(*packages, extra="test-logs")
    done = subprocess.run(
        [sys.executable, HERE / "short_run.py", kind, folder], capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    return folder


def check_wandb(folder):
    (log,) = read(folder)
    assert log.format == "wandb"
    assert_is_the_short_run(log, TENS)  # the trainer's own step, not the count of log calls
    assert list(log.columns["nested/a"].values) == [0, 1, 2, 3, 4, 5]
    assert not {name for name in log.columns if name.startswith(("histogram", "text", "ok"))}
    assert log.settings == {"learning_rate": 1e-5, "kl.coef": 0.05}
    assert log.notes == ()


def test_a_wandb_file_is_read():
    check_wandb(DATA / "offline-run-20261120_130921-short")


def test_a_fresh_wandb_run_is_read(tmp_path):
    check_wandb(written_now("wandb", tmp_path, "wandb"))


def check_trackio(path):
    logs = read(path)
    assert [Path(log.path).name.partition("#")[2] for log in logs] == ["first", "second"]
    for log in logs:
        assert log.format == "trackio"
        assert_is_the_short_run(log, range(6))
        assert (log.settings["learning_rate"], log.settings["kl.coef"]) == (1e-5, 0.05)
        assert log.notes == ()


def test_a_trackio_database_is_read(tmp_path):
    check_trackio(unpacked("trackio.db.gz", tmp_path))


def test_a_fresh_trackio_project_is_read(tmp_path):
    check_trackio(written_now("trackio", tmp_path, "trackio"))


def check_mlflow(path, runs):
    logs = read(path)
    assert len(logs) == runs
    for log in logs:
        assert log.format == "mlflow"
        assert_is_the_short_run(log, range(6))
        assert log.settings == {"learning_rate": 1e-5, "bf16": True, "name": "x"}
        assert log.notes == ()


def test_an_mlflow_database_is_read(tmp_path):
    check_mlflow(unpacked("mlflow.db.gz", tmp_path), runs=2)


def test_an_mlflow_folder_is_read():
    check_mlflow(DATA / "mlruns", runs=1)


def test_a_fresh_mlflow_database_is_read(tmp_path):
    check_mlflow(written_now("mlflow_database", tmp_path, "mlflow", "sqlalchemy", "alembic"), runs=2)


def test_a_fresh_mlflow_folder_is_read(tmp_path):
    check_mlflow(written_now("mlflow_folder", tmp_path, "mlflow"), runs=1)


def check_tensorboard(folder):
    (log,) = read(folder)
    assert log.format == "tensorboard"
    loss = log.columns["loss"]
    np.testing.assert_array_equal(loss.steps, [*TENS, 70])
    # The second file writes step 60 again.
    np.testing.assert_allclose(loss.values, [*SIX[:5], 9, 8], rtol=1e-6)
    np.testing.assert_array_equal(log.columns["reward/mean"].values, [0, 0.25, 0.5, np.nan, np.inf, 1.25])
    np.testing.assert_array_equal(log.columns["new_style"].values, [0, 0.125, 0.25, 0.375, 0.5, 0.625])
    np.testing.assert_allclose(log.columns["double"].values, [0, 0.1, 0.2, 0.3, 0.4, 0.5], rtol=1e-12)
    assert "histogram" not in log.columns
    assert log.settings == {"learning_rate": 1e-5, "kl.coef": 0.05}
    assert log.notes == ("values written again for the same step, of which the later writing counts: 1",)


def test_event_files_of_torch_are_read():
    check_tensorboard(DATA / "tensorboard")


def test_fresh_event_files_of_torch_are_read(tmp_path):
    check_tensorboard(written_now("tensorboard", tmp_path, "torch", "tensorboard"))


def check_tensors(folder):
    (log,) = read(folder)
    np.testing.assert_array_equal(log.columns["loss"].steps, TENS)
    np.testing.assert_allclose(log.columns["loss"].values, SIX, rtol=1e-6)


def test_scalars_written_as_tensors_are_read():
    check_tensors(DATA / "tensors")


def test_fresh_scalars_written_as_tensors_are_read(tmp_path):
    check_tensors(written_now("tensors", tmp_path, "tensorboard"))


def test_hyperparameters_of_an_event_file_are_its_settings():
    (log,) = read(DATA / "hparams")
    assert log.settings == {"lr": 0.5, "name": "x", "flag": True}
    assert log.columns["final"].values.tolist() == [1.0]


def test_several_folders_of_event_files_are_several_runs(tmp_path):
    for name in ("a", "b"):
        shutil.copytree(DATA / "tensors", tmp_path / "runs" / name)
    assert [Path(log.path).parent.name for log in read(tmp_path)] == ["a", "b"]


def check_trainer_state(path):
    (log,) = read(path)
    assert log.format == "trainer_state"
    assert_is_the_short_run(log, TENS)
    assert (log.columns["eval_loss"].steps.tolist(), log.columns["eval_loss"].values.tolist()) == ([30], [0.75])
    assert log.settings["logging_steps"] == 10
    assert log.notes == ()


def test_a_trainer_state_is_read():
    check_trainer_state(DATA / "trainer_state.json")


@pytest.mark.weekly
@pytest.mark.slow
def test_a_fresh_trainer_state_is_read(tmp_path):
    check_trainer_state(written_now("trainer_state", tmp_path, "torch", "transformers"))
