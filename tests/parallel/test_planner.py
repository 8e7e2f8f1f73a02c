"""The planner: bytes against a world of 2,048 ranks, times against published runs, ranking, refusals.

References: torch's own sharding on a fake process group and the meta device; measured runs (where the table is there).
"""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from statistics import median

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.planner import elsewhere, memory_left_out
from overland.errors import OverlandError, UsageError
from overland.parallel.layout import Layout, nearest_divisors
from overland.parallel.planner import (
    Job,
    architecture,
    ask,
    break_even,
    error_chart,
    flops_per_token,
    gpu,
    layout_chart,
    neighbours,
    predict,
    rank,
    remedies,
)
from overland.parallel.planner.factors import coefficients
from overland.parallel.planner.fit import Run, fit_factors, left_out
from overland.parallel.planner.memory import MemoryFit, memory
from overland.parallel.planner.prediction import capacity_gib, natural
from overland.parallel.planner.routing import imbalance
from overland.parallel.planner.search import candidates

FAKE_WORLD = """
import json, sys, torch, torch.distributed as dist
import torch.testing._internal.distributed.fake_pg as fake
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import Shard, distribute_tensor
from overland.model import Decoder, preset
from overland.model.moe import Experts

dist.init_process_group("fake", store=fake.FakeStore(), rank=0, world_size=2048)
dense = init_device_mesh("cpu", (8, 256), mesh_dim_names=("copies", "fsdp"))
sparse = init_device_mesh("cpu", (8, 16, 16), mesh_dim_names=("copies", "efsdp", "ep"))
with torch.device("meta"):
    model = Decoder(preset("nano"))
for module in model.modules():
    if isinstance(module, Experts):
        for name, whole in list(module.named_parameters()):
            setattr(module, name, torch.nn.Parameter(distribute_tensor(whole.data, sparse["ep"], [Shard(0)])))
        fully_shard(module, mesh=sparse["copies", "efsdp"], shard_placement_fn=lambda _: Shard(1))
fully_shard(model, mesh=dense)
print(sum(parameter.to_local().numel() for parameter in model.parameters()))
"""


def job(model: str = "deepseek-v3", layout: str = "pp=4,vp=4,ep=64", gpus: int = 256, **changes: object) -> Job:
    found = Job(architecture(model), gpu("gb200"), gpus, Layout.parse(layout), 4096, 4096, 1, "mxfp8")
    return replace(found, **changes)  # type: ignore[arg-type]


def test_bytes_of_a_rank_are_those_of_a_world_of_2048_ranks() -> None:
    done = subprocess.run([sys.executable, "-c", FAKE_WORLD], capture_output=True, text=True, check=True)
    asked = job("nano", "ep=16,fsdp=256", 2048, gbs=2048)
    found = memory(asked, MemoryFit.fitted())
    assert found.weights == found.gradients == found.optimizer / 2 == 4 * int(done.stdout)


def test_states_without_fsdp_are_counted_by_hand() -> None:
    asked = job("mixtral-8x22b", "tp=2,ep=8", 16, gbs=16)
    model = asked.model
    expert = sum(w.numel for w in model.weights() if w.group == "expert") / 8
    split = sum(w.numel for w in model.weights() if w.group != "expert" and w.split != "none") / 2
    whole = sum(w.numel for w in model.weights() if w.group != "expert" and w.split == "none")
    found = memory(asked, MemoryFit.fitted())
    assert found.weights == pytest.approx(2 * (expert + split + whole))
    assert found.optimizer == pytest.approx(12 * (expert / 2 + (split + whole) / 8))
    assert memory(asked.with_layout(zero=2), MemoryFit.fitted()).gradients == pytest.approx(
        4 * (expert / 2 + (split + whole) / 8)
    )


def test_the_shipped_factors_are_what_the_table_gives(runs: list[Run]) -> None:
    shipped = coefficients()
    found = fit_factors(runs)
    assert shipped["factors"].keys() == found.keys()
    for name, value in found.items():
        assert shipped["factors"][name] == pytest.approx(value, rel=1e-4), name
    assert shipped["provenance"]["runs"] == len(runs)


