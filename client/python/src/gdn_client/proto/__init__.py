"""The API's messages, as `proto/gdn/v1/*.proto` of the server's repository describes them.

`gdn_client.proto.gdn.v1.step_pb2` and its neighbours contain the messages of one file each.
`gdn_client.proto.google.rpc` contains the messages of error details, and `Duration` below is google.protobuf's.

All of them are in a descriptor pool of this package. So the same program may use stubs that were generated from the
same .proto files, from another version of them, or from other files with these names. The messages of such stubs have
other classes. To pass one to this package, serialize it and parse the bytes with this package's class.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.internal import enum_type_wrapper

if TYPE_CHECKING:
    from google.protobuf.duration_pb2 import Duration

__all__ = ["Duration", "load"]


def _fill_pool() -> descriptor_pool.DescriptorPool:
    pool = descriptor_pool.DescriptorPool()
    files = descriptor_pb2.FileDescriptorSet.FromString((Path(__file__).parent / "descriptors.binpb").read_bytes())
    for file in files.file:  # protoc writes each file after its imports
        pool.AddSerializedFile(file.SerializeToString())
    return pool


_POOL = _fill_pool()
if not TYPE_CHECKING:
    Duration = message_factory.GetMessageClass(_POOL.FindMessageTypeByName("google.protobuf.Duration"))


def load(proto: str, names: dict[str, Any]) -> None:
    """Puts the messages and enums of a .proto file into `names`, the globals of a module."""
    file = _POOL.FindFileByName(proto)
    names["DESCRIPTOR"] = file
    for name, message in file.message_types_by_name.items():
        names[name] = message_factory.GetMessageClass(message)
    for name, enum in file.enum_types_by_name.items():
        names[name] = enum_type_wrapper.EnumTypeWrapper(enum)
        names.update({value.name: value.number for value in enum.values})
