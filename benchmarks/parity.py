"""How far the decoder is from Transformers' own classes, family by family.

    python -m benchmarks.parity [--quick] [--json OUT]

The cases are those of tests/model/test_families.py: small shapes, random weights, the released layout in between.
fp64: both sides run in fp64 throughout. fp32: each side as it is. bf16: the error of each side against fp64, as a share
of the largest logit; `fixed` is ours with the experts and keys that fp64 chose, `turned` the share of tokens for which
bf16 chose others in some layer. The peer is the installed `transformers`; Kimi K3, which it has not, has the bf16
columns only (the `nano` preset, drawn as for training). Run from the repository's root.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from model.test_families import CASES, gradients, ids_of, in_our_names, largest, loss_of, reference, written
from model.widened import widened

from overland.model import Decoder, DecoderConfig, Replay, initialise, load_model, preset, save_model
from overland.model.checkpoint import released_tensors

DSA = {"num_heads": 4, "head_dim": 16, "topk": 8}
COLUMNS = (
    *("fp64 logits", "fp64 gradients", "fp32 logits", "fp32 gradient norms"),
    *("bf16 ours", "bf16 theirs", "bf16 fixed", "bf16 turned"),
)
K3_CASES: dict[str, dict[str, Any]] = {"kimi_k3, nano": {}, "kimi_k3, nano with an indexer": {"dsa_config": DSA}}
# How far bf16 may be from fp64 with fp64's choices, as a share of the largest logit: about twice what was measured.
BF16_TOLERANCE = {
    "llama": 0.06,
    "qwen3": 0.15,
    "qwen3_moe": 0.08,
    "mixtral": 0.06,
    "deepseek_v3": 0.1,
    "deepseek_v32": 0.1,
    "kimi_linear": 0.25,
    "gpt_oss": 0.03,
    "kimi_k3": 0.05,
}
# For what share of tokens it may choose other experts or keys in some layer.
BF16_TURNED = {
    "qwen3_moe": 0.1,
    "mixtral": 0.1,
    "deepseek_v3": 0.1,
    "deepseek_v32": 0.5,
    "kimi_linear": 0.4,
    "kimi_k3": 0.5,
}


def measure(case: str, folder: Path) -> dict[str, float]:
    """Largest differences of one case; logits relative to the largest logit, gradients to the largest of each."""
    ids = ids_of(case)
    with widened():
        theirs = reference(case, torch.float64)
        source = written(theirs, folder / "fp64")
        exact = theirs(ids).logits
        loss_of(exact, ids).backward()
    ours = load_model(source, torch.float64)
    logits = ours(ids).logits
    loss_of(logits, ids).backward()
    exact = exact.detach()
    scale = largest(exact)
    row = {"fp64 logits": largest(logits - exact) / scale}
    with widened():
        wanted = in_our_names(case, folder / "gradients", theirs, gradients(theirs))
    found = dict(released_tensors(ours.config, gradients(ours)))
    row["fp64 gradients"] = max(
        largest(value - wanted[name].view_as(value)) / max(1.0, largest(wanted[name])) for name, value in found.items()
    )

    theirs, ours = reference(case, torch.float32), load_model(source)
    wanted_logits, logits = theirs(ids).logits, ours(ids).logits
    row["fp32 logits"] = largest(logits - wanted_logits) / scale
    loss_of(wanted_logits, ids).backward()
    loss_of(logits, ids).backward()
    wanted = in_our_names(case, folder / "norms", theirs, gradients(theirs))
    norms = ((v.norm(), wanted[name].norm()) for name, v in released_tensors(ours.config, gradients(ours)))
    row["fp32 gradient norms"] = max(abs(a - b).item() / max(b.item(), 1e-6) for a, b in norms)

    with torch.no_grad():
        peer = reference(case, torch.bfloat16)(ids).logits
    row["bf16 theirs"] = largest(peer - exact) / scale
    return row | rounding(load_model(source, torch.float64), load_model(source, torch.bfloat16), ids)


@torch.no_grad()
def rounding(exact: Decoder, half: Decoder, ids: torch.Tensor) -> dict[str, float]:
    """What bf16 changes: logits with choices of its own, with fp64's, and how many tokens' choices it turns."""
    wanted, free = exact(ids, keep_selection=True), half(ids, keep_selection=True)
    chosen = [[routing.experts for routing in out.aux.router] for out in (wanted, free)]
    kept = [
        [one.selected.flatten(0, 1) for one in out.aux.indexer if one.selected is not None] for out in (wanted, free)
    ]
    turned = torch.zeros(ids.numel(), dtype=torch.bool)
    for ours, theirs in zip(chosen[0] + kept[0], chosen[1] + kept[1], strict=True):
        turned |= (ours.sort(-1).values != theirs.sort(-1).values).any(-1)
    selected = [one.selected for one in wanted.aux.indexer if one.selected is not None]
    fixed = half(ids, replay=Replay(chosen[0] or None, selected or None)).logits
    scale = largest(wanted.logits)
    return {
        "bf16 ours": largest(free.logits - wanted.logits) / scale,
        "bf16 fixed": largest(fixed - wanted.logits) / scale,
        "bf16 turned": turned.float().mean().item(),
    }


def k3_rounding(case: str, folder: Path, seed: int = 0) -> dict[str, float]:
    """The bf16 columns of a Kimi K3 with weights as they are drawn for training."""
    config = DecoderConfig.from_dict({**preset("nano").to_dict(), **K3_CASES[case]})
    save_model(initialise(Decoder(config), "standard", seed), folder)
    ids = torch.randint(config.vocab_size, (2, 40), generator=torch.Generator().manual_seed(2))
    return rounding(load_model(folder, torch.float64), load_model(folder, torch.bfloat16), ids)


def main() -> None:
    """Measure all cases, or with --quick the first of each family, and print the table."""
    import transformers

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(1)
    table: dict[str, dict[str, float]] = {}
    seen: set[Any] = set()
    for case, fields in CASES.items():
        if options.quick and fields["model_type"] in seen:
            continue
        seen.add(fields["model_type"])
        with tempfile.TemporaryDirectory() as folder:
            table[case] = measure(case, Path(folder))
    for case in K3_CASES:
        with tempfile.TemporaryDirectory() as folder:
            table[case] = k3_rounding(case, Path(folder))
    rule = "---|" * len(COLUMNS)
    print(f"against transformers {transformers.__version__}\n\n| case | {' | '.join(COLUMNS)} |\n|---|{rule}")
    for case, row in table.items():
        print(f"| {case} | {' | '.join(f'{row[c]:.0e}' if c in row else '' for c in COLUMNS)} |")
    if options.json:
        options.json.write_text(json.dumps({"transformers": transformers.__version__, "cases": table}, indent=2) + "\n")


if __name__ == "__main__":
    main()