def test_step_time_of_models_that_the_fit_never_saw(runs: list[Run]) -> None:
    errors = left_out(runs, lambda run: run.model)
    assert median(map(abs, errors)) <= 0.10


def test_memory_of_models_that_the_fit_never_saw(runs: list[Run]) -> None:
    _, errors = memory_left_out(runs)
    assert median(map(abs, errors)) <= 0.05


def test_runs_that_stand_in_no_table() -> None:
    errors = [predict(run.job).step_s / run.step_s - 1 for _, run, _ in elsewhere()]
    assert len(errors) > 12
    assert median(map(abs, errors)) <= 0.15
    dense = [predict(run.job).step_s / run.step_s - 1 for name, run, _ in elsewhere() if "405B" in name]
    assert max(map(abs, dense)) <= 0.05


def test_natural_routing_costs_what_pairs_of_runs_say() -> None:
    pairs = {name.rsplit(",", 1)[0]: [] for name, _, _ in elsewhere() if "natural" in name}
    for name, run, _ in elsewhere():
        if name.rsplit(",", 1)[0] in pairs and name.endswith(("natural", "forced even")):
            pairs[name.rsplit(",", 1)[0]].append(run)
    for even, uneven in pairs.values():
        measured = uneven.step_s / even.step_s
        assert natural(predict(even.job)) == pytest.approx(measured, abs=0.03)


@given(experts=st.sampled_from([8, 64, 128, 896]), at=st.integers(0, 6))
def test_imbalance_grows_with_ranks_and_stays_below_their_number(experts: int, at: int) -> None:
    degrees = [ep for ep in (1, 2, 4, 8, 16, 32, 64) if experts % ep == 0]
    loads = [imbalance(experts, ep) for ep in degrees]
    assert loads == sorted(loads)
    assert all(1 <= load <= ep for load, ep in zip(loads, degrees, strict=True))


def test_a_prediction_adds_up() -> None:
    found = predict(job())
    assert sum(found.shares.values()) == pytest.approx(1)
    assert found.step_s == pytest.approx(4096 * 4096 / 256 / found.tokens_per_s_per_gpu)
    flops = flops_per_token(found.job.model, 4096)
    assert found.tflops_per_gpu == pytest.approx(found.tokens_per_s_per_gpu * flops / 1e12)
    assert 0 < found.mfu < 1
    assert found.memory.gib * 2**30 == pytest.approx(sum(vars(found.memory).values()))


@pytest.mark.parametrize(
    ("slower", "faster"),
    [
        ({}, {"software": "26.08"}),
        ({"precision": "bf16"}, {}),
        ({"gpu": gpu("b200")}, {}),
        ({"layout": "pp=4,ep=64,recompute=full"}, {"layout": "pp=4,ep=64"}),
        ({"layout": "pp=4,ep=64"}, {"layout": "pp=4,vp=4,ep=64"}),
        ({"balanced": False}, {}),
    ],
)
def test_what_must_be_slower_is(slower: dict[str, object], faster: dict[str, object]) -> None:
    assert predict(job(**slower)).step_s > predict(job(**faster)).step_s


def test_ranking_is_by_time_fits_and_is_no_worse_than_what_people_run() -> None:
    asked = job("qwen3-235b-a22b", "pp=8,vp=3,ep=32", gbs=8192)
    found = rank(asked, 5)
    times = [one.step_s for one in found.best]
    assert times == sorted(times)
    assert all(one.fits and one.memory.gib <= capacity_gib(one.job) for one in found.best)
    assert times[0] <= predict(asked).step_s
    assert len({(str(one.job.layout), one.job.mbs) for one in found.best}) == 5


def test_every_candidate_of_the_search_can_be() -> None:
    asked = job("k3", "", 256, gbs=2048, precision="mxfp8")
    for at, candidate in enumerate(candidates(asked)):
        if at % 7 == 0:
            candidate.check()


