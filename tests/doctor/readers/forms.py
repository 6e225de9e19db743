"""The same rows in the forms in which people's logs have them, each a function of the rows and of the step's name."""

import csv
import io
import json
import pprint


def _table(rows, separator, names=None):
    cells = [names or list(rows[0]), *([str(value) for value in row.values()] for row in rows)]
    return "\n".join(separator.join(line) for line in cells)


def _quoted(rows):
    stream = io.StringIO()
    writer = csv.DictWriter(stream, list(rows[0]), quoting=csv.QUOTE_ALL)
    writer.writeheader()
    writer.writerows(rows)
    return stream.getvalue()


def _markdown(rows):
    rule = "|" + "---|" * len(rows[0])
    first, *others = (f"| {line.replace(chr(9), ' | ')} |" for line in _table(rows, "\t").split("\n"))
    return "\n".join(["# Results", "", "It went so.", "", first, rule, *others, "", "That was all."])


def _box(rows):
    lines = [line.split("\t") for line in _table(rows, "\t").split("\n")]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    framed = ["│ " + " │ ".join(map(str.ljust, line, widths)) + " │" for line in lines]
    rule = "┼".join("─" * (width + 2) for width in widths)
    return "\n".join([f"┌{rule}┐", framed[0], f"├{rule}┤", *framed[1:], f"└{rule}┘"])


def _pandas(rows):
    lines = [["", *rows[0]], *([str(i), *map(str, row.values())] for i, row in enumerate(rows))]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return "\n".join("  ".join(map(str.rjust, line, widths)) for line in lines)


def _notebook(output):
    cell = {"cell_type": "code", "execution_count": 1, "metadata": {}, "source": ["train()"], "outputs": [output]}
    return json.dumps({"cells": [cell], "metadata": {}, "nbformat": 4, "nbformat_minor": 5})


def _html(rows):
    lines = [line.split("\t") for line in _table(rows, "\t").split("\n")]
    head = "".join(f"<th>{name}</th>" for name in lines[0])
    body = "".join("<tr>" + "".join(f"<td>{cell}</td>" for cell in line) + "</tr>" for line in lines[1:])
    table = f"<table border='1'><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
    return _notebook({"output_type": "display_data", "metadata": {}, "data": {"text/html": [table]}})


def _printed(rows):
    text = [f"{row}\n" for row in rows]
    return _notebook({"output_type": "stream", "name": "stdout", "text": text})


def _others(row, step):
    return {name: value for name, value in row.items() if name != step}


def _pairs(row, between, sign):
    return between.join(f"{name}{sign}{value}" for name, value in row.items())


def _numpy(row):
    values = (f"np.float64({value})" if isinstance(value, float) else str(value) for value in row.values())
    return "{" + ", ".join(f"'{name}': {value}" for name, value in zip(row, values, strict=True)) + "}"


def _bar(i, count):
    return f" {100 * i // count:3d}%|{'█' * (10 * i // count):10s}| {i}/{count} [00:{i % 60:02d}<01:00,  1.20s/it]"


def _lines(of_row):
    """Return a form of one line, or of some lines, for each row."""
    return lambda rows, step: "\n".join(of_row(row, row[step], _others(row, step)) for row in rows)


FORMS = {
    "rows.json": lambda rows, step: json.dumps(rows, indent=1),
    "columns.json": lambda rows, step: json.dumps({name: [row[name] for row in rows] for name in rows[0]}),
    "history.json": lambda rows, step: json.dumps({"config": {"seed": 3}, "history": rows}),
    "trainer_state.json": lambda rows, step: json.dumps({"global_step": rows[-1][step], "log_history": rows}),
    "nested.jsonl": _lines(lambda row, at, others: json.dumps({"step": at, "metrics": others})),
    "plain.csv": lambda rows, step: _table(rows, ","),
    "index.csv": lambda rows, step: _table(rows, ",").replace("\n", "\n0,").replace("step", ",step", 1),
    "semicolons.csv": lambda rows, step: _table(rows, ";"),
    "blanks.csv": lambda rows, step: _table(rows, " , "),
    "quoted.csv": lambda rows, step: _quoted(rows),
    "windows.csv": lambda rows, step: "\ufeff" + _table(rows, ",").replace("\n", "\r\n"),
    "tabs.tsv": lambda rows, step: _table(rows, "\t"),
    "long.csv": lambda rows, step: "\n".join(
        ["step,metric,value", *(f"{row[step]},{name},{row[name]}" for row in rows for name in _others(row, step))]
    ),
    "table.md": lambda rows, step: _markdown(rows),
    "code.md": lambda rows, step: "Here is my log:\n\n```\n" + "\n".join(map(str, rows)) + "\n```\n\nWhat is wrong?",
    "pandas.txt": lambda rows, step: _pandas(rows),
    "box.txt": lambda rows, step: _box(rows),
    "html.ipynb": lambda rows, step: _html(rows),
    "printed.ipynb": lambda rows, step: _printed(rows),
    "dicts.log": lambda rows, step: "\n".join(map(str, rows)),
    "texts.log": _lines(lambda row, at, others: str({name: str(value) for name, value in row.items()})),
    "bars.log": lambda rows, step: "\n".join(f"{_bar(i, len(rows))}\r{row}" for i, row in enumerate(rows)),
    "logger.log": _lines(lambda row, at, others: f"2025-05-01 10:12:11,204 - INFO - trainer.py:212 - {row}"),
    "step_dict.log": _lines(lambda row, at, others: f"INFO:train:step {at}: {others}"),
    "numpy.log": _lines(lambda row, at, others: _numpy(row)),
    "pprint.log": lambda rows, step: "\n".join(pprint.pformat(row, width=40) for row in rows),
    "json.log": _lines(lambda row, at, others: f"[2025-05-01 10:00:01] METRICS {json.dumps(row)}"),
    "equal.log": _lines(lambda row, at, others: _pairs(row, " ", "=")),
    "comma.log": _lines(lambda row, at, others: _pairs(row, ", ", "=")),
    "colons.log": _lines(lambda row, at, others: _pairs(row, " | ", ": ")),
    "bracket.log": _lines(lambda row, at, others: f"[Step {at}] {_pairs(others, ', ', ': ')}"),
    "of_many.log": _lines(lambda row, at, others: f"Step {at}/900 | {_pairs(others, ' | ', ' ')}"),
    "verl.log": _lines(lambda row, at, others: f"(TaskRunner pid=123) step:{at} - {_pairs(others, ' - ', ':')}"),
    "blocks.log": _lines(lambda row, at, others: f"Step {at}\n  {_pairs(others, chr(10) + '  ', ': ')}\n"),
    "ruled.log": _lines(lambda row, at, others: f"===== Step {at} =====\n{_pairs(others, chr(10), ' = ')}\n"),
    "colours.log": _lines(lambda row, at, others: f"\x1b[32mINFO\x1b[0m \x1b[1m{_pairs(row, ' ', chr(27) + '[0m=')}"),
    "answers.log": _lines(lambda row, at, others: f"{row}\nSaving to out/checkpoint-{at}\nPrompt: what is {at} + 2?"),
}
