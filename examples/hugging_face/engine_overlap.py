#!/usr/bin/env python3
"""How an inference engine hides the network: one of two half-batches is always at the server.

    engine_overlap.py --model DIR --target 127.0.0.1:50061 --batch 32 --delay-ms 0 0.2 1

The engine runs the embeddings, attention and MLPs of a Hugging Face checkpoint itself. The server runs the Gated
DeltaNet layers. `decode_one` is the engine's inner loop, a generator that yields when it waits for the server. One such
generator is the plain engine. Two of them, each with half of the batch, run in turn: one computes while the other's
layer is at the server.

For each delay (a slow_link.py between engine and server) it prints milliseconds for one token of all sequences:

  local        time of the engine's own part, for the whole batch and for two halves
  away         time of the remote layers, for the whole batch and for a half
  plain        measured, and predicted: local + away
  two halves   measured, and predicted: max(local of both halves, local of one + away of one)

It also prints how many of the first tokens are the same. Times are medians of --rounds.
Needs `pip install './client/python[torch]'`.
"""

from __future__ import annotations

import argparse
import contextlib
import statistics
import subprocess
import sys
import time
from collections.abc import Generator, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch
import transformers

import gdn_client

PROMPT_TOKENS = 16


@dataclass
class Rows:
    """Some sequences of the batch: their sessions, the attention layers' cache, and their next tokens."""

    sessions: gdn_client.Batch
    cache: transformers.Cache
    tokens: torch.Tensor  # [B, 1]
    position: int = 0


class Engine:
    """The local part of a model."""

    def __init__(self, checkpoint: str, device: str) -> None:
        whole = transformers.AutoModelForCausalLM.from_pretrained(checkpoint, dtype="auto").eval().to(device)
        self.config, self.model, self.head = whole.config, whole.model, whole.lm_head
        self.device = device
        self.remote = [i for i, kind in enumerate(self.config.layer_types) if kind == "linear_attention"]
        for index in self.remote:
            self.model.layers[index].linear_attn = None  # on the server

    def begin(self, client: gdn_client.Client, prompts: torch.Tensor) -> Rows:
        """Makes sessions for prompts `[B, T]`, and computes their first new token."""
        sessions = client.batch([client.session() for _ in range(len(prompts))])
        rows = Rows(sessions, transformers.DynamicCache(config=self.config), prompts.to(self.device))
        run_alone(self.decode_one(rows))
        return rows

    def end(self, rows: Rows) -> None:
        rows.sessions.delete()

    @torch.no_grad()
    def decode_one(self, rows: Rows, away: bool = True) -> Generator[None, None, None]:
        """Takes `rows.tokens`, `[B, T]`, and chooses the next ones. Yields whenever a layer was sent to the server.

        With `away=False` it skips the remote layers, to time the local part.
        """
        x = self.model.embed_tokens(rows.tokens)
        batch, tokens = rows.tokens.shape
        positions = torch.arange(rows.position, rows.position + tokens, device=self.device)[None]
        if self.config.model_type.startswith("qwen3_5"):
            positions = positions.expand(3, 1, tokens)  # positions of time, height and width, which are equal for text
        rotary = self.model.rotary_emb(x, positions)
        causal = None
        if tokens > 1:
            causal = torch.full((tokens, tokens), torch.finfo(x.dtype).min, dtype=x.dtype, device=self.device)
            causal = causal.triu(1).expand(batch, 1, tokens, tokens)
        for index, layer in enumerate(self.model.layers):
            normed = layer.input_layernorm(x)
            if index not in self.remote:
                mixed, _ = layer.self_attn(normed, rotary, causal, rows.cache)
            elif not away:
                mixed = normed
            elif tokens > 1:
                mixed = torch.stack([session.prefill(index, normed[i]) for i, session in enumerate(rows.sessions)])
            else:
                future = rows.sessions.decode_future(index, normed[:, 0])
                yield
                mixed = future.result()[:, None]
            x = x + mixed
            x = x + layer.mlp(layer.post_attention_layernorm(x))
        rows.tokens = self.head(self.model.norm(x[:, -1:])).argmax(-1)
        rows.position += tokens
        if x.device.type == "cuda":
            torch.cuda.synchronize()

    def local_layers(self, rows: Rows) -> None:
        """Runs the local part for one token."""
        run_alone(self.decode_one(rows, away=False))

    def remote_layers(self, rows: Rows, x: torch.Tensor) -> None:
        """Runs the remote layers for one token, with hidden states `[B, D]`."""
        for index in self.remote:
            rows.sessions.decode(index, x)


def run_alone(steps: Generator[None, None, None]) -> None:
    """Runs the plain engine, which waits for each layer."""
    for _ in steps:
        pass


