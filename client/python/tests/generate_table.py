"""Prints docs/tutorials/hugging-face.md's table: what models generate with remote layers, beside their own.

GDN_SERVER=PROGRAM [GDN_TORCH_DEVICE=cuda] python tests/generate_table.py
"""

from __future__ import annotations

import tempfile
import time
from pathlib import Path

import torch
from server import running
from test_torch_layers import CHECKPOINTS, DEVICE, GOLDEN, Pair, load

import gdn_client.torch as gdn_torch

WAYS = {
    "greedy, 3 prompts of 7, 13 and 21 tokens": {},
    "2 beams, the same prompts": {"num_beams": 2},
    "sampled, 2 of each": {"do_sample": True, "num_return_sequences": 2},
    "static cache": {"cache_implementation": "static"},
}


def timed(pair: Pair, model: torch.nn.Module, inputs: dict[str, torch.Tensor], **options) -> tuple[torch.Tensor, float]:
    begin = time.perf_counter()
    tokens = pair.generate(model, inputs, **options)
    return tokens, time.perf_counter() - begin


def row(pair: Pair, way: str, got: torch.Tensor, want: torch.Tensor, seconds: tuple[float, float]) -> None:
    length = max(got.shape[1], want.shape[1])
    padded = [torch.nn.functional.pad(tokens, (0, length - tokens.shape[1]), value=-1) for tokens in (got, want)]
    equal = int((padded[0] == padded[1]).sum())
    print(
        f"| {pair.name} | {way} | {equal} of {length * len(got)} | {seconds[0]:.2f} s | {seconds[1]:.2f} s |",
        flush=True,
    )


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        flags = [flag for name in CHECKPOINTS for flag in ("--model", f"{name}={GOLDEN / name}")]
        with running(Path(folder), *flags) as server:
            print("| checkpoint | generate() | tokens equal | local layers | remote layers |")
            print("|---|---|---|---|---|")
            for name in CHECKPOINTS:
                pair = Pair(name, server.target)
                info = pair.attachment.host.client.info()
                for way, options in WAYS.items():
                    for model in (pair.local, pair.remote):  # warm
                        pair.generate(model, pair.inputs(), **options)
                    want, local = timed(pair, pair.local, pair.inputs(), **options)
                    got, remote = timed(pair, pair.remote, pair.inputs(), **options)
                    row(pair, way, got, want, (local, remote))
                want, local = timed(pair, pair.local, pair.one())
                assistant = load(name)
                generator = torch.Generator(DEVICE).manual_seed(3)
                with torch.no_grad():
                    for parameter in assistant.model.layers[-1].parameters():
                        parameter.add_(torch.randn(parameter.shape, generator=generator) * 0.02)
                with gdn_torch.attach(assistant, server.target, remote_model=name):
                    got, remote = timed(pair, pair.remote, pair.one(), assistant_model=assistant)
                row(pair, "assisted by a model that is often wrong, 1 prompt", got, want, (local, remote))
                pair.attachment.close()
    print(f"\nserver: {info.version}, {info.numerics_id}; torch {torch.__version__} on {DEVICE}")


if __name__ == "__main__":
    main()
