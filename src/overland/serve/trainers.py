"""The routes trainers ask for: token ids in and out, pause and resume, new weights with a version and a checksum.

Names and shapes are vLLM's where it has them, so that a trainer can be pointed at either. They change what everybody is
served, hence exist only with `trainer_routes = true`. Weights come as a model folder under `weights_root`, or inline as
a safetensors file in base64; they are taken between two steps, all or none.
"""

from __future__ import annotations

import base64
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from fastapi import FastAPI, Request, Response
from fastapi.responses import JSONResponse
from torch import Tensor

from overland.engine import Budget, Sampling
from overland.engine.routing import expert_layers
from overland.engine.weights import checksums_of
from overland.errors import OverlandError
from overland.serve.admission import Load
from overland.serve.answering import known_model, respond
from overland.serve.body import read_body
from overland.serve.completions import check_ids
from overland.serve.completions_schema import (
    AbortRequest,
    CheckRequest,
    FinishRequest,
    GenerateRequest,
    UpdateInfo,
    UpdateRequest,
    VersionRequest,
)
from overland.serve.conversation import check_bias
from overland.serve.errors import ApiError, bad_request
from overland.serve.generation import Generator
from overland.serve.raw import RawRun, seeds
from overland.serve.streaming import merge
from overland.serve.tokens import finite


class GenerateAnswer:
    """POST /inference/v1/generate: ids in, ids out, with the log-probability and weight version of each."""

    def __init__(self, generator: Generator, body: GenerateRequest, request_id: str) -> None:
        asked = body.sampling_params
        check_ids("token_ids", body.token_ids, generator)
        room = generator.context_length - len(body.token_ids)
        self._ids = body.token_ids
        self._request_id = request_id
        close = generator.think_close
        budget = asked.thinking_token_budget
        self._routed_from = _routed_from(generator, body)
        self.load = Load(len(self._ids), min(room, asked.max_tokens or room), asked.n)
        self._runs = [
            RawRun(
                generator,
                self._ids,
                Sampling(
                    temperature=asked.temperature,
                    top_p=asked.top_p,
                    top_k=max(0, asked.top_k),
                    min_p=asked.min_p,
                    max_tokens=self.load.max_tokens,
                    seed=seed,
                    stop_ids=tuple(generator.stop_ids if asked.stop_token_ids is None else asked.stop_token_ids),
                    presence_penalty=asked.presence_penalty,
                    frequency_penalty=asked.frequency_penalty,
                    repetition_penalty=asked.repetition_penalty,
                    logit_bias=check_bias("logit_bias", asked.logit_bias, generator.tokenizer.vocab_size),
                    top_logprobs=asked.logprobs or 0,
                ),
                budget=None if budget is None else Budget(budget, close[0], close),
                salt=body.cache_salt or "",
                priority=body.priority,
                request_id=request_id,
                routed_from=self._routed_from,
            )
            for seed in seeds(asked.seed, asked.n)
        ]

    async def whole(self) -> dict[str, Any]:
        """The answer."""
        async for _ in merge([run.pieces() for run in self._runs]):
            pass
        choices = [self._choice(number, run) for number, run in enumerate(self._runs)]
        return {"request_id": self._request_id, "choices": choices, "prompt_token_ids": self._ids}

    def stream(self) -> Any:
        """Not offered: the route gives whole answers."""
        raise bad_request("stream", "this route gives whole answers")

    def _choice(self, number: int, run: RawRun) -> dict[str, Any]:
        generation = run.generation
        assert generation is not None
        content = [
            {
                "token": f"token_id:{piece.token}",
                "token_id": piece.token,
                "logprob": finite(piece.logprob),
                "top_logprobs": [
                    {"token": f"token_id:{i}", "token_id": i, "logprob": finite(lp)} for i, lp in piece.top
                ],
            }
            for piece in run.pieces_
        ]
        return {
            "index": number,
            "finish_reason": run.finish,
            "token_ids": [piece.token for piece in run.pieces_],
            "logprobs": {"content": content},
            "forced_tokens": list(generation.forced),
            "cached_tokens": generation.cached_tokens,
            "routed_experts": None if self._routed_from is None else _routed(self._routed_from, generation.routed),
            "sampling_mask": None,
            "weight_versions": list(generation.versions),
        }


