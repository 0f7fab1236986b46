"""Shared by all tests."""

import os

import torch

# Two threads in a test process cost more than they bring; set for child processes too.
os.environ["OMP_NUM_THREADS"] = "1"
torch.set_num_threads(1)
