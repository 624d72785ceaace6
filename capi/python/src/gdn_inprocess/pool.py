"""Contexts and pools for numpy arrays, on the CPU."""

from __future__ import annotations

import ctypes
import dataclasses
import math
import weakref
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gdn_inprocess import abi

Array = NDArray[Any]
_DTYPES = {np.dtype(np.float32): abi.F32, np.dtype(np.float16): abi.F16}


def _destroy(name: str, handle: ctypes.c_void_p) -> None:
    getattr(abi.library(), name)(handle)


def _ref(name: str, array: Array) -> tuple[abi.TensorRef, Array]:
    """Returns the library's reference to an array, and the array that owns the memory."""
    if array.dtype not in _DTYPES:
        raise TypeError(f"{name} is {array.dtype}; expected float32 or float16 (bfloat16 goes with torch)")
    dense = np.ascontiguousarray(array)
    return abi.TensorRef.of(dense.ctypes.data, _DTYPES[dense.dtype], dense.shape), dense


def _batch(slots: Sequence[int], lengths: Sequence[int]) -> tuple[abi.BatchRef, tuple[Array, Array]]:
    """Returns the library's batch, and the arrays that own its memory."""
    if len(slots) != len(lengths):
        raise ValueError(f"slots has {len(slots)} entries and lengths has {len(lengths)}; expected as many")
    cu_seqlens = np.concatenate(([0], np.cumsum(lengths))).astype(np.int32)
    indices = np.asarray(slots, np.int32)
    return abi.BatchRef(len(slots), cu_seqlens.ctypes.data, indices.ctypes.data), (cu_seqlens, indices)


@dataclasses.dataclass(frozen=True)
class MixerWeights:
    """Weights of Pool.mixer_prefill and mixer_decode, in float32. C = 2 H K + HV V channels, in the order q, k, v."""

    conv_weight: Array  # [C, W]
    a_log: Array  # [HV]
    dt_bias: Array  # [HV]
    norm_weight: Array  # [V]
    norm_epsilon: float = 1e-6


class Context:
    """The CPU kernels, on `threads` threads. 0: one thread for each processor that this process may use.

    Thread safety: any thread may call it. Calls run one after the other.
    """

    def __init__(self, threads: int = 0) -> None:
        self._handle = abi.make_context(abi.CPU, 0, threads)
        self._finalizer = weakref.finalize(self, _destroy, "gdn_context_destroy", self._handle)

    @property
    def numerics_id(self) -> str:
        """Identifies the arithmetic. Contexts and servers with equal ids compute equal bits."""
        return str(abi.library().gdn_context_numerics_id(self._handle).decode())

    def pool(
        self,
        slots: int,
        *,
        key_heads: int,
        value_heads: int,
        key_dim: int,
        value_dim: int,
        conv_width: int = 0,
        hidden_size: int = 0,
        max_decode_tokens: int = 8,
        bf16_states: bool = False,
        decay_per_channel: bool = False,
    ) -> Pool:
        """Makes a pool with slots for the states of `slots` sequences. See gdn_pool_spec in gdn.h.

        With a conv_width (and the model's hidden_size), the pool is for mixer_prefill and mixer_decode. With
        decay_per_channel, g has a K axis (Kimi Delta Attention), and conv_width must be 0.
        """
        dimensions = (key_heads, value_heads, key_dim, value_dim, conv_width, hidden_size)
        dtype = abi.BF16 if bf16_states else abi.F32
        spec = abi.make_spec(slots, *dimensions, max_decode_tokens, dtype, decay_per_channel)
        return Pool(self, self._handle, spec)

    def __repr__(self) -> str:
        return f"Context({self.numerics_id!r})"


