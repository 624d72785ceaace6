"""Arrays as they travel, and back."""

from __future__ import annotations

import numpy as np
import pytest

from gdn_client.proto.gdn.v1 import tensor_pb2
from gdn_client.tensors import from_tensor, to_tensor


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_numpy_comes_back_as_it_was(dtype: str) -> None:
    array = np.arange(6, dtype=dtype).reshape(2, 3)
    for given in (array, array.T.copy().T, array.astype(np.dtype(dtype).newbyteorder(">"))):
        tensor = to_tensor(given)
        assert list(tensor.shape) == [2, 3]
        back = from_tensor(tensor)
        assert back.dtype == dtype
        np.testing.assert_array_equal(back, array)


def test_empty_ones_too() -> None:
    assert from_tensor(to_tensor(np.empty((0, 4), np.float32))).shape == (0, 4)


def test_bfloat16_is_widened_for_numpy() -> None:
    values = np.array([1.0, -2.5, 3e38, np.inf], np.float32)
    bits = (values.view(np.uint32) >> 16).astype("<u2")
    tensor = tensor_pb2.Tensor(dtype=tensor_pb2.DTYPE_BF16, shape=[4], data=bits.tobytes())
    want = (bits.astype(np.uint32) << 16).view(np.float32)
    np.testing.assert_array_equal(from_tensor(tensor), want)


def test_other_elements_are_refused() -> None:
    with pytest.raises(TypeError, match="int64"):
        to_tensor(np.arange(3))


def test_torch_comes_back_as_it_was() -> None:
    torch = pytest.importorskip("torch")
    for dtype in (torch.float32, torch.float16, torch.bfloat16):
        array = torch.arange(6, dtype=dtype).reshape(2, 3)
        for given in (array, array.T.contiguous().T, array.requires_grad_()):
            back = from_tensor(to_tensor(given), like=given)
            assert back.dtype == dtype
            assert torch.equal(back, array)
    assert from_tensor(to_tensor(torch.empty(0, 4)), like=torch.empty(0)).shape == (0, 4)
