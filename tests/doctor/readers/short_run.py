"""Writes the same short run with the real library of a tracker: ``python short_run.py <kind> <folder>``."""

import json
import math
import os
import sys

ROWS = [
    {"loss": 1 / (i + 1), "kl": -0.5 * i, "reward/mean": reward}
    for i, reward in enumerate([0.0, 0.25, 0.5, math.nan, math.inf, 1.25])
]
CONFIG = {"learning_rate": 1e-5, "kl": {"coef": 0.05}}
PARAMS = {"learning_rate": 1e-5, "bf16": True, "name": "x"}


def wandb():
    os.environ.update(WANDB_MODE="offline", WANDB_SILENT="true")
    import wandb

    quiet = wandb.Settings(
        x_disable_meta=True,
        x_disable_stats=True,
        x_disable_machine_info=True,
        disable_git=True,
        host="host",
        console="off",
        root_dir=os.getcwd(),
    )
    run = wandb.init(project="p", config=CONFIG, id="short", settings=quiet)
    for i, row in enumerate(ROWS):
        histogram = wandb.Histogram([1, 2, 3], num_bins=4)
        other = {"nested": {"a": i}, "ok": True, "text": "hi", "histogram": histogram}
        run.log({**row, **other, "train/global_step": 10 * (i + 1)})
    run.finish()


def trackio():
    os.environ.update(TRACKIO_DIR="trackio", HF_HUB_OFFLINE="1")
    import trackio

    for name in ("first", "second"):
        trackio.init(project="p", name=name, config=CONFIG)
        for i, row in enumerate(ROWS):
            trackio.log({**row, "nested": {"a": i}})
        trackio.finish()


def mlflow_database():
    _mlflow("sqlite:///mlflow.db", ("first", "second"))


def mlflow_folder():
    _mlflow("file:mlruns", ("first",))


def _mlflow(address, names):
    os.environ.update(MLFLOW_ALLOW_FILE_STORE="true", MLFLOW_DISABLE_TELEMETRY="true")
    import mlflow

    mlflow.set_tracking_uri(address)
    mlflow.set_registry_uri("file:mlruns")
    mlflow.set_experiment("e")
    for name in names:
        with mlflow.start_run(run_name=name):
            mlflow.log_params(PARAMS)
            for i, row in enumerate(ROWS):
                mlflow.log_metrics(row, step=i)


def tensorboard():
    import torch
    from torch.utils.tensorboard import SummaryWriter

    writer = SummaryWriter("tensorboard")
    writer.add_text("args", json.dumps(CONFIG))
    for i, row in enumerate(ROWS):
        step = 10 * (i + 1)
        for name, value in row.items():
            writer.add_scalar(name, value, step)
        writer.add_scalar("new_style", i * 0.125, step, new_style=True)
        writer.add_scalar("double", i * 0.1, step, new_style=True, double_precision=True)
    writer.add_histogram("histogram", torch.tensor([1.0, 2.0, 3.0]), 10)
    writer.close()
    writer = SummaryWriter("tensorboard")
    writer.add_scalar("loss", 9.0, 60)
    writer.add_scalar("loss", 8.0, 70)
    writer.close()


def hparams():
    from torch.utils.tensorboard import SummaryWriter

    writer = SummaryWriter("hparams")
    writer.add_hparams({"lr": 0.5, "name": "x", "flag": True}, {"final": 1.0}, run_name=".")
    writer.close()


def tensors():
    from tensorboard.summary import Writer

    writer = Writer("tensors")
    for i, row in enumerate(ROWS):
        writer.add_scalar("loss", row["loss"], 10 * (i + 1))
    writer.close()


def trainer_state():
    from transformers import TrainerState

    history = [{**row, "step": 10 * (i + 1), "epoch": 0.1 * i} for i, row in enumerate(ROWS)]
    history.insert(3, {"eval_loss": 0.75, "epoch": 0.2, "step": 30})
    state = TrainerState(global_step=60, max_steps=60, num_train_epochs=1, logging_steps=10, log_history=history)
    state.save_to_json("trainer_state.json")


KINDS = (wandb, trackio, mlflow_database, mlflow_folder, tensorboard, hparams, tensors, trainer_state)

if __name__ == "__main__":
    kind, folder = sys.argv[1:]
    os.chdir(folder)
    {writer.__name__: writer for writer in KINDS}[kind]()
