"""Inputs of a step: a layer's hidden states, the outputs of its projections, or the operands of the delta rule.

Dimensions: D hidden size, H key heads, HV value heads, K key dim, V value dim, C = 2 H K + HV V. A leading `..` is
`[T]` in a prefill, and `[B, T]` in a decode of B sessions.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

from gdn_client.tensors import Array


@dataclass(frozen=True, eq=False)
class Projected:
    """Inputs of a layer without its projections. The output is that of the gated norm, `[.., HV * V]`.

    H is the number of key heads, HV of value heads, K the key dim, V the value dim, and C = 2 H K + HV V. A leading
    `..` is `[T]` in a prefill, and `[B, T]` in a decode of B sessions.

    Attributes:
        mixed_qkv: `[.., C]`, q, k and v before the convolution.
        z: `[.., HV * V]`, the output gate.
        b: `[.., HV]`, before the sigmoid.
        a: `[.., HV]`, or `[.., HV * K]` for a decay per channel. The values before the decay's gate.

    """

    mixed_qkv: Array
    z: Array
    b: Array
    a: Array


@dataclass(frozen=True, eq=False)
class DeltaRule:
    """Inputs of the gated delta rule without the rest of the layer. The output is `[.., HV, V]`.

    H is the number of key heads, HV of value heads, K the key dim and V the value dim. A leading `..` is `[T]` in a
    prefill, and `[B, T]` in a decode of B sessions.

    Attributes:
        q: `[.., H, K]`.
        k: `[.., H, K]`.
        v: `[.., HV, V]`.
        g: log decay, at most 0. `[.., HV]`, or `[.., HV, K]` for a decay per channel.
        beta: `[.., HV]`, write strength in [0, 1], or in [0, 2] with `allow_beta_to_two`.
        scale: factor of q. None: K ** -0.5.
        use_qk_l2norm: normalise q and k per head first.
        allow_beta_to_two: accept beta up to 2, which allows negative eigenvalues.

    """

    q: Array
    k: Array
    v: Array
    g: Array
    beta: Array
    scale: float | None = None
    use_qk_l2norm: bool = False
    allow_beta_to_two: bool = False


# A bare array is hidden states, `[.., D]`.
Input: TypeAlias = "Array | Projected | DeltaRule"
TENSOR_NAMES = {Projected: ("mixed_qkv", "z", "b", "a"), DeltaRule: ("q", "k", "v", "g", "beta")}


def tensors_of(given: Input) -> dict[str, Array]:
    """Returns the input's tensors, by their names in the API."""
    if isinstance(given, Projected | DeltaRule):
        return {name: getattr(given, name) for name in TENSOR_NAMES[type(given)]}
    return {"hidden_states": given}


def map_tensors(given: Input, change: Callable[[Array], Array]) -> Input:
    """Returns the input with `change` applied to each tensor."""
    if isinstance(given, Projected | DeltaRule):
        changed: dict[str, Any] = {name: change(getattr(given, name)) for name in TENSOR_NAMES[type(given)]}
        return replace(given, **changed)
    return change(given)
