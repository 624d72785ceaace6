"""torch.ops.gdn: prefill, decode, mixer_prefill and mixer_decode on CPU, ROCm and CUDA tensors, computed by libgdn.

The operators are functional except for the state, which is three tensors of the caller: memory on the device, and two
tensors of counts on the host. The operators mutate them, as their schemas say, so torch.compile and streams work
correctly. gdn_inprocess.torch.StatePool holds these tensors and is the convenient way to call the operators.

Work runs on the current stream. There is no backward pass, because libgdn is for inference only.
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
_STATE = ("memory", "token_counts", "log_lengths")
_contexts_lock = threading.Lock()


@functools.cache
def _make_context(device_type: str, index: int) -> ctypes.c_void_p:
    if device_type == "cpu":
        return abi.make_context(abi.CPU, 0, torch.get_num_threads())
    if device_type == "cuda":  # also ROCm
        with torch.cuda.device(index):
            return abi.make_context(abi.GPU, index, 0)
    raise ValueError(f"the state is on a {device_type} device; expected cpu, or cuda (which is ROCm's name too)")


def _context(device: torch.device) -> ctypes.c_void_p:
    """Returns the device's context. It is made once and kept until the process ends."""
    with _contexts_lock:
        return _make_context(device.type, device.index or 0)


def stream_of(device: torch.device) -> int | None:
    """Returns the current stream of a GPU, or None on a CPU.

    Raises RuntimeError while the stream is captured into a graph, because libgdn's work cannot be replayed.
    """
    if device.type != "cuda":
        return None
    with torch.cuda.device(device):
        if torch.cuda.is_current_stream_capturing():
            raise RuntimeError(
                "the current stream is being captured into a graph, and libgdn's work cannot be replayed; call the gdn "
                "operators outside torch.cuda.graph"
            )
    return int(torch.cuda.current_stream(device).cuda_stream)


