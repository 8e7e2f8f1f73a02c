"""PEFT's side of test_lora.py: `python lora_peer.py FOLDER` with an interpreter that has peft.

Loads FOLDER/ours (written by us) and says what the model answers with it; writes an adapter of its own to FOLDER/theirs
and says what the model answers with that.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import torch
from torch import Tensor, nn


class Net(nn.Module):
    """Two blocks with Linears of several names, one with a bias."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(
            nn.ModuleDict({"q_proj": nn.Linear(6, 10, bias=False), "o_proj": nn.Linear(10, 6)}) for _ in range(2)
        )
        self.lm_head = nn.Linear(6, 5, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = x + block["o_proj"](torch.tanh(block["q_proj"](x)))  # type: ignore[index]
        y: Tensor = self.lm_head(x)
        return y


def net() -> Net:
    torch.manual_seed(0)
    return Net()


def question() -> Tensor:
    return torch.randn(4, 6, generator=torch.Generator().manual_seed(1))


def main(folder: Path) -> None:
    from peft import LoraConfig, PeftModel, get_peft_model

    found = {}
    with torch.no_grad():
        ours = PeftModel.from_pretrained(net(), str(folder / "ours"))
        found["ours"] = ours(question()).tolist()
        found["ours_merged"] = ours.merge_and_unload()(question()).tolist()
        config = LoraConfig(r=3, lora_alpha=5, target_modules=["q_proj", "o_proj"], use_rslora=True)
        theirs = get_peft_model(net(), config)
        torch.manual_seed(2)
        for name, parameter in theirs.named_parameters():
            if "lora_" in name:
                parameter.normal_()
        found["theirs"] = theirs(question()).tolist()
        theirs.save_pretrained(str(folder / "theirs"))
    (folder / "answers.json").write_text(json.dumps(found))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
