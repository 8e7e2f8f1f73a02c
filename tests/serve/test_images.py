"""Pictures over HTTP: what the server says is what the model says of them in the process; what is wrong is a 400."""

from __future__ import annotations

import base64
import io
import re
from collections.abc import Iterator
from typing import Any

import anthropic
import httpx
import openai
import pytest
import torch
from tiny import drawn, with_vision

from overland.chat import XTML, ImagePart, Message, Tokenizer
from overland.engine import AsyncEngine, Engine
from overland.model import Decoder
from overland.model.vision.preprocess import Preprocessing, preprocess
from overland.serve import ServeSection, background, create_app

PIL = pytest.importorskip("PIL.Image", reason="Pillow is not installed (pip install 'overland[vision]')")
HOW = Preprocessing(patch=2)
CONTEXT = 600


def noise(width: int, height: int, seed: int = 0) -> Any:
    pixels = torch.randint(0, 256, (height, width, 3), generator=torch.Generator().manual_seed(seed), dtype=torch.uint8)
    return PIL.fromarray(pixels.numpy())


def encoded(image: Any, form: str = "PNG") -> str:
    out = io.BytesIO()
    image.save(out, form)
    return base64.b64encode(out.getvalue()).decode()


def url_of(image: Any) -> str:
    return f"data:image/png;base64,{encoded(image)}"


