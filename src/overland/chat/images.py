"""A picture in a conversation, as far as a template has to know it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from overland.errors import UsageError


@dataclass(frozen=True)
class ImagePart:
    """`width` and `height` in pixels as the picture came, `places`: how many positions of the decoder it takes.

    `sha256` names its content; whoever runs the model keeps what is behind the name.
    """

    width: int
    height: int
    places: int = 1
    sha256: str = ""

    def __post_init__(self) -> None:
        for name in ("width", "height", "places"):
            if getattr(self, name) < 1:
                raise UsageError(f"image: {name} = {getattr(self, name)}; valid: 1 or more")

    def to_openai(self) -> dict[str, Any]:
        """A content part that names the picture; the picture itself is not in it."""
        return {"type": "image", "sha256": self.sha256, "width": self.width, "height": self.height}


Part = str | ImagePart
"""A piece of a message's content."""


def text_of(parts: Sequence[Part]) -> str:
    """The words of `parts`, joined."""
    return "".join(part for part in parts if isinstance(part, str))