def run_in_turn(*all_steps: Generator[None, None, None]) -> None:
    """Runs several engines in turn. Each continues while the others' layers are at the server."""
    waiting = list(all_steps)
    while waiting:
        for steps in list(waiting):
            if next(steps, True) is True:
                waiting.remove(steps)


def milliseconds(rounds: int, once) -> float:
    """Returns the median time of some rounds. A first round is not counted."""
    taken = []
    for _ in range(rounds + 1):
        begin = time.perf_counter()
        once()
        taken.append(1e3 * (time.perf_counter() - begin))
    return statistics.median(taken[1:])


@contextlib.contextmanager
def link(target: str, delay_ms: float, gbit: float) -> Iterator[str]:
    """Puts a network between engine and server. Yields the address to connect to."""
    if delay_ms <= 0 and gbit <= 0:
        yield target
        return
    command = [sys.executable, str(Path(__file__).parent / "slow_link.py"), "--to", target]
    command += ["--delay-ms", str(delay_ms), "--gbit", str(gbit)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        yield process.stdout.readline().split()[-1]
        process.stdin.close()


def measure(engine: Engine, target: str, prompts: torch.Tensor, rounds: int) -> dict[str, float]:
    """Measures the times of one token of all sequences, in milliseconds."""
    half = len(prompts) // 2
    with gdn_client.Client(target) as client:
        parts = {name: engine.begin(client, prompts[span]) for name, span in
                 {"whole": slice(None), "first": slice(half), "second": slice(half, None)}.items()}  # fmt: skip
        chosen: dict[str, list[torch.Tensor]] = {"plain": [], "halves": []}

        def plain() -> None:
            run_alone(engine.decode_one(parts["whole"]))
            chosen["plain"].append(parts["whole"].tokens)

        def halves() -> None:
            run_in_turn(*(engine.decode_one(parts[name]) for name in ("first", "second")))
            chosen["halves"].append(torch.cat([parts[name].tokens for name in ("first", "second")]))

        found = {"plain": milliseconds(rounds, plain), "halves": milliseconds(rounds, halves)}
        # In bfloat16, a local product of half the rows may round differently. Then a near tie may be decided
        # differently.
        found["equal"] = float((chosen["plain"][0] == chosen["halves"][0]).float().mean())
        x = torch.randn(len(prompts), engine.config.hidden_size, dtype=engine.head.weight.dtype, device=engine.device)
        for name, size in (("whole", len(prompts)), ("first", half)):
            found[f"away {name}"] = milliseconds(rounds, partial(engine.remote_layers, parts[name], x[:size]))
            found[f"local {name}"] = milliseconds(rounds, partial(engine.local_layers, parts[name]))
        for rows in parts.values():
            engine.end(rows)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True, help="folder of the checkpoint that the server has, too")
    parser.add_argument("--target", required=True, metavar="HOST:PORT")
    parser.add_argument("--batch", type=int, nargs="+", default=[32], help="sequences")
    parser.add_argument("--delay-ms", type=float, nargs="+", default=[0.0], help="added each way")
    parser.add_argument("--gbit", type=float, default=0.0, help="bandwidth each way, 0: as it is")
    parser.add_argument("--rounds", type=int, default=21, help="tokens that are timed")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--threads", type=int, default=0, help="of the local part on a CPU; 0: torch's own number")
    options = parser.parse_args()
    if options.threads > 0:
        torch.set_num_threads(options.threads)
    engine = Engine(options.model, options.device)
    print(f"{len(engine.remote)} of {len(engine.model.layers)} layers away, hidden size {engine.config.hidden_size}, "
          f"{engine.head.weight.dtype}, local part on {options.device}")  # fmt: skip
    columns = ["batch", "delay each way, ms", "local", "away", "plain", "predicted"]
    columns += ["two halves", "predicted", "gain", "same tokens"]
    print(f"| {' | '.join(columns)} |")
    print("|" + "---|" * len(columns))
    generator = torch.Generator().manual_seed(0)
    for batch in options.batch:
        prompts = torch.randint(1, engine.config.vocab_size, (batch, PROMPT_TOKENS), generator=generator)
        for delay in options.delay_ms:
            with link(options.target, delay, options.gbit) as target:
                ms = measure(engine, target, prompts, options.rounds)
            plain = ms["local whole"] + ms["away whole"]
            halves = max(2 * ms["local first"], ms["local first"] + ms["away first"])
            row = [f"{batch}", f"{delay:g}"]
            row += [f"{ms['local whole']:.2f}, 2 x {ms['local first']:.2f}"]
            row += [f"{ms['away whole']:.2f}, {ms['away first']:.2f}", f"{ms['plain']:.2f}", f"{plain:.2f}"]
            row += [f"{ms['halves']:.2f}", f"{halves:.2f}", f"{ms['plain'] / ms['halves']:.2f} x", f"{ms['equal']:.0%}"]
            print(f"| {' | '.join(row)} |", flush=True)


if __name__ == "__main__":
    main()
