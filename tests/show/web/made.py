"""Run directories as a training writes them, made at once."""

import json
import math

from steadyrl.core.rundir import RunDir, append_line, write_json, write_lines

FINDING = {
    "check": "kl_runaway",
    "severity": "critical",
    "since_step": 8,
    "cause": "rate",
    "message": "the KL to the reference runs away",
    "evidence": ["kl_ref_k1: 0.1 at step 8, 4.0 at step 19"],
    "remedy": "lower the learning rate",
    "overrides": ["update.learning_rate=0.0001"],
    "source": "",
    "follows": "",
}


def metrics(step, attempt=0, **more):
    return {
        "step": step,
        "attempt": attempt,
        "time": 1.7e9 + 10 * step,
        "reward/mean": 0.2 + 0.01 * step,
        "reward/std": 0.1,
        "kl_ref_k1_seq": 0.5 * math.sin(step),
        "entropy": 2.0 - 0.01 * step,
        "time/step": 10.0,
        **more,
    }


def rollout(problem, reward, completion="an answer", **more):
    return {
        "problem": problem,
        "prompt": f"the prompt of {problem}",
        "completion": completion,
        "reward": reward,
        "parts": {"length": 1.0},
        "unscored": None,
        "note": "",
        "stop_reason": "stop",
        "policy_version": 0,
        "tokens": 3,
        **more,
    }


def make_run(path, steps=20, status="finished", algorithm="ppo", rate=0.001, planned=20):
    """Make a run with steps, a finding and the rollouts of its first and of its tenth step."""
    run = RunDir(path)
    info = {"id": run.path.name, "task": "search", "algorithm": algorithm, "model": "base", "status": status}
    write_json(run.info_file, {**info, "metric": "retrieval", "attempt": 0, "started": 1.7e9, "error": None})
    settings = {"run": {"steps": planned, "seed": 0}, "update": {"learning_rate": rate}}
    write_json(run.resolved_file, {**settings, "algorithm": {"name": algorithm}})
    run.metrics_file.write_text("".join(json.dumps(metrics(step)) + "\n" for step in range(steps)))
    append_line(run.findings_file, {**FINDING, "step": 19, "state": "raised"})
    for step in (0, 10):
        texts = [("apple", 0.9, "red"), ("apple", 0.1, "<script>alert(1)</script>"), ("pear", None, "green")]
        write_lines(
            run.rollouts_file(step),
            [rollout(name, reward, f"{text} at {step}") for name, reward, text in texts],
        )
    return run