def _check_counts(name: str, tensor: Tensor, dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    dense = tensor.device.type == "cpu" and tensor.is_contiguous()
    if tensor.dtype != dtype or tuple(tensor.shape) != shape or not dense:
        raise ValueError(
            f"{name} is {tensor.dtype} {list(tensor.shape)} on {tensor.device}; expected a contiguous {dtype} "
            f"{list(shape)} on the CPU, where it is read"
        )


class PoolOver:
    """A pool of the library over the tensors of a state, for one call.

    A context manager that yields the pool's handle.
    """

    def __init__(self, spec: abi.PoolSpec, memory: Tensor, token_counts: Tensor, log_lengths: Tensor) -> None:
        slots = int(memory.shape[0]) if memory.dim() == 2 else -1
        floats = abi.pool_bytes(spec) // spec.slots // 4
        if memory.dtype != torch.float32 or list(memory.shape) != [slots, floats] or not memory.is_contiguous():
            raise ValueError(
                f"the inputs are of {spec.key_heads} key heads, {spec.value_heads} value heads, key dimension "
                f"{spec.key_dim}, value dimension {spec.value_dim}, convolution width {spec.conv_width}, "
                f"{'a decay for each key channel' if spec.decay else 'a decay for each head'} and at most "
                f"{spec.max_decode_tokens} tokens a decode, which takes {floats} floats a slot, and memory is "
                f"{memory.dtype} {list(memory.shape)}; expected the inputs of the StatePool that made memory, "
                f"a contiguous torch.float32 [slots, {floats}]"
            )
        _check_counts("token_counts", token_counts, torch.int64, (slots,))
        _check_counts("log_lengths", log_lengths, torch.int32, (slots,))
        stream_of(memory.device)  # raises during a capture, which a new context would break
        spec.memory = memory.data_ptr()
        spec.memory_bytes = memory.numel() * memory.element_size()
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


class _Inputs:
    """Dense copies of tensors for the library, made where necessary. They live as long as this object."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._kept: list[Tensor] = []

    def ref(self, name: str, tensor: Tensor, shape: str) -> abi.TensorRef:
        """Describes a tensor on the device, which must have as many dimensions as `shape` has names."""
        if tensor.dim() != shape.count(",") + 1:
            raise ValueError(f"{name} is {list(tensor.shape)}; expected [{shape}], sequences end to end")
        if tensor.device != self._device:
            raise ValueError(f"{name} is on {tensor.device} and memory on {self._device}; expected one device")
        self._kept.append(tensor.detach().contiguous())
        return _ref(name, self._kept[-1])

    def batch(self, cu_seqlens: Tensor, slots: Tensor) -> abi.BatchRef:
        """Describes index arrays on the host."""
        sequences = int(slots.shape[0]) if slots.dim() == 1 else -1
        _check_counts("slots", slots, torch.int32, (sequences,))
        _check_counts("cu_seqlens", cu_seqlens, torch.int32, (sequences + 1,))
        return abi.BatchRef(sequences, cu_seqlens.data_ptr(), slots.data_ptr())


def _dtype_of_states(bf16_states: bool) -> int:
    return abi.BF16 if bf16_states else abi.F32


def _rule(
    function: str,
    inputs: Sequence[Tensor],
    state: tuple[Tensor, Tensor, Tensor],
    indices: tuple[Tensor, Tensor],
    scale: float,
    use_qk_l2norm: bool,
    max_decode_tokens: int,
    bf16_states: bool,
    max_beta: float,
) -> Tensor:
    memory = state[0]
    stream = stream_of(memory.device)
    to = _Inputs(memory.device)
    q, _, v, g, _ = inputs
    decay_per_channel = g.dim() == 3  # if it is neither, the library reports the error
    if decay_per_channel and q.dim() == 3 and g.shape[2] != q.shape[2]:
        raise ValueError(
            f"g is {list(g.shape)}; expected [tokens, HV], or [tokens, HV, K] of K = {q.shape[2]} in a pool with "
            "decay_per_channel"
        )
    of_g = "tokens, HV, K" if decay_per_channel else "tokens, HV"
    shapes = {"q": "tokens, H, K", "k": "tokens, H, K", "v": "tokens, HV, V", "g": of_g, "beta": "tokens, HV"}
    refs = [to.ref(name, tensor, shape) for (name, shape), tensor in zip(shapes.items(), inputs, strict=True)]
    output = _like(v)
    step = abi.DeltaRuleStep(
        ctypes.sizeof(abi.DeltaRuleStep),
        to.batch(*indices),
        *refs,
        _ref("output", output),
        scale,
        use_qk_l2norm,
        stream,
        max_beta,
    )
    spec = abi.make_spec(
        max(int(memory.shape[0]), 1),
        q.shape[1],
        v.shape[1],
        q.shape[2],
        v.shape[2],
        max_decode_tokens=max_decode_tokens,
        state_dtype=_dtype_of_states(bf16_states),
        decay_per_channel=decay_per_channel,
    )
    with PoolOver(spec, *state) as pool:
        abi.call(function, pool, ctypes.byref(step))
    return output


def _mixer(
    function: str,
    inputs: Sequence[Tensor],
    weights: Sequence[Tensor],
    state: tuple[Tensor, Tensor, Tensor],
    indices: tuple[Tensor, Tensor],
    key_heads: int,
    norm_epsilon: float,
    max_decode_tokens: int,
    bf16_states: bool,
) -> Tensor:
    memory = state[0]
    stream = stream_of(memory.device)
    to = _Inputs(memory.device)
    shapes = {"mixed_qkv": "tokens, C", "z": "tokens, HV, V", "b": "tokens, HV", "a": "tokens, HV"}
    refs = [to.ref(name, tensor, shape) for (name, shape), tensor in zip(shapes.items(), inputs, strict=True)]
    of_weights = {"conv_weight": "C, W", "a_log": "HV", "dt_bias": "HV", "norm_weight": "V"}
    held = [to.ref(name, tensor, shape) for (name, shape), tensor in zip(of_weights.items(), weights, strict=True)]
    mixed_qkv, z = inputs[:2]
    output = _like(z)
    step = abi.MixerStep(
        ctypes.sizeof(abi.MixerStep),
        to.batch(*indices),
        abi.MixerWeightRefs(*held, norm_epsilon),
        *refs,
        _ref("output", output),
        stream,
    )
    heads, value_dim = z.shape[1:]
    spec = abi.make_spec(
        max(int(memory.shape[0]), 1),
        key_heads,
        heads,
        (mixed_qkv.shape[1] - heads * value_dim) // (2 * max(key_heads, 1)),  # C = 2 H K + HV V
        value_dim,
        conv_width=weights[0].shape[1],
        hidden_size=1,  # steps do not use it
        max_decode_tokens=max_decode_tokens,
        state_dtype=_dtype_of_states(bf16_states),
    )
    with PoolOver(spec, *state) as pool:
        abi.call(function, pool, ctypes.byref(step))
    return output


def _like(v: Tensor) -> Tensor:
    return torch.empty_like(v, memory_format=torch.contiguous_format)


def _rule_operator(name: str) -> Callable[..., Tensor]:
    def operator(
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
        max_beta: float = 2.0,
    ) -> Tensor:
        return _rule(
            f"gdn_{name}",
            (q, k, v, g, beta),
            (memory, token_counts, log_lengths),
            (cu_seqlens, slots),
            scale,
            use_qk_l2norm,
            max_decode_tokens,
            bf16_states,
            max_beta,
        )

    def fake(q: Tensor, k: Tensor, v: Tensor, *_: object, **__: object) -> Tensor:
        return _like(v)

    definition = torch.library.custom_op(f"gdn::{name}", operator, mutates_args=_STATE)
    definition.register_fake(fake)
    made: Callable[..., Tensor] = definition
    return made


def _mixer_operator(name: str) -> Callable[..., Tensor]:
    def operator(
        mixed_qkv: Tensor,
        z: Tensor,
        b: Tensor,
        a: Tensor,
        conv_weight: Tensor,
        a_log: Tensor,
        dt_bias: Tensor,
        norm_weight: Tensor,
        memory: Tensor,
        token_counts: Tensor,
        log_lengths: Tensor,
        cu_seqlens: Tensor,
        slots: Tensor,
        key_heads: int,
        norm_epsilon: float = 1e-6,
        max_decode_tokens: int = 8,
        bf16_states: bool = False,
    ) -> Tensor:
        return _mixer(
            f"gdn_{name}",
            (mixed_qkv, z, b, a),
            (conv_weight, a_log, dt_bias, norm_weight),
            (memory, token_counts, log_lengths),
            (cu_seqlens, slots),
            key_heads,
            norm_epsilon,
            max_decode_tokens,
            bf16_states,
        )

    def fake(mixed_qkv: Tensor, z: Tensor, *_: object, **__: object) -> Tensor:
        return _like(z)

    definition = torch.library.custom_op(f"gdn::{name}", operator, mutates_args=_STATE)
    definition.register_fake(fake)
    made: Callable[..., Tensor] = definition
    return made


prefill = _rule_operator("prefill")
decode = _rule_operator("decode")
mixer_prefill = _mixer_operator("mixer_prefill")
mixer_decode = _mixer_operator("mixer_decode")
