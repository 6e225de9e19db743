"""A taskset of verifiers that plays a task twice, in a conversation each."""

import verifiers.v1 as vf
from asking_tasks import AskingTask

__all__ = ["TwiceEnv", "TwiceTaskset"]


class TwiceTaskset(vf.Taskset[AskingTask, vf.TasksetConfig]):
    def load(self):
        return [AskingTask(vf.TaskData(prompt="Ready?"), self.config.task)]


class TwiceEnv(vf.SingleAgentEnv):
    async def run(self, task, agents):
        await agents.agent.run(task)
        await agents.agent.run(task)
