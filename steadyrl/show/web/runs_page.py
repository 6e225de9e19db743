"""The first page: a table of all runs, with filters and sorting in its address."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import parse_qsl, urlencode

from steadyrl.core.errors import RunError
from steadyrl.show.web.diagnosis import Diagnoses
from steadyrl.show.web.folder import Folder
from steadyrl.show.web.overview import Row
from steadyrl.show.web.render import whole_number

PER_PAGE = 100
MOST_FIELDS = 500  # of a form: as many runs as a page shows, and the columns
_SEVERITY = {"critical": 0, "warning": 1}
_VERDICTS = ("sick", "too little to judge", "", "healthy")
_CHANGES = ("worse", "undecided", "", "equal", "better")


@dataclass(frozen=True)
class Column:
    """A column of the table."""

    title: str
    name: str  # in addresses and in the file of labels
    number: bool  # whether it is set to the right, and sorted from the greatest first
    key: Callable[[Row], Any]  # what a row is sorted by; None comes last both ways


def _verdict_rank(row: Row) -> tuple[int, int] | None:
    return (_VERDICTS.index(row.verdict), _CHANGES.index(row.change)) if row.verdict or row.change else None


COLUMNS: tuple[Column, ...] = (
    Column("verdict", "verdict", False, _verdict_rank),
    Column("score", "heldout", True, lambda row: row.heldout and row.heldout.score),
    Column("reward", "reward", True, lambda row: row.reward),
    Column("leading finding", "finding", False, lambda row: row.finding and _SEVERITY.get(row.finding.severity)),
    Column("status", "status", False, lambda row: row.status),
    Column("step", "step", True, lambda row: row.step),
    Column("time left", "left", True, lambda row: row.seconds_left),
    Column("task", "task", False, lambda row: row.task or None),
    Column("algorithm", "algorithm", False, lambda row: row.algorithm or None),
    Column("model", "model", False, lambda row: row.model or None),
    Column("group", "group", False, lambda row: row.ref.label.group or None),
    Column("tags", "tags", False, lambda row: ", ".join(row.ref.label.tags) or None),
    Column("note", "note", False, lambda row: row.ref.label.note or None),
    Column("last step", "time", True, lambda row: row.time),
)
_RUN = Column("run", "name", False, lambda row: row.ref.title)
FIRST_COLUMNS = ("verdict", "heldout", "reward", "finding", "status", "step", "model", "time")
FILTERS = ("status", "task", "algorithm")
GROUPED = ("group", "task", "algorithm", "model", "status", "verdict")
NEWEST_FIRST = "-time"
MOST_OFFERED = 200  # metrics that can be columns


def runs_view(folder: Folder, diagnoses: Diagnoses, query: Mapping[str, str]) -> dict[str, Any]:
    """Return what the page shows."""
    rows = diagnoses.rows(folder)
    labels = folder.labels.read()
    selection = {"q": query.get("q", ""), "sort": query.get("sort", NEWEST_FIRST)}
    selection |= {name: query.get(name, "") for name in (*FILTERS, "tag", "by", "hidden")}
    matching = [row for row in rows if _fits(row, selection)]
    columns = _columns(FIRST_COLUMNS if labels.columns is None else labels.columns)
    by = selection["sort"].removeprefix("-")
    key = next((column.key for column in (*COLUMNS, *columns) if column.name == by), _RUN.key)
    sortable = [row for row in matching if key(row) is not None]
    ordered = sorted(sortable, key=key, reverse=selection["sort"].startswith("-"))
    ordered += [row for row in matching if key(row) is None]
    page = max(1, min(whole_number(query.get("page"), 1), _pages(len(ordered))))
    first = (page - 1) * PER_PAGE
    page_rows = ordered[first : first + PER_PAGE]
    hidden = sum(row.ref.label.hidden for row in rows)
    # What can be a column, as (name, title): the table's own, and the metrics of the last steps.
    metrics = sorted({name for row in page_rows for name in row.metrics} - {"step", "attempt", "time", "reward/mean"})
    choices = {name: sorted({str(getattr(row, name)) for row in rows} - {""}) for name in FILTERS}
    return {
        "section": "runs",
        "root": folder.root.name,
        "selection": selection,
        "filtered": any(selection[name] for name in ("q", *FILTERS, "tag", "hidden")),
        "choices": choices | {"tag": sorted({tag for row in rows for tag in row.ref.label.tags})},
        "grouped": GROUPED,
        "columns": columns,
        "headings": [_heading(column, selection) for column in (_RUN, *columns)],
        "chosen": [column.name for column in columns],
        "offered": {
            "": [(column.name, column.title) for column in COLUMNS],
            "the last step's": [(name, name) for name in metrics[:MOST_OFFERED]],
        },
        "own_columns": [column.name for column in COLUMNS],
        "rows": page_rows,
        "groups": _groups(page_rows, selection["by"]),
        "problem": labels.problem,
        "hidden": hidden,
        "back": _address(selection, page).partition("?")[2],
        "show_hidden": _address({**selection, "hidden": "" if selection["hidden"] else "1"}, 1),
        "all": len(rows) - (0 if selection["hidden"] else hidden),
        "total": len(ordered),
        "shown_from": first + 1,
        "shown_to": min(first + PER_PAGE, len(ordered)),
        "previous": _address(selection, page - 1) if page > 1 else None,
        "next": _address(selection, page + 1) if page < _pages(len(ordered)) else None,
    }


def _columns(names: Sequence[str]) -> list[Column]:
    """Return columns by their names; a name that is none of the table's own is that of a metric."""
    built_in = {column.name: column for column in COLUMNS}
    return [built_in.get(name) or _metric_column(name) for name in names]


