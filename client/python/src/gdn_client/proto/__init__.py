"""The API's messages, as `proto/gdn/v1/*.proto` of the server's repository describes them.

`gdn_client.proto.gdn.v1.step_pb2` and its neighbours have the messages of one file each.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, duration_pb2, message_factory, timestamp_pb2
from google.protobuf.internal import enum_type_wrapper
from google.rpc import error_details_pb2, status_pb2

# Named by ours, so they are to be in the pool first.
_KNOWN = (duration_pb2, error_details_pb2, status_pb2, timestamp_pb2)


def _fill_pool() -> descriptor_pool.DescriptorPool:
    pool = descriptor_pool.Default()
    files = descriptor_pb2.FileDescriptorSet.FromString((Path(__file__).parent / "descriptors.binpb").read_bytes())
    pending = {file.name: file for file in files.file}

    def add(name: str) -> None:
        file = pending.pop(name, None)
        if file is None:
            return
        for dependency in file.dependency:
            add(dependency)
        pool.AddSerializedFile(file.SerializeToString())

    for name in list(pending):
        add(name)
    return pool


_POOL = _fill_pool()


def load(proto: str, names: dict[str, Any]) -> None:
    """Puts the messages and enums of a .proto file into `names`, a module's globals."""
    file = _POOL.FindFileByName(proto)
    names["DESCRIPTOR"] = file
    for name, message in file.message_types_by_name.items():
        names[name] = message_factory.GetMessageClass(message)
    for name, enum in file.enum_types_by_name.items():
        names[name] = enum_type_wrapper.EnumTypeWrapper(enum)
        names.update({value.name: value.number for value in enum.values})
