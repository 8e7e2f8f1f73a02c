"""Released model families: each a mapping between its files and the one decoder."""

from overland.model.families.registry import FAMILIES, family_of, read_config, write_config
from overland.model.families.tensors import Piece, pieces

__all__ = ["FAMILIES", "Piece", "family_of", "pieces", "read_config", "write_config"]
