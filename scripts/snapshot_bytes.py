#!/usr/bin/env python3
"""Measures the bytes that snapshots take at one boundary of a batch of requests, by default 32 of Qwen3-Next's shape.

  snapshot_bytes.py [--requests N] [BUILD_DIR]     with BUILD_DIR/bin/gdn_server (default: build/cpu)

Each request has a session of 36 layers with 16 key heads, 32 value heads, K = V = 128. The server computes nothing (--backend=null), so
the machine needs no GPU and no time. The layers are bare delta rules: a model's state has the convolution's columns too. Run it with
BUILD_DIR/venv-client/bin/python.
"""

from __future__ import annotations

import argparse
import pathlib
import subprocess
import tempfile
import time

import numpy as np

import gdn_client
from gdn_client.proto.gdn.v1 import session_pb2

ROOT = pathlib.Path(__file__).resolve().parent.parent
LAYERS, KEY_HEADS, VALUE_HEADS, DIM = 36, 16, 32, 128
BLOCK = 32  # tokens between two boundaries
MIB = 1 << 20


def tokens(*lead: int) -> gdn_client.DeltaRule:
    """Returns inputs of that many tokens. Their values do not matter."""
    key, value = np.zeros((*lead, KEY_HEADS, DIM), np.float32), np.zeros((*lead, VALUE_HEADS, DIM), np.float32)
    gate = np.zeros((*lead, VALUE_HEADS), np.float32)
    return gdn_client.DeltaRule(key, key, value, gate, gate)


def measure(client: gdn_client.Client, requests: int) -> None:
    """Prints a line for each moment around two boundaries."""
    spec = session_pb2.OperatorSpec(
        key_heads=KEY_HEADS, value_heads=VALUE_HEADS, key_dim=DIM, value_dim=DIM, layer_count=LAYERS
    )
    batch = client.batch([client.session(operator=spec) for _ in range(requests)])
    for session in batch:
        for layer in range(LAYERS):
            session.prefill(layer, tokens(BLOCK))
    state = next(client.sessions()).state_bytes
    print(f"{requests} requests, {LAYERS} layers, {state / MIB:.1f} MiB a session, {requests * state / MIB:.0f} MiB in all")

    def tell(moment: str) -> None:
        used = client.info().state_bytes_used
        listed = client.snapshots().snapshots
        whole, shared = sum(one.state_bytes for one in listed), sum(one.shared_bytes for one in listed)
        print(f"{moment:44} {used / MIB:8.0f} {len(listed):6} {whole / MIB:8.0f} {shared / MIB:8.0f}")

    def decode(count: int) -> None:
        for _ in range(count):
            for layer in range(LAYERS):
                batch.decode(layer, tokens(requests, 1))

    def boundary(number: int) -> None:
        begun = time.perf_counter()
        taken = batch.snapshot([f"block{number}.{row}" for row in range(requests)])
        took = time.perf_counter() - begun
        errors = [one for one in taken if isinstance(one, gdn_client.GdnError)]
        if errors:
            raise errors[0]
        tell(f"snapshots of boundary {number} ({took * 1e3:.1f} ms)")

    print(f"{'MiB':44} {'device':>8} {'number':>6} {'whole':>8} {'shared':>8}")
    tell("after the prefill")
    boundary(1)
    decode(1)
    tell("1 token later")
    decode(16)
    tell("17 tokens later, after each layer's fold")
    decode(BLOCK - 17)
    boundary(2)
    client.delete_snapshots([f"block1.{row}" for row in range(requests)])
    tell("without those of boundary 1")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, default=32)
    parser.add_argument("build", nargs="?", default=str(ROOT / "build/cpu"))
    options = parser.parse_args()
    room = "18GiB"  # of the null backend's memory, which is committed only if it is written
    with tempfile.TemporaryDirectory() as folder:
        port = pathlib.Path(folder) / "port"
        command = [f"{options.build}/bin/gdn_server", "--backend=null", "--listen=127.0.0.1:0", f"--port-file={port}"]
        server = subprocess.Popen([*command, f"--device-state-bytes={room}", f"--snapshot-bytes={room}"], stderr=subprocess.DEVNULL)
        try:
            while not (port.exists() and port.read_text().strip()):
                if server.poll() is not None:
                    raise SystemExit("gdn_server does not start")
                time.sleep(0.05)
            with gdn_client.Client(f"127.0.0.1:{port.read_text().strip()}", keep_bytes=0) as client:
                measure(client, options.requests)
        finally:
            server.terminate()
            server.wait()


if __name__ == "__main__":
    main()
