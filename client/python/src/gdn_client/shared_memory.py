"""Memory shared with a server on this host, so that tensors need not travel in messages.

The server makes a *region* for one client, which maps it. The client copies a step's inputs into parts of the region.
The server writes the output into another part, and the caller's array uses that memory directly. A part is free again
when its step has been answered, and an output's part when nothing refers to the array. If no part is free, or there is
no region, tensors travel in messages; the bits are the same. Memory that a server may still read or write is never
given out again. If a call ends without the server's answer, its region ends too, and the next step opens another. Steps
that are kept for a replay have copies of their own.
Thread safety: any thread may use Region and SharedMemory; a StepMemory belongs to one step.
"""

from __future__ import annotations

import bisect
import mmap
import os
import stat
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, TypeAlias

import numpy as np
import numpy.typing as npt

from gdn_client import tensors
from gdn_client.errors import GdnError, UnimplementedError
from gdn_client.flow import Flow, OpenRegion
from gdn_client.inputs import DeltaRule, Input, Projected
from gdn_client.proto.gdn.v1 import shared_memory_pb2, tensor_pb2
from gdn_client.steps import (
    SentStep,
    StepReply,
    StepRequest,
    fill_input,
    hidden_states_pieces,
    input_pieces,
    tensors_in,
)
from gdn_client.tensors import Array

ALIGNMENT = 64  # a cache line
AUTO_BYTES = 64 << 20
RETRY_SECONDS = 5.0  # seconds before the next try to open a region after a failure
Wanted: TypeAlias = int | Literal["auto"] | None
LOCAL = ("localhost", "127.", "[::1]", "unix:", "unix-abstract:")


class Block:
    """A part of a region. It is free again when the last array made from it (`np.asarray`) is gone."""

    def __init__(self, region: Region, offset: int, size: int) -> None:
        self.region = region
        self.offset = offset
        self.size = size
        interface = {"shape": (size,), "typestr": "|u1", "data": (region.address + offset, False), "version": 3}
        self.__array_interface__ = interface

    def __del__(self) -> None:
        # No lock, because a thread may already hold it when the garbage collector runs this.
        self.region.returned.append((self.offset, self.size))

    def array(self) -> npt.NDArray[np.uint8]:
        """Returns its bytes."""
        view: Any = self
        return np.asarray(view)

    def range(self) -> tensor_pb2.SharedRange:
        """Returns the part as a request names it."""
        return tensor_pb2.SharedRange(region=self.region.name, offset=self.offset, bytes=self.size)


class Region:
    """A region of the server, mapped into this process.

    `end` ends it; the mapping ends with the last array that uses it.
    """

    def __init__(self, region: shared_memory_pb2.SharedRegion, end: Callable[[], Any], is_over: Callable[[], bool]):
        self.name = region.name
        self.size = region.bytes
        self._mapping = np.frombuffer(_mapped(region), np.uint8)
        self.address = self._mapping.ctypes.data
        self.returned: deque[tuple[int, int]] = deque()
        self._is_over = is_over
        self._lock = threading.Lock()
        self._free = [(0, self.size)]  # (offset, bytes), ascending, no two adjacent
        self._given = 0
        self._end = weakref.finalize(self, end)

    def __repr__(self) -> str:
        return f"<Region {self.name}, {self.used} of {self.size} bytes are used{'' if self.alive else ', ended'}>"

    @property
    def alive(self) -> bool:
        """Whether steps may use it."""
        return self._end.alive and not self._is_over()

    @property
    def used(self) -> int:
        """Bytes that are given out."""
        with self._lock:
            self._collect()
            return self._given

    def end(self) -> None:
        """Ends the region on the server. Calls in flight can still use it."""
        self._end()

    def allocate(self, size: int) -> Block | None:
        """Returns a part of `size` bytes, or None if no part is free."""
        rounded = _rounded(size)
        with self._lock:
            self._collect()
            for index, (offset, free) in enumerate(self._free):
                if free < rounded and not (free >= size and offset + free == self.size):
                    continue
                taken = min(rounded, free)
                self._free[index : index + 1] = [(offset + taken, free - taken)] if free > taken else []
                self._given += size
                return Block(self, offset, size)
        return None

    def _collect(self) -> None:
        while self.returned:
            offset, size = self.returned.popleft()
            self._given -= size
            begin, end = offset, min(offset + _rounded(size), self.size)
            index = bisect.bisect(self._free, (begin, 0))
            first = last = index
            if first > 0 and sum(self._free[first - 1]) == begin:
                first -= 1
                begin = self._free[first][0]
            if last < len(self._free) and self._free[last][0] == end:
                end = sum(self._free[last])
                last += 1
            self._free[first:last] = [(begin, end - begin)]


