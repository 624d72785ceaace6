"""A gdn_server for tests: started on a free port, killed, started again."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

START_SECONDS = 60


class Server:
    def __init__(self, folder: Path, *flags: str) -> None:
        self._folder = folder
        self._flags = (*flags, "--disk-high-watermark=100")  # however full this disk is
        self._process: subprocess.Popen[bytes] | None = None
        self.port = 0
        self.start()

    @property
    def target(self) -> str:
        return f"127.0.0.1:{self.port}"

    def start(self) -> None:
        program = os.environ["GDN_SERVER"]
        port_file = self._folder / "port"
        for _ in range(5):
            port_file.unlink(missing_ok=True)
            # The same port again, so that a client finds it where it was.
            listen = f"127.0.0.1:{self.port}"
            log = (self._folder / "server.log").open("ab")
            self._process = subprocess.Popen(
                [program, "--listen", listen, "--port-file", str(port_file), *self._flags], stdout=log, stderr=log
            )
            until = time.monotonic() + START_SECONDS
            while self._process.poll() is None and time.monotonic() < until:
                if port_file.exists() and port_file.read_text().strip():
                    self.port = int(port_file.read_text())
                    return
                time.sleep(0.02)
            self.kill()
        raise AssertionError((self._folder / "server.log").read_text()[-4000:])

    def kill(self) -> None:
        """As a crash does."""
        self._end(signal.SIGKILL)

    def stop(self) -> None:
        self._end(signal.SIGTERM)

    def _end(self, how: int) -> None:
        if self._process is not None and self._process.poll() is None:
            self._process.send_signal(how)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(30)
            if self._process.poll() is None:
                self._process.kill()
                self._process.wait()


@contextlib.contextmanager
def running(folder: Path, *flags: str) -> Iterator[Server]:
    server = Server(folder, *flags)
    try:
        yield server
    finally:
        server.kill()
