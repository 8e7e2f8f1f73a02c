"""The decoder as plain single-device modules: mixers, experts, residuals, caches, presets and checkpoint keys."""

from overland.model.cache import Cache, DSACache, GQACache, KDACache, LayerCache, MLACache
from overland.model.capacity import Capacity, limit_experts
from overland.model.checkpoint import load_config, load_model, save_model
from overland.model.config import DecoderConfig
from overland.model.decoder import Aux, Decoder, Output, Replay
from overland.model.dsa import Indexing
from overland.model.indexer import indexer_parameters
from overland.model.init import INITIALISERS, initialise
from overland.model.moe import Routing
from overland.model.packing import Packing
from overland.model.presets import PRESETS, preset

__all__ = [
    "INITIALISERS",
    "PRESETS",
    "Aux",
    "Cache",
    "Capacity",
    "DSACache",
    "Decoder",
    "DecoderConfig",
    "GQACache",
    "Indexing",
    "KDACache",
    "LayerCache",
    "MLACache",
    "Output",
    "Packing",
    "Replay",
    "Routing",
    "indexer_parameters",
    "initialise",
    "limit_experts",
    "load_config",
    "load_model",
    "preset",
    "save_model",
]
