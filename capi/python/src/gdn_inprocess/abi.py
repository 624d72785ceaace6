"""The C interface capi/gdn.h for ctypes: its constants, structs and functions, and its errors as exceptions."""

from __future__ import annotations

import ctypes
import functools
import os
from collections.abc import Sequence
from ctypes import POINTER, byref, c_char_p, c_float, c_int32, c_int64, c_size_t, c_void_p

ABI_VERSION = 1
CPU, GPU = 1, 2
F32, F16, BF16 = 1, 2, 3
# Names of the tensors of the steps, in the order of their structs.
DELTA_RULE_INPUTS = ("q", "k", "v", "g", "beta")
MIXER_INPUTS = ("mixed_qkv", "z", "b", "a")
MIXER_WEIGHTS = ("conv_weight", "a_log", "dt_bias", "norm_weight")


class GdnError(RuntimeError):
    """An error of libgdn. `code` is a gdn_code, and `reason` is a word for programs."""

    def __init__(self, code: int, reason: str, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.reason = reason

    def __reduce__(self) -> tuple[type[GdnError], tuple[int, str, str]]:
        return type(self), (self.code, self.reason, str(self))


class InvalidArgument(GdnError, ValueError):
    """The call is wrong. Nothing has changed."""


class OutOfMemory(GdnError, MemoryError):
    """The host, the device or the pool's slots are exhausted."""


class FailedPrecondition(GdnError):
    """There is no such device, or a state does not fit the pool."""


class DataLoss(GdnError):
    """A state file is truncated or damaged, or a state is lost."""


class DeviceFailed(GdnError):
    """The device is lost. End the process."""


_ERRORS = (GdnError, InvalidArgument, OutOfMemory, FailedPrecondition, DataLoss, DeviceFailed)  # by gdn_code


class PoolSpec(ctypes.Structure):
    """gdn_pool_spec."""

    _fields_ = (
        ("struct_size", c_size_t),
        *(
            (name, c_int32)
            for name in ("key_heads", "value_heads", "key_dim", "value_dim", "conv_width", "hidden_size")
        ),
        *((name, c_int32) for name in ("max_decode_tokens", "state_dtype", "slots")),
        *((name, c_void_p) for name in ("memory", "token_counts", "log_lengths")),
        ("decay", c_int32),
        ("memory_bytes", c_size_t),
    )


class TensorRef(ctypes.Structure):
    """gdn_tensor."""

    _fields_ = (("data", c_void_p), ("dtype", c_int32), ("rank", c_int32), ("shape", c_int64 * 4))

    @classmethod
    def of(cls, address: int, dtype: int, shape: Sequence[int]) -> TensorRef:
        """Describes a dense tensor. The library refuses one of more than four dimensions."""
        return cls(address, dtype, len(shape), (c_int64 * 4)(*shape[:4]))


class BatchRef(ctypes.Structure):
    """gdn_batch."""

    _fields_ = (("sequences", c_int32), ("cu_seqlens", c_void_p), ("slots", c_void_p))


class MixerWeightRefs(ctypes.Structure):
    """gdn_mixer_weights."""

    _fields_ = (*((name, TensorRef) for name in MIXER_WEIGHTS), ("norm_epsilon", c_float))


class DeltaRuleStep(ctypes.Structure):
    """gdn_delta_rule_step."""

    _fields_ = (
        ("struct_size", c_size_t),
        ("batch", BatchRef),
        *((name, TensorRef) for name in (*DELTA_RULE_INPUTS, "output")),
        ("scale", c_float),
        ("use_qk_l2norm", c_int32),
        ("stream", c_void_p),
        ("max_beta", c_float),
    )


class MixerStep(ctypes.Structure):
    """gdn_mixer_step, with gdn_mixer_weights as a member."""

    _fields_ = (
        ("struct_size", c_size_t),
        ("batch", BatchRef),
        ("weights", MixerWeightRefs),
        *((name, TensorRef) for name in (*MIXER_INPUTS, "output")),
        ("stream", c_void_p),
    )


_SLOTS = POINTER(c_int32)
# Argument types of each function that returns a code.
_CALLS: dict[str, list[type]] = {
    "gdn_context_create": [c_int32, c_int32, c_int32, POINTER(c_void_p)],
    "gdn_context_synchronize": [c_void_p],
    "gdn_pool_bytes": [POINTER(PoolSpec), POINTER(c_size_t)],
    "gdn_pool_create": [c_void_p, POINTER(PoolSpec), POINTER(c_void_p)],
    "gdn_slots_allocate": [c_void_p, c_int32, _SLOTS],
    "gdn_slots_free": [c_void_p, c_int32, _SLOTS],
    "gdn_slots_zero": [c_void_p, c_int32, _SLOTS, c_void_p],
    "gdn_slots_copy": [c_void_p, c_int32, _SLOTS, _SLOTS, c_void_p],
    "gdn_slot_tokens": [c_void_p, c_int32, POINTER(c_int64)],
    "gdn_prefill": [c_void_p, POINTER(DeltaRuleStep)],
    "gdn_decode": [c_void_p, POINTER(DeltaRuleStep)],
    "gdn_mixer_prefill": [c_void_p, POINTER(MixerStep)],
    "gdn_mixer_decode": [c_void_p, POINTER(MixerStep)],
    "gdn_state_export": [c_void_p, c_int32, _SLOTS, c_void_p, POINTER(c_void_p)],
    "gdn_state_import": [c_void_p, c_int32, _SLOTS, c_char_p, c_size_t, c_void_p],
    "gdn_state_get": [c_void_p, c_int32, c_void_p, c_void_p],
    "gdn_state_set": [c_void_p, c_int32, c_void_p, c_int64, c_void_p],
}


@functools.cache
def library() -> ctypes.CDLL:
    """Loads libgdn from $GDN_LIBRARY, else from the loader's path. If it is missing, ImportError says what to do."""
    path = os.environ.get("GDN_LIBRARY", f"libgdn.so.{ABI_VERSION}")
    try:
        loaded = ctypes.CDLL(path)
    except OSError as error:
        raise ImportError(
            f"libgdn is not found: {error}. Build it (cmake --build --preset cpu --target gdn_shared) and set "
            "GDN_LIBRARY to its path, such as build/cpu/lib/libgdn.so"
        ) from error
    found = loaded.gdn_abi_version()
    if found != ABI_VERSION:
        raise ImportError(
            f"{path} has version {found} of the interface; expected {ABI_VERSION}: build it from this tree"
        )
    for name, arguments in _CALLS.items():
        function = getattr(loaded, name)
        function.argtypes = arguments
        function.restype = ctypes.c_int
    for name in ("gdn_version", "gdn_gpu_name", "gdn_last_error", "gdn_last_reason"):
        getattr(loaded, name).restype = c_char_p
    for name in ("gdn_context_device", "gdn_context_numerics_id"):
        getattr(loaded, name).argtypes = [c_void_p]
        getattr(loaded, name).restype = c_char_p
    for name in ("gdn_context_destroy", "gdn_pool_destroy", "gdn_bytes_free"):
        getattr(loaded, name).argtypes = [c_void_p]
        getattr(loaded, name).restype = None
    loaded.gdn_bytes_data.argtypes = loaded.gdn_bytes_size.argtypes = [c_void_p]
    loaded.gdn_bytes_data.restype = c_void_p
    loaded.gdn_bytes_size.restype = c_size_t
    return loaded


def call(name: str, *arguments: object) -> None:
    """Calls a function that returns a code, and raises the error that it reports."""
    loaded = library()
    code = getattr(loaded, name)(*arguments)
    if code != 0:
        message, reason = loaded.gdn_last_error().decode(), loaded.gdn_last_reason().decode()
        raise (_ERRORS[code] if code < len(_ERRORS) else GdnError)(code, reason, message)


def version() -> str:
    """Returns the library's version."""
    return str(library().gdn_version().decode())


def gpu_name() -> str:
    """Returns "gpu" if the library has GPU kernels in addition to the CPU's, else ""."""
    return str(library().gdn_gpu_name().decode())


def make_context(backend: int, device: int, threads: int) -> c_void_p:
    """gdn_context_create."""
    context = c_void_p()
    call("gdn_context_create", backend, device, threads, byref(context))
    return context


def make_pool(context: c_void_p, spec: PoolSpec) -> c_void_p:
    """gdn_pool_create."""
    pool = c_void_p()
    call("gdn_pool_create", context, byref(spec), byref(pool))
    return pool


def make_spec(
    slots: int,
    key_heads: int,
    value_heads: int,
    key_dim: int,
    value_dim: int,
    conv_width: int = 0,
    hidden_size: int = 0,
    max_decode_tokens: int = 0,
    state_dtype: int = F32,
    decay_per_channel: bool = False,
) -> PoolSpec:
    """Makes the spec of a pool whose memory the library allocates."""
    dimensions = (key_heads, value_heads, key_dim, value_dim, conv_width, hidden_size)
    decay = int(decay_per_channel)
    return PoolSpec(ctypes.sizeof(PoolSpec), *dimensions, max_decode_tokens, state_dtype, slots, decay=decay)


def pool_bytes(spec: PoolSpec) -> int:
    """Returns the size of a pool's memory in bytes."""
    size = c_size_t()
    call("gdn_pool_bytes", byref(spec), byref(size))
    return size.value


def slot_array(slots: Sequence[int]) -> ctypes.Array[c_int32]:
    """Converts slots to the library's array type."""
    return (c_int32 * len(slots))(*slots)


def export_states(pool: c_void_p, slots: Sequence[int], stream: int | None = None) -> bytes:
    """gdn_state_export."""
    file = c_void_p()
    call("gdn_state_export", pool, len(slots), slot_array(slots), stream, byref(file))
    try:
        return ctypes.string_at(library().gdn_bytes_data(file), library().gdn_bytes_size(file))
    finally:
        library().gdn_bytes_free(file)


def import_states(pool: c_void_p, slots: Sequence[int], file: bytes, stream: int | None = None) -> None:
    """gdn_state_import."""
    call("gdn_state_import", pool, len(slots), slot_array(slots), file, len(file), stream)
