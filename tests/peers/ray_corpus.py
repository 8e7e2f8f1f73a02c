"""Run inside a virtual environment that has Ray and mlcroissant (see test_corpus_peers.py): prints JSON.

python ray_corpus.py TEXTS OUT     builds TEXTS into OUT/here, and into OUT/ray on a two-node cluster in processes
"""

from __future__ import annotations

import json
import sys
from importlib.metadata import version
from pathlib import Path


def main() -> None:
    import mlcroissant
    import ray
    from ray.cluster_utils import Cluster

    from overland.corpus import CorpusSection, build

    texts, out = sys.argv[1], Path(sys.argv[2])
    sys.modules["overland.corpus.build"].piece_bytes = lambda section, workers: 20_000  # type: ignore[attr-defined]
    recipe = {"text": (texts,), "stdlib": False, "vocab_size": 320, "heldout": 0.2, "shard_tokens": 4096}
    build(CorpusSection(**recipe), out / "here")
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "object_store_memory": 100 * 2**20})
    cluster.add_node(num_cpus=1, object_store_memory=100 * 2**20)
    cluster.wait_for_nodes()
    scale = {"runner": "ray", "ray_address": cluster.address}
    ray.init(address=cluster.address, log_to_driver=False)
    nodes = sum(node["Alive"] for node in ray.nodes())
    build(CorpusSection(**recipe, scale=scale), out / "ray")
    ray.shutdown()
    cluster.shutdown()
    dataset = mlcroissant.Dataset(jsonld=str(out / "here" / "croissant.json"))
    rows = list(dataset.records("documents"))
    print(json.dumps({
        "nodes": nodes, "errors": sorted(dataset.metadata.ctx.issues.errors), "rows": len(rows),
        "ray": ray.__version__, "mlcroissant": version("mlcroissant"),
    }))  # fmt: skip


if __name__ == "__main__":
    main()
