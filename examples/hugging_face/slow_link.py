#!/usr/bin/env python3
"""A slow network between two programs on one machine.

It passes TCP on, with a delay and a bandwidth for each direction.

    slow_link.py --to 127.0.0.1:50061 --listen 127.0.0.1:50062 --delay-ms 0.5 --gbit 10

Bytes leave `--delay-ms` after they arrive, in order. Each direction of each connection carries at most `--gbit` * 1e9
bits per second. The program prints its address, and ends when its standard input ends.
"""

from __future__ import annotations

import argparse
import contextlib
import queue
import socket
import sys
import threading
import time
from typing import TypeAlias

CHUNK = 1 << 18
Pieces: TypeAlias = "queue.SimpleQueue[tuple[float, bytes]]"  # the time when each must leave, and its bytes


def read(source: socket.socket, due: Pieces, delay: float, bytes_a_second: float) -> None:
    """Schedules when each piece must leave. An empty piece is the last one."""
    free_at = 0.0  # time at which the wire has sent everything so far
    data = b"-"
    while data:
        try:
            data = source.recv(CHUNK)
        except OSError:
            data = b""
        free_at = max(free_at, time.monotonic()) + len(data) / bytes_a_second
        due.put((free_at + delay, data))


def write(sink: socket.socket, due: Pieces) -> None:
    """Sends each piece at its time."""
    with contextlib.suppress(OSError):
        while True:
            when, data = due.get()
            if (wait := when - time.monotonic()) > 0:
                time.sleep(wait)
            if not data:
                sink.shutdown(socket.SHUT_WR)
                return
            sink.sendall(data)


def carry(near: socket.socket, far: socket.socket, delay: float, bytes_a_second: float) -> None:
    """Carries both directions of a connection, until both have ended."""
    threads = []
    for source, sink in ((near, far), (far, near)):
        source.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        due: Pieces = queue.SimpleQueue()
        threads.append(threading.Thread(target=read, args=(source, due, delay, bytes_a_second), daemon=True))
        threads.append(threading.Thread(target=write, args=(sink, due), daemon=True))
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    near.close()
    far.close()


def serve(listener: socket.socket, to: tuple[str, int], delay: float, bytes_a_second: float) -> None:
    """Accepts connections until the program ends."""
    while True:
        near, _ = listener.accept()
        far = socket.create_connection(to)
        threading.Thread(target=carry, args=(near, far, delay, bytes_a_second), daemon=True).start()


def address(text: str) -> tuple[str, int]:
    """Parses "HOST:PORT"."""
    host, _, port = text.rpartition(":")
    return host, int(port)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--to", type=address, required=True, metavar="HOST:PORT", help="who is to be reached")
    parser.add_argument("--listen", type=address, default=("127.0.0.1", 0), metavar="HOST:PORT", help="0: a free port")
    parser.add_argument("--delay-ms", type=float, default=0.0, help="each way")
    parser.add_argument("--gbit", type=float, default=0.0, help="bandwidth each way, 0: as it is")
    options = parser.parse_args()
    bytes_a_second = options.gbit * 1e9 / 8 if options.gbit > 0 else float("inf")
    listener = socket.create_server(options.listen)
    serving = threading.Thread(
        target=serve, args=(listener, options.to, options.delay_ms / 1e3, bytes_a_second), daemon=True
    )
    serving.start()
    print("listening on {}:{}".format(*listener.getsockname()[:2]), flush=True)
    sys.stdin.read()


if __name__ == "__main__":
    main()