def _routed_from(generator: Generator, body: GenerateRequest) -> int | None:
    """The token from which experts are reported; None where nobody asks. Raises a 400 where there is nothing to report.

    A turn that goes on from another one names where its new tokens begin, so that the rest may come from the cache.
    """
    asked, model = body.sampling_params, generator.engine.engine.model
    told = asked.return_routed_experts or asked.routed_experts_prompt_start is not None
    if asked.return_routed_experts is False or not (told or generator.settings.return_routed_experts):
        return None
    if not expert_layers(model):
        if not told:
            return None
        raise bad_request("sampling_params.return_routed_experts", "this model has no experts")
    start = asked.routed_experts_prompt_start or 0
    if start >= len(body.token_ids):
        what = f"{start} is no token of the prompt; valid: 0 to {len(body.token_ids) - 1}"
        raise bad_request("sampling_params.routed_experts_prompt_start", what)
    return start


def _routed(start: int, rows: Sequence[Tensor]) -> dict[str, Any]:
    """Ids [tokens, expert layers, k] of all tokens from `start` to the last but one, as renderers reads them: it looks
    for `data` in the first place."""
    experts = torch.cat(list(rows)).contiguous()
    data = base64.b64encode(experts.numpy().tobytes()).decode()
    kind = str(experts.dtype).removeprefix("torch.")
    return {"data": data, "shape": list(experts.shape), "start": start, "dtype": kind}


