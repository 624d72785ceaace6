"""States for torch's operators.

    states = StatePool(64, key_heads=16, value_heads=32, key_dim=128, value_dim=128, device="cuda")
    with torch.no_grad():
        output = states.prefill(q, k, v, g, beta, lengths=[300, 12], slots=[0, 1])  # packed: q is [312, 16, 128]
        output = states.decode(q1, k1, v1, g1, beta1, lengths=[1, 1], slots=[0, 1])

States are tensors, so any torch operation on tensors works on them. To fork states, copy the rows of all three tensors.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from gdn_inprocess import abi, torch_ops


class StatePool:
    """States of the gated delta rule in numbered slots, as tensors. Use them from one thread at a time.

    memory [slots, floats] is on the device. token_counts and log_lengths [slots] are on the CPU. Row i of all three is
    slot i. The layout of memory depends on the device's backend (a GPU stores the matrices transposed), so read states
    with state() and export_states(). With a conv_width, the pool is for mixer_prefill and mixer_decode. With
    decay_per_channel, g has a K axis.
    """

    def __init__(
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
        device: torch.device | str = "cpu",
    ) -> None:
        self.key_heads = key_heads
        self.state_shape = (value_heads, key_dim, value_dim)
        self.max_decode_tokens = max_decode_tokens
        self.bf16_states = bf16_states
        self._dimensions = (key_heads, *self.state_shape, conv_width, hidden_size)
        self._decay_per_channel = decay_per_channel
        floats = abi.pool_bytes(self._spec(slots)) // slots // 4
        self.memory = torch.zeros(slots, floats, dtype=torch.float32, device=device)
        self.token_counts = torch.zeros(slots, dtype=torch.int64, device="cpu")
        self.log_lengths = torch.zeros(slots, dtype=torch.int32, device="cpu")

    def _spec(self, slots: int) -> abi.PoolSpec:
        dtype = abi.BF16 if self.bf16_states else abi.F32
        return abi.make_spec(slots, *self._dimensions, self.max_decode_tokens, dtype, self._decay_per_channel)

    def _pool(self) -> torch_ops.PoolOver:
        return torch_ops.PoolOver(self._spec(self.memory.shape[0]), self.memory, self.token_counts, self.log_lengths)

    def prefill(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        g: Tensor,
        beta: Tensor,
        *,
        lengths: Sequence[int],
        slots: Sequence[int],
        scale: float = 0.0,
        use_qk_l2norm: bool = False,
        max_beta: float = 2.0,
    ) -> Tensor:
        """Advances slots[i] by the next lengths[i] rows.

        Shapes: q, k [tokens, H, K]; v [tokens, HV, V]; g (log decay, <= 0) and beta (0 to 2) [tokens, HV]. In a pool
        with decay_per_channel g is [tokens, HV, K]. The dtype is float32, float16 or bfloat16. scale multiplies q; 0
        means K^-0.5. Returns [tokens, HV, V] in v's dtype. A slot of -1 is padding, whose outputs are zero. If no beta
        is above 1, pass max_beta=1: prompts are then computed in chunks, which is faster.
        """
        return self._advance(torch_ops.prefill, (q, k, v, g, beta), lengths, slots, (scale, use_qk_l2norm), (max_beta,))

    def decode(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        g: Tensor,
        beta: Tensor,
        *,
        lengths: Sequence[int],
        slots: Sequence[int],
        scale: float = 0.0,
        use_qk_l2norm: bool = False,
    ) -> Tensor:
        """Works as prefill, for at most max_decode_tokens rows of each slot. It is faster for a few rows."""
        return self._advance(torch_ops.decode, (q, k, v, g, beta), lengths, slots, (scale, use_qk_l2norm))

    def mixer_prefill(
        self,
        mixed_qkv: Tensor,
        z: Tensor,
        b: Tensor,
        a: Tensor,
        *,
        conv_weight: Tensor,
        a_log: Tensor,
        dt_bias: Tensor,
        norm_weight: Tensor,
        lengths: Sequence[int],
        slots: Sequence[int],
        norm_epsilon: float = 1e-6,
    ) -> Tensor:
        """Computes a layer without its projections, over the next lengths[i] rows of slots[i].

        gdn_mixer_step in gdn.h has the formulas. Shapes: mixed_qkv [tokens, C] with C = 2 H K + HV V; z [tokens, HV,
        V]; b, a [tokens, HV]. Weights are float32: conv_weight [C, W], a_log and dt_bias [HV], norm_weight [V]. Returns
        [tokens, HV, V] in z's dtype.
        """
        inputs = (mixed_qkv, z, b, a, conv_weight, a_log, dt_bias, norm_weight)
        return self._advance(torch_ops.mixer_prefill, inputs, lengths, slots, (self.key_heads, norm_epsilon))

    def mixer_decode(
        self,
        mixed_qkv: Tensor,
        z: Tensor,
        b: Tensor,
        a: Tensor,
        *,
        conv_weight: Tensor,
        a_log: Tensor,
        dt_bias: Tensor,
        norm_weight: Tensor,
        lengths: Sequence[int],
        slots: Sequence[int],
        norm_epsilon: float = 1e-6,
    ) -> Tensor:
        """Works as mixer_prefill, for at most max_decode_tokens rows of each slot. It is faster for a few rows."""
        inputs = (mixed_qkv, z, b, a, conv_weight, a_log, dt_bias, norm_weight)
        return self._advance(torch_ops.mixer_decode, inputs, lengths, slots, (self.key_heads, norm_epsilon))

    def _advance(
        self,
        operator: Callable[..., Tensor],
        inputs: tuple[Tensor, ...],
        lengths: Sequence[int],
        slots: Sequence[int],
        options: tuple[float, float],
        more_options: tuple[float, ...] = (),
    ) -> Tensor:
        if torch.is_grad_enabled() and any(tensor.requires_grad for tensor in inputs):
            raise RuntimeError(
                "an input requires grad, and the gdn operators have no backward: libgdn computes inference alone; call "
                "them under torch.no_grad(), or detach the input"
            )
        if len(lengths) != len(slots):
            raise ValueError(f"lengths has {len(lengths)} entries and slots has {len(slots)}; expected as many")
        offsets = [0]
        for length in lengths:
            offsets.append(offsets[-1] + length)
        return operator(
            *inputs,
            self.memory,
            self.token_counts,
            self.log_lengths,
            torch.tensor(offsets, dtype=torch.int32, device="cpu"),
            torch.tensor(list(slots), dtype=torch.int32, device="cpu"),
            *options,
            self.max_decode_tokens,
            self.bf16_states,
            *more_options,
        )

    def zero(self, slots: Sequence[int]) -> None:
        """Sets states to zero."""
        for tensor in (self.memory, self.token_counts, self.log_lengths):
            tensor[list(slots)] = 0

    def copy(self, source: Sequence[int], to: Sequence[int]) -> None:
        """Forks states: copies the state of source[i] to to[i]."""
        for tensor in (self.memory, self.token_counts, self.log_lengths):
            tensor[list(to)] = tensor[list(source)]

    def state(self, slot: int) -> Tensor:
        """Returns the matrices S of a slot, float32 [HV, K, V] on the CPU, after all tokens seen so far."""
        matrices = torch.empty(self.state_shape, dtype=torch.float32, device="cpu")
        with self._pool() as pool:
            abi.call("gdn_state_get", pool, slot, matrices.data_ptr(), torch_ops.stream_of(self.memory.device))
        return matrices

    def set_state(self, slot: int, matrices: Tensor, tokens: int) -> None:
        """Replaces the matrices, [HV, K, V]. The slot then counts as having seen `tokens` tokens."""
        if tuple(matrices.shape) != self.state_shape:
            raise ValueError(f"matrices is {list(matrices.shape)}; expected [HV, K, V], {list(self.state_shape)}")
        dense = matrices.detach().to("cpu", torch.float32).contiguous()
        with self._pool() as pool:
            abi.call("gdn_state_set", pool, slot, dense.data_ptr(), tokens, torch_ops.stream_of(self.memory.device))

    def export_states(self, slots: Sequence[int]) -> bytes:
        """Returns a state file, whose layer i is the state of slots[i]. `gdnctl state import` accepts it."""
        with self._pool() as pool:
            return abi.export_states(pool, slots, torch_ops.stream_of(self.memory.device))

    def import_states(self, slots: Sequence[int], file: bytes) -> None:
        """Copies the states of a file's layers, in order, into slots. Raises DataLoss if the file is damaged."""
        with self._pool() as pool:
            abi.import_states(pool, slots, file, torch_ops.stream_of(self.memory.device))
