"""The metrics of a run as one table, for a spreadsheet or a data frame."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from steadyrl.core.errors import RunError
from steadyrl.core.plugins import require
from steadyrl.core.rundir import RunDir, write_bytes, write_text
from steadyrl.integrations.trackers.tracker import description

FIRST = ("step", "attempt", "time")


def columns(records: Sequence[Mapping[str, Any]]) -> dict[str, list[float | int | None]]:
    """Return the columns of a run's records; None where a step did not measure a metric.

    Raises:
        RunError: There are no records.
    """
    if not records:
        raise RunError("the run has no steps yet; write its metrics when its first step is done")
    names = dict.fromkeys([*FIRST, *(name for record in records for name in record)])
    numbers = [{key: value for key, value in record.items() if type(value) in (int, float)} for record in records]
    return {name: [record.get(name) for record in numbers] for name in names}


def write_csv(run: RunDir, path: Path) -> None:
    """Write a row per step, with a heading; a number that is not known is left empty.

    Raises:
        RunError: There are no steps.
        AccessError: The file cannot be written.
    """
    table = columns(run.metrics())
    text = io.StringIO()
    rows = csv.writer(text, lineterminator="\n")
    rows.writerow(table)
    rows.writerows(zip(*table.values(), strict=True))
    write_text(path, text.getvalue())


def write_parquet(run: RunDir, path: Path) -> None:
    """Write a column per metric, with its meaning and unit in the column's metadata.

    Raises:
        RunError: There are no steps.
        MissingExtraError: pyarrow is not installed.
        AccessError: The file cannot be written.
    """
    arrow, parquet = require("pyarrow"), require("pyarrow.parquet")
    table = columns(run.metrics())
    types = {name: arrow.int64() if name in ("step", "attempt") else arrow.float64() for name in table}
    fields = [arrow.field(name, kind, metadata={"description": description(name)}) for name, kind in types.items()]
    arrow_table = arrow.table(list(table.values()), schema=arrow.schema(fields))
    content = io.BytesIO()
    parquet.write_table(arrow_table, content)
    write_bytes(path, content.getvalue())