@pytest.fixture(scope="module")
def seeing(tokenizer: Tokenizer) -> Decoder:
    vocab = -(-tokenizer.vocab_size // 32) * 32
    fields = with_vision({"vocab_size": vocab, "max_position_embeddings": CONTEXT})
    return drawn({**fields, "media_placeholder_token_id": tokenizer.special("<|media_pad|>")}, torch.float32).eval()


@pytest.fixture(scope="module")
def at(seeing: Decoder, tokenizer: Tokenizer) -> Iterator[str]:
    settings = ServeSection(port=0, max_images=2, max_image_pixels=6400)
    engine = AsyncEngine(Engine(seeing))
    app = create_app(engine, tokenizer, XTML(), model_name="seeing", settings=settings, preprocessing=HOW)
    with background(app, settings) as url:
        yield url


def in_process(model: Decoder, tokenizer: Tokenizer, image: Any, words: str, tokens: int) -> list[int]:
    """By the full forward alone, the picture put in its places."""
    made = preprocess(image, HOW)
    places = made.grids[0][1] * made.grids[0][2] // 4
    message = Message.of_parts("user", [words, ImagePart(*image.size, places)])
    ids = XTML().prompt_ids([message], tokenizer, effort="max")
    said: list[int] = []
    stops = XTML().stop_ids(tokenizer)
    while len(said) < tokens and not (said and said[-1] in stops):
        with torch.no_grad():
            logits = model(torch.tensor([[*ids, *said]]), images=made).logits[0, -1]
        logits[tokenizer.special("<|media_pad|>")] = float("-inf")
        logits[tokenizer.vocab_size :] = float("-inf")
        said.append(int(logits.argmax()))
    return said


def test_a_picture_over_openai_and_anthropic_is_the_models(at: str, seeing: Decoder, tokenizer: Tokenizer) -> None:
    image, other = noise(14, 10), noise(14, 10, seed=1)
    client = openai.OpenAI(base_url=f"{at}/v1", api_key="unused", max_retries=0)

    def ask(picture: Any) -> Any:
        content = [{"type": "text", "text": "Look:"}, {"type": "image_url", "image_url": {"url": url_of(picture)}}]
        return client.chat.completions.create(
            model="seeing", messages=[{"role": "user", "content": content}], temperature=0, max_tokens=6,
            reasoning_effort="max", extra_body={"return_token_ids": True},
        )  # fmt: skip

    first = ask(image)
    assert first.choices[0].model_extra["token_ids"] == in_process(seeing, tokenizer, image, "Look:", 6)
    assert first.model_extra["prompt_token_ids"].count(tokenizer.special("<|media_pad|>")) == 4 * 3
    assert ask(other).choices[0].model_extra["token_ids"] == in_process(seeing, tokenizer, other, "Look:", 6)
    assert ask(image).usage.prompt_tokens_details.cached_tokens > 0
    theirs = anthropic.Anthropic(base_url=at, api_key="unused", max_retries=0)
    source = {"type": "base64", "media_type": "image/png", "data": encoded(image)}
    blocks = [{"type": "text", "text": "Look:"}, {"type": "image", "source": source}]
    count = theirs.messages.count_tokens(model="seeing", messages=[{"role": "user", "content": blocks}])
    answer = theirs.messages.create(model="seeing", max_tokens=6, messages=[{"role": "user", "content": blocks}])
    assert answer.usage.input_tokens + (answer.usage.cache_read_input_tokens or 0) == count.input_tokens
    assert theirs.models.retrieve("seeing").capabilities.image_input.supported


def test_a_picture_in_a_response_is_the_models_and_goes_on_from_the_cache(
    at: str, seeing: Decoder, tokenizer: Tokenizer
) -> None:
    image = noise(14, 10, seed=2)
    client = openai.OpenAI(base_url=f"{at}/v1", api_key="unused", max_retries=0)
    look: Any = {"role": "user", "content": [{"type": "input_text", "text": "Look:"}, shown(url_of(image))]}
    asked: Any = {"model": "seeing", "temperature": 0, "reasoning": {"effort": "max"}, "max_output_tokens": 12}
    counted = client.responses.input_tokens.count(model="seeing", input=[look], reasoning={"effort": "max"})
    first = client.responses.create(**asked, input=[look])
    said = in_process(seeing, tokenizer, image, "Look:", 12)
    parser = XTML().parser(tokenizer)
    parser.feed(said)
    turn = parser.finish()
    assert "".join(part.text for item in first.output if item.type == "reasoning" for part in item.content or []) == (
        turn.reasoning
    )
    assert first.usage is not None
    assert (counted.input_tokens, len(said)) == (first.usage.input_tokens, first.usage.output_tokens)
    again = client.responses.create(**asked, input=[look])
    assert again.usage is not None
    assert again.usage.input_tokens_details.cached_tokens > 0
    # a picture in a call's result, and one that an earlier response was given
    call = {"type": "function_call", "call_id": "a", "name": "see", "arguments": "{}"}
    result: Any = {"type": "function_call_output", "call_id": "a", "output": [shown(url_of(image))]}
    *_, last = client.responses.create(**asked, input=[look, call, result], stream=True)
    whole = last.response
    assert whole.usage is not None
    next_one = client.responses.create(**asked, input="And?", previous_response_id=whole.id)
    assert next_one.usage is not None
    assert next_one.usage.input_tokens > whole.usage.input_tokens > 2 * 4 * 3


def shown(url: str) -> Any:
    return {"type": "input_image", "image_url": url, "detail": "auto"}


def test_wrong_pictures_in_a_response_are_a_400_that_names_them(at: str, url: str) -> None:
    def told(role: str, *parts: Any, base: str = at, model: str = "seeing") -> str:
        body = {"model": model, "input": [{"role": role, "content": list(parts)}]}
        answer = httpx.post(f"{base}/v1/responses", json=body)
        assert answer.status_code == 400, answer.text
        error = answer.json()["error"]
        assert error["param"].startswith("input.0.content")
        return str(error["message"])

    whole = shown(url_of(noise(14, 10)))
    assert "input.0.content.0.image_url: 'https://example.org/a.png'" in told(
        "user", shown("https://example.org/a.png")
    )
    assert "more than 2 images" in told("user", whole, whole, whole)
    assert "100 x 70 pixels are 7,000; valid: up to 6,400" in told("user", shown(url_of(noise(100, 70))))
    assert "an image cannot stand here" in told("system", whole)
    assert "keeps no files" in told("user", {"type": "input_image", "file_id": "file_1"})
    assert "takes no images" in told("user", whole, base=url, model="tiny")


def part(url: str) -> dict[str, Any]:
    return {"type": "image_url", "image_url": {"url": url}}


def test_wrong_pictures_are_a_400_that_names_them(at: str) -> None:
    whole = url_of(noise(14, 10))
    cases = [
        ([part("https://example.org/a.png")], "messages.0.content.0.image_url.url: .*fetches no pictures"),
        ([part("data:image/png;base64,????")], "the data is not base64"),
        ([part("data:image/svg+xml;base64,PHN2Zz4=")], "media type 'image/svg.xml' is none of image/png"),
        ([part("data:image/png;base64," + encoded(noise(14, 10))[:-40])], "cannot be decoded"),
        ([part(url_of(noise(100, 70)))], "100 x 70 pixels are 7,000; valid: up to 6,400"),
        ([part(whole), part(whole), part(whole)], "messages.0.content.2.*more than 2 images"),
        (
            [part(url_of(noise(80, 80))), part(url_of(noise(80, 79)))],
            "content.1.*tokens, more than the context has left",
        ),
        ([{"type": "image_url"}], "messages.0.content.0.image_url: this part needs it"),
    ]
    for content, message in cases:
        body = {"model": "seeing", "messages": [{"role": "user", "content": content}]}
        answer = httpx.post(f"{at}/v1/chat/completions", json=body)
        assert answer.status_code == 400, answer.text
        assert re.search(message, answer.json()["error"]["message"]), answer.text
    body = {
        "model": "seeing",
        "messages": [{"role": "system", "content": [part(whole)]}, {"role": "user", "content": "x"}],
    }
    assert "cannot stand in a system message" in httpx.post(f"{at}/v1/chat/completions", json=body).text
    source = {"type": "url", "url": "https://example.org/a.png"}
    block = {"type": "image", "source": source}
    body = {"model": "seeing", "max_tokens": 3, "messages": [{"role": "user", "content": [block]}]}
    assert "this server fetches no pictures" in httpx.post(f"{at}/v1/messages", json=body).text


def test_the_place_of_a_picture_cannot_be_sent_as_an_id(at: str, tokenizer: Tokenizer) -> None:
    media = tokenizer.special("<|media_pad|>")
    body = {"model": "seeing", "prompt": [1, media, 2], "max_tokens": 2}
    assert "is the place of a picture" in httpx.post(f"{at}/v1/completions", json=body).text
    body = {"model": "seeing", "tokens": [1, media], "messages": [{"role": "user", "content": "x"}]}
    answer = httpx.post(f"{at}/v1/chat/completions/tokens", json=body)
    assert answer.status_code == 400
    assert "1 places for pictures, the messages' pictures have 0" in answer.text


def test_a_model_without_vision_says_so(url: str) -> None:
    body = {"model": "tiny", "messages": [{"role": "user", "content": [part(url_of(noise(4, 4)))]}]}
    answer = httpx.post(f"{url}/v1/chat/completions", json=body)
    assert answer.status_code == 400
    assert "messages.0.content.0.image_url.url: this model takes no images; valid: text" in answer.text
