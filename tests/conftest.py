"""One thread per test process: pytest-xdist already uses every core."""

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch

torch.set_num_threads(1)
