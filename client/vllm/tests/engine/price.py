"""Measures what a token costs with the layers in vLLM and on gdn_server, and how many sequences fit in vLLM's memory.

price.py PATH_OF_GDN_SERVER [ROUNDS]      in an environment with vLLM and the plugin; on a CPU

Each round has an engine of each kind, in a process of its own, which decodes 8 sequences of a random model. Prints the
median processor time a token, of the engine and of the server, and how many sequences of 512 tokens fit in vLLM's
memory at once. Local layers need bfloat16 and these head dimensions.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

MODELS: dict[str, dict[str, Any]] = {
    "3 GDN layers of 4, D = 64": {"linear_key_head_dim": 128, "linear_value_head_dim": 128},
    "6 GDN layers of 8, D = 1024": {
        "hidden_size": 1024,
        "intermediate_size": 2048,
        "num_hidden_layers": 8,
        "layer_types": (["linear_attention"] * 3 + ["full_attention"]) * 2,
        "num_attention_heads": 8,
        "head_dim": 128,
        "linear_num_key_heads": 4,
        "linear_num_value_heads": 8,
        "linear_key_head_dim": 128,
        "linear_value_head_dim": 128,
    },
}
TOKENS = 64


def used_by(process: int) -> float:
    """Returns the seconds of processor time that a process has used."""
    fields = Path(f"/proc/{process}/stat").read_text().rsplit(") ", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def worker(model: str, server: int) -> None:
    """Runs an engine, and prints its figures. `server`: the process of its server, or 0."""
    import tiny
    import vllm
    from vllm.v1.core.kv_cache_utils import get_max_concurrency_for_kv_cache_config

    llm = vllm.LLM(
        model,
        skip_tokenizer_init=True,
        dtype="bfloat16",
        enforce_eager=True,
        max_model_len=512,
        gpu_memory_utilization=0.2,
        enable_prefix_caching=False,
    )
    how = vllm.SamplingParams(temperature=0, max_tokens=TOKENS, ignore_eos=True, detokenize=False)
    prompts: Any = [{"prompt_token_ids": one} for one in tiny.prompts([16] * 8)]
    llm.generate(prompts, how, use_tqdm=False)  # warm
    engine, remote = time.process_time(), used_by(server) if server else 0.0
    llm.generate(prompts, how, use_tqdm=False)
    engine, remote = time.process_time() - engine, (used_by(server) if server else 0.0) - remote
    core = llm.llm_engine.engine_core.engine_core  # type: ignore[attr-defined]
    fit = get_max_concurrency_for_kv_cache_config(llm.llm_engine.vllm_config, core.scheduler.kv_cache_config)
    per_token = 1000 / (8 * TOKENS)
    print(json.dumps({"engine": engine * per_token, "server": remote * per_token, "sequences": fit}))


def run(model: Path, program: str | None) -> dict[str, float]:
    """Runs an engine, with a server if there is a program of one."""
    environment = {**os.environ, "VLLM_ENABLE_V1_MULTIPROCESSING": "0", "VLLM_CPU_KVCACHE_SPACE": "1"}
    environment.pop("GDN_SERVER", None)
    server, arguments = None, ["0"]
    with tempfile.TemporaryDirectory() as folder:
        try:
            if program is not None:
                port = Path(folder, "port")
                command = [program, f"--model=m={model}", "--listen=127.0.0.1:0", f"--port-file={port}"]
                server = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
                while not port.exists():
                    time.sleep(0.05)
                environment["GDN_SERVER"] = f"127.0.0.1:{port.read_text().strip()}"
                arguments = [str(server.pid)]
            found = subprocess.run(
                [sys.executable, __file__, "--worker", str(model), *arguments],
                env=environment,
                check=True,
                capture_output=True,
                text=True,
            )
        finally:
            if server is not None:
                server.kill()
                server.wait()
    figures: dict[str, float] = json.loads(found.stdout.splitlines()[-1])
    return figures


def main() -> None:
    import tiny
    import torch

    program, rounds = sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else 3
    for name, other in MODELS.items():
        with tempfile.TemporaryDirectory() as folder:
            model = tiny.make("qwen3_next", Path(folder), dtype=torch.bfloat16, **other)
            tries = [(run(model, None), run(model, program)) for _ in range(rounds)]
        local, remote = ([one[side] for one in tries] for side in range(2))

        def median(of: list[dict[str, float]], what: str) -> float:
            return statistics.median(one[what] for one in of)

        print(
            f"{name}: local {median(local, 'engine'):.2f} ms a token; remote {median(remote, 'engine'):.2f} (engine)"
            f" + {median(remote, 'server'):.2f} (server); sequences of 512 tokens: {median(local, 'sequences'):.0f}"
            f" local, {median(remote, 'sequences'):.0f} remote",
            flush=True,
        )


if __name__ == "__main__":
    if sys.argv[1] == "--worker":
        worker(sys.argv[2], int(sys.argv[3]))
    else:
        main()
