"""Random histories of calls against a gdn_server that is killed and started again, behind a proxy that cuts calls off.

    GDN_SERVER=build/cpu/bin/gdn_server python tests/soak.py --runs 20 --calls 200

Each run is of one seed, which it prints. Its forms alternate: threads and asyncio, with and without checkpoints by
the server. Every output is compared with that of a server that nothing happens to. Now and then the killed server's
folder is set back to a copy of before.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import random
import shutil
import socket
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from histories import AioClient, History
from server import Server, running

import gdn_client
from gdn_client import aio

MODEL = Path(__file__).resolve().parents[3] / "tests" / "golden" / "qwen3_next_5"
GIVEN_UP_AFTER = 0.3


class Proxy:
    """Passes bytes on to a server; `cut` ends every connection at one of the next pieces that come back."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.target = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self._open: set[socket.socket] = set()
        self._lock = threading.Lock()
        self._left = -1
        self.cuts = 0
        threading.Thread(target=self._accept, daemon=True).start()

    def cut(self, after: int) -> None:
        with self._lock:
            self._left = after

    def close(self) -> None:
        self._listener.close()
        self._end_all()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                here, _ = self._listener.accept()
                try:
                    there = socket.create_connection(("127.0.0.1", self._server.port))
                except OSError:
                    here.close()
                    continue
                with self._lock:
                    self._open |= {here, there}
                for source, sink, back in ((here, there, False), (there, here, True)):
                    threading.Thread(target=self._pass_on, args=(source, sink, back), daemon=True).start()

    def _pass_on(self, source: socket.socket, sink: socket.socket, back: bool) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(1 << 16):
                if back and self._is_cut():
                    self._end_all()
                    break
                sink.sendall(data)
        for one in (source, sink):
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
        with self._lock:
            self._open -= {source, sink}

    def _is_cut(self) -> bool:
        with self._lock:
            self._left -= self._left >= 0
            self.cuts += self._left == 0
            return self._left == 0

    def _end_all(self) -> None:
        with self._lock:
            ended, self._open = self._open, set()
        for one in ended:
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)


class Trouble:
    """Kills the server, cuts its connections and sets its folder back, call by call."""

    def __init__(self, server: Server, proxy: Proxy, states: Path, seed: int, kill_share: float) -> None:
        self._server, self._proxy, self._states = server, proxy, states
        self._random = random.Random(seed)
        self._kill_share = kill_share
        self._killer: threading.Thread | None = None
        self._saved = -1  # resets before the copy, because a store that is set back has the tokens of before a reset
        self.history: History | None = None
        self.kills = self.set_backs = 0

    def __call__(self, may_come: bool) -> None:
        self.end()
        if not may_come:
            return
        what = self._random.random()
        if what < self._kill_share / 2:
            self._kill()  # the call is the first one afterwards
        elif what < self._kill_share:
            self._killer = threading.Thread(target=self._kill, args=(self._random.random() * 0.02,))
            self._killer.start()
        elif what < self._kill_share + 0.2:
            self._proxy.cut(self._random.randint(1, 4))

    def end(self) -> None:
        self._proxy.cut(-1)
        if self._killer is not None:
            self._killer.join()
            self._killer = None

    def _kill(self, after: float = 0.0) -> None:
        time.sleep(after)
        self._server.kill()
        self.kills += 1
        copy = self._states.with_name("copy")
        assert self.history is not None
        if self._saved == self.history.resets and self._random.random() < 0.1:
            shutil.rmtree(self._states)
            shutil.copytree(copy, self._states)
            self.set_backs += 1
            for pair in self.history.pairs:
                pair.named, pair.is_durable = [], False
        elif self._random.random() < 0.3:
            shutil.rmtree(copy, ignore_errors=True)
            shutil.copytree(self._states, copy)
            self._saved = self.history.resets
        self._server.start()


@contextlib.contextmanager
def patient_imports(client: gdn_client.Client | AioClient) -> Iterator[None]:
    """An import is not repeated by the client."""
    plain = client.import_state

    def again(*given: object, **named: object) -> object:
        for _ in range(50):
            with contextlib.suppress(gdn_client.UnavailableError):
                return plain(*given, **named)  # type: ignore[arg-type]
            time.sleep(0.1)
        return plain(*given, **named)  # type: ignore[arg-type]

    client.import_state = again  # type: ignore[method-assign, assignment]
    yield


def run(seed: int, calls: int, kill_share: float) -> collections.Counter[str]:
    """One history; what happened, counted."""
    asyncio, policy = seed % 2 == 1, seed % 4 >= 2
    with tempfile.TemporaryDirectory() as folder:
        states, calm_folder = Path(folder) / "states", Path(folder) / "calm"
        calm_folder.mkdir()
        flags = ["--model", f"next={MODEL}", "--disk-dir", str(states)]
        if policy:
            flags.append("--checkpoint-every-tokens=8")
        with (
            running(Path(folder), *flags) as server,
            running(calm_folder, "--model", f"next={MODEL}", "--disk-dir", str(calm_folder / "states")) as calm_server,
            gdn_client.Client(calm_server.target) as calm,
        ):
            proxy = Proxy(server)
            trouble = Trouble(server, proxy, states, seed, kill_share)
            mine: gdn_client.Client | AioClient = gdn_client.Client(proxy.target)
            if asyncio:
                mine.close()
                mine = AioClient(lambda: aio.Client(proxy.target), np.random.default_rng(seed))
            layers = list(calm.models()[0].gdn_layers)
            history = History(
                *(mine, calm, seed, trouble),
                newest=not policy,
                size=calm.models()[0].dims.hidden_size,
                layers=layers,
                model="next",
                given_up_after=GIVEN_UP_AFTER,
            )
            trouble.history = history
            try:
                with patient_imports(mine):
                    history.run(calls)
            finally:
                trouble.end()
                mine.close()
                proxy.close()
            history.told.update(outputs=history.outputs, kills=trouble.kills, cuts=proxy.cuts)
            history.told["set back"] = trouble.set_backs
            return history.told


def main() -> None:
    """Runs them, and prints what happened."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=20)
    parser.add_argument("--calls", type=int, default=200, help="of a run")
    parser.add_argument("--seed", type=int, default=0, help="of the first run")
    parser.add_argument("--kills", type=float, default=0.1, help="share of calls that a kill comes before, or into")
    options = parser.parse_args()
    whole: collections.Counter[str] = collections.Counter()
    for seed in range(options.seed, options.seed + options.runs):
        begin = time.monotonic()
        told = run(seed, options.calls, options.kills)
        whole.update(told)
        print(f"seed {seed}: {dict(sorted(told.items()))}, {time.monotonic() - begin:.0f} s", flush=True)
    print(f"python soak: every output was right: {dict(sorted(whole.items()))}")


if __name__ == "__main__":
    main()