class Pool:
    """States of the gated delta rule in numbered slots. Made by Context.pool. Any thread may call it.

    Wrong arguments raise InvalidArgument, a ValueError that says what was expected. Nothing has changed then.
    """

    def __init__(self, context: Context, handle: ctypes.c_void_p, spec: abi.PoolSpec) -> None:
        self._spec = spec
        self._handle = abi.make_pool(handle, spec)
        # The finalizer keeps the context, which must outlive the pool.
        self._finalizer = weakref.finalize(
            self, lambda _, pool: _destroy("gdn_pool_destroy", pool), context, self._handle
        )

    @property
    def state_shape(self) -> tuple[int, int, int]:
        """Shape of a state's matrices, [HV, K, V]."""
        return self._spec.value_heads, self._spec.key_dim, self._spec.value_dim

    def allocate(self, count: int) -> list[int]:
        """Returns `count` free slots with zero states. Raises OutOfMemory if fewer are free."""
        slots = (ctypes.c_int32 * max(count, 1))()
        abi.call("gdn_slots_allocate", self._handle, count, slots)
        return list(slots[:count])

    def free(self, slots: Sequence[int]) -> None:
        """Returns slots to the pool."""
        abi.call("gdn_slots_free", self._handle, len(slots), abi.slot_array(slots))

    def zero(self, slots: Sequence[int]) -> None:
        """Sets states to zero."""
        abi.call("gdn_slots_zero", self._handle, len(slots), abi.slot_array(slots), None)

    def copy(self, source: Sequence[int], to: Sequence[int]) -> None:
        """Forks states: copies the state of source[i] to to[i]."""
        if len(source) != len(to):
            raise ValueError(f"source has {len(source)} slots and to has {len(to)}; expected as many")
        abi.call("gdn_slots_copy", self._handle, len(to), abi.slot_array(source), abi.slot_array(to), None)

    def tokens(self, slot: int) -> int:
        """Returns the number of tokens that a state has seen."""
        seen = ctypes.c_int64()
        abi.call("gdn_slot_tokens", self._handle, slot, ctypes.byref(seen))
        return seen.value

    def prefill(
        self,
        slots: Sequence[int],
        lengths: Sequence[int],
        q: Array,
        k: Array,
        v: Array,
        g: Array,
        beta: Array,
        *,
        scale: float = 0.0,
        use_qk_l2norm: bool = False,
        max_beta: float = 2.0,
    ) -> Array:
        """Advances slots[i] by the next lengths[i] rows.

        Shapes: q, k [tokens, H, K]; v [tokens, HV, V]; g (log decay, <= 0) and beta (0 to 2) [tokens, HV]. In a pool
        with decay_per_channel g is [tokens, HV, K]. The dtype is float32 or float16. scale multiplies q; 0 means
        K^-0.5. Returns [tokens, HV, V] in v's dtype. If no beta is above 1, pass max_beta=1: prompts are then computed
        in chunks, which is faster.
        """
        inputs = {"q": q, "k": k, "v": v, "g": g, "beta": beta}
        options = {"scale": scale, "use_qk_l2norm": use_qk_l2norm, "max_beta": max_beta}
        return self._step("gdn_prefill", abi.DeltaRuleStep, slots, lengths, inputs, v, options)

    def decode(
        self,
        slots: Sequence[int],
        lengths: Sequence[int],
        q: Array,
        k: Array,
        v: Array,
        g: Array,
        beta: Array,
        *,
        scale: float = 0.0,
        use_qk_l2norm: bool = False,
    ) -> Array:
        """Works as prefill, for at most max_decode_tokens rows of each slot. It is faster for a few rows."""
        inputs = {"q": q, "k": k, "v": v, "g": g, "beta": beta}
        options = {"scale": scale, "use_qk_l2norm": use_qk_l2norm}
        return self._step("gdn_decode", abi.DeltaRuleStep, slots, lengths, inputs, v, options)

    def mixer_prefill(
        self,
        slots: Sequence[int],
        lengths: Sequence[int],
        weights: MixerWeights,
        mixed_qkv: Array,
        z: Array,
        b: Array,
        a: Array,
    ) -> Array:
        """Computes a layer without its projections, over the next lengths[i] rows of slots[i].

        gdn_mixer_step in gdn.h has the formulas. Shapes: mixed_qkv [tokens, C]; z [tokens, HV, V]; b, a [tokens, HV].
        Returns [tokens, HV, V] in z's dtype.
        """
        inputs = {"mixed_qkv": mixed_qkv, "z": z, "b": b, "a": a}
        return self._mix("gdn_mixer_prefill", slots, lengths, inputs, weights)

    def mixer_decode(
        self,
        slots: Sequence[int],
        lengths: Sequence[int],
        weights: MixerWeights,
        mixed_qkv: Array,
        z: Array,
        b: Array,
        a: Array,
    ) -> Array:
        """Works as mixer_prefill, for at most max_decode_tokens rows of each slot. It is faster for a few rows."""
        inputs = {"mixed_qkv": mixed_qkv, "z": z, "b": b, "a": a}
        return self._mix("gdn_mixer_decode", slots, lengths, inputs, weights)

    def _mix(
        self,
        function: str,
        slots: Sequence[int],
        lengths: Sequence[int],
        inputs: dict[str, Array],
        weights: MixerWeights,
    ) -> Array:
        held = [_ref(name, getattr(weights, name)) for name in abi.MIXER_WEIGHTS]
        refs = abi.MixerWeightRefs(*(ref for ref, _ in held), weights.norm_epsilon)
        return self._step(function, abi.MixerStep, slots, lengths, inputs, inputs["z"], {"weights": refs})

    def _step(
        self,
        function: str,
        struct: type[abi.DeltaRuleStep | abi.MixerStep],
        slots: Sequence[int],
        lengths: Sequence[int],
        inputs: dict[str, Array],
        like: Array,
        options: dict[str, Any],
    ) -> Array:
        """Calls a function with a struct of these inputs and options. The output has the form of `like`."""
        held = {name: _ref(name, array) for name, array in inputs.items()}
        output = np.empty(like.shape, like.dtype)
        batch, _kept = _batch(slots, lengths)
        refs = {name: ref for name, (ref, _) in held.items()}
        step = struct(ctypes.sizeof(struct), batch, output=_ref("output", output)[0], **refs, **options)
        abi.call(function, self._handle, ctypes.byref(step))
        return output

    def state(self, slot: int) -> NDArray[np.float32]:
        """Returns the matrices S of a slot, [HV, K, V], after all tokens seen so far."""
        matrices = np.empty(self.state_shape, np.float32)
        abi.call("gdn_state_get", self._handle, slot, matrices.ctypes.data, None)
        return matrices

    def set_state(self, slot: int, matrices: Array, tokens: int) -> None:
        """Replaces the matrices, [HV, K, V]. The slot then counts as having seen `tokens` tokens."""
        dense = np.ascontiguousarray(matrices, np.float32)
        if dense.shape != self.state_shape:
            raise ValueError(f"matrices is {list(dense.shape)}; expected [HV, K, V], {list(self.state_shape)}")
        abi.call("gdn_state_set", self._handle, slot, dense.ctypes.data, tokens, None)

    def export_states(self, slots: Sequence[int]) -> bytes:
        """Returns a state file, whose layer i is the state of slots[i]. `gdnctl state import` accepts it."""
        return abi.export_states(self._handle, slots)

    def import_states(self, slots: Sequence[int], file: bytes) -> None:
        """Copies the states of a file's layers, in order, into slots. Raises DataLoss if the file is damaged."""
        abi.import_states(self._handle, slots, file)

    def __repr__(self) -> str:
        heads, key_dim, value_dim = self.state_shape
        size = abi.pool_bytes(self._spec) / math.pow(2, 20)
        return f"Pool({self._spec.slots} slots of {heads} x {key_dim} x {value_dim}, {size:.1f} MiB)"
