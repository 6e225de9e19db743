"""A run as Python and notebooks show it: the run directory, with its verdict, its curves and its diagnosis."""

from __future__ import annotations

from html import escape
from pathlib import Path
from typing import Any

from steadyrl.core.arguments import checked
from steadyrl.core.errors import RunError, SteadyError
from steadyrl.core.plugins import require
from steadyrl.core.rundir import RunDir
from steadyrl.core.words import counted
from steadyrl.doctor.examine import Diagnosis, examine
from steadyrl.doctor.names.identify import identify
from steadyrl.doctor.readers.rundir import read as read_log
from steadyrl.integrations.export.deliver import deliver
from steadyrl.loop.launch import Answer, sample
from steadyrl.python.curve import reward_curve
from steadyrl.show.report.pictures.plots import Picture, picture
from steadyrl.show.report.write import headline, pictured, read_report

_STYLE = "font-family: system-ui, sans-serif; font-size: 14px; line-height: 1.5"


@checked
class Run(RunDir):
    """A run directory that shows itself; ``steadyrl.Run("runs/...")`` opens one that is there already.

    ``metrics()``, ``evaluations()``, ``findings()``, ``checkpoints()``, ``info()`` and ``status`` are its records as
    plain data.
    """

    def doctor(self) -> Diagnosis:
        """Return what the doctor says of the run: its verdict and its findings.

        Raises:
            RunError: It has made no step yet.
        """
        return examine(identify(read_log(self.path)))

    def metrics_frame(self) -> Any:
        """Return the metrics as a pandas DataFrame, a row per step.

        Raises:
            MissingExtraError: pandas is not installed.
        """
        return require("pandas").DataFrame(self.metrics()).set_index("step")

    def plot(self) -> Picture:
        """Return the training curves: reward with the held-out scores, its parts, KL, losses and entropy.

        Raises:
            RunError: It has made no step yet.
        """
        if not self.metrics():
            raise RunError("there is no step to draw yet; wait for the first one")
        return picture(*pictured(read_report(self.path)))

    def sample(self, request: str, samples: int = 3, greedy: bool = False, seed: int = 0) -> list[Answer]:
        """Ask the newest policy, see ``steadyrl.sample``."""
        return sample(self, request, samples, greedy, seed)

    def export(
        self,
        to: str | Path | None = None,
        checkpoint: str | int | None = None,
        merge: bool = False,
        gguf: bool = False,
        push_to_hub: str | None = None,
    ) -> Path:
        """Write the policy as a Hugging Face folder with tokenizer, generation config and model card.

        Args:
            to: An empty or new folder; None for the folder ``export``, or ``gguf``, in the run directory.
            checkpoint: "best", "last" or a step; None for the best where the run kept one, and the last otherwise.
            merge: Merge a LoRA adapter into the weights.
            gguf: Also write model.gguf and a Modelfile, for llama.cpp and Ollama; this merges too.
            push_to_hub: OWNER/NAME of a repository of the Hugging Face hub, to which the folder is uploaded.

        Returns:
            The folder, for example for ``AutoModelForCausalLM.from_pretrained``.

        Raises:
            SteadyError: The run has no such checkpoint, the folder cannot be written, or the hub refuses.
        """
        checkpoint_name = None if checkpoint is None else str(checkpoint)
        folder = None if to is None else Path(to).expanduser()
        return deliver([self], folder, checkpoint_name, merge, gguf, push_to_hub)[0]

    def _summary_lines(self) -> list[str]:
        """Return what is to be said of the run: its status, how the held-out answers changed, the doctor's verdict."""
        try:
            steps = self.resolved().get("run", {}).get("steps")
            lines = [f"{self.status}, {len(self.metrics())} of {counted(steps, 'step')}"]
            if not self.metrics():
                return lines
            report = read_report(self.path)
        except SteadyError as error:  # it has made no step, or a file is damaged: showing a run must not raise
            return [str(error)]
        findings = report.diagnosis.findings
        lead = next((f"; {finding.check}: {finding.message}" for finding in findings if finding.harms), "")
        return [*lines, headline(report.summary), f"doctor: {report.diagnosis.verdict}{lead}"]

    def __repr__(self) -> str:
        return "\n    ".join([f"run {self.path}", *self._summary_lines()])

    def _repr_html_(self) -> str:
        status, *lines = map(escape, self._summary_lines())
        rewards = [(line["step"], line.get("reward/mean")) for line in self.metrics()]
        curve = reward_curve(rewards)
        details = "".join(f"<div>{line}</div>" for line in lines)
        path = escape(str(self.path))
        return f'<div style="{_STYLE}"><b>{status}</b>{details}{curve}<div><code>{path}</code></div></div>'
