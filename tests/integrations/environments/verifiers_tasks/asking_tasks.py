"""A taskset of verifiers whose user asks twice."""

import verifiers.v1 as vf

__all__ = ["AskingEnv", "AskingTaskset"]


class AskingTask(vf.Task[vf.TaskData]):
    @vf.reward(weight=1.0)
    async def both(self, trace: vf.Trace) -> float:
        return sum(message.content == "yes" for message in trace.assistant_messages) / 2


class AskingTaskset(vf.Taskset[AskingTask, vf.TasksetConfig]):
    def load(self):
        return [AskingTask(vf.TaskData(prompt=None), self.config.task)]


class AskingEnv(vf.SingleAgentEnv):
    async def run(self, task, agents):
        async with agents.agent.interaction(task) as interaction:
            for words in ("Ready?", "Sure?"):
                if (await interaction.turn(words)).terminated:
                    break