def _metric_column(name: str) -> Column:
    return Column(name, name, True, lambda row: row.metrics.get(name))


def _groups(rows: Sequence[Row], by: str) -> dict[str, list[Row]]:
    """Return rows by what they are grouped by, in the order of their first row; under "" where they are not."""
    column = next((column for column in COLUMNS if column.name == by and by in GROUPED), None)
    groups: dict[str, list[Row]] = {}
    for row in rows:
        value = row.verdict if by == "verdict" else column and column.key(row)
        groups.setdefault("" if column is None else str(value or f"no {by}"), []).append(row)
    return groups


def change_labels(folder: Folder, form: bytes) -> str:
    """Change labels or columns as a form says, and return the address of the page to show next.

    Args:
        folder: Of the runs.
        form: Its fields, as a browser sends them: "do" says what; "run" are ids, "back" is the query of the table.

    Raises:
        RunError: It names a run that is not there, or nothing to do.
        AccessError: The file cannot be written.
    """
    try:
        pairs = parse_qsl(form.decode("latin-1"), keep_blank_values=True, max_num_fields=MOST_FIELDS)
    except ValueError as error:
        raise RunError(f"the form has more than {MOST_FIELDS} fields; mark fewer runs at once") from error
    fields = dict(pairs)
    do, value = fields.get("do", ""), fields.get("value", "")
    ids = [text for name, text in pairs if name == "run"]
    names = [folder.find(run_id).name for run_id in ids]
    changes: dict[str, dict[str, Any]] = {
        "label": {"hidden": "hidden" in fields}
        | {name: fields.get(name, "") for name in ("name", "group", "note", "tags")},
        "hide": {"hidden": True},
        "unhide": {"hidden": False},
        "group": {"group": value},
        "tag": {"add_tags": value},
        "untag": {"remove_tags": value},
    }
    if do == "columns":
        folder.labels.choose([text for name, text in pairs if name == "column"] or None)
    elif do in changes and names:
        folder.labels.change(names, **changes[do])
    else:
        raise RunError("the form names no run; mark at least one in the table of runs")
    return f"/run/{ids[0]}" if do == "label" else f"/?{fields.get('back', '')}"


def _pages(count: int) -> int:
    return max(1, -(-count // PER_PAGE))


def _fits(row: Row, selection: Mapping[str, str]) -> bool:
    label = row.ref.label
    if label.hidden and not selection["hidden"]:
        return False
    if selection["tag"] and selection["tag"] not in label.tags:
        return False
    if any(selection[name] and selection[name] != getattr(row, name) for name in FILTERS):
        return False
    if not selection["q"]:
        return True
    of_run = (row.ref.name, row.model, row.task, row.algorithm, row.status, row.verdict, row.change)
    finding = (row.finding.check, row.finding.cause) if row.finding else ()
    texts = (*of_run, *finding, label.name, label.group, label.note, *label.tags)
    haystack = " ".join(str(text) for text in texts if text).lower()
    return all(word in haystack for word in selection["q"].lower().split())


def _heading(column: Column, selection: Mapping[str, str]) -> dict[str, Any]:
    name = column.name
    order = {name: "ascending", f"-{name}": "descending"}.get(selection["sort"])
    first = f"-{name}" if column.number else name
    toggled = name if selection["sort"] == f"-{name}" else f"-{name}"
    return {
        "name": column.title,
        "key": name,
        "number": column.number,
        "sorted": order,
        "href": _address({**selection, "sort": toggled if order else first}, 1),
    }


def _address(selection: Mapping[str, str], page: int) -> str:
    query = {name: value for name, value in selection.items() if value and (name, value) != ("sort", NEWEST_FIRST)}
    if page > 1:
        query["page"] = str(page)
    return f"/?{urlencode(query)}" if query else "/"
