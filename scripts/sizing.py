#!/usr/bin/env python3
"""Writes docs/how-to/sizing.md: memory, checkpoints, network and speed of the published models, computed from the sources.

  sizing.py --write              writes the page
  sizing.py --check              exits with 1 if the page does not agree with the sources
  sizing.py --libgdn LIBRARY     exits with 1 if libgdn reports other bytes for a session

Bytes come from kernels/common/state_layout.h and .cc, times from docs/evidence/mi50-model.md and scripts/mi50_launches.py. The table
MODELS lists the models; each row needs a source.
"""

import argparse
import dataclasses
import importlib.util
import math
import os
import pathlib
import re
import sys
import textwrap

sys.dont_write_bytecode = True
import mi50_launches  # noqa: E402  (beside this file)
from mi50_launches import K, MI50, V, W  # noqa: E402

ROOT = pathlib.Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "how-to" / "sizing.md"

# ---- the models


@dataclasses.dataclass(frozen=True)
class Model:
    name: str
    hidden: int  # D
    layers: int  # all decoder layers; three of four are GDN layers
    value_heads: int  # HV
    source: str
    key_heads: int = 16  # H; K = V = 128 and W = 4 in all of them

    @property
    def gdn_layers(self):
        return self.layers * 3 // 4

    @property
    def channels(self):
        return 2 * self.key_heads * K + self.value_heads * V

    @property
    def dims(self):
        return self.key_heads, self.value_heads, self.hidden

    @property
    def weight_bytes(self):
        """Bytes of all GDN layers in BF16: the projections, the convolution, A_log, dt_bias and the norm."""
        values = self.value_heads * V
        a_layer = (self.hidden * (self.channels + values + 2 * self.value_heads) + values * self.hidden + self.channels * W +
                   2 * self.value_heads + V)
        return 2 * a_layer * self.gdn_layers


AIC = "its config.json, as in ai-dynamo/aiconfigurator, model_configs"
SIM = "its config.json, as in alibaba/InferSim, hf_configs"
CARD = "its model card, Model Overview"
MODELS = (
    Model("Qwen3-Next-80B-A3B", 2048, 48, 32, f"{AIC} (Thinking); {CARD} (Instruct)"),
    Model("Qwen3.5-0.8B", 1024, 24, 16, CARD),
    Model("Qwen3.5-2B", 2048, 24, 16, CARD),
    Model("Qwen3.5-4B", 2560, 32, 32, CARD),
    Model("Qwen3.5-9B", 4096, 32, 32, CARD),
    Model("Qwen3.5-27B", 5120, 64, 48, "layers and D: THUDM/slime, scripts/models/qwen3.5-27B.sh; heads: the model cards of "
          "Qwen3.6-27B and Qwen3.8-27B, which have the same layers and D"),
    Model("Qwen3.5-35B-A3B", 2048, 40, 32, f"{SIM}; {CARD}"),
    Model("Qwen3.5-122B-A10B", 3072, 48, 64, CARD),
    Model("Qwen3.5-397B-A17B", 4096, 60, 64, f"{AIC}; {CARD}"),
)
NAMED = {model.name: model for model in MODELS}

# ---- bytes


def from_source(path, pattern):
    found = re.search(pattern, (ROOT / path).read_text(encoding="utf-8"))
    if not found:
        sys.exit(f"sizing: {path} has no {pattern}; change scripts/sizing.py")
    return found.group(1)


LAYOUT = "kernels/common/state_layout"
LOG = int(from_source(LAYOUT + ".h", r"kLogCapacity = (\d+);"))
ALIGNMENT = int(from_source(LAYOUT + ".cc", r"kSectionAlignment = (\d+);"))
DRAFT = int(from_source("server/validation/step_input.h", r"max_draft = (\d+);"))
FREE_PART = from_source("server/server_memory.cc", r"FreeMemoryBytes\(\) / (4 \* 3);") and 3 / 4
CHUNK_MIB = int(from_source("state_store/tiers/redis/redis_tier.h", r"chunk_bytes = int64_t\{(1)\} << 20;"))


def base_bytes(model, element):
    return model.value_heads * K * V * element


def entry_bytes(model):  # k, u and g of one token in the log
    return 4 * (model.key_heads * K + model.value_heads * V + model.value_heads)


