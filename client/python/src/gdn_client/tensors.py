"""Converts numpy arrays and torch tensors to `Tensor` messages and back.

The dtypes are float32, float16 and bfloat16. numpy has no bfloat16. Arrays of `ml_dtypes.bfloat16` are accepted if that
package is installed. A bfloat16 output for a numpy caller is converted to float32, which holds it exactly. torch is
used only if the caller has imported it.
Thread safety: free functions.
"""

from __future__ import annotations

import math
import sys
from functools import lru_cache
from typing import TYPE_CHECKING, Any, TypeAlias, cast

import numpy as np
import numpy.typing as npt

from gdn_client.proto.gdn.v1 import tensor_pb2

if TYPE_CHECKING:
    import torch

    Array: TypeAlias = npt.NDArray[Any] | torch.Tensor
else:
    Array: TypeAlias = Any

_NUMPY_CODES = {"float32": tensor_pb2.DTYPE_F32, "float16": tensor_pb2.DTYPE_F16, "bfloat16": tensor_pb2.DTYPE_BF16}
_NAMES = {code: name for name, code in _NUMPY_CODES.items()}
ELEMENT_BYTES = {tensor_pb2.DTYPE_F32: 4, tensor_pb2.DTYPE_F16: 2, tensor_pb2.DTYPE_BF16: 2}


def is_torch(array: object) -> bool:
    """Whether it is a torch tensor. Does not import torch."""
    torch_module = sys.modules.get("torch")
    return torch_module is not None and isinstance(array, torch_module.Tensor)


def dtype_code(name: str) -> tensor_pb2.DType:
    """Returns the API's value for "float32", "float16" or "bfloat16".

    Raises:
        TypeError: it is another name.

    """
    try:
        return _NUMPY_CODES[name]
    except KeyError:
        hint = (
            ": convert the array with .astype(numpy.float32), a torch tensor with .float()" if name[:1] in "fiu" else ""
        )
        raise TypeError(f"elements are {name}, expected float32, float16 or bfloat16{hint}") from None


@lru_cache(maxsize=64)
def _name_of(dtype: Any) -> str:  # numpy builds the name anew each time
    return str(dtype).removeprefix("torch.") if type(dtype).__module__ == "torch" else str(dtype.name)


def element_name(array: Array) -> str:
    """Returns the name of the dtype, such as "float32"."""
    return _name_of(array.dtype if hasattr(array, "dtype") else np.asarray(array).dtype)


@lru_cache(maxsize=8)
def _numpy_dtype(name: str) -> np.dtype[Any]:
    return np.dtype(name).newbyteorder("<")


def host_array(array: Array) -> npt.NDArray[Any]:
    """Returns the elements in host memory, contiguous. A torch bfloat16 tensor becomes int16 with the same bits.

    Copies only if the array is on a device, not contiguous or big-endian.
    """
    if is_torch(array):
        tensor: Any = cast(Any, array).detach().cpu().contiguous()
        name = element_name(tensor)
        dtype_code(name)
        if name == "bfloat16":
            tensor = tensor.view(sys.modules["torch"].int16)
        result: npt.NDArray[Any] = tensor.numpy()
        return result
    result = np.asarray(array)
    dtype_code(element_name(result))
    if result.dtype.byteorder == ">":
        result = result.astype(result.dtype.newbyteorder("<"))
    return np.ascontiguousarray(result)


def byte_count(array: Array) -> int:
    """Returns the size of the elements in a message or in shared memory."""
    return math.prod(array.shape) * ELEMENT_BYTES[dtype_code(element_name(array))]


def copy_into(target: npt.NDArray[np.uint8], array: Array) -> None:
    """Copies the elements to `target`, which has the same size. Device and strided arrays need no intermediate copy."""
    if is_torch(array):
        tensor: Any = cast(Any, array)
        if tensor.device.type == "cpu" and tensor.is_contiguous():  # torch's threads would cost more than they gain
            array = tensor.detach().view(sys.modules["torch"].uint8).numpy()
            np.copyto(target, array.reshape(-1))
            return
        sys.modules["torch"].from_numpy(target).view(tensor.dtype).view(tensor.shape).copy_(tensor.detach())
        return
    source = np.asarray(array)
    np.copyto(target.view(source.dtype.newbyteorder("<")).reshape(source.shape), source)


def to_tensor(array: Array) -> tensor_pb2.Tensor:
    """Returns a message with the array's elements, copied once."""
    host = host_array(array)
    return tensor_pb2.Tensor(dtype=dtype_code(element_name(array)), shape=tuple(array.shape), data=host.tobytes())


def from_bytes(
    tensor: tensor_pb2.Tensor, data: bytes | memoryview | npt.NDArray[np.uint8], like: Array | None = None
) -> Array:
    """Returns the elements as numpy, or as torch on the device of `like` if that is a torch tensor.

    numpy arrays are read-only views of `data`, without a copy. A torch tensor on the CPU needs no copy if `data` is an
    array.
    """
    shape = tuple(tensor.shape)
    name = _NAMES[tensor.dtype]
    if like is not None and is_torch(like):
        torch_module: Any = sys.modules["torch"]
        dtype = getattr(torch_module, name)
        if math.prod(shape) == 0:
            empty: Array = torch_module.empty(shape, dtype=dtype, device=like.device)
            return empty
        # torch requires writable memory.
        flat = torch_module.frombuffer(data if isinstance(data, np.ndarray) else bytearray(data), dtype=dtype)
        whole: Array = flat.reshape(shape).to(like.device)
        return whole
    if name == "bfloat16":
        bits = np.frombuffer(data, dtype="<u2").astype(np.uint32) << 16
        return bits.view(np.float32).reshape(shape)
    array = np.frombuffer(data, dtype=_numpy_dtype(name)).reshape(shape)
    array.flags.writeable = False
    return array


def from_tensor(tensor: tensor_pb2.Tensor, like: Array | None = None) -> Array:
    """Works as from_bytes, with the bytes of the message."""
    return from_bytes(tensor, tensor.data, like)
