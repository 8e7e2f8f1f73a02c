"""The vision tower and its projector: images of any size become rows of the decoder's width."""

from overland.model.vision.images import Images, token_counts
from overland.model.vision.projector import Projector
from overland.model.vision.tower import VisionTower

__all__ = ["Images", "Projector", "VisionTower", "token_counts"]