def sections(model, element, conv=True):
    """Returns the bytes of a slot's sections, as StateLayout::Make lays them out."""
    rows, features = LOG + DRAFT, (model.key_heads * K, model.value_heads * V, model.value_heads)
    floats = [math.ceil(base_bytes(model, element) / 4)] + [rows * f for f in features]
    floats.append((W - 1 + DRAFT) * model.channels if conv else 0)
    return [4 * math.ceil(f / ALIGNMENT) * ALIGNMENT for f in floats]


def session_bytes(model, element):
    return model.gdn_layers * sum(sections(model, element))


def file_bytes(model, element, entries, conv=True):
    """Returns the bytes of a checkpoint's tensors, with `entries` tokens in each layer's log."""
    columns = 4 * (W - 1) * model.channels if conv else 0
    return model.gdn_layers * (base_bytes(model, element) + entries * entry_bytes(model) + columns)


def sessions_a_card(model, element, gib):
    return int(FREE_PART * (gib * 2**30 - model.weight_bytes) // session_bytes(model, element))


def compare_with_libgdn(library):
    """Compares the bytes of a slot with gdn_pool_bytes, for each model."""
    os.environ["GDN_LIBRARY"] = library
    spec = importlib.util.spec_from_file_location("abi", ROOT / "capi/python/src/gdn_inprocess/abi.py")
    abi = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(abi)
    wrong = 0
    for model in MODELS:
        for element, dtype in ((4, abi.F32), (2, abi.BF16)):
            said = abi.pool_bytes(abi.make_spec(1, model.key_heads, model.value_heads, K, V, conv_width=W, hidden_size=model.hidden,
                                                max_decode_tokens=DRAFT, state_dtype=dtype))
            computed = sum(sections(model, element))
            wrong += said != computed
            print(f"{model.name}, {element} B an element: a slot has {said:,} B, computed {computed:,}")
    return 1 if wrong else 0


# ---- times, from docs/evidence/mi50-model.md


def model_page():
    text = (ROOT / "docs" / "evidence" / "mi50-model.md").read_text(encoding="utf-8")
    number = r"([\d,.]+)"
    rows = {}
    for match in re.finditer(rf"^\| (\w+, . = [\d,]+) \| {number} \| {number} \| \d+ \| [^|]+ \| {number} \.\. {number} \|$", text, re.M):
        rows[match.group(1)] = (float(match.group(2).replace(",", "")), float(match.group(5).replace(",", "")))
    chunk = re.findall(rf"^\| chunk (?:prepare|walk) \| T = 4,096 \|.*\| {number} \| {number} \| \w+ \|$", text, re.M)
    return rows, sum(float(at_best.replace(",", "")) for at_best, _ in chunk)


TIMES, CHUNK_US = model_page()
PREFILL = "prefill, T = 4,096"


def at_best_us(model, sequences, tokens=0):
    """Returns the time of memory and multiply-adds alone, as the page's column `at best`. The chunk kernels scale by value heads."""
    mi50_launches.of_layer(*model.dims)
    once, pieces = mi50_launches.layer(sequences, tokens, MI50.units)
    mi50_launches.of_layer(*mi50_launches.QWEN3_NEXT)
    us = sum(max(x.bytes / MI50.gb_s / 1e3, 2 * x.fma / MI50.fma_tflops / 1e6) for x in once if not x.name.startswith("chunk"))
    return us * pieces + (CHUNK_US * model.value_heads / 32 if tokens else 0)


def likely_us(model, row, sequences, tokens=0):
    """Returns the longer end of the page's likely time, scaled to this model by the times at best."""
    page_best, page_likely = TIMES[row]
    return page_likely * at_best_us(model, sequences, tokens) / at_best_us(NAMED["Qwen3-Next-80B-A3B"], sequences, tokens)


def decode_us(model, sequences):
    return likely_us(model, f"decode, B = {sequences}", sequences)


def tokens_a_second(model, sequences):
    """Returns a card's tokens per second for this many sessions, at most 128, at the time of the page's next larger batch."""
    sequences = min(sequences, 128)
    step = decode_us(model, next(b for b in (1, 32, 128) if b >= sequences))
    return sequences * 1e6 / (model.gdn_layers * step)


def prefill_tokens_a_second(model):
    return 4096 * 1e6 / (model.gdn_layers * likely_us(model, PREFILL, 1, 4096))


# ---- the page

from_source("docs/evidence/mi50-model.md", r"(H = 16, HV = 32, K = V = 128, D = 2048, BF16 weights)")


def table(head, rows, texts=1):
    """Returns a Markdown table. The first column is text, and so are the last `texts` - 1 columns."""
    numbers = len(head) - texts
    cells = [" | ".join(head), "|".join(["---"] + ["--:"] * numbers + ["---"] * (texts - 1))]
    return [f"| {cells[0]} |", f"|{cells[1]}|"] + [f"| {' | '.join(row)} |" for row in rows] + [""]


def mb(size):
    return f"{size / 1e6:,.1f}"


def ceil_div(a, b):
    return math.ceil(a / b - 1e-9)


def nodes(model, sessions, rate, gib, element=4):
    """Returns (nodes by memory, nodes by speed) for sessions that all decode `rate` tokens per second."""
    room = sessions_a_card(model, element, gib)
    return ceil_div(sessions, room), ceil_div(sessions * rate, tokens_a_second(model, room))


def models_section():
    rows = [(m.name, f"{m.hidden:,}", f"{m.gdn_layers} of {m.layers}", str(m.value_heads), f"{m.weight_bytes / 1e9:.2f}") for m in MODELS]
    return ["## The models", "",
            "In all of these models, three of four layers are GDN layers, with H = 16 key heads, K = V = 128 and W = 4. D is the hidden size",
            "and HV the number of value heads. The weights are those of the GDN layers in BF16, as the card stores them.", "",
            *table(("model", "D", "GDN layers", "HV", "weights, GB"), rows),
            "The dimensions come from these sources, read in copies that public repositories keep:", "",
            *table(("model", "source"), [(m.name, m.source) for m in MODELS], texts=2)]


def session_section():
    example = NAMED["Qwen3-Next-80B-A3B"]
    parts = sections(example, 4)
    meaning = ("S, [HV, K, V]", f"keys of the last tokens, [{LOG} + {DRAFT}, H, K]", f"their write vectors, [{LOG} + {DRAFT}, HV, V]",
               f"their decays, [{LOG} + {DRAFT}, HV]", f"inputs of the convolution, [W - 1 + {DRAFT}, 2 H K + HV V]")
    bench = from_source("docs/evidence/benchmarks.md", r"36 layers \(operator, ([\d.]+) MB on the device")
    computed = mb(36 * sum(sections(example, 4, conv=False)))
    if bench != computed:
        sys.exit(f"sizing: gdn_bench state reported {bench} MB, and the formula gives {computed}")
    rows = [(m.name, *(f"{sum(sections(m, e)):,}" for e in (4, 2)), *(mb(session_bytes(m, e)) for e in (4, 2))) for m in MODELS]
    return ["## Memory of a session", "",
            "A session has one slot for each GDN layer. A slot does not grow with the text. A slot of Qwen3-Next has these bytes:", "",
            *table(("section", "float32", "`--state-dtype=bf16`", "contents"),
                   [(name, f"{a:,}", f"{b:,}", text) for name, a, b, text in
                    zip(("base", "log_k", "log_u", "log_g", "conv"), parts, sections(example, 2), meaning)] +
                   [("a slot", f"{sum(parts):,}", f"{sum(sections(example, 2)):,}", "")], texts=2),
            f"The {LOG} is the length of the log. The {DRAFT} is `--max-draft`; a smaller value makes slots smaller. The next table has the slot of",
            "one layer, and a session with all GDN layers:", "",
            *table(("model", "a layer, float32, B", "bf16, B", "a session, float32, MB", "bf16, MB"), rows),
            "A running server reports the same number: `gdnctl models` (`state_bytes_per_session`). Two checks confirm the formula. A test",
            f"compares each row with libgdn. For 36 operator layers, `gdn_bench state` reported {bench} MB, and the formula gives {computed} MB.", ""]


def cards_section():
    rows = [(m.name, *(f"{sessions_a_card(m, e, gib):,}" for gib in (16, 32) for e in (4, 2))) for m in MODELS]
    return ["## Sessions per card", "",
            f"The default `--device-state-bytes` on a GPU is {FREE_PART:.0%} of the memory that is free after the weights are loaded. "
            "The rest is for",
            "workspaces, spare slots and the runtime. The table takes `16 GB` as 16 GiB, with nothing else on the card.",
            "[Lower tiers](memory.md#tiers) hold idle sessions beyond that.", "",
            *table(("model", "16 GB, float32", "16 GB, bf16", "32 GB, float32", "32 GB, bf16"), rows)]


def checkpoint_section():
    rows = [(m.name, *(f"{mb(file_bytes(m, e, 0))} .. {mb(file_bytes(m, e, LOG - 1))}" for e in (4, 2)),
             *(f"{file_bytes(m, 4, LOG - 1) / (n / 2) / 1e3:,.0f}" for n in (256, 1024, 4096))) for m in MODELS]
    return ["## Checkpoints, disk and Redis", "",
            f"A checkpoint is a file of the session's states: bases, convolution columns, and the 0 to {LOG - 1} tokens in the logs. "
            "The table",
            "leaves out a header of some kB, stored replies (one output per layer) and a pending draft. The disk tier writes only what has",
            "changed if it can. Redis always gets the whole file.", "",
            "With `--checkpoint-every-tokens=N` a session is written when it is N/2 tokens past its last copy. So each token costs at most",
            "`file / (N/2)` bytes of writing. A session of T tokens per second writes T times that.", "",
            *table(("model", "a file, float32, MB", "bf16, MB", "kB per token, float32, N = 256", "N = 1,024", "N = 4,096"), rows),
            f"Redis stores one file for each session and each named checkpoint, in strings of {CHUNK_MIB} MiB. It stores a second file while "
            "one is",
            "being replaced. So Redis needs memory for sessions x file, plus the files that are being written.", ""]


def network_section():
    sizes = (("F32", 4), ("BF16, F16", 2))
    rows = [(m.name, *(f"{2 * m.hidden * e / 1024:,.0f}" for _, e in sizes), *(f"{2 * m.hidden * e * m.gdn_layers / 1024:,.0f}" for _, e in sizes),
             *(f"{1e9 / 8 / (m.hidden * e * m.gdn_layers):,.0f}" for _, e in sizes)) for m in MODELS]
    return ["## Network", "",
            "Each token sends one row of D elements to each GDN layer, and gets one row back. States do not travel. The table leaves out",
            "message headers, which matter for calls with one token of one session.", "",
            *table(("model", "per token and layer, F32, KiB", "BF16 or F16, KiB", "per token, all layers, F32, KiB", "BF16 or F16, KiB",
                    "tokens/s on 1 Gbit/s each way, F32", "BF16 or F16"), rows)]


def speed_section():
    rows = [(m.name, *(f"{decode_us(m, b):,.0f}" for b in (1, 32, 128)), *(f"{1e6 / decode_us(m, b):,.0f}" for b in (1, 32, 128)),
             *(f"{tokens_a_second(m, b):,.0f}" for b in (1, 32, 128)), f"{prefill_tokens_a_second(m):,.0f}") for m in MODELS]
    same = " and ".join(m.name for m in MODELS if m.dims == mi50_launches.QWEN3_NEXT)
    return ["## Predicted speed of an MI50", "",
            "**These times are computed, not measured:** no kernel has run on an MI50 yet. They are the upper values of the column",
            f"`likely` in [the MI50 model](../evidence/mi50-model.md), which describes the layer of {same}. Times of other layers are scaled",
            "by their memory traffic and multiply-adds. States are float32 and on the card, weights are BF16. The service, the network and",
            "the engine add to the times ([engine.md](engine.md), [benchmarks.md](../evidence/benchmarks.md)). A step is one call of one layer",
            "for B sessions. A token is one step in each GDN layer. Tokens/s count the tokens of all B sessions together.", "",
            *table(("model", "us per step, B = 1", "32", "128", "steps/s, B = 1", "32", "128", "tokens/s, B = 1", "32", "128",
                    "prompt tokens/s, T = 4,096"), rows)]


def nodes_section():
    counts, rate = (100, 1000, 10000), 10
    rows = [(m.name, *(f"{mem:,} / {speed:,}" for gib in (16, 32) for mem, speed in (nodes(m, n, rate, gib) for n in counts))) for m in MODELS]
    return ["## How many nodes", "",
            f"The table is for 100, 1,000 and 10,000 sessions that all decode {rate} tokens per second. Each cell has the nodes that memory "
            "needs, then",
            "the nodes that speed needs; take the larger. Speed assumes the largest batch that fits the card, at most 128. A node is one",
            "card with float32 states and default flags. Add one node, so that the sessions of a failed node find space",
            "([fleet.md](fleet.md)). Prompts take additional time, by the table above.", "",
            *table(("model", *(f"{gib} GB: {n:,}" for gib in (16, 32) for n in counts)), rows)]


def fleet_section():
    model, rate, lease_s, batch = NAMED["Qwen3-Next-80B-A3B"], 10, 15, 32
    node = min(sessions_a_card(model, 4, 32), int(tokens_a_second(model, 128) / rate))
    file, wire = file_bytes(model, 4, LOG - 1), 2 * model.hidden * 2 * model.gdn_layers
    strings = math.ceil(file / 2**20 / CHUNK_MIB)
    redis_rate, redis_memory = 10e9 / 8 / 2, 128e9
    rows = []
    for count in (1, 3, 10, 100, 1000):
        sessions, tokens = count * node, count * node * rate
        written = [tokens * file / (n / 2) for n in (4096, 32768)]
        shards = [max(ceil_div(w, redis_rate), ceil_div(sessions * file, redis_memory)) for w in written]
        rows.append((f"{count:,}", f"{sessions:,}", f"{tokens:,}", f"{count * 5 / lease_s:,.1f}", f"{tokens / 2048:,.1f}",
                     f"{tokens / 2048 * strings:,.0f}", *(f"{w / 1e9:,.2f}" for w in written), f"{sessions * file / 1e9:,.0f}",
                     *(f"{n:,}" for n in shards), f"{tokens * model.gdn_layers / batch:,.0f}", f"{tokens * wire / 2 / 1e9:,.1f}"))
    head = ("nodes", "sessions", "tokens/s", "lease renewals/s", "checkpoints/s, N = 4,096", "strings/s", "GB/s to Redis, N = 4,096",
            "N = 32,768", "GB in Redis", "Redis shards, N = 4,096", "N = 32,768", "calls/s at HAProxy", "GB/s each way there")
    return ["## From 1 to 1,000 nodes", "",
            f"The table is for servers that share sessions ([fleet.md](fleet.md)), and is computed. It assumes {model.name} with a 32 GB card",
            f"per node, {rate} tokens/s per session, float32 states, BF16 on the wire, and calls of {batch} sessions. Speed limits a node to {node}",
            "sessions, fewer than fit its memory.",
            f"`--node-lease={lease_s}s` is renewed five times per lease. A shard is one Redis with its replicas, under a prefix of its own.",
            "A shard can receive half of 10 Gbit/s, because each replica takes the same again, and has 128 GB of memory. Memory alone needs this",
            "number of shards, so a larger N saves none.", "",
            *table(head, rows)]


def examples_section():
    next_, dense = NAMED["Qwen3-Next-80B-A3B"], NAMED["Qwen3.5-27B"]
    sessions, rate, every = 200, 10, 4096
    memory, speed = nodes(next_, sessions, rate, 32)
    need = max(memory, speed)
    file, tokens = file_bytes(next_, 4, LOG - 1), sessions * rate
    lost = math.ceil(sessions / (need + 1))
    replay = lost * every / 2 / need / tokens_a_second(next_, 128)
    wire = 2 * next_.hidden * 2 * next_.gdn_layers
    rooms = [sessions_a_card(dense, element, 16) for element in (4, 2)]
    token_s = dense.gdn_layers * decode_us(dense, 32) / 1e6
    cards = lambda n: f"{n} card{'s' if n > 1 else ''}"
    return ["## Worked examples", "",
            f"**{sessions} chats with {next_.name}, {rate} tokens per second each, on 32 GB cards**", "",
            f"- Memory: {sessions} x {mb(session_bytes(next_, 4))} MB = {sessions * session_bytes(next_, 4) / 1e9:.1f} GB. A card has space for "
            f"{sessions_a_card(next_, 4, 32)} sessions, so {cards(memory)} would do.",
            f"- Speed: the chats need {tokens:,} tokens/s, and a card decodes {tokens_a_second(next_, 128):,.0f}. So you need {cards(speed)}. "
            f"Add one for a node that fails: {need + 1} cards.",
            f"- Network, BF16: {tokens:,} tokens/s x {wire / 1024:.0f} KiB = {tokens * wire / 1e9:.2f} GB/s, for both directions and all nodes "
            "together.",
            f"- Redis, with `--checkpoint-every-tokens={every}`: {sessions} x {mb(file)} MB = {sessions * file / 1e9:.1f} GB of memory. It "
            f"receives {tokens:,} x {mb(file)} MB / {every // 2:,} = {tokens * file / every * 2 / 1e6:,.0f} MB/s. With 256 tokens it would "
            f"receive {tokens * file / 128 / 1e6:,.0f} MB/s, so choose a value that Redis and the network can carry.",
            f"- A node fails: {lost} of the {sessions} sessions continue on the other {need} nodes from their last checkpoints. Most "
            f"of these are at most {every // 2:,} tokens back. The clients replay these tokens. If the nodes do nothing else and decode "
            f"them in batches, this takes {lost} x {every // 2:,} tokens / ({need} x {tokens_a_second(next_, 128):,.0f} tokens/s) = {replay:,.0f} s.", "",
            f"**One 16 GB card for {dense.name}**", "",
            f"- {dense.weight_bytes / 1e9:.1f} GB of weights leave space for {rooms[0]} sessions, or {rooms[1]} with "
            "[`--state-dtype=bf16`](memory.md#the-dtype-of-states).",
            f"- A token of up to 32 sessions is {dense.gdn_layers} steps of {decode_us(dense, 32):,.0f} us, together {token_s * 1e3:.0f} ms. Each "
            f"session gets at least {1 / token_s:.1f} tokens per second.",
            f"- A prompt of 4,096 tokens keeps the card busy for {4096 / prefill_tokens_a_second(dense):.1f} s.", ""]


HEAD = """# Size a deployment

This page tells you how much memory and network, and how many nodes, each published model needs. Start from the worked examples; the
tables have all other models.

`scripts/sizing.py --write` generates the page, and a test fails if the page no longer agrees with the sources. All figures are
computed from the layout of a state, the dimensions of the models, and [the MI50 model](../evidence/mi50-model.md). MB and GB are powers
of ten, KiB and GiB powers of two. [The glossary](../reference/glossary.md) explains session, state, step and checkpoint.
"""


def page():
    lines = HEAD.splitlines() + [""]
    for section in (examples_section, models_section, session_section, cards_section, speed_section, nodes_section, checkpoint_section,
                    network_section, fleet_section):
        lines += section()
    return "\n".join(wrapped(lines)).rstrip() + "\n"


def wrapped(lines):
    """Wraps paragraphs and list items at 120 characters."""
    words = []
    for line in lines + [""]:
        plain = line and line[0] not in "|#"
        if words and (not plain or line.startswith("- ")):
            yield textwrap.fill(" ".join(words), 120, break_long_words=False, break_on_hyphens=False,
                                subsequent_indent="  " if words[0] == "-" else "")
            words = []
        if plain:
            words += line.split()
        else:
            yield line


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    mode = parser.add_mutually_exclusive_group(required=True)
    mode.add_argument("--write", action="store_true")
    mode.add_argument("--check", action="store_true")
    mode.add_argument("--libgdn", metavar="LIBRARY")
    arguments = parser.parse_args()
    if arguments.libgdn:
        return compare_with_libgdn(arguments.libgdn)
    text = page()
    if arguments.write:
        PAGE.write_text(text, encoding="utf-8")
        return 0
    same = PAGE.exists() and PAGE.read_text(encoding="utf-8") == text
    print("sizing: docs/how-to/sizing.md " + ("agrees with the sources" if same else "does not agree with the sources; run scripts/sizing.py --write"))
    return 0 if same else 1


if __name__ == "__main__":
    sys.exit(main())
