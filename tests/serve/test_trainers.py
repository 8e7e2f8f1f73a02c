"""What trainers ask of the endpoint: ids in and out, pause and resume, new weights with version and checksum."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
import torch
from safetensors.torch import save

from overland.chat import XTML, Tokenizer
from overland.engine import AsyncEngine, Engine, Sampling
from overland.engine.weights import checksum_of, checksums_of
from overland.model import Decoder, save_model
from overland.serve import ServeSection, background, create_app

from .conftest import small_model, train_tokenizer

PROMPT = [5, 9, 2, 40, 41]


def greedy(model: Decoder, ids: list[int], tokens: int) -> list[int]:
    engine = Engine(model)
    engine.token_limit = train_tokenizer().vocab_size  # as the server: the rest of the vocabulary is padding
    generation = engine.submit(ids, Sampling(temperature=0.0, max_tokens=tokens))
    engine.run([generation])
    return generation.ids


@pytest.fixture
def trained(tokenizer: Tokenizer, tmp_path: Path) -> Iterator[tuple[str, Decoder, Path]]:
    model = small_model(tokenizer)
    settings = ServeSection(port=0, trainer_routes=True, weights_root=str(tmp_path))
    app = create_app(AsyncEngine(Engine(model)), tokenizer, XTML(), model_name="tiny", settings=settings)
    with background(app, settings) as at:
        yield at, model, tmp_path


def ask(tokens: int = 8, **params: Any) -> dict[str, Any]:
    return {
        "token_ids": PROMPT,
        "sampling_params": {"temperature": 0, "max_tokens": tokens, "stop_token_ids": [], **params},
    }


def generate(url: str, body: dict[str, Any]) -> dict[str, Any]:
    response = httpx.post(f"{url}/inference/v1/generate", json=body, timeout=60)
    assert response.status_code == 200, response.text
    return response.json()


def test_ids_come_in_and_go_out_with_their_logprobs(url: str, model: Decoder) -> None:
    made = generate(url, ask(logprobs=2, n=2))
    assert made["prompt_token_ids"] == PROMPT
    for choice in made["choices"]:
        assert choice["token_ids"] == greedy(model, PROMPT, 8)
        assert choice["finish_reason"] == "length"
        assert choice["weight_versions"] == [0] * 8
        assert choice["forced_tokens"] == [False] * 8
        for token, entry in zip(choice["token_ids"], choice["logprobs"]["content"], strict=True):
            assert entry["token"] == f"token_id:{token}"
            assert entry["token_id"] == token
            assert entry["top_logprobs"][0]["token_id"] == token  # greedy: the most likely
            assert len(entry["top_logprobs"]) == 2


def test_completions_take_ids_and_score_prompts(url: str, model: Decoder, tokenizer: Tokenizer) -> None:
    client = openai.OpenAI(base_url=f"{url}/v1", api_key="unused", max_retries=0)
    extra = {"return_token_ids": True}
    made = client.completions.create(
        model="tiny", prompt=[PROMPT, PROMPT[:3]], temperature=0, max_tokens=6, extra_body=extra
    )
    assert (
        made.choices[0].model_extra["token_ids"]
        == greedy(model, PROMPT, 6)[: len(made.choices[0].model_extra["token_ids"])]
    )
    stream = client.completions.create(model="tiny", prompt=PROMPT, temperature=0, max_tokens=6, stream=True)
    assert "".join(chunk.choices[0].text for chunk in stream) == made.choices[0].text
    scored = client.completions.create(model="tiny", prompt=PROMPT, max_tokens=0, echo=True, logprobs=1)
    assert scored.choices[0].text == tokenizer.decode(PROMPT)
    assert scored.choices[0].logprobs.token_logprobs[0] is None
    assert scored.choices[0].logprobs.token_logprobs[1:] == pytest.approx(Engine(model).score(PROMPT), abs=1e-4)


def test_a_chat_completion_uses_the_ids_it_is_given(url: str, model: Decoder) -> None:
    body = {"model": "tiny", "messages": [{"role": "user", "content": "other words"}], "tokens": PROMPT}
    options = {"temperature": 0, "max_tokens": 6, "return_token_ids": True, "logprobs": True, "top_logprobs": 0}
    made = httpx.post(f"{url}/v1/chat/completions/tokens", json={**body, **options}, timeout=60).json()
    assert made["prompt_token_ids"] == PROMPT
    assert made["choices"][0]["token_ids"] == greedy(model, PROMPT, 6)


def test_tokenize_is_the_prompt_of_a_chat_completion(url: str, tokenizer: Tokenizer) -> None:
    messages = [{"role": "user", "content": "Hi"}]
    rendered = httpx.post(f"{url}/tokenize", json={"messages": messages}).json()
    made = {"model": "tiny", "messages": messages, "max_tokens": 1, "return_token_ids": True}
    assert rendered["tokens"] == httpx.post(f"{url}/v1/chat/completions", json=made).json()["prompt_token_ids"]
    assert httpx.post(f"{url}/detokenize", json={"tokens": tokenizer.encode("Grüße")}).json() == {"prompt": "Grüße"}


@pytest.mark.parametrize("way", ["folder", "inline", "pieces"])
def test_new_weights_come_with_version_and_checksum(
    trained: tuple[str, Decoder, Path], tokenizer: Tokenizer, way: str
) -> None:
    url, model, root = trained
    new = small_model(tokenizer, seed=7)
    tensors = {name: tensor.contiguous() for name, tensor in new.state_dict().items()}
    assert generate(url, ask())["choices"][0]["token_ids"] == greedy(model, PROMPT, 8)

    def post(path: str, **body: Any) -> httpx.Response:
        return httpx.post(f"{url}/{path}", json=body, timeout=60)

    def inline(part: dict[str, Any], checksum: str | None = None) -> dict[str, Any]:
        return {"safetensors": base64.b64encode(save(part)).decode(), "checksum": checksum or checksum_of(part)}

    before = httpx.get(f"{url}/weight_info").json()
    wrong = post("update_weights", update_info=inline(tensors, checksum="0" * 64), weight_version="7")
    assert wrong.status_code == 400
    assert "checksum" in wrong.json()["error"]["message"]
    assert httpx.get(f"{url}/weight_info").json() == before

    if way == "folder":
        save_model(new, root / "step-7")
        answer = post("update_weights", update_info={"path": "step-7"}, weight_version="7")
    elif way == "inline":
        answer = post("update_weights", update_info=inline(tensors), weight_version="7")
    else:
        names = sorted(tensors)
        post("start_weight_update")
        for half in (names[::2], names[1::2]):
            assert post("update_weights", update_info=inline({name: tensors[name] for name in half})).status_code == 200
        assert httpx.get(f"{url}/weight_info").json() == before  # nothing is taken before the end
        answer = post("finish_weight_update", weight_version="7", checksum=checksum_of(tensors))
    assert answer.status_code == 200, answer.text
    made = generate(url, ask())["choices"][0]
    assert made["token_ids"] == greedy(new, PROMPT, 8)
    assert set(made["weight_versions"]) == {"7"}
    check = post("weight_checker", action="compare", baseline=checksums_of(tensors)).json()
    assert check == {"match": True, "mismatches": []}


def test_weights_outside_the_root_are_not_opened(trained: tuple[str, Decoder, Path]) -> None:
    url, model, root = trained
    save_model(model, root.parent / "outside")
    for path in ("../outside", str(root.parent / "outside"), "missing"):
        answer = httpx.post(f"{url}/update_weights", json={"update_info": {"path": path}})
        assert answer.status_code == 400
        assert str(root.parent) not in answer.text.replace(path, "")


@pytest.mark.parametrize("mode", ["abort", "wait", "keep"])
async def test_a_pause_holds_new_requests_and_treats_running_ones_as_asked(
    trained: tuple[str, Decoder, Path], mode: str
) -> None:
    url, model, _ = trained
    async with httpx.AsyncClient(base_url=url, timeout=60) as client:
        running = asyncio.create_task(client.post("/inference/v1/generate", json=ask(200)))
        while "running 0" in (meters := await _running(client)) or not meters:
            await asyncio.sleep(0.01)
        assert (await client.post("/pause", params={"mode": mode})).json() == {"status": "paused"}
        assert (await client.get("/is_paused")).json() == {"is_paused": True}
        if mode == "wait":
            assert running.done() or (await asyncio.wait([running], timeout=5))[0]
        held = asyncio.create_task(client.post("/inference/v1/generate", json=ask(4)))
        done, _ = await asyncio.wait([held], timeout=0.2)
        assert not done
        if mode == "keep":
            assert not running.done()
            await client.post("/update_weight_version", json={"new_version": 3})
        await client.post("/resume")
        first, second = await running, await held
        assert second.status_code == 200
        if mode == "abort":
            assert first.status_code == 503
            return
        choice = first.json()["choices"][0]
        assert choice["token_ids"] == greedy(model, PROMPT, 200)
        if mode == "keep":  # the versions say where the new weights began
            versions = choice["weight_versions"]
            assert set(versions) == {0, 3}
            assert versions == sorted(versions)


async def _running(client: httpx.AsyncClient) -> str:
    text = (await client.get("/metrics")).text
    lines = [line for line in text.splitlines() if line.startswith("vllm:num_requests_running{")]
    return f"running {int(float(lines[0].split()[-1]))}" if lines else ""


def test_without_the_setting_the_routes_are_not_there(tokenizer: Tokenizer, model: Decoder) -> None:
    app = create_app(AsyncEngine(Engine(model)), tokenizer, XTML(), model_name="tiny", settings=ServeSection(port=0))
    paths = {getattr(route, "path", "") for route in app.routes}
    assert "/v1/chat/completions" in paths
    assert not paths & {"/pause", "/update_weights", "/inference/v1/generate"}


def test_the_experts_of_each_token_come_where_asked_for(url: str, model: Decoder) -> None:
    assert generate(url, ask())["choices"][0]["routed_experts"] is None
    made = generate(url, ask(tokens=6, routed_experts_prompt_start=2))["choices"][0]
    told = made["routed_experts"]
    rows = torch.frombuffer(bytearray(base64.b64decode(told["data"])), dtype=getattr(torch, told["dtype"]))
    said = [*PROMPT, *made["token_ids"][:-1]]
    with torch.no_grad():
        aux = model(torch.tensor([said])).aux
    own = torch.stack([routing.experts for routing in aux.router], 1).to(torch.uint8)
    assert told["start"] == 2
    assert torch.equal(rows.view(told["shape"]), own[2:])
    answer = httpx.post(f"{url}/inference/v1/generate", json=ask(routed_experts_prompt_start=5))
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == "sampling_params.routed_experts_prompt_start"
