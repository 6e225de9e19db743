"""Shared set-up: one thread for torch, so that parallel tests do not slow one another."""

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")
