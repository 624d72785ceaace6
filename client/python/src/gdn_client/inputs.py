"""What a step may bring: a layer's hidden states, what comes after its projections, or the delta rule's operands.

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
    """A layer without its projections; the output is the gated norm's, `[.., HV * V]`.

    Attributes:
        mixed_qkv: `[.., C]`, before the convolution.
        z: `[.., HV * V]`, the output gate.
        b: `[.., HV]`, before the sigmoid.
        a: `[.., HV]`, or `[.., HV * K]` where decays are by channel; before the decay's gate.

    """

    mixed_qkv: Array
    z: Array
    b: Array
    a: Array


@dataclass(frozen=True, eq=False)
class DeltaRule:
    """The gated delta rule alone; the output is `[.., HV, V]`.

    Attributes:
        q: `[.., H, K]`.
        k: `[.., H, K]`.
        v: `[.., HV, V]`.
        g: `[.., HV]`, or `[.., HV, K]` where decays are by channel: log decay, at most 0.
        beta: `[.., HV]`, write strength in [0, 1], or to 2 with `allow_beta_to_two`.
        scale: multiplies q; None: K ** -0.5.
        use_qk_l2norm: normalise q and k per head first.
        allow_beta_to_two: take negative eigenvalues.

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
    """By the API's names."""
    if isinstance(given, Projected | DeltaRule):
        return {name: getattr(given, name) for name in TENSOR_NAMES[type(given)]}
    return {"hidden_states": given}


def map_tensors(given: Input, change: Callable[[Array], Array]) -> Input:
    """The same with each tensor changed."""
    if isinstance(given, Projected | DeltaRule):
        changed: dict[str, Any] = {name: change(getattr(given, name)) for name in TENSOR_NAMES[type(given)]}
        return replace(given, **changed)
    return change(given)
