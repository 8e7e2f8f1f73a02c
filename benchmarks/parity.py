"""How far the decoder is from Transformers' own classes, family by family.

    python -m benchmarks.parity [--quick] [--json OUT]

The cases are those of tests/model/test_families.py: small shapes, random weights, the released layout in between.
fp64: both sides run in fp64 throughout. fp32: each side as it is. bf16: the error of each side against fp64, as a share
of the largest logit. The peer is the installed `transformers`. Run from the repository's root.
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

from overland.model import load_model
from overland.model.checkpoint import released_tensors

COLUMNS = ("fp64 logits", "fp64 gradients", "fp32 logits", "fp32 gradient norms", "bf16 ours", "bf16 theirs")


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
        half = load_model(source, torch.bfloat16)(ids).logits
        peer = reference(case, torch.bfloat16)(ids).logits
    row["bf16 ours"], row["bf16 theirs"] = largest(half - exact) / scale, largest(peer - exact) / scale
    return row


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
    print(f"against transformers {transformers.__version__}\n\n| case | {' | '.join(COLUMNS)} |\n|---{'|---' * 6}|")
    for case, row in table.items():
        print(f"| {case} | {' | '.join(f'{row[column]:.0e}' for column in COLUMNS)} |")
    if options.json:
        options.json.write_text(json.dumps({"transformers": transformers.__version__, "cases": table}, indent=2) + "\n")


if __name__ == "__main__":
    main()
