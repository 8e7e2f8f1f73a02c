"""One thread: two on a busy two-core machine are many times slower than one."""

import torch

torch.set_num_threads(1)
