"""Run inside a virtual environment that has xllamacpp (see test_gguf_peers.py): prints JSON.

python llama_cpp.py FILE ASKED    ASKED is JSON: `rows` of ids, `tokens` to generate after each, `never`, `texts`

`greedy` are the tokens that llama.cpp generates, none of the ids in `never` (it would stop at some of them); `logprobs`
of every id at each of those steps, read by giving it the row and the tokens before the step as a prompt; `ids` are the
texts as its tokenizer encodes them.
"""

from __future__ import annotations

import json
import sys
import urllib.request
from importlib.metadata import version
from typing import Any

import xllamacpp


def main() -> None:
    file, asked = sys.argv[1], json.loads(sys.argv[2])
    params = xllamacpp.CommonParams()
    params.model.path = file
    params.n_ctx, params.n_parallel, params.warmup, params.n_gpu_layers = 512, 1, False, 0
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = 1
    # fp32 throughout: the caches are f16 otherwise.
    params.cache_type_k = params.cache_type_v = xllamacpp.ggml_type.GGML_TYPE_F32
    params.flash_attn_type = xllamacpp.llama_flash_attn_type.LLAMA_FLASH_ATTN_TYPE_DISABLED
    server = xllamacpp.Server(params)  # it serves on a port of this machine until it is dropped

    def post(path: str, **body: Any) -> Any:
        address = server.listening_address
        kind = {"Content-Type": "application/json"}
        request = urllib.request.Request(f"{address}{path}", json.dumps(body).encode(), kind)
        with urllib.request.urlopen(request, timeout=60) as answer:
            return json.loads(answer.read())

    def complete(ids: list[int], tokens: int, n_probs: int = 0) -> Any:
        greedy = {"temperature": 0.0, "top_k": 1, "logit_bias": [[number, False] for number in asked["never"]]}
        how = {"cache_prompt": False, "return_tokens": True, "n_predict": tokens, "n_probs": n_probs}
        return post("/completion", prompt=ids, **greedy, **how)

    greedy, logprobs = [], []
    for ids in asked["rows"]:
        chosen = complete(ids, asked["tokens"])["tokens"]
        greedy.append(chosen)
        said = [complete(ids + chosen[:step], 1, asked["vocab_size"]) for step in range(len(chosen))]
        logprobs.append([of_ids(answer.get("completion_probabilities", [])) for answer in said])
    texts = [post("/tokenize", content=text)["tokens"] for text in asked.get("texts", [])]
    print(json.dumps({"xllamacpp": version("xllamacpp"), "greedy": greedy, "logprobs": logprobs, "ids": texts}))


def of_ids(steps: list[Any]) -> list[float] | None:
    """One step's log-probabilities by id; None where the server holds them back (its token ends within a character)."""
    if len(steps) != 1:
        return None
    return [entry["logprob"] for entry in sorted(steps[0]["top_logprobs"], key=lambda entry: entry["id"])]


if __name__ == "__main__":
    main()
