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

    def refs(self, names: Sequence[str], tensors: Sequence[Tensor], shapes: Sequence[str]) -> list[abi.TensorRef]:
        """Describes several tensors."""
        return [self.ref(*one) for one in zip(names, tensors, shapes, strict=True)]

    def batch(self, cu_seqlens: Tensor, slots: Tensor) -> abi.BatchRef:
        """Describes index arrays on the host."""
        sequences = int(slots.shape[0]) if slots.dim() == 1 else -1
        _check_counts("slots", slots, torch.int32, (sequences,))
        _check_counts("cu_seqlens", cu_seqlens, torch.int32, (sequences + 1,))
        return abi.BatchRef(sequences, cu_seqlens.data_ptr(), slots.data_ptr())


def _like(v: Tensor) -> Tensor:
    return torch.empty_like(v, memory_format=torch.contiguous_format)


def _run(name: str, spec: abi.PoolSpec, state: tuple[Tensor, Tensor, Tensor], step: ctypes.Structure) -> None:
    with PoolOver(spec, *state) as pool:
        abi.call(f"gdn_{name}", pool, ctypes.byref(step))


def _operator(name: str, run: Callable[..., Tensor], output: int) -> Callable[..., Tensor]:
    """Registers an operator whose output has the form of one of its arguments, number `output`."""
    definition = torch.library.custom_op(f"gdn::{name}", run, mutates_args=_STATE)
    definition.register_fake(lambda *arguments, **_: _like(arguments[output]))
    made: Callable[..., Tensor] = definition
    return made


def _rule_operator(name: str) -> Callable[..., Tensor]:
    def run(
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
        stream = stream_of(memory.device)
        to = _Inputs(memory.device)
        decay_per_channel = g.dim() == 3  # if it is neither, the library reports the error
        if decay_per_channel and q.dim() == 3 and g.shape[2] != q.shape[2]:
            raise ValueError(
                f"g is {list(g.shape)}; expected [tokens, HV], or [tokens, HV, K] of K = {q.shape[2]} in a pool with "
                "decay_per_channel"
            )
        keys, values, gates = "tokens, H, K", "tokens, HV, V", "tokens, HV"
        refs = to.refs(
            abi.DELTA_RULE_INPUTS,
            (q, k, v, g, beta),
            (keys, keys, values, "tokens, HV, K" if decay_per_channel else gates, gates),
        )
        output = _like(v)
        batch = to.batch(cu_seqlens, slots)
        options = (scale, use_qk_l2norm, stream, max_beta)
        step = abi.DeltaRuleStep(ctypes.sizeof(abi.DeltaRuleStep), batch, *refs, _ref("output", output), *options)
        dimensions = (q.shape[1], v.shape[1], q.shape[2], v.shape[2], 0, 0)
        dtype = abi.BF16 if bf16_states else abi.F32
        spec = abi.make_spec(max(len(memory), 1), *dimensions, max_decode_tokens, dtype, decay_per_channel)
        _run(name, spec, (memory, token_counts, log_lengths), step)
        return output

    return _operator(name, run, output=2)


def _mixer_operator(name: str) -> Callable[..., Tensor]:
    def run(
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
        stream = stream_of(memory.device)
        to = _Inputs(memory.device)
        shapes = ("tokens, C", "tokens, HV, V", "tokens, HV", "tokens, HV")
        refs = to.refs(abi.MIXER_INPUTS, (mixed_qkv, z, b, a), shapes)
        of_weights = ("C, W", "HV", "HV", "V")
        held = to.refs(abi.MIXER_WEIGHTS, (conv_weight, a_log, dt_bias, norm_weight), of_weights)
        output = _like(z)
        batch = to.batch(cu_seqlens, slots)
        weights = abi.MixerWeightRefs(*held, norm_epsilon)
        step = abi.MixerStep(ctypes.sizeof(abi.MixerStep), batch, weights, *refs, _ref("output", output), stream)
        heads, value_dim = z.shape[1:]
        key_dim = (mixed_qkv.shape[1] - heads * value_dim) // (2 * max(key_heads, 1))  # C = 2 H K + HV V
        hidden_size = 1  # steps do not use it
        dimensions = (key_heads, heads, key_dim, value_dim, conv_weight.shape[1], hidden_size)
        dtype = abi.BF16 if bf16_states else abi.F32
        spec = abi.make_spec(max(len(memory), 1), *dimensions, max_decode_tokens, dtype)
        _run(name, spec, (memory, token_counts, log_lengths), step)
        return output

    return _operator(name, run, output=1)


prefill = _rule_operator("prefill")
decode = _rule_operator("decode")
mixer_prefill = _mixer_operator("mixer_prefill")
mixer_decode = _mixer_operator("mixer_decode")
