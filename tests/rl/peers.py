"""Where TRL and verl live: a virtual environment of their own, for they pin what we do not.

    python -m venv ~/.cache/overland/peers/rl
    ~/.cache/overland/peers/rl/bin/pip install torch==2.13.0 trl==1.16.0 peft ray omegaconf tensordict hydra-core \
        codetiming orjson pandas
    ~/.cache/overland/peers/rl/bin/pip install --no-deps verl==0.9.1 bfcl-eval==2026.3.23

OVERLAND_PEERS names another folder than ~/.cache/overland/peers.
"""

from __future__ import annotations

import os
from pathlib import Path

FOLDER = Path(os.environ.get("OVERLAND_PEERS") or Path.home() / ".cache/overland/peers") / "rl"
PYTHON = FOLDER / "bin/python"


def site_packages(package: str) -> Path | None:
    """Where a package of the peers' environment lies; None where it is not installed."""
    return next(iter(sorted(FOLDER.glob(f"lib/python*/site-packages/{package}"))), None)


def installed(*packages: str) -> bool:
    """Whether the peers' environment has all of them."""
    return PYTHON.is_file() and all(site_packages(p) is not None for p in packages)