def test_nothing_fits_says_what_the_smallest_needs() -> None:
    with pytest.raises(OverlandError, match=r"no layout of k3 fits; the smallest needs \d+ GiB a GPU and h100 has 74"):
        rank(Job(architecture("k3"), gpu("h100"), 64, Layout(), 4096, 1024))


def test_why_and_what_would_help_name_changes_with_their_size() -> None:
    best = rank(job("k3", "", 1024, gbs=2048), 1).best[0]
    aside = neighbours(best)
    assert any(change.ratio is None and "does not fit" in change.remark for change in aside)
    assert all(change.ratio > 0.99 for change in aside if change.ratio is not None)
    assert "natural instead of balanced routing" in {change.what for change in remedies(best)}


def test_the_rule_of_thumb() -> None:
    k3, mixtral = (break_even(architecture(name), gpu("gb200")) for name in ("k3", "mixtral-8x22b"))
    assert k3 is not None
    assert mixtral is not None
    assert k3.by_bytes == 16 * 3584 / 7168
    assert mixtral.by_bytes == 2
    assert break_even(architecture("llama3-8b"), gpu("gb200")) is None


@pytest.mark.parametrize(
    ("layout", "changes", "message"),
    [
        ("tp=3", {}, r"tp = 3 does not divide --gpus = 256; nearest valid: 1, 2, 4"),
        ("ep=48", {}, r"ep = 48 does not divide the ranks of a pipeline stage = 256; nearest valid: 16, 32, 64"),
        ("pp=64,ep=8", {}, r"ep = 8 does not divide the ranks of a pipeline stage = 4; nearest valid: 1, 2, 4"),
        ("pp=64", {}, r"pp = 64: pp \* vp = 64 stages for 61 layers; nearest valid: pp up to 61"),
        ("pp=8,vp=9", {}, r"vp = 9: pp \* vp = 72 stages for 61 layers; nearest valid: vp up to 7"),
        ("vp=2", {}, r"vp = 2 needs a pipeline, and pp = 1"),
        ("pp=512", {}, r"pp = 512 does not divide --gpus = 256; nearest valid: 64, 128, 256"),
        ("fsdp=100", {}, r"fsdp = 100 does not divide the data-parallel ranks = 256; nearest valid: 32, 64, 128"),
        (
            "pp=2",
            {"gbs": 1000},
            r"--gbs = 1000 is no multiple of the 128 data-parallel ranks; nearest valid: 896, 1024",
        ),
        ("pp=2", {"mbs": 3}, r"--mbs = 3 does not divide the sequences of a rank = 32; nearest valid: 1, 2, 4"),
        ("cp=2", {"seq": 4095}, r"cp \* tp = 2 does not divide --seq = 4095"),
        ("", {"precision": "mxfp8", "gpu": gpu("h100")}, r"--precision = 'mxfp8': h100 has bf16, fp8"),
    ],
)
def test_what_does_not_divide_is_refused_with_the_nearest(
    layout: str, changes: dict[str, object], message: str
) -> None:
    with pytest.raises(UsageError, match=message):
        predict(job(layout=layout, **changes))


