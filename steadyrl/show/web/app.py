"""The pages and their addresses. What is asked for is read from the folder's files anew; only labels are written."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from threading import Lock
from typing import Any
from urllib.parse import unquote_plus

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import PlainTextResponse, RedirectResponse, Response
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles

from steadyrl.core.errors import RunError, SteadyError
from steadyrl.core.rundir import RunDir
from steadyrl.core.words import shell_command
from steadyrl.doctor.examine import Diagnosis
from steadyrl.show.report.diagnosis import diagnosis_view
from steadyrl.show.web import run_page
from steadyrl.show.web.columns import Shelf
from steadyrl.show.web.compare_page import boards_of, compare_view
from steadyrl.show.web.diagnosis import MOST_PASTED, Diagnoses, log_curves, log_pins
from steadyrl.show.web.folder import Folder, RunRef
from steadyrl.show.web.render import page, whole_number
from steadyrl.show.web.rollout_page import list_view, problem_view, rollout_view
from steadyrl.show.web.rollouts import Rollouts
from steadyrl.show.web.runs_page import change_labels, runs_view
from steadyrl.show.web.studies_page import studies_view, study_view

STATIC = Path(__file__).parent / "static"
SUFFIXES = tuple(".json .jsonl .ndjson .csv .tsv .log .txt .out .wandb .db .gz .md .html".split())
MOST_REPORTED = 16 << 20  # bytes of metrics
ALL = 10**12  # steps; no run has more
MOST_ASKED = 400  # metrics in one request
MOST_FIELDS = 8  # of a form
MOST_LABELLED = 128 << 10  # bytes of a form with marked runs


class Pages:
    """Answers every address; functions without ``async`` run in threads, so a slow file stops no other page."""

    def __init__(self, root: Path):
        self.folder = Folder(root)
        self.shelf = Shelf()
        self.diagnoses = Diagnoses()
        self.rollouts = Rollouts(self.folder)
        self.reporting = Lock()  # a report reads a whole run into memory, so one is made at a time

    def runs(self, request: Request) -> Response:
        """Answer with the table of all runs, or with that alone for a page that is open."""
        template = "_runs.html.j2" if "part" in request.query_params else "runs.html.j2"
        return unless_current(
            request, self._version(), template, lambda: runs_view(self.folder, self.diagnoses, request.query_params)
        )

    def run(self, request: Request) -> Response:
        """Answer with the first page of a run."""
        ref = self._run(request)
        if ref.kind == "run":
            version = run_page.run_version(RunDir(ref.path))
            return unless_current(
                request, version, "run.html.j2", lambda: run_page.run_view(ref, self.shelf, self.diagnoses)
            )
        log_runs, index = self._log(request, ref)
        names = [self._name(diagnosis) for diagnosis in log_runs]
        return page(
            "log.html.j2",
            {
                **run_page.head_view(ref),
                "problem": "",
                "run_names": names if len(names) > 1 else [],
                "chosen": index,
                **run_page.log_view(ref, log_runs[index]),
            },
        )

    async def label(self, request: Request) -> Response:
        """Write down what somebody calls runs, or which columns the table has; answer with the page it came from."""
        content = await body(request, MOST_LABELLED)
        if content is None:
            raise RunError(f"the form has more than {MOST_LABELLED >> 10} KiB; mark fewer runs at once")
        return RedirectResponse(await run_in_threadpool(change_labels, self.folder, content), status_code=303)

    def run_doctor(self, request: Request) -> Response:
        """Answer with the diagnosis of a run or log."""
        ref = self._run(request)
        view: dict[str, Any] = {**run_page.head_view(ref), "problem": "", "diagnoses": []}
        try:
            for diagnosis in self.diagnoses.get(ref):
                named_run = replace(diagnosis.run, path=self._name(diagnosis))
                view["diagnoses"].append(diagnosis_view(replace(diagnosis, run=named_run)))
        except RunError as error:
            view["problem"] = str(error)
        return page("run_doctor.html.j2", view)

    def report(self, request: Request) -> Response:
        """Answer with the report of a run as it would be written now."""
        ref = self._own_run(request)
        view: dict[str, Any] = {**run_page.head_view(ref), "problem": ""}
        path = RunDir(ref.path).metrics_file
        if path.is_file() and path.stat().st_size > MOST_REPORTED:
            by_hand = shell_command("report", ref.path)
            view["problem"] = f"The run is too long for a report while a page waits: {by_hand}"
            return page("run_report.html.j2", view)
        from steadyrl.show.report.write import read_report, report_view  # matplotlib takes a second to load

        try:
            with self.reporting:
                view["report"] = report_view(read_report(ref.path))
        except RunError as error:
            view["problem"] = str(error)
        return page("run_report.html.j2", view)

    def rollout_list(self, request: Request) -> Response:
        """Answer with a step's rollouts."""
        return page("rollouts.html.j2", list_view(self._own_run(request), self.rollouts, request.query_params))

    def rollout(self, request: Request) -> Response:
        """Answer with one rollout."""
        step, number = (min(request.path_params[name], 10**12) for name in ("step", "number"))
        colour = request.query_params.get("colour", "")
        return page("rollout.html.j2", rollout_view(self._own_run(request), self.rollouts, step, number, colour))

    def problem(self, request: Request) -> Response:
        """Answer with the rollouts of one problem over the steps."""
        problem = request.query_params.get("problem", "")
        return page("problem.html.j2", problem_view(self._own_run(request), self.rollouts, problem))

    def compare(self, request: Request) -> Response:
        """Answer with the comparison of the runs in the address."""
        ids = request.query_params.getlist("run")
        return page("compare.html.j2", compare_view(self.folder, self.shelf, self.diagnoses, ids))

    def studies(self, request: Request) -> Response:
        """Answer with the table of all studies."""
        return page("studies.html.j2", studies_view(self.folder))

    def study(self, request: Request) -> Response:
        """Answer with one study, or with the part of it that changes while it goes on."""
        query, part = request.query_params, "part" in request.query_params

        def view() -> dict[str, Any]:
            study = study_view(self.folder, request.path_params["study_id"], query.getlist("arm"))
            return study if part else {**study, **boards_of(study["charted"], self.shelf, self.diagnoses)}

        template = "_study.html.j2" if part else "study_page.html.j2"
        return unless_current(request, self._version(), template, view)

    def doctor(self, request: Request) -> Response:
        """Answer with the empty form for a log."""
        return page("doctor.html.j2", {"section": "doctor", "pasted": "", "problem": "", "diagnoses": []})

    async def diagnose(self, request: Request) -> Response:
        """Answer with the diagnosis of a log that was pasted or dropped."""
        content = await body(request, MOST_PASTED)
        pasted = request.headers.get("content-type", "").startswith("application/x-www-form-urlencoded")
        view: dict[str, Any] = {"section": "doctor", "pasted": "", "problem": "", "diagnoses": []}
        if content is None:
            view["problem"] = f"The log has more than {MOST_PASTED >> 20} MiB; use `steadyrl doctor` on its file."
        else:
            if pasted:
                pairs = (pair.partition(b"=") for pair in content.split(b"&", MOST_FIELDS)[:MOST_FIELDS])
                view["pasted"] = next(
                    (unquote_plus(value.decode("latin-1")) for key, _, value in pairs if key == b"log"), ""
                )
                content = view["pasted"].encode()
            suffix = Path(request.query_params.get("name", "")).suffix
            try:
                diagnoses = await run_in_threadpool(
                    self.diagnoses.of_content, content, suffix if suffix in SUFFIXES else ""
                )
                view["diagnoses"] = [diagnosis_view(diagnosis) for diagnosis in diagnoses]
            except RunError as error:
                view["problem"] = str(error)
        return page("_diagnosis.html.j2" if "part" in request.query_params else "doctor.html.j2", view)

    def live(self, request: Request) -> Response:
        """Answer with the part of a run's page that changes while it goes on."""
        ref = self._run(request)
        version = run_page.run_version(RunDir(ref.path))
        return unless_current(
            request, version, "live.html.j2", lambda: run_page.live_view(ref, self.shelf, self.diagnoses)
        )

    def curves(self, request: Request) -> Response:
        """Answer with a run's curves as JSON, and with its findings and actions, which are pinned to them."""
        query = request.query_params
        first, last = whole_number(query.get("from"), 0), whole_number(query.get("to"), ALL)
        first = max(first, whole_number(query.get("after"), -1) + 1)  # what an open page does not have yet
        names = query.getlist("name")[:MOST_ASKED] or None
        ref = self._run(request)
        if ref.kind == "log":
            log_runs, index = self._log(request, ref)
            lines = run_page.curves_json(log_curves(log_runs[index], (first, last)))
            return _json({**lines, "pins": log_pins(log_runs[index])})
        run = RunDir(ref.path)
        whole_run = names is None and (first, last) == (0, ALL)
        curves = run_page.whole_curves(run, self.shelf) if whole_run else self.shelf.curves(run, names, (first, last))
        return _json({**run_page.curves_json(curves), "pins": run_page.run_pins(ref, self.diagnoses)})

    def _version(self) -> str:
        """Return what changes whenever any run has something new to show."""
        states = (
            (row.ref.id, row.ref.label, row.status, row.verdict, row.step, row.time)
            for row in self.diagnoses.rows(self.folder)
        )
        return f"{hash(tuple(states))}"

    def _log(self, request: Request, ref: RunRef) -> tuple[list[Diagnosis], int]:
        """Return the runs of another trainer's log, and the number of the one that is asked for."""
        log_runs = self.diagnoses.get(ref)
        return log_runs, min(whole_number(request.query_params.get("n"), 0), len(log_runs) - 1)

    def _name(self, diagnosis: Diagnosis) -> str:
        # Below the folder: where that lies on the machine is nobody's business.
        return diagnosis.run.path.removeprefix(f"{self.folder.root}/")

    def _own_run(self, request: Request) -> RunRef:
        ref = self._run(request)
        if ref.kind == "log":
            raise RunError(f"'{ref.name}' is another trainer's log, which keeps no rollouts as a run of steadyrl does")
        return ref

    def _run(self, request: Request) -> RunRef:
        return self.folder.find(request.path_params["run_id"])


