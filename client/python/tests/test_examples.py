"""The programs of examples/hugging_face; the chat is with the other tests of Hugging Face models."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
from conftest import MODEL, REPOSITORY
from server import Server, running

import gdn_client

EXAMPLES = REPOSITORY / "examples" / "hugging_face"


@contextmanager
def slow_link(target: str, *flags: str) -> Iterator[str]:
    """Where the server is reached through the program."""
    command = [sys.executable, str(EXAMPLES / "slow_link.py"), "--to", target, *flags]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            yield process.stdout.readline().split()[-1]
        finally:
            process.stdin.close()
    assert process.returncode == 0


def test_a_slow_link_delays_and_changes_nothing(server: Server) -> None:
    delay_ms = 30
    with (
        slow_link(server.target, "--delay-ms", str(delay_ms), "--gbit", "1") as far,
        gdn_client.Client(server.target) as near_client,
        gdn_client.Client(far) as far_client,
        near_client.session() as near_session,
        far_client.session() as far_session,
    ):
        hidden = near_client.models()[0].dims.hidden_size
        x = np.random.default_rng(5).standard_normal((200, hidden)).astype(np.float32)
        want = near_session.prefill(near_session.layers[0], x)
        begin = time.monotonic()
        got = far_session.prefill(far_session.layers[0], x)
        taken = time.monotonic() - begin
    np.testing.assert_array_equal(got, want)
    assert taken >= 2 * delay_ms / 1e3  # there and back


def test_a_slow_link_passes_on_that_a_server_has_gone(tmp_path: Path) -> None:
    with (
        running(tmp_path) as server,
        slow_link(server.target) as far,
        gdn_client.Client(far, retry=gdn_client.Retry(overall=0)) as client,
    ):
        client.info()
        server.kill()
        with pytest.raises(gdn_client.UnavailableError):
            client.info()


@pytest.mark.parametrize("name", ["qwen3_next_5", "qwen3_5_5"])
def test_an_engine_in_two_halves_chooses_the_plain_engines_tokens(tmp_path: Path, name: str) -> None:
    pytest.importorskip("torch")
    pytest.importorskip("transformers", minversion="5.17")
    checkpoint = MODEL.parent / name
    with running(tmp_path, "--model", f"one={checkpoint}") as server:
        command = [sys.executable, "-B", str(EXAMPLES / "engine_overlap.py"), "--model", str(checkpoint)]
        command += ["--target", server.target, "--device", "cpu", "--batch", "4"]
        command += ["--delay-ms", "0", "1", "--rounds", "3"]
        ended = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert ended.returncode == 0, ended.stderr
    rows = [line.strip("| ").split(" | ") for line in ended.stdout.splitlines()[3:]]
    assert [(batch, delay, same) for batch, delay, *_, same in rows] == [("4", "0", "100%"), ("4", "1", "100%")]
