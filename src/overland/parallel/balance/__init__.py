"""Which rank computes which expert's tokens: K3's exactly balanced plan, and what else people do."""

from overland.parallel.balance.balanced import balanced
from overland.parallel.balance.others import capacity, plain, replicated
from overland.parallel.balance.shares import Shares, spread_over_sources

__all__ = ["Shares", "balanced", "capacity", "plain", "replicated", "spread_over_sources"]
