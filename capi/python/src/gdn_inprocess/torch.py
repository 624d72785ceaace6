"""States for torch's operators.

    states = StatePool(64, key_heads=16, value_heads=32, key_dim=128, value_dim=128, device="cuda")
    with torch.no_grad():
        output = states.prefill(q, k, v, g, beta, lengths=[300, 12], slots=[0, 1])  # packed: q is [312, 16, 128]
        output = states.decode(q1, k1, v1, g1, beta1, lengths=[1, 1], slots=[0, 1])

Whatever torch can do with tensors can be done with states: copying rows of all three is a fork.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from gdn_inprocess import abi, torch_ops


class StatePool:
    """States of the gated delta rule in numbered slots, as tensors. One thread at a time, as with tensors.

    memory [slots, floats] is on the device; token_counts and log_lengths [slots] are on the CPU. Rows of the three
    belong together. They are laid out for the device's backend (a GPU keeps matrices transposed): state() and
    export_states() are for reading them elsewhere. With a conv_width the pool is for mixer_prefill and mixer_decode,
    with decay_per_channel for a g with a K axis.
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
        self.conv_width = conv_width
        self.hidden_size = hidden_size
        self.max_decode_tokens = max_decode_tokens
        self.bf16_states = bf16_states
        self.decay_per_channel = decay_per_channel
        floats = abi.pool_bytes(self._spec(slots)) // slots // 4
        self.memory = torch.zeros(slots, floats, dtype=torch.float32, device=device)
        self.token_counts = torch.zeros(slots, dtype=torch.int64, device="cpu")
        self.log_lengths = torch.zeros(slots, dtype=torch.int32, device="cpu")

    def _spec(self, slots: int) -> abi.PoolSpec:
        value_heads, key_dim, value_dim = self.state_shape
        return abi.make_spec(
            slots,
            self.key_heads,
            value_heads,
            key_dim,
            value_dim,
            conv_width=self.conv_width,
            hidden_size=self.hidden_size,
            max_decode_tokens=self.max_decode_tokens,
            state_dtype=abi.BF16 if self.bf16_states else abi.F32,
            decay_per_channel=self.decay_per_channel,
        )

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

        q, k: [tokens, H, K]; v: [tokens, HV, V]; g (log decay, <= 0), beta (0 to 2): [tokens, HV], but for g [tokens,
        HV, K] in a pool with decay_per_channel; float32, float16 or bfloat16. scale multiplies q; 0: K^-0.5. Returns
        [tokens, HV, V] of v's dtype. A slot of -1 is padding: zeros. Pass max_beta=1 if no beta is above 1: prompts
        are then chunked, which is quicker.
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
        """As prefill, for at most max_decode_tokens rows of each; quicker for a few."""
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
        """A layer but for its projections, over the next lengths[i] rows of slots[i]; gdn_mixer_step has the formulas.

        mixed_qkv: [tokens, C], C = 2 H K + HV V; z: [tokens, HV, V]; b, a: [tokens, HV]. Weights are float32:
        conv_weight [C, W], a_log and dt_bias [HV], norm_weight [V]. Returns [tokens, HV, V] of z's dtype.
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
        """As mixer_prefill, for at most max_decode_tokens rows of each; quicker for a few."""
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
        """Makes states fresh."""
        for tensor in (self.memory, self.token_counts, self.log_lengths):
            tensor[list(slots)] = 0

    def copy(self, source: Sequence[int], to: Sequence[int]) -> None:
        """Forks: the state of source[i] into to[i]."""
        for tensor in (self.memory, self.token_counts, self.log_lengths):
            tensor[list(to)] = tensor[list(source)]

    def state(self, slot: int) -> Tensor:
        """The matrices S of a slot, float32 [HV, K, V] on the CPU, with all tokens seen."""
        matrices = torch.empty(self.state_shape, dtype=torch.float32, device="cpu")
        with self._pool() as pool:
            abi.call("gdn_state_get", pool, slot, matrices.data_ptr(), torch_ops.stream_of(self.memory.device))
        return matrices

    def set_state(self, slot: int, matrices: Tensor, tokens: int) -> None:
        """Replaces the matrices, [HV, K, V]; the slot has then seen `tokens` tokens."""
        if tuple(matrices.shape) != self.state_shape:
            raise ValueError(f"matrices is {list(matrices.shape)}; expected [HV, K, V], {list(self.state_shape)}")
        dense = matrices.detach().to("cpu", torch.float32).contiguous()
        with self._pool() as pool:
            abi.call("gdn_state_set", pool, slot, dense.data_ptr(), tokens, torch_ops.stream_of(self.memory.device))

    def export_states(self, slots: Sequence[int]) -> bytes:
        """A state file whose layer i is the state of slots[i]; gdnctl state import takes it."""
        with self._pool() as pool:
            return abi.export_states(pool, slots, torch_ops.stream_of(self.memory.device))

    def import_states(self, slots: Sequence[int], file: bytes) -> None:
        """The states of a file's layers, in their order, into slots; DataLoss for a damaged one."""
        with self._pool() as pool:
            abi.import_states(pool, slots, file, torch_ops.stream_of(self.memory.device))
