"""Plays sbatch, squeue, sacct and scancel on one machine, as SLURM's manual pages describe them.

    slurm_stand_in.py PROGRAM ARGUMENTS     the folder in $STAND_IN holds its state

Nothing runs between the calls: every call first notes which tasks ended, and begins as many as the array allows. A task
is a shell whose parent, a process of this file, writes its wait status into a file.
"""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

STATE = Path(os.environ["STAND_IN"])
PREEMPTED = 31  # a task that dies of this signal was preempted


def main(program, *argv):
    STATE.mkdir(exist_ok=True)
    if (STATE / "down").exists():
        sys.exit(f"{program}: error: Unable to contact slurm controller (connect failure)")
    tasks = read()
    advance(tasks)
    try:
        {"sbatch": sbatch, "squeue": squeue, "sacct": sacct, "scancel": scancel}[program](tasks, argv)
        advance(tasks)
    finally:
        (STATE / "tasks.json").write_text(json.dumps(tasks))


def read():
    file = STATE / "tasks.json"
    return json.loads(file.read_text()) if file.exists() else {}


def advance(tasks):
    for name, task in tasks.items():
        if task["state"] == "RUNNING" and (STATE / f"{name}.status").exists():
            status = int((STATE / f"{name}.status").read_text())
            (STATE / f"{name}.status").unlink()
            task["status"] = status
            task["state"] = "FAILED" if status else "COMPLETED"
            if status == PREEMPTED and task["requeue"]:
                task["state"] = "PENDING"
                with (STATE / "requeued").open("a") as file:
                    file.write(f"{name}\n")
    for name, task in tasks.items():
        running = sum(one["state"] == "RUNNING" for one in tasks.values())
        if task["state"] == "PENDING" and running < task["at_once"]:
            task["state"], task["process"] = "RUNNING", begin(name)


def begin(name):
    """Begin a task: the shell's process is what `scancel --batch` signals."""
    environment = {**os.environ, "SLURM_ARRAY_TASK_ID": name.partition("_")[2]}
    code = (
        "import subprocess, sys, os\n"
        "shell = subprocess.Popen(['/bin/sh', sys.argv[1]])\n"
        "print(shell.pid, flush=True)\n"
        "code = shell.wait()\n"
        "part = sys.argv[2] + '.part'\n"
        "open(part, 'w').write(str(-code if code < 0 else code << 8))\n"
        "os.rename(part, sys.argv[2])\n"
    )
    words = [sys.executable, "-S", "-c", code, str(STATE / "script"), str(STATE / f"{name}.status")]
    process = subprocess.Popen(words, env=environment, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    return int(process.stdout.readline())


def sbatch(tasks, argv):
    options = dict(word.removeprefix("--").partition("=")[::2] for word in argv)
    if options.get("partition") == "nowhere":
        sys.exit("sbatch: error: invalid partition specified: nowhere\nsbatch: error: Batch job submission failed")
    assert "parsable" in options
    (STATE / "options").write_text("\n".join(argv))
    (STATE / "script").write_text(sys.stdin.read())
    numbers, _, at_once = options["array"].partition("%")
    for number in range(int(numbers.partition("-")[2]) + 1):
        tasks[f"1_{number}"] = {
            "state": "PENDING",
            "status": 0,
            "at_once": int(at_once),
            "requeue": "requeue" in options,
        }
    print("1")


def squeue(tasks, argv):
    assert {"--noheader", "--array", "--states=all", "--jobs=1"} <= {*argv}
    assert "--Format=JobArrayID:40,State:30,exit_code:20" in argv
    left = {name: task for name, task in tasks.items() if not (STATE / "forgets").exists() or is_live(task)}
    if not left:
        sys.exit("slurm_load_jobs error: Invalid job id specified")
    for name, task in left.items():
        print(f"{name:<40}{task['state']:<30}{task['status']:<20}")


def sacct(tasks, argv):
    assert {"--noheader", "--parsable2", "--allocations", "--format=JobID,State,ExitCode"} <= {*argv}
    if (STATE / "no_accounting").exists():
        sys.exit("Slurm accounting storage is disabled")
    (wanted,) = (word.partition("=")[2].split(",") for word in argv if word.startswith("--jobs="))
    for name in wanted:
        task = tasks[name]
        print(f"{name}|{task['state']}|{task['status'] >> 8}:{task['status'] & 127}")


def scancel(tasks, argv):
    assert argv[-1] == "1"
    if not any(map(is_live, tasks.values())):
        sys.exit("scancel: error: Kill job error on job id 1: Invalid job id specified")
    for task in tasks.values():
        if "--state=PENDING" in argv and task["state"] == "PENDING":
            task["state"] = "CANCELLED"
        if {"--batch", "--signal=TERM"} <= {*argv} and task["state"] == "RUNNING":
            os.kill(task["process"], signal.SIGTERM)


def is_live(task):
    return task["state"] in ("PENDING", "RUNNING")


main(*sys.argv[1:])
