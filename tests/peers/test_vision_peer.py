"""K3 with images run live by mlx-vlm (MIT) in an environment of its own; the golden file is what it says today.

OVERLAND_MLX_VLM_PEER names its Python (else ~/.cache/overland/peers/mlx-vlm/bin/python); `make peers` makes it.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest
from safetensors.torch import load_file

from tests.model.k3_vision import FOLDER, run_peer

PYTHON = Path(os.environ.get("OVERLAND_MLX_VLM_PEER", Path.home() / ".cache/overland/peers/mlx-vlm/bin/python"))


@pytest.mark.skipif(not PYTHON.exists(), reason=f"no environment with mlx-vlm at {PYTHON}; see make peers")
def test_mlx_vlm_still_says_what_the_golden_file_says(tmp_path: Path) -> None:
    for name in ("config.json", "preprocessor_config.json", "model.safetensors", "inputs.safetensors"):
        shutil.copy(FOLDER / name, tmp_path)
    run_peer(PYTHON, tmp_path)
    live, golden = (load_file(folder / "expected.safetensors") for folder in (tmp_path, FOLDER))
    assert live.keys() == golden.keys()
    for name, value in golden.items():
        largest = value.abs().max()
        assert (live[name] - value).abs().max() <= 1e-4 * largest, name
