#!/usr/bin/env python3
"""Makes the fixtures of a version: what its program writes, for later versions to read (README.md beside this file).

  make.py VERSION GDN_SERVER    from a program of that version, into the folder vVERSION, which must not exist

For example, once, when a version is released, with the environment that scripts/python_client.sh makes:

  build/cpu/venv-client/bin/python tests/compatibility/make.py 0.1.0 build/cpu/bin/gdn_server

Needs grpcio and protobuf for Python, protoc and redis-server. No test runs it: fixtures stay as they are for good.
"""

import json
import os
import shutil
import subprocess
import sys
import tempfile

import make_messages
from make_servers import Protocol, Server
from make_states import StateFiles
from make_stores import Stores

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
SHORT = 120  # characters of a line


def version_lines(program):
    return subprocess.run([program, "--version"], check=True, capture_output=True, text=True).stdout.splitlines()


def readable(value, margin=""):
    """JSON in which what is short is one line."""
    line = json.dumps(value)
    if not isinstance(value, (dict, list)) or len(margin + line) <= SHORT:
        return line
    deeper = margin + " "
    if isinstance(value, dict):
        parts = [f"{json.dumps(key)}: {readable(part, deeper)}" for key, part in value.items()]
        opening, closing = "{", "}"
    else:
        parts = [readable(part, deeper) for part in value]
        opening, closing = "[", "]"
    return f"{opening}\n" + ",\n".join(deeper + part for part in parts) + f"\n{margin}{closing}"


def record(version, program, folder):
    protocol = Protocol(os.path.join(ROOT, "proto"))
    golden = os.path.join(ROOT, "tests", "golden")
    with Server.running(program, protocol) as server:
        info = server.call("GetServerInfo", protocol.GetServerInfoRequest())
    manifest = {"version": version, "program": version_lines(program), "numerics_id": info.numerics_id}
    manifest["state_files"] = StateFiles(program, protocol, golden, os.path.join(folder, "states")).record()
    manifest["stores"] = Stores(program, protocol, golden, os.path.join(folder, "stores")).record()
    with open(os.path.join(folder, "manifest.json"), "w", encoding="utf-8") as file:
        file.write(readable(manifest) + "\n")
    with open(os.path.join(folder, "messages.json"), "w", encoding="utf-8") as file:
        file.write(readable(make_messages.record(protocol)) + "\n")
    with open(os.path.join(folder, "descriptors.binpb"), "wb") as file:
        file.write(protocol.descriptors)


def main(arguments):
    if len(arguments) != 2:
        print(__doc__.strip())
        return 2
    version, program = arguments[0], os.path.abspath(arguments[1])
    target = os.path.join(HERE, f"v{version}")
    if os.path.exists(target):
        print(f"make.py: {target} exists. Fixtures of a version are made once; a later version has its own", file=sys.stderr)
        return 1
    if version_lines(program)[0].split()[-1] != version:
        print(f"make.py: {program} is {version_lines(program)[0]}, not {version}", file=sys.stderr)
        return 1
    with tempfile.TemporaryDirectory() as folder:
        record(version, program, folder)
        shutil.copytree(folder, target)
    sizes = [os.path.getsize(os.path.join(path, name)) for path, _, names in os.walk(target) for name in names]
    print(f"{target}: {len(sizes)} files, {sum(sizes) / 1024:.0f} KiB")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
