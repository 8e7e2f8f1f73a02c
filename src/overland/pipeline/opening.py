"""A model folder opened as an engine, a server or a policy in this process; an address opened as a policy elsewhere."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from overland.errors import OverlandError, UsageError

if TYPE_CHECKING:
    from overland.agent import Policy
    from overland.chat import Tokenizer
    from overland.engine import Engine
    from overland.model.vision.preprocess import Preprocessing
    from overland.serve import ServeSection


def open_engine(
    folder: Path, max_batch: int = 64, dtype: str = "float32", packed: bool = False, **options: Any
) -> tuple[Engine, Tokenizer]:
    """The engine and tokenizer of a model folder. Raises UsageError or BrokenFileError naming what is wrong.

    Weights are kept in `dtype`; `packed` leaves MXFP4 matrices packed. `options` are further ones of Engine.
    """
    import torch

    from overland.chat import load_tokenizer
    from overland.engine import Engine
    from overland.model import load_model
    from overland.transform import load_packed

    if not folder.is_dir():
        raise UsageError(f"{folder}: there is no such model folder. A run leaves one at RUN/model.")
    tokenizer = load_tokenizer(folder)
    model = (load_packed if packed else load_model)(folder, getattr(torch, dtype)).eval()
    if tokenizer.vocab_size > model.config.vocab_size:
        raise OverlandError(
            f"{folder}: tokenizer.json has {tokenizer.vocab_size} tokens, the model {model.config.vocab_size}: "
            "they do not belong together"
        )
    return Engine(model, max_batch=max_batch, **options), tokenizer


def serve_folder(
    folder: Path, settings: ServeSection, name: str = "", max_batch: int = 64, announce: Callable[[str], None] = print
) -> None:
    """Serve a model folder until stopped. `name` is what clients call it; empty: the folder's, of RUN/model RUN's."""
    from overland.chat import XTML
    from overland.engine import AsyncEngine
    from overland.serve import run
    from overland.serve.lifecycle import listen

    if settings.port:  # a port in use is said before a large model is loaded
        listen(settings.host, settings.port).close()
    engine, tokenizer = open_engine(folder, max_batch, settings.dtype, settings.packed, **settings.engine_options())
    model_name = name or served_name(folder)
    run(
        AsyncEngine(engine),
        tokenizer,
        XTML(),
        model_name=model_name,
        settings=settings,
        preprocessing=open_preprocessing(folder, engine, tokenizer),
        announce=announce,
    )


def served_name(folder: Path) -> str:
    """What clients call the model of a folder: the folder's name, of RUN/model RUN's."""
    place = folder.resolve()
    return place.parent.name if place.name == "model" else place.name


def launch_line(
    folder: Path, settings: ServeSection, name: str, engine: str, *, only: bool
) -> tuple[str, tuple[str, ...]]:
    """How `engine` is started on a folder, and what there is to know about it.

    Raises UsageError for an engine that is not known, and where more than a line is asked of another's (`only` false).
    """
    from overland.serve.other_engines import ENGINES, launch

    if engine in ENGINES and not only:
        raise UsageError(f"engine = {engine!r} is started by its own command; add --print to see it")
    found = launch(folder, engine, settings, name or served_name(folder))
    return found.line, found.notes


def open_preprocessing(folder: Path, engine: Engine, tokenizer: Tokenizer) -> Preprocessing | None:
    """How pictures become this model's input; None where it takes none.

    Raises OverlandError where config.json, preprocessor_config.json and tokenizer.json do not belong together.
    """
    from overland.chat.tokenizer import MEDIA_PAD
    from overland.model.vision.preprocess import Preprocessing

    vision = engine.model.config.vision
    if vision is None:
        return None
    how = Preprocessing.of_folder(folder, vision)
    if (place := tokenizer.special(MEDIA_PAD)) != vision.media_token_id:
        raise OverlandError(
            f"{folder}: media_placeholder_token_id = {vision.media_token_id} in config.json, but {MEDIA_PAD} is "
            f"{place} in tokenizer.json"
        )
    return how


def open_policy(
    model: str, *, name: str | None = None, api: str = "openai", api_key_env: str = "OVERLAND_API_KEY"
) -> Policy:
    """A policy for a model folder, or for the base URL of an OpenAI- or Anthropic-compatible API.

    `name` may be left out where the address serves one model. The key comes from the environment.
    """
    if model.startswith(("http://", "https://")):
        from overland.agent import EndpointPolicy

        key = os.environ.get(api_key_env, "")
        return EndpointPolicy(model, name or _only_model(model, key), api=api, api_key=key)
    if not Path(model).is_dir():
        raise UsageError(f"model = {model!r} is neither a model folder nor a URL (http://...)")
    from overland.agent import LocalPolicy

    engine, tokenizer = open_engine(Path(model))
    return LocalPolicy(engine, tokenizer)


def _only_model(url: str, key: str) -> str:
    import httpx

    address = f"{url.rstrip('/')}/models"
    headers = {"authorization": f"Bearer {key}", "x-api-key": key} if key else {}
    try:
        answer = httpx.get(address, headers=headers, timeout=20)
        names = [str(card["id"]) for card in answer.raise_for_status().json()["data"]]
    except (httpx.HTTPError, ValueError, KeyError, TypeError) as error:
        what = " ".join(str(error).split())
        raise OverlandError(f"{address}: {type(error).__name__}: {what}. Is a server running there?") from None
    if len(names) != 1:
        raise UsageError(f"{url} serves {len(names)} models ({', '.join(names[:5])}): say which one (--name)")
    return names[0]
