"""Pictures in prompts: what the engine says is the full forward's, however the prompt runs and whatever is reused."""

from __future__ import annotations

import pytest
import torch
from tiny import MEDIA, drawn, random_ids, with_vision

from overland.engine import Engine, Generation, Picture, Sampling
from overland.errors import UsageError
from overland.model.vision import Images

MODEL = drawn(with_vision({"max_position_embeddings": 256}))
GREEDY = Sampling(temperature=0, max_tokens=5)


def picture(seed: int, h: int = 4, w: int = 6) -> Picture:
    patches = torch.randn(h * w, 3, 2, 2, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return Picture(f"content of {seed}, {h} x {w}", Images(patches, ((1, h, w),)))


def prompt(*pictures: Picture, seed: int = 0, words: int = 20) -> list[int]:
    ids = random_ids(words, seed=seed, vocab=MEDIA).tolist()
    for number, one in enumerate(pictures):
        _, h, w = one.images.grids[0]
        ids += [*[MEDIA] * (h * w // 4), *random_ids(3, seed=number, vocab=MEDIA).tolist()]
    return ids


def greedy(ids: list[int], pictures: tuple[Picture, ...], tokens: int = 5) -> list[int]:
    """By the full forward alone, a picture never said."""
    said: list[int] = []
    images = Images.join([one.images for one in pictures]) if pictures else None
    for _ in range(tokens):
        with torch.no_grad():
            logits = MODEL(torch.tensor([[*ids, *said]]), images=images).logits[0, -1]
        logits[MEDIA] = float("-inf")
        said.append(int(logits.argmax()))
    return said


def ask(engine: Engine, ids: list[int], *pictures: Picture) -> Generation:
    row = engine.submit(ids, GREEDY, images=pictures)
    engine.run([row])
    return row


@pytest.mark.parametrize("chunk", [None, 7])
def test_a_batch_with_and_without_pictures_is_the_full_forward(chunk: int | None) -> None:
    engine = Engine(MODEL, prefill_chunk=chunk, page_size=8)
    asked = [(picture(1), picture(2, 2, 8)), (), (picture(3),), (picture(4, 6, 10),)]
    prompts = [prompt(*pictures, seed=number) for number, pictures in enumerate(asked)]
    rows = [engine.submit(ids, GREEDY, images=pictures) for ids, pictures in zip(prompts, asked, strict=True)]
    engine.run(rows)
    assert [row.ids for row in rows] == [greedy(ids, ps) for ids, ps in zip(prompts, asked, strict=True)]


def test_the_same_words_around_another_picture_share_nothing_from_there_on() -> None:
    engine = Engine(MODEL)
    one, other = picture(1), picture(2)
    ids = prompt(one, words=40)
    first = ask(engine, ids, one)
    assert first.ids == greedy(ids, (one,))
    changed = ask(engine, prompt(other, words=40), other)
    assert changed.cached_tokens == 40  # the words before the picture, no place of it
    assert changed.ids == greedy(ids, (other,))
    assert changed.logprobs != first.logprobs
    again = ask(engine, [*ids, 5], picture(1))  # equal content, sent once more
    assert again.cached_tokens == len(ids)
    assert again.ids == greedy([*ids, 5], (one,))


def test_the_tower_runs_once_a_picture_and_not_where_its_rows_are_stored(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[int] = []
    embed = MODEL.embed_images

    def counted(images: Images) -> torch.Tensor:
        seen.append(len(images.patches))
        return embed(images)

    monkeypatch.setattr(MODEL, "embed_images", counted)
    engine = Engine(MODEL, prefill_chunk=6, page_size=4)
    ids = prompt(picture(1), picture(1), words=30)
    rows = [engine.submit(ids, GREEDY, images=(picture(1), picture(1))) for _ in range(3)]
    engine.run(rows)
    assert seen == [24]
    del rows
    row = ask(engine, [*ids, 3], picture(1), picture(1))
    assert row.cached_tokens >= len(ids) - 4
    assert seen == [24]


def test_a_preempted_request_with_a_picture_goes_on() -> None:
    """A row that is run again from its ids, its picture included, says the same."""
    one = picture(1)
    room = Engine(MODEL, page_size=4).pool.row_bytes(50)  # for two prompts, not for two answers
    engine = Engine(MODEL, pool_bytes=2 * room, page_size=4, swap_bytes=0)
    sampling = Sampling(temperature=0, max_tokens=24)
    ids = prompt(one, words=30)
    rows = [engine.submit(ids, sampling, images=[one]) for _ in range(2)]
    engine.run(rows)
    assert engine.stats()["preemptions"] > 0
    assert [row.ids for row in rows] == [greedy(ids, (one,), 24)] * 2


def test_new_weights_see_the_picture_anew() -> None:
    model = drawn(with_vision({"max_position_embeddings": 256}))
    engine, one = Engine(model), picture(1)
    held = engine.submit(prompt(one), GREEDY, images=[one])
    engine.run([held])
    changed = {name: value * 1.5 for name, value in model.state_dict().items() if name.startswith("vision_tower.")}
    engine.load_weights(changed, 2)
    after = ask(engine, prompt(one), one)
    assert after.logprobs != held.logprobs
    assert after.ids == _full(model, prompt(one), one)


def _full(model: torch.nn.Module, ids: list[int], one: Picture) -> list[int]:
    said: list[int] = []
    for _ in range(5):
        with torch.no_grad():
            logits = model(torch.tensor([[*ids, *said]]), images=one.images).logits[0, -1]
        logits[MEDIA] = float("-inf")
        said.append(int(logits.argmax()))
    return said


def test_pictures_and_places_that_do_not_fit_are_named() -> None:
    engine = Engine(MODEL)
    with pytest.raises(UsageError, match="media_token_id = 30 6 times, its 2 images have 12 places"):
        engine.submit(prompt(picture(1)), GREEDY, images=[picture(1), picture(2)])
    with pytest.raises(UsageError, match="media_token_id = 30 6 times, its 0 images have 0 places"):
        engine.submit(prompt(picture(1)), GREEDY)
    with pytest.raises(UsageError, match="grid of 3 x 4 patches"):
        engine.submit(prompt(picture(1)), GREEDY, images=[picture(1, 3, 4)])
    from .naive import MODEL as WORDS

    with pytest.raises(UsageError, match="1 images; this model has no vision part"):
        Engine(WORDS).submit([1, 2], GREEDY, images=[picture(1)])


def test_penalties_count_the_words_of_a_prompt_alone() -> None:
    engine, one = Engine(MODEL), picture(1)
    row = engine.submit(prompt(one), Sampling(temperature=0, max_tokens=3, repetition_penalty=1.3), images=[one])
    engine.run([row])
    assert len(row.ids) == 3
    assert all(token < MEDIA or token > MEDIA for token in row.ids)
