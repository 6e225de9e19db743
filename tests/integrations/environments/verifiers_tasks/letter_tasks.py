"""A taskset of verifiers with one turn: say the letter."""

import verifiers.v1 as vf

__all__ = ["LetterTaskset"]


class LetterData(vf.TaskData):
    letter: str


class LetterTask(vf.Task[LetterData]):
    @vf.reward(weight=2.0)
    async def right(self, trace: vf.Trace) -> float:
        return float(trace.last_reply == self.data.letter)

    @vf.reward(weight=0.25)
    async def said(self, trace: vf.Trace) -> float:
        return float(self.data.letter in (trace.last_reply or ""))

    @vf.metric
    async def length(self, trace: vf.Trace) -> float:
        return len(trace.last_reply or "")


class LetterConfig(vf.TasksetConfig):
    letters: str = "abcde"


class LetterTaskset(vf.Taskset[LetterTask, LetterConfig]):
    def load(self):
        return [
            LetterTask(LetterData(prompt=f"Say {letter}.", system_prompt="Be short.", letter=letter), self.config.task)
            for letter in self.config.letters
        ]
