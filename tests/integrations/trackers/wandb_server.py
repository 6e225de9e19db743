"""Answers the real client of W&B as its service does, as far as a run needs: begin, resume, history, files, alerts."""

import gzip
import http.server
import json
import re
import threading
from dataclasses import dataclass, field


@dataclass
class Stored:
    """What the service has of a run."""

    history: list = field(default_factory=list)
    summary: dict = field(default_factory=dict)
    config: dict = field(default_factory=dict)
    alerts: list = field(default_factory=list)
    files: dict = field(default_factory=dict)
    begun: int = 0


class WandbService(http.server.ThreadingHTTPServer):
    """Listens on a free port of this machine; ``runs`` is what it was sent, by the run's id."""

    def __init__(self):
        super().__init__(("127.0.0.1", 0), _Answers)
        self.runs, self.names, self.url = {}, {}, f"http://127.0.0.1:{self.server_address[1]}"
        self._thread = threading.Thread(target=self.serve_forever)

    def __enter__(self):
        self._thread.start()
        return self

    def __exit__(self, *error):
        self.shutdown()
        self._thread.join()
        self.server_close()


class _Answers(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        pass

    def _body(self):
        data = self.rfile.read(int(self.headers.get("content-length") or 0))
        return gzip.decompress(data) if self.headers.get("content-encoding") == "gzip" else data

    def _say(self, answer):
        data = json.dumps(answer).encode()
        self.send_response(200)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def do_GET(self):
        self._say({})

    def do_PUT(self):
        _, _, run, name = self.path.split("/", 3)
        self.server.runs[run].files[name] = self._body()
        self._say({})

    def do_POST(self):
        body = self._body()
        if found := re.fullmatch(r"/files/[^/]*/[^/]*/([^/]+)/file_stream", self.path):
            self._stream(self.server.runs[found[1]], json.loads(body))
        elif self.path == "/graphql":
            asked = json.loads(body)
            self._say({"data": self._data(asked["query"], asked.get("variables") or {})})
        else:
            self._say({})

    def _stream(self, run, sent):
        for name, part in sent.get("files", {}).items():
            if name == "wandb-history.jsonl":
                assert part["offset"] == len(run.history), "a resumed run goes on behind what is there"
                run.history += [json.loads(line) for line in part["content"]]
            if name == "wandb-summary.json":
                run.summary = json.loads(part["content"][-1])
        self._say({"exitcode": None, "limits": {}})

    def _data(self, query, given):
        runs, name = self.server.runs, given.get("name") or given.get("run") or given.get("runName") or ""
        who = {"id": "cHJvamVjdA==", "name": "steadyrl", "entity": {"id": "ZW50aXR5", "name": "me"}}
        if "RunResumeStatus" in query:
            return {"model": {**who, "bucket": self._bucket(name) if name in runs else None}}
        if "UpsertBucket" in query:
            run = runs.setdefault(name, Stored())
            run.config |= json.loads(given.get("config") or "{}")
            return {"upsertBucket": {"bucket": {**self._bucket(name), "project": who}, "inserted": not run.history}}
        if "CreateRunFiles" in query:
            files = [{"name": one, "uploadUrl": f"{self.server.url}/upload/{name}/{one}"} for one in given["files"]]
            return {"createRunFiles": {"runID": "cnVu", "uploadHeaders": [], "files": files}}
        if "notifyScriptableRunAlert" in query:
            runs[given["runName"]].alerts.append(given)
            return {"notifyScriptableRunAlert": {"success": True}}
        if "CreateArtifact " in query:  # nothing has to be uploaded for one that is there already
            artifact = {"id": "YXJ0", "state": "COMMITTED", "artifactSequence": {"latestArtifact": None}}
            return {"createArtifact": {"artifact": artifact}}
        if "serverInfo" in query:
            return {"serverInfo": {"features": []}}
        if "query ArtifactType" in query:
            return {"project": {"artifact": None}}
        if "query Viewer" in query:
            return {"viewer": {"id": "bWU=", "entity": "me", "username": "me", "email": "", "flags": "{}",
                               "teams": {"edges": []}}}  # fmt: skip
        return {}

    def _bucket(self, name):
        run = self.server.runs[name]
        return {
            "id": "cnVu", "name": name, "displayName": name, "description": "", "sweepName": None, "tags": [],
            "notes": None, "logLineCount": 0, "eventsLineCount": 0, "historyLineCount": len(run.history),
            "summaryMetrics": json.dumps(run.summary), "config": json.dumps(run.config), "eventsTail": "[]",
            "historyTail": json.dumps([json.dumps(line) for line in run.history[-1:]]), "wandbConfig": "{}",
        }  # fmt: skip
