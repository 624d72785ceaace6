"""The package's messages work beside stubs that a program has generated of the same .proto files."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import gdn_client.proto

# Adds another version of each file to protobuf's default pool, as stubs do that protoc has generated for a program.
STUBS = """
from google.protobuf import any_pb2, descriptor_pb2, descriptor_pool, duration_pb2, timestamp_pb2
files = descriptor_pb2.FileDescriptorSet.FromString(open({descriptors!r}, "rb").read()).file
own = {{file.name: file for file in files if not file.name.startswith("google/protobuf/")}}
for name in ("google/rpc/status.proto", "google/rpc/error_details.proto"):
    file = own.setdefault(name, descriptor_pb2.FileDescriptorProto(name=name, package="google.rpc", syntax="proto3"))
    if not file.message_type:
        file.message_type.add(name="Status" if "status" in name else "ErrorInfo")
def add(name):
    file = own.pop(name, None)
    if file is not None:
        for dependency in file.dependency:
            add(dependency)
        file.message_type.add(name="OfAnotherVersion" + str(len(own)))
        descriptor_pool.Default().AddSerializedFile(file.SerializeToString())
for name in list(own):
    add(name)
"""
USE = """
import gdn_client
from gdn_client.errors import from_status
from gdn_client.proto.gdn.v1 import session_pb2, step_pb2
from gdn_client.requests import session_request
request = session_request(None, "a", "", 1.5, None, None)
assert session_pb2.CreateSessionRequest.FromString(request.SerializeToString()).idle_ttl.nanos == 500_000_000
session = session_pb2.Session()
session.create_time.FromSeconds(7)
assert session.create_time.ToDatetime().second == 7
failed = step_pb2.StreamDecodeResponse()
failed.status.code = 5
assert isinstance(from_status(failed.status), gdn_client.NotFoundError)
"""


@pytest.mark.parametrize("order", ["the stubs first", "the package first"])
def test_generated_stubs_and_the_package_are_used_in_one_process(order: str) -> None:
    stubs = STUBS.format(descriptors=str(Path(gdn_client.proto.__file__).parent / "descriptors.binpb"))
    program = stubs + USE if order == "the stubs first" else USE + stubs
    done = subprocess.run([sys.executable, "-B", "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]


def test_the_package_adds_nothing_to_the_pool_that_programs_share() -> None:
    program = USE + (
        "from google.protobuf import descriptor_pool\n"
        "for name in ('gdn/v1/session.proto', 'google/rpc/status.proto', 'google/rpc/error_details.proto'):\n"
        "    try:\n"
        "        descriptor_pool.Default().FindFileByName(name)\n"
        "    except KeyError:\n"
        "        continue\n"
        "    raise SystemExit(f'{name} is in the default pool')\n"
    )
    done = subprocess.run([sys.executable, "-B", "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
