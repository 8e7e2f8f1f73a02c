"""What holds for every test: one torch thread, and no deadline on a Hypothesis example."""

from __future__ import annotations

import signal

import torch
from hypothesis import HealthCheck, settings

# Two threads on a busy two-core machine were measured many times slower than one.
torch.set_num_threads(1)

# Machines that run tests are busy; how long an example takes says nothing about what holds.
settings.register_profile("busy machine", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("busy machine")

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # A job in the background is started with Ctrl-C ignored, and so would be every program that is tested here.
    signal.signal(signal.SIGINT, signal.default_int_handler)
