#!/usr/bin/env python3
"""Fails where gdn_server ends, or writes, otherwise than it should because of how it was started or left alone.

  check_process_ends.py GDN_SERVER

Each server has a disk; an orderly end leaves a note there, which a server that is killed by a signal does not.
"""

import os
import signal
import subprocess
import sys
import tempfile
import time

PATIENCE = 120  # seconds; a deadline, not a measurement


class Server:
    def __init__(self, program, folder, *, closed=(), stderr=subprocess.DEVNULL):
        self.states = os.path.join(folder, "states")
        self.port_file = os.path.join(folder, "port")

        def close():
            for fd in closed:
                os.close(fd)

        self.process = subprocess.Popen(  # pylint: disable=consider-using-with,subprocess-popen-preexec-fn
            [program, "--listen=127.0.0.1:0", f"--port-file={self.port_file}", "--backend=cpu", "--shared-memory-dir=",
             f"--disk-dir={self.states}"],
            stdout=subprocess.DEVNULL, stderr=stderr, preexec_fn=close)
        deadline = time.monotonic() + PATIENCE
        while not os.path.exists(self.port_file):
            assert self.process.poll() is None, f"it ended with {self.process.returncode} before it listened"
            assert time.monotonic() < deadline, "it does not listen"
            time.sleep(0.01)

    def ends_in_order(self, number):
        self.process.send_signal(number)
        code = self.process.wait(timeout=PATIENCE)
        assert code == 0, f"ended with {code}"
        assert os.path.exists(os.path.join(self.states, "clean")), "it was not drained"


def end(program, number, **how):
    with tempfile.TemporaryDirectory() as folder:
        server = Server(program, folder, **how)
        try:
            server.ends_in_order(number)
            for path, _, names in os.walk(server.states):
                for name in names:
                    with open(os.path.join(path, name), "rb") as file:
                        assert b"listening" not in file.read(), f"its greeting is in {name}"
        finally:
            server.process.kill()


def without_a_reader(program):
    """What it says at its end goes to a pipe that nobody reads any more."""
    reader, writer = os.pipe()
    with tempfile.TemporaryDirectory() as folder:
        server = Server(program, folder, stderr=writer)
        os.close(writer)
        os.close(reader)
        try:
            server.ends_in_order(signal.SIGTERM)
        finally:
            server.process.kill()


CHECKS = {
    "SIGHUP without --config": lambda program: end(program, signal.SIGHUP),
    "SIGINT": lambda program: end(program, signal.SIGINT),
    "stdin, stdout and stderr closed": lambda program: end(program, signal.SIGTERM, closed=(0, 1, 2)),
    "stdout closed": lambda program: end(program, signal.SIGTERM, closed=(1,)),
    "nobody reads stderr": without_a_reader,
}


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    failed = []
    for name, check in CHECKS.items():
        try:
            check(sys.argv[1])
            print(f"{name}: ok")
        except AssertionError as error:
            failed.append(name)
            print(f"{name}: {error}")
    sys.exit(1 if failed else 0)
