"""vLLM's OpenAI server with the plugin, as a person starts it: a process of its own, asked over HTTP."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import tiny
from conftest import server_of

import gdn_client

pytestmark = pytest.mark.engine
GREEDY: dict[str, Any] = {"model": "tiny", "temperature": 0, "ignore_eos": True, "return_token_ids": True}


def ask(port: int, path: str, body: dict[str, Any]) -> Any:
    request = urllib.request.Request(
        f"http://127.0.0.1:{port}{path}", json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=300) as reply:
        return json.load(reply)


@contextlib.contextmanager
def openai_server(folder: Path, target: str, log: Path) -> Iterator[int]:
    """Runs vLLM's server, and yields its port."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "vllm.entrypoints.openai.api_server", f"--model={folder}", f"--port={port}"]
    command += ["--host=127.0.0.1", "--served-model-name=tiny", "--dtype=float32", "--enforce-eager"]
    command += ["--max-model-len=512", "--gpu-memory-utilization=0.2"]
    environment = {**os.environ, "GDN_SERVER": target, "VLLM_ENABLE_V1_MULTIPROCESSING": "1"}
    with log.open("w") as written:
        process = subprocess.Popen(command, env=environment, stdout=written, stderr=subprocess.STDOUT)
    try:
        for _ in range(600):
            with contextlib.suppress(OSError, urllib.error.URLError):
                urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=5).close()
                break
            assert process.poll() is None, log.read_text()[-3000:]
            time.sleep(0.5)
        yield port
    finally:
        process.terminate()
        try:
            process.wait(60)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def test_answers_equal_those_of_transformers(models: Callable[[str], Path], tmp_path: Path) -> None:
    folder = tiny.with_tokenizer(models("qwen3_5"))
    prompts = tiny.prompts([5, 9, 17, 3, 30, 12, 8, 21])
    with server_of(tmp_path, folder) as server:
        with openai_server(folder, server.target, tmp_path / "log") as port, ThreadPoolExecutor(8) as clients:
            asked = [{**GREEDY, "prompt": prompt, "max_tokens": 32} for prompt in prompts]
            replies = list(clients.map(lambda body: ask(port, "/v1/completions", body), asked))
            said = [{"role": "user", "content": "What is the state of a linear attention?"}]
            chat = ask(port, "/v1/chat/completions", {**GREEDY, "messages": said, "max_tokens": 16})
            with gdn_client.Client(server.target) as client:
                assert 'method="Step"' in client.metrics(), "the layers are not on the server"
        got = [reply["choices"][0]["token_ids"] for reply in replies]
        want = tiny.greedy(folder, prompts, 32)
        print(f"\nOpenAI server: {sum(a == b for a, b in zip(got, want, strict=True))} of 8 requests at once equal")
        assert got == want
        assert chat["choices"][0]["token_ids"] == tiny.greedy(folder, [chat["prompt_token_ids"]], 16)[0]
        with gdn_client.Client(server.target) as client:
            assert client.info().session_count == 0, "the engine has ended in order, and its sessions with it"
