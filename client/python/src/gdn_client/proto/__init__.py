"""The API's messages, as `proto/gdn/v1/*.proto` of the server's repository describes them.

`gdn_client.proto.gdn.v1.step_pb2` and its neighbours have the messages of one file each. `gdn_client.proto.google.rpc`
has the messages of error details, and `Duration` below is google.protobuf's.

All of them are in a descriptor pool of this package. So a program may use stubs that it has generated of the same
.proto files, of another version of them, or of other files with these names. A message of such stubs is of another
class: to hand it over, parse its serialized bytes with the class of this package.
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
    for file in files.file:  # protoc writes each file behind its imports
        pool.AddSerializedFile(file.SerializeToString())
    return pool


_POOL = _fill_pool()
if not TYPE_CHECKING:
    Duration = message_factory.GetMessageClass(_POOL.FindMessageTypeByName("google.protobuf.Duration"))


def load(proto: str, names: dict[str, Any]) -> None:
    """Puts the messages and enums of a .proto file into `names`, a module's globals."""
    file = _POOL.FindFileByName(proto)
    names["DESCRIPTOR"] = file
    for name, message in file.message_types_by_name.items():
        names[name] = message_factory.GetMessageClass(message)
    for name, enum in file.enum_types_by_name.items():
        names[name] = enum_type_wrapper.EnumTypeWrapper(enum)
        names.update({value.name: value.number for value in enum.values})
