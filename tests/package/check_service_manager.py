#!/usr/bin/env python3
"""Fails where gdn_server does not tell who started it, as systemd's Type=notify expects, that it is ready and that it stops.

  check_service_manager.py GDN_SERVER

A server is started with a socket of each kind in $NOTIFY_SOCKET: READY=1 must come, at a moment when the server takes
connections, and STOPPING=1 after SIGTERM. Without the variable, and with one that nobody listens at, it serves all the same.
"""

import os
import signal
import socket
import subprocess
import sys
import tempfile

PATIENCE = 120  # seconds; a deadline, not a measurement


class Server:
    def __init__(self, program, folder, notify):
        self.port_file = os.path.join(folder, "port")
        environment = {name: value for name, value in os.environ.items() if name != "NOTIFY_SOCKET"}
        if notify is not None:
            environment["NOTIFY_SOCKET"] = notify
        self.process = subprocess.Popen(  # pylint: disable=consider-using-with
            [program, "--listen=127.0.0.1:0", f"--port-file={self.port_file}", "--backend=cpu", "--shared-memory-dir="],
            env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    def connect(self):
        with open(self.port_file, encoding="utf-8") as file:
            socket.create_connection(("127.0.0.1", int(file.read())), timeout=PATIENCE).close()

    def end(self):
        self.process.send_signal(signal.SIGTERM)
        _, log = self.process.communicate(timeout=PATIENCE)
        assert self.process.returncode == 0, log
        return log


def notified(program, name):
    with tempfile.TemporaryDirectory() as folder, socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        path = name if name.startswith("@") else os.path.join(folder, name)
        manager.bind(path.replace("@", "\0", 1))
        manager.settimeout(PATIENCE)
        server = Server(program, folder, path)
        try:
            assert manager.recv(4096) == b"READY=1"
            server.connect()
            log = server.end()
            assert manager.recv(4096) == b"STOPPING=1"
            assert "service manager" not in log, log
        finally:
            server.process.kill()


def not_notified(program, notify, words):
    with tempfile.TemporaryDirectory() as folder:
        server = Server(program, folder, notify)
        try:
            assert "listening" in server.process.stdout.readline()
            log = server.end()
            assert ("service manager" in log) == bool(words) and (words or "") in log, log
        finally:
            server.process.kill()


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    notified(sys.argv[1], "notify")
    notified(sys.argv[1], f"@gdn-check-service-manager-{os.getpid()}")
    not_notified(sys.argv[1], None, None)
    not_notified(sys.argv[1], "/nowhere/notify", "READY=1 by NOTIFY_SOCKET=/nowhere/notify")
    not_notified(sys.argv[1], "/" + "long" * 50, "File name too long")
    print("service manager: ok")