def test_a_model_without_experts_has_no_expert_parallel() -> None:
    with pytest.raises(UsageError, match=r"ep = 2: llama3-8b has no experts; nearest valid: 1"):
        predict(job("llama3-8b", "ep=2"))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("tp", r"'tp': a part is NAME=VALUE with NAME one of tp, pp"),
        ("dp=4", r"'dp=4': a part is NAME=VALUE"),
        ("tp=0", r"tp = '0' is not a whole number from 1"),
        ("tp=-1", r"tp = '-1' is not a whole number"),
        ("tp=2,tp=4", r"tp is given twice"),
        ("recompute=most", r"recompute = 'most'; valid: none, selective, full"),
        ("zero=3", r"zero = 3; valid: 1, 2"),
    ],
)
def test_a_layout_that_is_not_one_is_refused(text: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        Layout.parse(text)


@given(
    st.builds(
        Layout,
        tp=st.integers(1, 64),
        pp=st.integers(1, 64),
        vp=st.integers(1, 8),
        ep=st.integers(1, 512),
        cp=st.integers(1, 16),
        fsdp=st.integers(0, 9),
        recompute=st.sampled_from(["none", "selective", "full"]),
    )
)
def test_a_layout_reads_back_from_its_own_words(layout: Layout) -> None:
    assert Layout.parse(str(layout)) == layout


@given(value=st.integers(1, 5000), whole=st.integers(1, 5000))
def test_nearest_divisors_divide_and_are_nearest(value: int, whole: int) -> None:
    near = nearest_divisors(value, whole)
    others = [d for d in range(1, whole + 1) if whole % d == 0 and d not in near]
    assert all(whole % d == 0 for d in near)
    assert all(abs(d - value) >= max(abs(n - value) for n in near) for d in others)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ({"kind": "h10"}, r"--gpu = 'h10' is not a known kind; nearest: h100"),
        ({"precision": "fp9"}, r"--precision = 'fp9'; nearest valid: .*fp8"),
        ({"software": "26.07"}, r"--software = '26.07'; nearest valid: 26.0"),
        ({"routing": "even"}, r"--routing = 'even'; nearest valid: "),
        ({"tokens": 4097}, r"--tokens = 4097 is no multiple of --seq = 4096; nearest valid: 4096, 8192"),
        ({"tokens": 8192, "gbs": 2}, r"give one of them"),
        ({"gpus": 0}, r"--gpus = 0 is not a whole number from 1"),
    ],
)
def test_a_question_that_is_none_is_refused(words: dict[str, object], message: str) -> None:
    question: dict[str, object] = {"model": "llama3-8b", "kind": "h100", "gpus": 8, **words}
    with pytest.raises(UsageError, match=message):
        ask(**question)  # type: ignore[arg-type]


def test_charts_are_well_formed_and_show_every_layout(tmp_path: Path) -> None:
    from xml.etree import ElementTree

    best = rank(job("mixtral-8x22b", "", 128, gbs=1024), 3).best
    drawn = ElementTree.fromstring(layout_chart(best))
    texts = ["".join(node.itertext()) for node in drawn.iter("{http://www.w3.org/2000/svg}text")]
    assert all(any(str(one.job.layout) in text for text in texts) for one in best)
    assert ElementTree.fromstring(error_chart([(0.05, "a"), (-0.2, "b")])) is not None


def test_the_command_answers_in_json_with_the_promised_keys() -> None:
    words = "plan --model DeepSeek-V3 --gpus 1024 --gpu h100 --layout tp=2,pp=8,vp=4,ep=64,cp=1 --mbs 1 --gbs 8192"
    words += " --seq 4096 --precision fp8 --json"
    done = subprocess.run(
        [sys.executable, "-m", "overland", *words.split()], capture_output=True, text=True, check=True
    )
    found = json.loads(done.stdout)
    assert {"step_s", "tokens_per_s_per_gpu", "tflops_per_gpu", "mem_gib"} <= found.keys()
    assert found["tokens_per_s_per_gpu"] == pytest.approx(8192 * 4096 / 1024 / found["step_s"])


def test_the_command_explains_its_best_and_draws_it(tmp_path: Path) -> None:
    words = [
        "plan",
        "--model",
        "k3",
        "--gpus",
        "4096",
        "--gpu",
        "gb200",
        "--top",
        "3",
        "--chart",
        str(tmp_path / "k3.svg"),
    ]
    done = subprocess.run([sys.executable, "-m", "overland", *words], capture_output=True, text=True, check=True)
    for part in (
        "where the time goes",
        "a step aside",
        "what would help",
        "rule of thumb",
        "natural instead of balanced",
    ):
        assert part in done.stdout
    assert (tmp_path / "k3.svg").read_text("utf-8").startswith("<svg")
