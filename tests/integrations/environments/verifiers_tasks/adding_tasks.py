"""A taskset of verifiers with a server of tools, which all its tasks share."""

import verifiers.v1 as vf

__all__ = ["AddingTaskset"]


class AddingToolset(vf.Toolset[vf.SharedToolsetConfig]):
    TOOL_PREFIX = "sums"

    @vf.tool
    def add(self, a: int, b: int) -> int:
        """Add two numbers."""
        return a + b


class AddingTask(vf.Task[vf.TaskData]):
    @vf.reward(weight=1.0)
    async def right(self, trace: vf.Trace) -> float:
        return float(trace.last_reply == str(self.data.idx + 2))


class AddingConfig(vf.TasksetConfig):
    tools: vf.SharedToolsetConfig = vf.SharedToolsetConfig()


class AddingTaskset(vf.Taskset[AddingTask, AddingConfig]):
    @classmethod
    def toolsets(cls, config):
        return [AddingToolset(config.tools)]

    def load(self):
        return [AddingTask(vf.TaskData(prompt=f"Add {i} and 2."), self.config.task) for i in range(5)]


if __name__ == "__main__":
    AddingToolset.run()
