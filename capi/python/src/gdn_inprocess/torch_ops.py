"""torch.ops.gdn.prefill and torch.ops.gdn.decode: the gated delta rule on CPU, ROCm and CUDA tensors, by libgdn.

    states = StatePool(64, key_heads=16, value_heads=32, key_dim=128, value_dim=128, device="cuda")
    with torch.no_grad():
        output = states.prefill(q, k, v, g, beta, lengths=[300, 12], slots=[0, 1])   # packed: [312, H, K], ...
        output = states.decode(q1, k1, v1, g1, beta1, lengths=[1, 1], slots=[0, 1])

The operators are functional in all but the state, which is three tensors of the caller's: memory on the device, and
what has been counted of it on the host. They are mutated, as the operators' schemas say, so torch.compile and streams
treat them rightly, and whatever torch can do with tensors can be done with states: copying rows of all is a fork.

Work is given to the current stream. There is no backward: libgdn computes inference alone.
"""

from __future__ import annotations

import ctypes
import functools
import threading
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from gdn_inprocess import abi

_DTYPES = {torch.float32: abi.F32, torch.float16: abi.F16, torch.bfloat16: abi.BF16}
_INPUTS = ("q", "k", "v", "g", "beta")
_contexts_lock = threading.Lock()


@functools.cache
def _make_context(device_type: str, index: int) -> ctypes.c_void_p:
    if device_type == "cpu":
        return abi.make_context(abi.CPU, 0, torch.get_num_threads())
    if device_type == "cuda":  # ROCm's too
        with torch.cuda.device(index):
            return abi.make_context(abi.GPU, index, 0)
    raise ValueError(f"the state is on a {device_type} device; expected cpu, or cuda (which is ROCm's name too)")


def _context(device: torch.device) -> ctypes.c_void_p:
    """A device's, made once and kept until the process ends."""
    with _contexts_lock:
        return _make_context(device.type, device.index or 0)


def _stream(device: torch.device) -> int | None:
    return int(torch.cuda.current_stream(device).cuda_stream) if device.type == "cuda" else None


def _spec(
    slots: int, key: Sequence[int], value: Sequence[int], max_decode_tokens: int, bf16_states: bool
) -> abi.PoolSpec:
    """Of heads and dimensions [H, K] and [HV, V]."""
    return abi.make_spec(
        slots,
        key[0],
        value[0],
        key[1],
        value[1],
        max_decode_tokens=max_decode_tokens,
        state_dtype=abi.BF16 if bf16_states else abi.F32,
    )


