#!/usr/bin/env python3
"""Measures what the Python client's steps cost beside a bare gRPC echo of the same bytes.

  step_price.py [--rows 1,8,32] [--rounds N] [BUILD_DIR]     with gdn_server and gdn_bench in BUILD_DIR/bin (default: build/cpu)

The server computes nothing (--backend=null). A row is one token of 2,048 float16 elements. `echo` is a call by bare grpcio of the request's
bytes to `gdn_bench echo_server`, which returns them; `call` is the same to gdn_server. The other lines are the client's, by messages and
with shared memory, which is a ring and a region. A line has the median microseconds of a call, those over the echo, and the caller's processor time over the echo's. The ways take turns. Run it on an idle
machine, with BUILD_DIR/venv-client/bin/python.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import pathlib
import statistics
import struct
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator

import grpc
import numpy as np

import gdn_client
from gdn_client.proto.gdn.v1 import step_pb2
from gdn_client.tensors import to_tensor

ROOT = pathlib.Path(__file__).resolve().parent.parent
SIZE = 2048
STEP, ECHO = "/gdn.v1.GdnService/Step", "/gdn.v1.GdnService/Decode"  # the raw echo has four methods; it parses nothing
CALLS = 20  # of each way in a round


def write_checkpoint(folder: pathlib.Path) -> None:
    """Writes a checkpoint of one small layer with this hidden size."""
    config = {"model_type": "qwen3_next", "hidden_size": SIZE, "num_hidden_layers": 1, "rms_norm_eps": 1e-6, "hidden_act": "silu"}
    config |= {"layer_types": ["linear_attention"], "linear_conv_kernel_dim": 4, "linear_num_key_heads": 2}
    config |= {"linear_num_value_heads": 4, "linear_key_head_dim": 32, "linear_value_head_dim": 32}
    shapes = {"A_log": (4,), "dt_bias": (4,), "norm.weight": (32,), "conv1d.weight": (256, 1, 4), "out_proj.weight": (SIZE, 128)}
    shapes |= {"in_proj_ba.weight": (8, SIZE), "in_proj_qkvz.weight": (384, SIZE)}
    header, data = {}, b""
    for name, shape in shapes.items():
        more = np.full(shape, 0.01, np.float32).tobytes()
        place = [len(data), len(data) + len(more)]
        header[f"model.layers.0.linear_attn.{name}"] = {"dtype": "F32", "shape": shape, "data_offsets": place}
        data += more
    head = json.dumps(header).encode()
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "model.safetensors").write_bytes(struct.pack("<Q", len(head)) + head + data)


@contextlib.contextmanager
def running(port_file: pathlib.Path, *command: str | pathlib.Path) -> Iterator[str]:
    """Runs a server that writes its port to a file, and yields its target."""
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        for _ in range(600):
            if port_file.exists() and port_file.read_text().strip():
                break
            if process.poll() is not None:
                raise SystemExit(f"{command[0]} ended with {process.returncode}")
            time.sleep(0.05)
        yield f"127.0.0.1:{int(port_file.read_text())}"
    finally:
        process.kill()
        process.wait()


def message(sessions: list[gdn_client.Session], x: np.ndarray) -> bytes:
    """Returns the bytes of a step of one token a row."""
    request = step_pb2.StepRequest(request_id="0" * 32)
    for session in sessions:
        request.rows.add(session=session.name, token_count=1, kind=step_pb2.STEP_KIND_DECODE)
    request.hidden_states.hidden_states.CopyFrom(to_tensor(x))
    request.ClearField("request_id")  # so that no call is a retry of another
    return request.SerializeToString()


def ways(
    client: gdn_client.Client, sharing: gdn_client.Client, echo: grpc.Channel, bare: grpc.Channel, rows: int
) -> dict[str, Callable[[], object]]:
    """Returns the ways of making a step of so many rows."""
    others, own = ([client.session("price") for _ in range(rows)] for _ in range(2))
    batch, x = client.batch(own), np.zeros((rows, SIZE), np.float16)
    shared = sharing.batch([sharing.session("price") for _ in range(rows)])
    wire = message(others, x)
    lengths, single = [gdn_client.StepRow(1)] * rows, [gdn_client.StepRow(x[row : row + 1]) for row in range(rows)]
    echoed, called = echo.unary_unary(ECHO), bare.unary_unary(STEP)
    return {
        "echo": lambda: echoed(wire),
        "call": lambda: called(wire),
        "Batch.step, packed": lambda: batch.step(0, lengths, x=x).output,
        "Batch.step": lambda: batch.step(0, single).output,
        "Batch.decode": lambda: batch.decode(0, x),
        "Batch.step, shared": lambda: shared.step(0, single).output,
        "Batch.step, packed, shared": lambda: shared.step(0, lengths, x=x).output,
    }


def measure(tried: dict[str, Callable[[], object]], rounds: int) -> dict[str, list[tuple[float, float]]]:
    """Returns each way's median microseconds, of the clock and of this thread's processor, for each round."""
    found: dict[str, list[tuple[float, float]]] = {name: [] for name in tried}
    for number in range(rounds + 1):
        for name, call in tried.items():
            wall, own = [], []
            for _ in range(CALLS):
                begun, used = time.perf_counter(), time.thread_time()
                call()
                wall.append(time.perf_counter() - begun)
                own.append(time.thread_time() - used)
            if number > 0:  # the first round is for warming up
                found[name].append((statistics.median(wall) * 1e6, statistics.median(own) * 1e6))
    return found


def report(rows: int, found: dict[str, list[tuple[float, float]]]) -> None:
    """Prints a line for each way."""
    for name, times in found.items():
        over = [[mine[at] - its[at] for mine, its in zip(times, found["echo"], strict=True)] for at in range(2)]
        wall = statistics.median(one[0] for one in times)
        print(f"{rows:5} {name:26} {wall:9.0f} {statistics.median(over[0]):9.0f} {statistics.median(over[1]):11.0f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", default="1,8,32")
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("build", nargs="?", type=pathlib.Path, default=ROOT / "build" / "cpu")
    options = parser.parse_args()
    binaries = options.build / "bin"
    with tempfile.TemporaryDirectory() as name, contextlib.ExitStack() as stack:
        folder = pathlib.Path(name)
        write_checkpoint(folder)
        port, echo_port = folder / "port", folder / "echo"
        listen, model = ("--listen=127.0.0.1:0", f"--port-file={port}"), f"--model=price={folder}"
        target = stack.enter_context(running(port, binaries / "gdn_server", "--backend=null", model, *listen))
        raw = folder / "echo.raw"
        echo_command = (binaries / "gdn_bench", "echo_server", "--listen=127.0.0.1:0", f"--port_file={echo_port}")
        echo_target = stack.enter_context(running(raw, *echo_command))
        client = stack.enter_context(gdn_client.Client(target))
        sharing = stack.enter_context(gdn_client.Client(target, shared_memory="auto"))
        echo, bare = (stack.enter_context(grpc.insecure_channel(one)) for one in (echo_target, target))
        print(f"{'rows':>5} {'way':26} {'us':>9} {'over echo':>9} {'own, over':>11}")
        for rows in map(int, options.rows.split(",")):
            report(rows, measure(ways(client, sharing, echo, bare, rows), options.rounds))


if __name__ == "__main__":
    main()
