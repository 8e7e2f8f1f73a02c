"""A value head on a policy, attached from outside: it reads what the output layer reads.

Shapes: N trained tokens, D width of the last hidden state.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn


class Critic(nn.Module):
    """`value(hidden)` for the states before the tokens whose logits were formed last."""

    def __init__(self, policy: nn.Module, trunk: bool = False) -> None:
        """`trunk` lets the critic's gradient reach the policy's layers. The head starts at 0."""
        super().__init__()
        output = _output_layer(policy)
        self.head = nn.Linear(output.in_features, 1, device=output.weight.device)
        nn.init.zeros_(self.head.weight)
        nn.init.zeros_(self.head.bias)
        self.trunk = trunk
        self._hidden: Tensor | None = None
        self._hook = output.register_forward_pre_hook(self._keep)

    def _keep(self, module: nn.Module, inputs: tuple[Any, ...]) -> None:
        self._hidden = inputs[0]

    def values(self, *index: Tensor) -> Tensor:
        """Values [N] at `index` into what the output layer read last."""
        assert self._hidden is not None, "the policy has not been run yet"
        hidden_ND = self._hidden[index]
        if not self.trunk:
            hidden_ND = hidden_ND.detach()
        value: Tensor = self.head(hidden_ND.float())[:, 0]
        return value

    def detach_from_policy(self) -> None:
        """Stop listening; the policy is as it was."""
        self._hook.remove()
        self._hidden = None


def _output_layer(policy: nn.Module) -> nn.Linear:
    for name in ("lm_head", "head"):
        layer = getattr(policy, name, None)
        if isinstance(layer, nn.Linear):
            return layer
    linears = [m for m in policy.modules() if isinstance(m, nn.Linear)]
    if not linears:
        raise TypeError(f"{type(policy).__name__} has no linear output layer for a value head to read beside")
    return linears[-1]


class WithCritic(nn.Module):
    """Policy and critic as one module: what the optimiser steps and the checkpoint keeps."""

    def __init__(self, policy: nn.Module, critic: Critic) -> None:
        super().__init__()
        self.policy, self.critic = policy, critic


def explained_variance(values: Tensor, returns: Tensor) -> float:
    """1 - var(returns - values) / var(returns): 1 is a perfect critic, 0 one that says nothing."""
    if len(returns) < 2 or float(returns.var()) == 0.0:
        return 0.0
    return float(1.0 - (returns - values).var() / returns.var())
