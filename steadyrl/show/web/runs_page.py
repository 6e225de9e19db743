"""The first page: a table of all runs, with filters and sorting in its address."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any
from urllib.parse import urlencode

from steadyrl.show.web.folder import Folder
from steadyrl.show.web.overview import Row, rows

PER_PAGE = 100
_SEVERITY = {"critical": 0, "warning": 1}
# Heading: its name in the address, whether it is a number, and what it sorts by; None comes last both ways.
COLUMNS: tuple[tuple[str, str, bool, Callable[[Row], Any]], ...] = (
    ("run", "name", False, lambda row: row.place.name),
    ("status", "status", False, lambda row: row.status),
    ("task", "task", False, lambda row: row.task or None),
    ("algorithm", "algorithm", False, lambda row: row.algorithm or None),
    ("model", "model", False, lambda row: row.model or None),
    ("step", "step", True, lambda row: row.step),
    ("time left", "left", True, lambda row: row.seconds_left),
    ("reward", "reward", True, lambda row: row.reward),
    ("held-out", "heldout", True, lambda row: row.heldout.score if row.heldout else None),
    ("worst finding", "finding", False, lambda row: _SEVERITY.get(row.finding["severity"]) if row.finding else None),
    ("last step", "time", True, lambda row: row.time),
)
FILTERS = ("status", "task", "algorithm")
NEWEST_FIRST = "-time"


def runs_view(folder: Folder, query: Mapping[str, str]) -> dict[str, Any]:
    """Return what the page shows.

    Args:
        folder: Of the runs.
        query: Of the address: "q", "status", "task", "algorithm", "sort" and "page".
    """
    every = rows(folder)
    selection = {"q": query.get("q", ""), "sort": query.get("sort", NEWEST_FIRST)}
    selection |= {name: query.get(name, "") for name in FILTERS}
    fitting = [row for row in every if _fits(row, selection)]
    ordered = _sorted(fitting, selection["sort"])
    number = query.get("page", "1")
    page = max(1, min(int(number) if number.isdecimal() and len(number) < 7 else 1, _pages(len(ordered))))
    first = (page - 1) * PER_PAGE
    return {
        "section": "runs",
        "root": folder.root.name,
        "asked": selection,
        "filtered": any(selection[name] for name in ("q", *FILTERS)),
        "choices": {name: sorted({str(getattr(row, name)) for row in every} - {""}) for name in FILTERS},
        "columns": [_heading(column, selection) for column in COLUMNS],
        "rows": ordered[first : first + PER_PAGE],
        "all": len(every),
        "total": len(ordered),
        "shown_from": first + 1,
        "shown_to": min(first + PER_PAGE, len(ordered)),
        "previous": _address(selection, page - 1) if page > 1 else None,
        "next": _address(selection, page + 1) if page < _pages(len(ordered)) else None,
    }


def _pages(count: int) -> int:
    return max(1, -(-count // PER_PAGE))


def _fits(row: Row, selection: Mapping[str, str]) -> bool:
    if any(selection[name] and selection[name] != getattr(row, name) for name in FILTERS):
        return False
    finding = row.finding or {}
    texts = (row.place.name, row.model, row.task, row.algorithm, row.status, finding.get("check"), finding.get("cause"))
    haystack = " ".join(str(text) for text in texts if text).lower()
    return all(word in haystack for word in selection["q"].lower().split())


def _sorted(fitting: list[Row], sort: str) -> list[Row]:
    name = sort.removeprefix("-")
    key = next((key for _, own, _, key in COLUMNS if own == name), COLUMNS[0][3])
    keyed = sorted((row for row in fitting if key(row) is not None), key=key, reverse=sort.startswith("-"))
    return keyed + [row for row in fitting if key(row) is None]


def _heading(column: tuple[str, str, bool, Any], selection: Mapping[str, str]) -> dict[str, Any]:
    title, name, is_number, _ = column
    order = {name: "ascending", f"-{name}": "descending"}.get(selection["sort"])
    first = f"-{name}" if is_number else name
    toggled = name if selection["sort"] == f"-{name}" else f"-{name}"
    return {
        "name": title,
        "number": is_number,
        "sorted": order,
        "href": _address({**selection, "sort": toggled if order else first}, 1),
    }


def _address(selection: Mapping[str, str], page: int) -> str:
    parts = {name: value for name, value in selection.items() if value and (name, value) != ("sort", NEWEST_FIRST)}
    if page > 1:
        parts["page"] = str(page)
    return f"/?{urlencode(parts)}" if parts else "/"
