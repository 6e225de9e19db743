"""The table of a run's epochs as text, for a page or a terminal."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from steadyrl.show.page import markup

COLUMNS = (
    ("reward", "reward"),
    ("change", "reward trend [95 %]"),
    ("loss", "loss"),
    ("loss_change", "loss trend [95 %]"),
    ("loss_policy", "policy"),
    ("loss_nll", "likelihood"),
    ("loss_reward_nll", "-r log p"),
    ("loss_kl", "KL"),
    ("loss_value", "value"),
    ("variance", "variance"),
    ("within", "within"),
    ("between", "between"),
    ("best", "best of N"),
    ("gap", "gap"),
    ("grad_norm", "gradient"),
    ("seconds", "minutes"),
)


def shown_epochs(table: Mapping[str, Any] | None) -> dict[str, Any] | None:
    """Return the table as headings and cells of text, for a page or a terminal, without empty columns.

    Args:
        table: See ``epoch_table``; None where there is none.
    """
    if table is None:
        return None
    rows, trends = table["rows"], table["trends"]
    columns = [(key, heading) for key, heading in COLUMNS if any(row[key] is not None for row in rows)]
    named = {**dict(COLUMNS), "gap": "gap"}
    return {
        "headings": ["epoch", *(heading for _, heading in columns), "status"],
        "rows": [[row["name"], *(_cell(key, row[key]) for key, _ in columns), _status(row)] for row in rows],
        "trends": [
            f"{named[key]} {markup.signed(trend[0])} {markup.interval(trend[1:])}"
            for key, trend in trends.items()
            if trend is not None
        ],
    }


def _cell(key: str, value: Any) -> str:
    if key in ("change", "loss_change") and value is not None:
        return f"{markup.signed(value[0])} {markup.interval(value[1:])}"
    return f"{value / 60:.1f}" if key == "seconds" and value is not None else markup.number(value)


def _status(row: Mapping[str, Any]) -> str:
    return f"{row['status']}: {', '.join(row['findings'])}" if row["findings"] else row["status"]
