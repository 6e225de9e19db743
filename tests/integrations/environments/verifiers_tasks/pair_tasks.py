"""A taskset of verifiers with two agents."""

import verifiers.v1 as vf
from twice_tasks import TwiceTaskset

__all__ = ["PairEnv", "PairTaskset"]


class PairTaskset(TwiceTaskset):
    pass


class PairConfig(vf.EnvConfig):
    first: vf.AgentConfig = vf.AgentConfig()
    second: vf.AgentConfig = vf.AgentConfig()


class PairEnv(vf.Env[PairConfig]):
    async def run(self, task, agents):
        raise AssertionError("it is never played")