def _rounded(size: int) -> int:
    return max(ALIGNMENT, -(-size // ALIGNMENT) * ALIGNMENT)


def _mapped(region: shared_memory_pb2.SharedRegion) -> mmap.mmap:
    def not_shared(why: str) -> UnimplementedError:
        return UnimplementedError(
            f"the server's memory at '{region.path}' cannot be shared: {why}; is it another host's, container's or "
            "user's? Leave shared_memory out, and tensors go in messages",
            reason="SHARED_MEMORY_NOT_OFFERED",
        )

    # A server must not be able to make its clients write to any file that it names.
    if not region.name.startswith("gdn-shm-") or Path(region.path).name != region.name:
        raise not_shared(f"it is not the file of a region named '{region.name}'")
    try:
        file = os.open(region.path, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError as error:
        raise not_shared(error.strerror or str(error)) from None
    try:
        found = os.fstat(file)
        if not stat.S_ISREG(found.st_mode) or region.bytes <= 0 or found.st_size != region.bytes:
            raise not_shared(f"it is no file of {region.bytes} bytes")
        return mmap.mmap(file, region.bytes)
    finally:
        os.close(file)


class SharedMemory:
    """The client's setting for shared memory, and its region."""

    def __init__(self, wanted: Wanted = None, target: str = "") -> None:
        if wanted is not None and wanted != "auto" and (isinstance(wanted, str) or wanted < 1):
            raise ValueError(f'shared_memory is {wanted!r}, expected bytes, "auto" or None')
        self._must = isinstance(wanted, int)
        self._bytes = AUTO_BYTES if wanted == "auto" and target.startswith(LOCAL) else wanted
        self._region: Region | None = None
        self._not_before = 0.0
        self._lock = threading.Lock()

    @property
    def wanted(self) -> bool:
        """Whether the client shares memory if it can."""
        return isinstance(self._bytes, int)

    @property
    def region(self) -> Region | None:
        """The region that steps use now."""
        return self._region

    def open(self, timeout: float | None = None) -> Flow[Region | None]:
        """Returns the region, and opens one if necessary. None: tensors travel in messages.

        `timeout` is that of the call that needs the region, whose time this takes.

        Raises:
            GdnError: the client asked for a number of bytes, and no region could ever be opened.

        """
        region = self._region
        if not isinstance(self._bytes, int):
            return None
        if region is not None and region.alive:
            return region
        if time.monotonic() < self._not_before:
            return None
        try:
            opened: Region = yield OpenRegion(self._bytes, timeout)
        except GdnError:
            if self._must:
                raise
            self._not_before = time.monotonic() + RETRY_SECONDS
            return None
        with self._lock:
            self._must = False  # the server can share; if it is away later, messages are used
            if self._region is not None and self._region.alive:
                opened.end()  # another thread was faster
            else:
                self._region = opened
            return self._region

    def close(self) -> None:
        """Ends the region."""
        self._bytes = None
        if self._region is not None:
            self._region.end()


class StepMemory:
    """The memory of one step's tensors: parts of a region, or the step's messages. A context manager."""

    def __init__(self, region: Region | None, request: StepRequest, rows: bytes = b"", name: str = "") -> None:
        """Takes the request of the step. `rows`: its field `rows`, if it has none, and `name` of its first session."""
        self._region = region
        self._request = request
        self._rows, self._name = rows, name
        self._inputs: dict[int, Block] = {}  # by offset
        self._output: Block | None = None
        self._open_calls = False
        self._loose: list[npt.NDArray[Any]] = []  # without a region: the inputs, which are copied when they are sent
        self._pieces: list[Any] = []
        self._sent: SentStep | None = None
        self._lent: memoryview | None = None  # the output's bytes in the reply

    def __enter__(self) -> StepMemory:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if self._open_calls:  # the call was given up before it ended
            self._end_region()
        self._inputs.clear()
        self._output = None

    def hold(self, given: Input) -> None:
        """Puts a step's input into the request."""
        if self._region is None and self._rows and not isinstance(given, Projected | DeltaRule):
            self._pieces = hidden_states_pieces(given)
        else:
            fill_input(self._request, given, self.encode)

    def encode(self, array: Array) -> tensor_pb2.Tensor:
        """Puts an array into a message, or its place in the request that is sent. This is an `Encoder`."""
        if self._region is None:
            host = tensors.host_array(array)
            self._loose.append(host)
            code = tensors.dtype_code(tensors.element_name(array))
            return tensor_pb2.Tensor(dtype=code, shape=tuple(array.shape))
        size = tensors.byte_count(array)
        block = self._region.allocate(size) if self._region is not None and size > 0 else None
        if block is None:
            return tensors.to_tensor(array)
        tensors.copy_into(block.array(), array)
        self._inputs[block.offset] = block
        return tensor_pb2.Tensor(
            dtype=tensors.dtype_code(tensors.element_name(array)), shape=tuple(array.shape), shared=block.range()
        )

    def place_output(self, size: int) -> None:
        """Asks the server to put the output, of exactly `size` bytes, into the region, if there is room."""
        if self._region is None or size == 0:
            return
        self._output = self._region.allocate(size)
        if self._output is not None:
            self._request.output_shared.CopyFrom(self._output.range())

    def request(self) -> StepRequest | SentStep:
        """Returns the request as the next try sends it."""
        if not self._loose and not self._pieces:
            return SentStep(self._request, [self._rows], self._name) if self._rows else self._request
        self._pieces = self._pieces or input_pieces(self._request, self._loose)
        self._sent = SentStep(self._request, [self._rows, *self._pieces], self._name)
        return self._sent

    def kept(self) -> StepRequest | SentStep:
        """Returns the request of the last try, with its tensors, which depends on no memory of others."""
        if self._sent is not None:
            return self._sent
        self.to_message()
        return SentStep(self._request, [self._rows], self._name) if self._rows else self._request

    def bytes_of(self, tensor: tensor_pb2.Tensor) -> bytes:
        """Returns a copy of an input's elements, wherever they are."""
        block = self._inputs.get(tensor.shared.offset) if tensor.HasField("shared") else None
        return tensor.data if block is None else block.array().tobytes()

    def array_of(self, tensor: tensor_pb2.Tensor, like: Array) -> Array:
        """Returns an output as an array, without a copy if it is in the region."""
        if self._lent is not None:
            return tensors.from_bytes(tensor, self._lent, like)
        if not tensor.HasField("shared"):
            return tensors.from_tensor(tensor, like)
        assert self._output is not None
        return tensors.from_bytes(tensor, self._output.array(), like)

    def to_message(self) -> None:
        """Moves the request's tensors from the region into the message, and asks for the output in the reply."""
        for tensor in tensors_in(self._request):
            if tensor.HasField("shared"):
                data = self.bytes_of(tensor)
                tensor.ClearField("shared")
                tensor.data = data
        self._request.ClearField("output_shared")

    def sending(self) -> None:
        """Notes that a call is about to begin."""
        self._open_calls = self._region is not None and self._request_is_shared()

    def answered(self, reply: Any) -> None:
        """Notes the server's answer to the call."""
        self._open_calls = False
        self._lent = reply.data if isinstance(reply, StepReply) else None

    def failed(self, error: GdnError) -> bool:
        """Notes that the call has failed; the next one carries its tensors.

        Returns whether only the region was missing.
        """
        if not self._request_is_shared():
            return False
        lost = error.reason == "SHARED_REGION_NOT_FOUND"
        if lost or not error.reason:  # no reason: not an answer of the server, which may still be at work
            self._end_region()
        self._open_calls = False
        self.to_message()
        self._output = None
        return lost

    def _request_is_shared(self) -> bool:
        return self._request.HasField("output_shared") or any(
            tensor.HasField("shared") for tensor in tensors_in(self._request)
        )

    def _end_region(self) -> None:
        if self._region is not None:
            self._region.end()
