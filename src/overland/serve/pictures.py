"""Pictures in a request: data URLs decoded within limits, once each, before any work is done.

A picture is named by the hash of its bytes: in the prompt's memory, the prefix cache and the log. The server fetches
nothing: a URL that is not data: is refused.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
from typing import TYPE_CHECKING

from overland.chat import ImagePart
from overland.engine import Picture
from overland.errors import UsageError
from overland.model.vision import token_counts
from overland.model.vision.preprocess import Preprocessing, open_image, preprocess
from overland.serve.errors import bad_request

if TYPE_CHECKING:
    from overland.serve.generation import Generator

TYPES = ("image/png", "image/jpeg", "image/webp", "image/gif")


class RequestPictures:
    """The pictures of one request, in the order in which they are read."""

    def __init__(self, generator: Generator) -> None:
        self._how: Preprocessing | None = generator.preprocessing
        self._settings = generator.settings
        self._room = generator.context_length
        self._read = 0
        self.by_hash: dict[str, Picture] = {}

    def from_url(self, field: str, url: str) -> ImagePart:
        """A picture of OpenAI's `image_url`. Raises a 400 that names the field."""
        head, comma, data = url.partition(",")
        if not head.startswith("data:") or not comma or not head.endswith(";base64"):
            shown = url[:40] + " ..." if len(url) > 40 else url
            raise bad_request(field, f"{shown!r} is not a data: URL in base64; this server fetches no pictures")
        return self.from_base64(field, head.removeprefix("data:").removesuffix(";base64"), data)

    def from_base64(self, field: str, media_type: str, data: str) -> ImagePart:
        """A picture of Anthropic's `source`, or of a data URL. Raises a 400 that names the field."""
        if self._how is None:
            raise bad_request(field, "this model takes no images; valid: text", "images_not_supported")
        if self._read >= self._settings.max_images:
            raise bad_request(field, f"more than {self._settings.max_images} images in one request", "too_many_images")
        self._read += 1
        if media_type not in TYPES:
            raise bad_request(field, f"the media type {media_type[:40]!r} is none of {', '.join(TYPES)}")
        try:
            raw = base64.b64decode(data, validate=True)
        except (binascii.Error, ValueError):
            raise bad_request(field, "the data is not base64") from None
        try:
            return self._take(field, raw, self._how)
        except UsageError as error:
            raise bad_request(field, str(error), "invalid_image") from None

    def _take(self, field: str, raw: bytes, how: Preprocessing) -> ImagePart:
        image = open_image(raw, most_bytes=len(raw), most_pixels=self._settings.max_image_pixels)
        _, (width, height) = how.sizes(*image.size)
        grid = (1, height // how.patch, width // how.patch)
        places = token_counts([grid], how.merge)[0]
        self._room -= places
        if self._room < 1:
            message = f"{image.size[0]} x {image.size[1]} pixels take {places} tokens, more than the context has left"
            raise bad_request(field, message, "context_length_exceeded")
        name = hashlib.sha256(raw).hexdigest()
        if name not in self.by_hash:
            self.by_hash[name] = Picture(name, preprocess(image, how))
        return ImagePart(*image.size, places=places, sha256=name)
