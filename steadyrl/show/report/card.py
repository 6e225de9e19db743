"""The model card of an exported policy: what it is, what it gained, how it was trained, how to prompt it."""

from __future__ import annotations

import re
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from jinja2 import PackageLoader
from markupsafe import Markup

from steadyrl.core.config import resolve, reward_weights
from steadyrl.core.rundir import RunDir, write_text
from steadyrl.core.types import plain_text
from steadyrl.doctor.causes import tree
from steadyrl.doctor.examine import diagnose
from steadyrl.show.page import markup
from steadyrl.show.page.templates import environment
from steadyrl.show.report.evidence import Evaluation, Evidence, read_evaluation, read_evidence
from steadyrl.show.report.figures import BIASED, compared, decoding_of
from steadyrl.show.report.rows import settings_rows

REQUEST = "{request}"  # in the template of a prompt
LICENCES = ("LICENSE*", "LICENCE*", "NOTICE*", "COPYING*")
_HUB_NAME = re.compile(r"[\w.-]+/[\w.-]+")
_CACHED = re.compile(r"/models--([\w.-]+?)--([\w.-]+)/snapshots/")
_LICENCE = re.compile(r"[\w.+-]+")  # as hub pages name them, such as apache-2.0
_FRONT = re.compile(r"\A---\s*\n(.*?)\n---\s*$", re.DOTALL | re.MULTILINE)
_LONGEST_README = 1 << 20  # characters that are read


def write_card(path: Path, run: Path, exported: Mapping[str, Any]) -> None:
    """Write the model card of a policy.

    Args:
        path: Of the page.
        run: The run directory.
        exported: What the exporter returned (see ``backends.torch.export``), the ``licence`` of the base model, the
            ``step`` of the checkpoint, and whether it is the ``best`` by held-out score.
    """
    evidence, step = read_evidence(run), exported["step"]
    rows = settings_rows(evidence.settings)  # of files and folders the name alone, for a card travels
    changed = [(key, _without_folder(used), default) for key, used, default in rows["changed"]]
    view = _base_view(exported) | {
        "name": evidence.info.get("id") or evidence.name,
        "info": evidence.info,
        "step": step,
        "steps": len(evidence.metrics),
        "chosen": BIASED if exported["best"] else None,
        "changes": _changes(evidence, _evaluation(evidence, RunDir(run), step)),
        "metric": evidence.info.get("metric") or "reward",
        "doctor": _doctor(run),
        "weights": sorted(reward_weights(resolve(evidence.settings)).items()) if evidence.settings else [],
        "settings": {"changed": changed, "own": [(key, _without_folder(used)) for key, used in rows["own"]]},
        "data": [  # split, number of problems, and digest of what the run was given
            (split, entry.get("problems"), entry.get("sha256"))
            for split, entry in (evidence.info.get("data") or {}).items()
            if isinstance(entry, dict)
        ],
        "packages": ", ".join(f"{name} {version}" for name, version in (evidence.info.get("packages") or {}).items()),
    }
    write_text(path, _page("model_card.md.j2", view))


def write_joined_card(path: Path, runs: Sequence[Path], exported: Mapping[str, Any]) -> None:
    """Write the model card of a policy that several runs were joined into; ``joined`` has a record for each."""
    members = []
    for run, record in zip(runs, exported["joined"], strict=True):
        evidence = read_evidence(run)
        rows = _changes(evidence, _evaluation(evidence, RunDir(run), record["step"]))
        main = [row for row in rows if row["name"] == (evidence.info.get("metric") or "reward")]
        members.append(
            {**record, "name": record["run"], "info": evidence.info, "changes": main, "doctor": _doctor(run)}
        )
    view = _base_view(exported) | {"name": exported["run"], "members": members}
    write_text(path, _page("joined_card.md.j2", view))


def _page(template: str, view: Mapping[str, Any]) -> str:
    jinja_environment = environment(PackageLoader("steadyrl.show.report"), markup.markdown, autoescape=False)
    return jinja_environment.get_template(template).render(view)


def _base_view(exported: Mapping[str, Any]) -> dict[str, Any]:
    """Return what every card says of the model that was trained from, with an example that is prompted alike."""
    question = (exported.get("prompt") or REQUEST).replace(REQUEST, "your request")
    base, cached = exported["base"], _CACHED.search(exported["base_folder"] or "")
    # A folder in the hub's own cache has the name on the hub in its path.
    on_hub = f"{cached[1]}/{cached[2]}" if cached else None
    if exported["base_folder"] is None and _HUB_NAME.fullmatch(base):
        on_hub = base
    base_name = "the base model that ships with steadyrl"
    if base != "base":  # of another folder its name: its place means nothing to a reader
        base_name = base if _HUB_NAME.fullmatch(base) and not Path(base).is_dir() else Path(base).name
    messages = [*exported.get("messages_before", ()), {"role": "user", "content": question}]
    return {
        "exported": exported,
        "base": base_name,
        # Both have a form that needs no escapes.
        "hub_name": Markup(on_hub) if on_hub else None,
        "licence": Markup(exported["licence"]) if exported["licence"] else None,
        "gguf": exported.get("gguf", False),
        "precision": Markup(exported["precision"]),
        "datasets": [Markup(name) for name in exported.get("datasets", ())],
        # Python literals, which no request can end early.
        "snippet_messages": Markup(repr(messages)),
        "snippet_prompt": Markup(repr(plain_text(messages))),
        "snippet_args": Markup(repr(dict(exported.get("template_args") or {}))),
    }


def copy_licences(base_folder: str | None, folder: Path) -> str | None:
    """Copy the licence texts in a base model's folder, if there is one; return the licence that its page names."""
    if base_folder is None:
        return None
    base = Path(base_folder)
    for pattern in LICENCES:
        for file in base.glob(pattern):
            if file.is_file():
                shutil.copyfile(file, folder / file.name)
    readme = base / "README.md"
    if not readme.is_file():
        return None
    with readme.open(encoding="utf-8", errors="replace") as text:
        front = _FRONT.match(text.read(_LONGEST_README))
    named = re.search(r"^license:[ \t]*['\"]?([^'\"\n]*)", front.group(1), re.MULTILINE) if front else None
    licence = named.group(1).strip() if named else ""
    return licence if _LICENCE.fullmatch(licence) else None


def _evaluation(evidence: Evidence, run: RunDir, step: int) -> Evaluation:
    """Return the held-out evaluation of a step; that after training is of the last one."""
    file = run.evaluation_file(f"{step:06d}")
    if file.is_file():
        return read_evaluation(file)
    return evidence.after if step == run.checkpoints()[-1] else Evaluation()


def _changes(evidence: Evidence, after: Evaluation) -> list[dict[str, Any]]:
    """Return the rows of before and after: the metric sampled and greedy, then every part."""
    if not after.answers:
        return []
    metric, deploy = evidence.info.get("metric") or "reward", evidence.deploy
    by_decoding, by_part = compared(evidence.before, after, deploy)
    rows = [(metric, name, comparison) for name, comparison in by_decoding.items()]
    rows += [(part, decoding_of(part, deploy), by_part[part]) for part in by_part if part != metric]
    return [{"name": name, "decoding": decoding, **comparison} for name, decoding, comparison in rows]


def _doctor(run: Path) -> dict[str, Any]:
    diagnosis = diagnose(run)[0]
    placed = tree(diagnosis.findings)
    return {"verdict": diagnosis.verdict, "leading": placed[0].finding if placed else None}


def _without_folder(value: str) -> str:
    return f'"{value[1:-1].rpartition("/")[2]}"' if value.startswith(('"/', '"~/')) else value