def _check_counts(name: str, tensor: Tensor, dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    dense = tensor.device.type == "cpu" and tensor.is_contiguous()
    if tensor.dtype != dtype or tuple(tensor.shape) != shape or not dense:
        raise ValueError(
            f"{name} is {tensor.dtype} {list(tensor.shape)} on {tensor.device}; expected a contiguous {dtype} "
            f"{list(shape)} on the CPU, where it is read"
        )


class _Pool:
    """A pool of the library over the tensors of a state, for one call."""

    def __init__(self, spec: abi.PoolSpec, memory: Tensor, token_counts: Tensor, log_lengths: Tensor) -> None:
        slots = int(memory.shape[0]) if memory.dim() == 2 else -1
        floats = abi.pool_bytes(spec) // spec.slots // 4
        if memory.dtype != torch.float32 or list(memory.shape) != [slots, floats] or not memory.is_contiguous():
            raise ValueError(
                f"memory is {memory.dtype} {list(memory.shape)}; expected a contiguous torch.float32 "
                f"[slots, {floats}], as StatePool makes it for these heads, dimensions and max_decode_tokens"
            )
        _check_counts("token_counts", token_counts, torch.int64, (slots,))
        _check_counts("log_lengths", log_lengths, torch.int32, (slots,))
        spec.memory = memory.data_ptr()
        spec.token_counts = token_counts.data_ptr()
        spec.log_lengths = log_lengths.data_ptr()
        self._handle = abi.make_pool(_context(memory.device), spec)

    def __enter__(self) -> ctypes.c_void_p:
        return self._handle

    def __exit__(self, *_: object) -> None:
        abi.library().gdn_pool_destroy(self._handle)


def _ref(name: str, tensor: Tensor) -> abi.TensorRef:
    if tensor.dtype not in _DTYPES:
        raise TypeError(f"{name} is {tensor.dtype}; expected torch.float32, torch.float16 or torch.bfloat16")
    return abi.TensorRef.of(tensor.data_ptr(), _DTYPES[tensor.dtype], tensor.shape)


def _step(
    function: str,
    inputs: Sequence[Tensor],
    state: tuple[Tensor, Tensor, Tensor],
    indices: tuple[Tensor, Tensor],
    options: tuple[float, bool, int, bool],
) -> Tensor:
    memory, token_counts, log_lengths = state
    cu_seqlens, slots = indices
    scale, use_qk_l2norm, max_decode_tokens, bf16_states = options
    for name, tensor in zip(_INPUTS, inputs, strict=True):
        rank = 2 if name in {"g", "beta"} else 3
        if tensor.dim() != rank:
            expected = "[tokens, HV]" if rank == 2 else "[tokens, heads, dimension]"
            raise ValueError(f"{name} is {list(tensor.shape)}; expected {expected}, sequences end to end")
        if tensor.device != memory.device:
            raise ValueError(f"{name} is on {tensor.device} and memory on {memory.device}; expected one device")
    sequences = int(slots.shape[0]) if slots.dim() == 1 else -1
    _check_counts("slots", slots, torch.int32, (sequences,))
    _check_counts("cu_seqlens", cu_seqlens, torch.int32, (sequences + 1,))
    q, _, v, _, _ = dense = [tensor.detach().contiguous() for tensor in inputs]
    output = torch.empty_like(v)
    refs = [_ref(name, tensor) for name, tensor in zip(_INPUTS, dense, strict=True)]
    step = abi.DeltaRuleStep(
        ctypes.sizeof(abi.DeltaRuleStep),
        abi.BatchRef(sequences, cu_seqlens.data_ptr(), slots.data_ptr()),
        *refs,
        _ref("output", output),
        scale,
        use_qk_l2norm,
        _stream(memory.device),
    )
    spec = _spec(max(int(memory.shape[0]), 1), q.shape[1:], v.shape[1:], max_decode_tokens, bf16_states)
    with _Pool(spec, memory, token_counts, log_lengths) as pool:
        abi.call(function, pool, ctypes.byref(step))
    return output


@torch.library.custom_op("gdn::prefill", mutates_args=("memory", "token_counts", "log_lengths"))
def prefill(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor,
    beta: Tensor,
    memory: Tensor,
    token_counts: Tensor,
    log_lengths: Tensor,
    cu_seqlens: Tensor,
    slots: Tensor,
    scale: float = 0.0,
    use_qk_l2norm: bool = False,
    max_decode_tokens: int = 8,
    bf16_states: bool = False,
) -> Tensor:
    """Advances slots[i] by rows cu_seqlens[i] to cu_seqlens[i + 1]; StatePool.prefill with all that it keeps."""
    return _step(
        "gdn_prefill",
        (q, k, v, g, beta),
        (memory, token_counts, log_lengths),
        (cu_seqlens, slots),
        (scale, use_qk_l2norm, max_decode_tokens, bf16_states),
    )


@torch.library.custom_op("gdn::decode", mutates_args=("memory", "token_counts", "log_lengths"))
def decode(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor,
    beta: Tensor,
    memory: Tensor,
    token_counts: Tensor,
    log_lengths: Tensor,
    cu_seqlens: Tensor,
    slots: Tensor,
    scale: float = 0.0,
    use_qk_l2norm: bool = False,
    max_decode_tokens: int = 8,
    bf16_states: bool = False,
) -> Tensor:
    """As prefill, for at most max_decode_tokens rows of each; quicker for a few."""
    return _step(
        "gdn_decode",
        (q, k, v, g, beta),
        (memory, token_counts, log_lengths),
        (cu_seqlens, slots),
        (scale, use_qk_l2norm, max_decode_tokens, bf16_states),
    )


def _fake(q: Tensor, k: Tensor, v: Tensor, *_: object, **__: object) -> Tensor:
    return torch.empty_like(v, memory_format=torch.contiguous_format)


prefill.register_fake(_fake)
decode.register_fake(_fake)


class StatePool:
    """States of the gated delta rule in numbered slots, as tensors. One thread at a time, as with tensors.

    memory [slots, floats] is on the device; token_counts and log_lengths [slots] are on the CPU. Rows of the three
    belong together. They are laid out for the device's backend (a GPU keeps matrices transposed): state() and
    export_states() are for reading them elsewhere.
    """

    def __init__(
        self,
        slots: int,
        *,
        key_heads: int,
        value_heads: int,
        key_dim: int,
        value_dim: int,
        max_decode_tokens: int = 8,
        bf16_states: bool = False,
        device: torch.device | str = "cpu",
    ) -> None:
        self.key = (key_heads, key_dim)
        self.value = (value_heads, value_dim)
        self.max_decode_tokens = max_decode_tokens
        self.bf16_states = bf16_states
        floats = abi.pool_bytes(self._spec(slots)) // slots // 4
        self.memory = torch.zeros(slots, floats, device=device)
        self.token_counts = torch.zeros(slots, dtype=torch.int64)
        self.log_lengths = torch.zeros(slots, dtype=torch.int32)

    def _spec(self, slots: int) -> abi.PoolSpec:
        return _spec(slots, self.key, self.value, self.max_decode_tokens, self.bf16_states)

    def _pool(self) -> _Pool:
        return _Pool(self._spec(self.memory.shape[0]), self.memory, self.token_counts, self.log_lengths)

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
    ) -> Tensor:
        """Advances slots[i] by the next lengths[i] rows.

        q, k: [tokens, H, K]; v: [tokens, HV, V]; g (log decay, <= 0), beta (0 to 2): [tokens, HV]; float32, float16 or
        bfloat16. scale multiplies q; 0: K^-0.5. Returns [tokens, HV, V] of v's dtype. A slot of -1 is padding: zeros.
        """
        return self._advance(prefill, (q, k, v, g, beta), lengths, slots, scale, use_qk_l2norm)

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
        return self._advance(decode, (q, k, v, g, beta), lengths, slots, scale, use_qk_l2norm)

    def _advance(
        self,
        operator: Callable[..., Tensor],
        inputs: tuple[Tensor, ...],
        lengths: Sequence[int],
        slots: Sequence[int],
        scale: float,
        use_qk_l2norm: bool,
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
            torch.tensor(offsets, dtype=torch.int32),
            torch.tensor(list(slots), dtype=torch.int32),
            scale,
            use_qk_l2norm,
            self.max_decode_tokens,
            self.bf16_states,
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
        matrices = torch.empty(self.value[0], self.key[1], self.value[1])
        with self._pool() as pool:
            abi.call("gdn_state_get", pool, slot, matrices.data_ptr(), _stream(self.memory.device))
        return matrices

    def set_state(self, slot: int, matrices: Tensor, tokens: int) -> None:
        """Replaces the matrices, [HV, K, V]; the slot has then seen `tokens` tokens."""
        shape = [self.value[0], self.key[1], self.value[1]]
        if list(matrices.shape) != shape:
            raise ValueError(f"matrices is {list(matrices.shape)}; expected [HV, K, V], {shape}")
        dense = matrices.detach().to("cpu", torch.float32).contiguous()
        with self._pool() as pool:
            abi.call("gdn_state_set", pool, slot, dense.data_ptr(), tokens, _stream(self.memory.device))

    def export_states(self, slots: Sequence[int]) -> bytes:
        """A state file whose layer i is the state of slots[i]; gdnctl state import takes it."""
        with self._pool() as pool:
            return abi.export_states(pool, slots, _stream(self.memory.device))

    def import_states(self, slots: Sequence[int], file: bytes) -> None:
        """The states of a file's layers, in their order, into slots; DataLoss for a damaged one."""
        with self._pool() as pool:
            abi.import_states(pool, slots, file, _stream(self.memory.device))