def add_to(app: FastAPI, generator: Generator, model_name: str) -> None:
    """Declare the routes."""
    engine, settings = generator.engine, generator.settings
    limit = settings.max_weight_bytes
    staged: dict[str, Tensor] | None = None

    @app.post("/inference/v1/generate")
    async def generate(request: Request) -> Response:
        body = await read_body(request, GenerateRequest, settings.max_request_bytes)
        if body.model is not None:
            known_model(body.model, model_name)
        if body.sampling_params.n > settings.max_choices:
            raise bad_request("sampling_params.n", f"{body.sampling_params.n} choices; at most {settings.max_choices}")
        answer = GenerateAnswer(generator, body, request.state.request_id)
        return await respond(request, generator, answer, answer.load)

    @app.post("/pause")
    async def pause(mode: str = "abort") -> dict[str, str]:
        """Holds new requests; what runs is aborted, waited for or kept frozen, as `mode` says."""
        try:
            await engine.pause(mode)  # type: ignore[arg-type]
        except OverlandError as error:
            raise bad_request("mode", str(error)) from None
        return {"status": "paused"}

    @app.post("/resume")
    async def resume() -> dict[str, str]:
        await engine.resume()
        return {"status": "resumed"}

    @app.get("/is_paused")
    async def is_paused() -> dict[str, bool]:
        return {"is_paused": engine.engine.paused}

    @app.post("/abort_requests")
    async def abort(request: Request) -> dict[str, Any]:
        body = await read_body(request, AbortRequest, settings.max_request_bytes, empty=True)
        return {"status": "aborted", "aborted": generator.cancel_all(body.request_ids or None)}

    @app.post("/init_weight_transfer_engine")
    async def init_transfer() -> dict[str, str]:
        """Nothing to set up: weights come by folder or in the request."""
        return {"message": "Weight transfer initialized"}

    @app.post("/start_weight_update")
    async def start_update() -> dict[str, str]:
        nonlocal staged
        staged = {}
        return {"message": "Weight update started"}

    @app.post("/update_weights")
    async def update(request: Request) -> dict[str, str]:
        """Between start and finish: gathers tensors. Without them: takes the weights at once."""
        body = await read_body(request, UpdateRequest, limit)
        tensors = _tensors(body.update_info, settings.weights_root)
        if staged is None:
            version = engine.engine.version if body.weight_version is None else body.weight_version
            await _load(generator, tensors, version, body.update_info.checksum)
        else:
            _check(tensors, body.update_info.checksum)
            staged.update(tensors)
        return {"message": "Weights updated"}

    @app.post("/finish_weight_update")
    async def finish_update(request: Request) -> dict[str, str]:
        nonlocal staged
        body = await read_body(request, FinishRequest, limit, empty=True)
        if staged is None:
            raise ApiError(409, "no weight update was started", code="no_update")
        tensors, staged = staged, None
        version = engine.engine.version if body.weight_version is None else body.weight_version
        await _load(generator, tensors, version, body.checksum)
        return {"message": "Weight update finished"}

    @app.post("/update_weight_version")
    async def update_version(request: Request) -> dict[str, Any]:
        body = await read_body(request, VersionRequest, settings.max_request_bytes)
        await _load(generator, {}, body.new_version, None)
        return {"success": True, "new_version": body.new_version}

    @app.get("/weight_info")
    async def weight_info() -> dict[str, Any]:
        return {"weight_version": engine.engine.version}

    @app.post("/weight_checker")
    async def weight_checker(request: Request) -> Response:
        body = await read_body(request, CheckRequest, limit)
        if body.action not in ("checksum", "compare"):
            raise bad_request("action", f"{body.action!r}; valid: checksum, compare")
        if body.action == "compare" and body.baseline is None:
            raise bad_request("baseline", "the action compare needs it")
        now = await engine.call(lambda one: checksums_of(one.model.state_dict()))
        if body.action == "checksum":
            return JSONResponse({"checksums": now})
        baseline = body.baseline or {}
        wrong = sorted(name for name in {*now, *baseline} if now.get(name) != baseline.get(name))
        return JSONResponse({"match": not wrong, "mismatches": wrong})

    @app.get("/get_world_size")
    async def world_size() -> dict[str, int]:
        return {"world_size": 1}


def _tensors(info: UpdateInfo, root: str) -> dict[str, Tensor]:
    """The tensors that an update names. Raises a 400 that says what is wrong with it."""
    from safetensors import SafetensorError
    from safetensors.torch import load

    from overland.model import load_model

    if (info.path is None) == (info.safetensors is None):
        raise bad_request("update_info", "give exactly one of path (a model folder) and safetensors (base64)")
    if info.safetensors is not None:
        try:
            return load(base64.b64decode(info.safetensors, validate=True))
        except (ValueError, SafetensorError):
            raise bad_request("update_info.safetensors", "not a safetensors file in base64") from None
    if not root:
        raise bad_request("update_info.path", "this server takes no weights by path; it has no weights_root")
    folder = (Path(root) / (info.path or "")).resolve()
    if not folder.is_relative_to(Path(root).resolve()):
        raise bad_request("update_info.path", "it leads out of the server's weights_root")
    try:
        return load_model(folder).state_dict()
    except (OverlandError, OSError):
        raise bad_request("update_info.path", "there is no readable model folder of that name") from None


def _check(tensors: dict[str, Tensor], checksum: str | None) -> None:
    from overland.engine.weights import checksum_of

    if checksum is not None and (got := checksum_of(tensors)) != checksum:
        raise bad_request("update_info.checksum", f"the tensors' checksum is {got}", "checksum_mismatch")


async def _load(generator: Generator, tensors: dict[str, Tensor], version: int | str, checksum: str | None) -> None:
    try:
        await generator.engine.call(lambda engine: engine.load_weights(tensors, version, checksum))
    except OverlandError as error:
        raise ApiError(400, str(error), param="update_info", code="bad_weights") from None
