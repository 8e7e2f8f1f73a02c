"""From a recipe's `balance` to the rule that it names."""

from __future__ import annotations

from overland.train.balance import Balance, Reduce
from overland.train.balance_auxiliary import AuxiliaryLoss
from overland.train.balance_quantile import QuantileBalance
from overland.train.balance_sign import SignBalance
from overland.train.section import LoopSection


def make_balance(section: LoopSection, reduce: Reduce | None = None) -> Balance:
    """The section's rule. `reduce` sums over ranks. Raises UsageError where ranks need the histogram form."""
    if section.balance == "quantile":
        return QuantileBalance(section.balance_ema, section.balance_bins, reduce, section.balance_z)
    if section.balance == "sign":
        return SignBalance(section.balance_rate, reduce, section.balance_z)
    if section.balance == "auxiliary":
        return AuxiliaryLoss(section.balance_loss, section.balance_z)
    return Balance(section.balance_z)