async def body(request: Request, max_bytes: int) -> bytes | None:
    """Return what was sent, or None if it is more than so many bytes."""
    chunks, size = [], 0
    async for chunk in request.stream():
        size += len(chunk)
        if size > max_bytes:
            return None
        chunks.append(chunk)
    return b"".join(chunks)


def unless_current(request: Request, version: str, template: str, view: Callable[[], Mapping[str, Any]]) -> Response:
    """Answer with a page or a part of it, or with 304 where the page that asks has this version."""
    tag = f'"{version}"'
    if request.headers.get("if-none-match") == tag:
        return Response(status_code=304)
    answer = page(template, {**view(), "version": version})
    answer.headers["etag"] = tag
    return answer


def _json(content: Any) -> Response:
    # In ASCII: a text may hold half of a surrogate pair, which cannot be sent otherwise.
    return Response(json.dumps(content, allow_nan=False), media_type="application/json")


def create(root: Path) -> Starlette:
    """Return the application for a folder of runs."""
    pages = Pages(root)
    routes = [
        Route("/", pages.runs),
        Route("/labels", pages.label, methods=["POST"]),
        Route("/run/{run_id}", pages.run),
        Route("/run/{run_id}/live", pages.live),
        Route("/run/{run_id}/curves", pages.curves),
        Route("/run/{run_id}/report", pages.report),
        Route("/run/{run_id}/doctor", pages.run_doctor),
        Route("/run/{run_id}/rollouts", pages.rollout_list),
        Route("/run/{run_id}/rollouts/{step:int}/{number:int}", pages.rollout),
        Route("/run/{run_id}/problem", pages.problem),
        Route("/compare", pages.compare),
        Route("/studies", pages.studies),
        Route("/study/{study_id}", pages.study),
        Route("/doctor", pages.doctor),
        Route("/doctor", pages.diagnose, methods=["POST"]),
        Mount("/static", StaticFiles(directory=STATIC, packages=[("steadyrl.show", "page")])),
    ]
    handlers: dict[Any, Callable[..., Response]] = {
        SteadyError: _refused,
        ClientDisconnect: lambda request, error: Response(status_code=400),  # whoever sent half a log is gone
        OSError: _unreadable,
        404: _missing,
        405: _missing,
    }
    return Starlette(routes=routes, exception_handlers=handlers)


def _refused(request: Request, error: SteadyError) -> Response:
    if "text/html" not in request.headers.get("accept", ""):
        return PlainTextResponse(f"{error}\n", status_code=404)
    return page("error.html.j2", {"section": "", "title": "This cannot be shown", "message": str(error)}, status=404)


def _unreadable(request: Request, error: OSError) -> Response:
    """Answer where a file is gone, or may not be read, or is none."""
    name = Path(str(error.filename or "a file")).name
    return _refused(request, RunError(f"'{name}' cannot be read: {error.strerror or error}; reload the page"))


def _missing(request: Request, error: HTTPException) -> Response:
    view = {"section": "", "title": "There is no such page", "message": request.url.path}
    return page("error.html.j2", view, status=error.status_code)
