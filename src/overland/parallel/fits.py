"""Whether a layout can be applied to a model on so many ranks: said before a mesh or a weight is made."""

from __future__ import annotations

from collections.abc import Iterator

from overland.errors import UsageError
from overland.model.config import DecoderConfig
from overland.parallel.layout import Layout, refuse


def check(layout: Layout, config: DecoderConfig, ranks: int, tokens: int | None = None) -> None:
    """Raises UsageError with field, value and the nearest valid choices. `tokens`: the length of a row, where known."""
    if layout.pp != 1 or layout.vp != 1:
        name = "pp" if layout.pp != 1 else "vp"
        raise UsageError(f"{name} = {getattr(layout, name)}: pipeline stages are not applied yet; valid: 1")
    inside = layout.tp * layout.cp
    for name in ("tp", "cp"):
        if ranks % getattr(layout, name):
            raise refuse(name, getattr(layout, name), "the ranks", ranks)
    if ranks % inside:
        raise refuse("tp * cp", inside, "the ranks", ranks)
    if layout.fsdp and layout.dp(ranks) % layout.fsdp:
        raise refuse("fsdp", layout.fsdp, "the data-parallel ranks", layout.dp(ranks))
    if (layout.shards(ranks) * layout.tp) % layout.ep:
        raise refuse("ep", layout.ep, "the ranks of a copy (fsdp * cp * tp)", layout.shards(ranks) * layout.tp)
    if config.moe is not None and config.moe.experts % layout.ep:
        raise refuse("ep", layout.ep, "the experts", config.moe.experts)
    for what, size in _cut(config):
        if size % layout.tp:
            raise refuse("tp", layout.tp, what, size)
    if inside > 1 and config.vision is not None:
        raise UsageError(f"tp * cp = {inside}: images are not shared out over ranks; valid: tp = 1, cp = 1")
    if tokens is not None:
        check_tokens(layout, config, tokens)


def check_tokens(layout: Layout, config: DecoderConfig, tokens: int) -> None:
    """Whether rows of so many tokens can be shared out. Raises UsageError."""
    inside = layout.tp * layout.cp
    if tokens % inside:
        near = sorted({max(inside, tokens - tokens % inside), tokens - tokens % inside + inside})
        raise UsageError(
            f"tokens = {tokens} of a row are not a multiple of tp * cp = {inside}; "
            f"nearest valid: {', '.join(map(str, near))}"
        )
    least = max([config.mtp_layers, *([config.kda.taps - 1] if config.kda and layout.cp > 1 else [])])
    if inside > 1 and tokens // inside < least:
        raise UsageError(
            f"tokens = {tokens} of a row leave {tokens // inside} a rank, convolutions and prediction blocks reach "
            f"over {least}; valid: {least * inside} or more"
        )


def _cut(config: DecoderConfig) -> Iterator[tuple[str, int]]:
    """What tensor parallel cuts: name and size."""
    mixers = {layer.mixer for layer in config.layers}
    if config.kda is not None and "kda" in mixers:
        yield "KDA's heads", config.kda.heads
    if config.mla is not None and mixers & {"mla", "dsa"}:
        yield "MLA's heads", config.mla.heads
    if config.gqa is not None and "gqa" in mixers:
        yield "the key-value heads", config.gqa.kv_heads
    if config.dense_width is not None and any(layer.feed_forward == "dense" for layer in config.layers):
        yield "the feed-forward's width", config.dense_width
    if config.moe is not None and config.moe.shared:
        yield "the shared experts' width", config.moe.shared * config.moe.width
    yield "the vocabulary", config.vocab_size
