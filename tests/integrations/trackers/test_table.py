import csv
import math
from pathlib import Path

import pytest

from steadyrl.cli.export import export_command
from steadyrl.cli.metrics import metrics_command
from steadyrl.core.errors import ConfigError, RunError
from steadyrl.core.rundir import append_line
from steadyrl.integrations.trackers.table import write_csv, write_parquet
from tests import needs
from tests.show.web.made import make_run, metrics


def test_a_csv_has_a_row_per_step_with_what_was_measured(tmp_path):
    run = make_run(tmp_path / "a", steps=4)
    append_line(run.metrics_file, metrics(3, 1, **{"heldout/f1": 0.5, "entropy": math.nan, "odd,name": 1e-9}))
    write_csv(run, tmp_path / "x" / "m.csv")
    with (tmp_path / "x" / "m.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["step"] for row in rows] == ["0", "1", "2", "3"]
    assert (rows[0]["heldout/f1"], rows[3]["heldout/f1"], rows[3]["odd,name"]) == ("", "0.5", "1e-09")
    assert (rows[3]["attempt"], rows[3]["entropy"]) == ("1", "nan")
    assert float(rows[2]["reward/mean"]) == metrics(2)["reward/mean"]


def test_a_parquet_file_holds_units_and_the_same_numbers(tmp_path):
    needs.skip_without_packages("pyarrow", extra="data")
    from pyarrow import parquet

    run = make_run(tmp_path / "a", steps=4)
    write_parquet(run, tmp_path / "m.parquet")
    table = parquet.read_table(tmp_path / "m.parquet")
    assert table.column("step").to_pylist() == [0, 1, 2, 3]
    assert table.column("reward/mean").to_pylist() == [metrics(step)["reward/mean"] for step in range(4)]
    assert b"nats/token" in table.schema.field("entropy").metadata[b"description"]


def test_an_export_to_a_table_writes_the_metrics_and_no_model(tmp_path, capsys):
    run = make_run(tmp_path / "a", steps=4)
    export_command([run.path], Path("csv"))
    assert (run.report_folder / "metrics.csv").is_file()
    assert "4 steps" in capsys.readouterr().out


def test_the_command_writes_beside_the_report_and_refuses_what_makes_no_sense(tmp_path, capsys):
    run = make_run(tmp_path / "a", steps=4)
    metrics_command(run.path, "csv")
    assert (run.report_folder / "metrics.csv").is_file()
    assert "4 steps" in capsys.readouterr().out
    with pytest.raises(ConfigError, match="is no table"):
        metrics_command(run.path, "wandb", tmp_path / "x")
    with pytest.raises(ConfigError, match="excel"):
        metrics_command(run.path, "excel")
    for name in ("run.json", "metrics.jsonl", "x.parquet"):  # of the run itself, above all
        with pytest.raises(ConfigError, match=rf"--out is '.*{name}'.*a name that ends in \.csv"):
            metrics_command(run.path, "csv", run.path / name)
    (tmp_path / "link.csv").symlink_to(tmp_path / "real.csv")
    (tmp_path / "real.csv").touch()
    metrics_command(run.path, "csv", tmp_path / "link.csv")
    assert (tmp_path / "link.csv").is_symlink() and (tmp_path / "real.csv").stat().st_size
    for more in ({"checkpoint": "last"}, {"merge": True}, {"gguf": True}, {"push_to_hub": "a/b"}):
        with pytest.raises(ConfigError, match=r"--to csv writes metrics, and --[a-z-]+ says how to write a policy"):
            export_command([run.path], Path("csv"), **more)
    with pytest.raises(RunError, match="no steps yet"):
        metrics_command(make_run(tmp_path / "b", steps=0).path, "csv")
