#!/usr/bin/env python3
"""docs/evidence/mi50-model.md: how long each production kernel, and a layer, should take on an MI50, from the code compiled for it.

  mi50_model.py BUILD            print the page
  mi50_model.py BUILD --write    write it and its picture
  mi50_model.py BUILD --check    exit 1 where they are not what the build says (under the compiler the page names)
  mi50_model.py --self-test      check the arithmetic on launches whose times are known

scripts/gfx906_walk.py counts what a wave issues, scripts/mi50_launches.py says how many blocks run and how often each loop does.
"""

import argparse
import collections
import dataclasses
import math
import pathlib
import sys

import gfx906_isa
import gfx906_resources
import gfx906_walk
import mi50_launches
from mi50_launches import H200, MI50, PIECE, SPLIT_COMMIT, ceil, layer

ROOT = pathlib.Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "evidence" / "mi50-model.md"
PICTURE = ROOT / "docs" / "images" / "mi50-model-layer.svg"

# ---- the model


@dataclasses.dataclass
class Estimate:
    us: float
    bound: str
    floor_us: float  # by memory and multiply-adds alone
    waves: int  # a SIMD
    blocks: int
    places: int  # that the machine has for blocks
    counts: gfx906_isa.Counts  # mean of a wave


class Model:
    def __init__(self, code, resources):
        self.code, self.resources, self.walks = code, resources, {}

    def counts(self, part, latencies):
        key = (part.kernel, part.trips, latencies)
        if key not in self.walks:
            if part.kernel not in self.code:
                raise ValueError(f"no kernel {part.kernel} in the build; mend scripts/mi50_launches.py")
            try:
                self.walks[key] = gfx906_walk.Walk(self.code[part.kernel], part.trips).counts(latencies)
            except ValueError as error:
                raise ValueError(f"{part.kernel}: {error}; mend its line in scripts/mi50_launches.py") from error
        return self.walks[key]

    def blocks_a_unit(self, kernel, machine, launch):
        row = self.resources[kernel]
        waves = ceil(row["threads"], gfx906_resources.WAVE)
        if machine is not MI50:
            return launch.resident, waves
        by_lds = gfx906_resources.LDS_BYTES // row["lds"] if row["lds"] else 40
        by_registers = gfx906_resources.VGPRS // max(4, ceil(row["vgpr"], 4) * 4) * 4 // waves
        return max(1, min(by_lds, by_registers, gfx906_resources.MAX_WAVES * 4 // waves)), waves

    def estimate(self, launch, machine=MI50):
        parts = [(part, self.counts(part, machine.latencies)) for part in launch.parts]
        places, waves = self.blocks_a_unit(launch.parts[0].kernel, machine, launch)
        blocks = sum(part.blocks for part, _ in parts)
        mean = gfx906_isa.Counts(*(sum(part.blocks * value for (part, _), value in zip(parts, values)) / blocks
                                   for values in zip(*(dataclasses.astuple(c) for _, c in parts))))
        alone = max(c.alone_cycles for _, c in parts)
        return estimate(launch, machine, mean, alone, blocks, places, waves)


def estimate(launch, machine, mean, alone_cycles, blocks, places, waves):
    """The time of `blocks` of `waves` waves each, `places` of them a unit at a time."""
    seconds = {}

    def round_of(count):
        """Units with `count` blocks each, until all are done; what takes longest."""
        lds = count * waves * mean.lds_bytes / machine.lds_bytes / machine.ghz / 1e9
        asked = count * waves * (mean.load_bytes + mean.store_bytes) / machine.asked_bytes / machine.ghz / 1e9
        by = {"VALU": count * waves * mean.valu_cycles / machine.simd_cycles(), "LDS": lds + asked * machine.shared_pipe,
              "L1": asked, "latency": alone_cycles / machine.ghz / 1e9}
        name = max(by, key=by.get)
        return by[name], name

    full, rest = divmod(blocks, machine.units * places)
    for count, times in ((places, full), (ceil(rest, machine.units), 1)):
        if count and times:
            time, name = round_of(count)
            seconds[name] = seconds.get(name, 0) + time * times
    total, bound = sum(seconds.values()), max(seconds, key=seconds.get)
    memory = launch.bytes / machine.gb_s / 1e9
    if memory > total:
        total, bound = memory, "memory"
    fma = blocks * waves * mean.fma * 4 / machine.simd_cycles() / machine.units
    resident = min(places, ceil(blocks, machine.units)) * waves / 4
    return Estimate(total * 1e6, bound, max(memory, fma) * 1e6, max(1, round(resident)), blocks, places * machine.units, mean)


# ---- the page

SHAPES = (("decode, B = 1", 1, 0), ("decode, B = 32", 32, 0), ("decode, B = 128", 128, 0),
          ("prefill, T = 512", 1, 512), ("prefill, T = 2,048", 1, 2048), ("prefill, T = 4,096", 1, 4096))
LAYERS = tuple((name if mode == "exact" else f"{name}, {mode}", b, t, mode) for mode in mi50_launches.MODES for name, b, t in SHAPES)
PICTURED = LAYERS[:2 * len(SHAPES)]

# What people have measured on MI50 cards with other code, and what of ours is the nearest to it.
OTHERS = (("delta rule decode of one sequence, a layer, traced", 10.8, "decode", "B = 1"),
          ("token-serial delta rule prefill, T = 512, traced", 1340, ("chunk prepare", "chunk walk"), "T = 512"),
          ("Q8_0 matrix of 2048 x 4096 times a vector (8.9 MB, 780 GB/s)", 11.4,
           "out-projection, Q8_0", "1 row"))

COLOURS = {"rounding to fp16": "#0a3069", "in-projections": "#1f6feb", "mixer_input": "#8b949e", "mixed decode": "#1a7f37", "chunk prepare": "#bf8700",
           "chunk walk": "#d1242f", "gated norm": "#8250df", "out-projection": "#54aeff", "launches": "#d8dee4"}

HEAD = """# Predicted times on an MI50

This page predicts the time of each production kernel, and of a whole layer, on an AMD MI50 (gfx906). No kernel has run on a real
MI50 yet ([gpu-verification.md](gpu-verification.md)). Every time here is computed, unless it is marked as measured.

`scripts/mi50_model.py build/hip-gfx906 --write` generates the page from the code that the compiler made for gfx906. The test
`mi50_model` fails if the page no longer agrees with that code.

Dimensions, unless a row names others: H = 16, HV = 32, K = V = 128, D = 2048, BF16 weights. States are float32, and so are
activations but for the inputs of layers with `BF16` in their names.
B is the number of sessions, T the number of tokens of a prefill.

Compiler: {compiler}

## The model

A kernel takes the longest of five bounds:

| bound | how it is counted | MI50 | H200 |
|---|---|--:|--:|
| memory | bytes that must pass once, by formula | 820 GB/s | {h200.gb_s:,} GB/s |
| VALU | cycles of vector instructions in the ISA: 4 cycles of a SIMD each, 8 in double precision, 16 for `exp`, `rcp` and integer products | 13.3 TFLOP/s | {h200.fma_tflops} TFLOP/s |
| LDS | bytes of LDS instructions in the ISA; a swizzle counts as 4 bytes a lane | 128 B a clock and CU | 128 B a clock, together with the L1 |
| L1 | bytes that loads and stores in the ISA ask for | 64 B a clock and CU | |
| latency | a wave alone: each instruction in order, each `s_waitcnt` until its values are there | LDS 100, memory 500 cycles | 33, 650 |

All bounds but memory are added up over rounds of blocks. In a full round, the 60 CUs hold as many blocks as registers and LDS
allow (the *places*). The remaining blocks are a last round. If the sides of an `if` differ, every wave takes the heavier one. A
launch adds 5 to 8 us; a recorded graph may hide some of that. The H200's 4,440 GB/s come from earlier
measurements. The [run of its kernels without matrix units](performance/fma/h200.json) has 4,301.

`scripts/gfx906_isa.py` finds basic blocks and loops in the disassembly. `scripts/mi50_launches.py` declares trip counts, blocks
and bytes, in one line for each kernel.
"""


def by_kernel(model, machine=MI50):
    return [(launch, case, model.estimate(launch, machine)) for case, launch in mi50_launches.launches(machine)]


def misses(model):
    """Measured over modelled on the H200, of each row; and of each kernel, over the rows of its own source, at least 1."""
    rows, by = [], {}
    for kernel, case, parts, us, source, remark in mi50_launches.measured():
        estimates = [model.estimate(launch, H200) for launch in parts]
        modelled = sum(e.us + H200.launch_us[0] for e in estimates)
        rows.append((kernel, case, modelled, max(estimates, key=lambda e: e.us).bound, us, us / modelled, source, remark))
        if remark != mi50_launches.OTHER and kernel != "layer":
            by.setdefault(kernel, []).append(us / modelled)
    factors = {kernel: max(1.0, math.exp(sum(map(math.log, values)) / len(values))) for kernel, values in by.items()}
    factors["in-projections"] = factors["out-projection"] = factors["projection"]
    factors["mixed decode"] = factors["decode"]  # most of it
    middle = sorted(factors.values())[len(factors) // 2]
    return rows, factors, middle


def layer_times(model, b, t, mode):
    once, pieces = layer(b, t, MI50.units, mode=mode)
    return [(launch.name, model.estimate(launch)) for launch in once], pieces


def kernel_table(model):
    out = ["## Kernels", "",
           "The table has the kernels that gfx906 runs. A prefill runs `chunk prepare` and `chunk walk`, or `scan` if it is short or beta may",
           "be above 1. `mixer_input` is everything between the in-projections and the delta rule. `mixed decode` is that, `decode` and",
           "`gated norm` in one launch, for one decay a head. `materialize` folds the log into a state.", "",
           "- `VALU a wave` counts vector instructions. `LDS B` and `asked B` are bytes a lane of LDS and of loads and stores.",
           "- `waves` are the waves resident on a SIMD. `blocks` are the blocks of the launch, and how many the card holds at a time.",
           "- `at best` is the time for memory and multiply-adds alone; `us` is the model's time.",
           "- `projection` has 2048 inputs and 8192 outputs, `out-projection` 4096 and 2048.",
           "- `int8` projections round their inputs (`--math=int8`), and a dot product of four counts as one FMA. `fp16` projections multiply",
           "  fp16 numbers (`--math=half`, and exact products of BF16 and F16 inputs), and a dot product of two counts as one FMA. For more",
           "  than 8 rows, `rounding to int8` or `rounding to fp16` comes before them. Other projections multiply float32 numbers.", "",
           "| kernel | case | VALU a wave | of them FMA | LDS B | asked B | waves | blocks | MB | at best, us | us | bound |",
           "|---|---|--:|--:|--:|--:|--:|--:|--:|--:|--:|---|"]
    for launch, case, e in by_kernel(model):
        c = e.counts
        out.append(f"| {launch.name} | {case} | {c.valu:,.0f} | {c.fma / c.valu:.2f} | {c.lds_bytes / 64:,.0f} | "
                   f"{(c.load_bytes + c.store_bytes) / 64:,.0f} | {e.waves} | {e.blocks:,} / {e.places} | {launch.bytes / 1e6:,.1f} | {e.floor_us:,.1f} | "
                   f"{e.us:,.1f} | {e.bound} |")
    return out + [""]


def layer_section(model, factors, middle):
    out = ["## A layer", "", "![Modelled time of a layer on an MI50, by kernel](../images/mi50-model-layer.svg)", "",
           f"A prefill runs in pieces of {PIECE:,} tokens. `likely` multiplies each kernel's time by its measured / model factor on the H200",
           f"(see below; at least 1) and adds the launches. Kernels that were not timed there get the median factor, {middle:.2f}.", "",
           "A row without a mode is of exact products of float32 inputs, `BF16` of BF16 inputs, `Q8_0` of BF16 inputs with Q8_0 weights.",
           "`half` is `--math=half` with BF16 inputs, and `int8` is `--math=int8` with Q8_0 weights.", "",
           "| layer | at best, us | kernels, us | launches | with launches, us | likely, us |", "|---|--:|--:|--:|--:|--:|"]
    for name, b, t, mode in LAYERS:
        estimates, pieces = layer_times(model, b, t, mode)
        total, best = (pieces * sum(v) for v in (((e.us for _, e in estimates)), ((e.floor_us for _, e in estimates))))
        likely = pieces * sum(e.us * factors.get(kernel, middle) for kernel, e in estimates)
        count = pieces * len(estimates)
        least, most = (count * us for us in MI50.launch_us)
        out.append(f"| {name} | {best:,.0f} | {total:,.0f} | {count} | {total + least:,.0f} .. {total + most:,.0f} | "
                   f"{likely + least:,.0f} .. {likely + most:,.0f} |")
    few = [(rows, model.estimate(mi50_launches.projection(rows, (2048,), 4096, ""))) for rows in (32, 128)]
    out += ["", "The next table shows how much each kernel could gain, in us: its time less its time for memory and multiply-adds alone.",
            "In-projections include all rounding of inputs. Exact products round BF16 inputs to fp16, which changes none of them.",
            " ".join(f"An out-projection of {rows} rows has {e.blocks} blocks for {e.places} places." for rows, e in few), "",
            "| layer | " + " | ".join(n for n in COLOURS if n not in ("launches", "mixed decode", "chunk prepare", "chunk walk", "rounding to fp16")) +
            " | mixed decode, or prepare + walk | launches |", "|---|" + "--:|" * 6]
    for name, b, t, mode in LAYERS:
        estimates, pieces = layer_times(model, b, t, mode)
        gain = collections.Counter()
        for kernel, e in estimates:
            gain["in-projections" if kernel.startswith("rounding") else kernel] += pieces * (e.us - e.floor_us)
        rule = sum(gain.get(k, 0) for k in ("mixed decode", "chunk prepare", "chunk walk"))
        out.append(f"| {name} | " + " | ".join(f"{gain.get(k, 0):,.0f}" for k in ("in-projections", "mixer_input", "gated norm", "out-projection")) +
                   f" | {rule:,.0f} | {pieces * len(estimates) * MI50.launch_us[0]:,.0f} .. {pieces * len(estimates) * MI50.launch_us[1]:,.0f} |")
    return out + [""]


def h200_section(rows):
    ratios = sorted(r[5] for r in rows if r[7] != mi50_launches.OTHER and r[0] != "layer")
    out = ["## The same model on an H200", "",
           "NVIDIA is a second target, and its times are measured. This section applies the model to an H200, to check the rates and the",
           "rounds of blocks. The instruction counts are still those of gfx906's code, for a wave of 64 lanes. So the comparison says",
           "little about the instructions of either machine.", "",
           f"For kernels that both devices run from the same source, measured over modelled is {ratios[0]:.2f} to {ratios[-1]:.2f} (median "
           f"{ratios[len(ratios) // 2]:.2f}).", "The last column says if the H200 runs the modelled kernel.", "",
           "| kernel | case | model, us | bound | measured, us | measured / model | commit | on the H200 |",
           "|---|---|--:|---|--:|--:|---|---|"]
    for kernel, case, modelled, bound, us, ratio, source, remark in rows:
        out.append(f"| {kernel} | {case} | {modelled:,.1f} | {bound} | {us:,.1f} | {ratio:.2f} | {source} | {remark} |")
    out += ["", f"Since commit {SPLIT_COMMIT}, devices with waves of 32 lanes run two kernels instead of the walk. gfx906 does not run them.",
            "The table has their computed times for T = 4,096. Prepare, states and outputs together were measured at 735 us.", "",
            "| kernel | multiply-adds | at 57.8 TFLOP/s, us | LDS at 1.5 B each, us | states through memory, us |", "|---|--:|--:|--:|--:|"]
    out += [f"| {name} | {fma / 1e9:.2f} G | {fma_us:,.0f} | {lds_us:,.0f} | {memory_us:,.0f} |"
            for name, fma, fma_us, lds_us, memory_us in mi50_launches.split_rows()]
    return out + [""]


def others_section(model):
    found = {}
    for launch, case, e in by_kernel(model):
        found[launch.name, case] = (launch, e)
    out = ["## Other kernels on real cards", "", "The table compares the model with times that other projects report for their own kernels on MI50 cards. Our times are",
           "without launches.", "",
           "| their kernel | measured, us | our nearest kernel | model, us |", "|---|--:|---|--:|"]
    for what, us, kernels, case in OTHERS:
        kernels = (kernels,) if isinstance(kernels, str) else kernels
        rows = [found[kernel, case] for kernel in kernels]
        rate = f" ({rows[0][0].bytes / 1e6:.1f} MB, {rows[0][0].bytes / rows[0][1].us / 1e3:,.0f} GB/s)" if "projection" in kernels[0] else ""
        out.append(f"| {what} | {us:,.1f} | {' + '.join(kernels)}, {case}{rate} | {sum(e.us for _, e in rows):,.1f} |")
    return out + ["", "Copies on such cards reach 820 to 870 of 1,024 GB/s. The model takes 820.", ""]


TAIL = """## Limits of the model

- **LDS bank conflicts** are not counted: every LDS access runs at the full rate. On the H200, hardware counters showed
  the walk's LDS pipe busy for 1.8 times as long as its bytes take at that rate. On an MI50, LDS would then bound the walk.
- **Caches** are not modelled. Bytes count once, even if they are read again. Examples are weights that several row tiles
  read, and a chunk's prepared matrices, which each block of columns reads. An MI50's L2 has 4 MB.
- **Waves that share a SIMD** are assumed to overlap perfectly. With two waves a SIMD they do not quite.
- **Branches** cost the heavier side in all waves. In `prepare` one wave of four inverts the diagonal blocks, and the model
  charges all four for it.
- **The clock** is 1.725 GHz throughout. A card at its power limit runs below that, and memory idles at 350 MHz before the first
  launch.
- **Launch times** of 5 to 8 us come from other people's reports. Another driver version may differ.
- **Trip counts, blocks and bytes** are declared by hand. The script reports a changed number of loops, but not a changed
  meaning.

If you own a card, `scripts/verify_mi50.sh` times all of this on it. Please report its figures.
"""


def page(model, compiler):
    rows, factors, middle = misses(model)
    lines = HEAD.format(compiler=compiler, h200=H200).splitlines() + [""]
    lines += kernel_table(model) + layer_section(model, factors, middle) + h200_section(rows) + others_section(model)
    return "\n".join(lines) + "\n" + TAIL


def picture(model):
    width, left, bar, gap, top = 760, 170, 24, 14, 40
    out = []
    for n, (name, b, t, mode) in enumerate(PICTURED):
        estimates, pieces = layer_times(model, b, t, mode)
        parts = [(kernel, pieces * e.us) for kernel, e in estimates]
        parts.append(("launches", pieces * len(estimates) * sum(MI50.launch_us) / 2))
        total, y, x = sum(us for _, us in parts), top + n * (bar + gap), float(left)
        out.append(f'<text x="{left - 8}" y="{y + 16}" text-anchor="end">{name}</text>')
        for kernel, us in parts:
            wide = us / total * (width - left - 90)
            out.append(f'<rect x="{x:.1f}" y="{y}" width="{wide:.1f}" height="{bar}" fill="{COLOURS[kernel]}"><title>{kernel}: {us:,.0f} us'
                       f'</title></rect>')
            x += wide
        label = f"{total / 1000:,.2f} ms" if total >= 1000 else f"{total:,.0f} us"
        out.append(f'<text x="{x + 8:.1f}" y="{y + 16}">{label}</text>')
    y, x = top + len(PICTURED) * (bar + gap) + 8, left
    for kernel, colour in COLOURS.items():
        wide = 22 + 7 * len(kernel) + 14
        if x + wide > width:
            x, y = left, y + 20
        out.append(f'<rect x="{x}" y="{y}" width="12" height="12" fill="{colour}"/><text x="{x + 18}" y="{y + 11}">{kernel}</text>')
        x += wide
    head = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {y + 30}" font-family="sans-serif" font-size="12">',
            f'<rect width="{width}" height="{y + 30}" fill="white"/>',
            '<text x="20" y="22" font-size="14" font-weight="bold">Modelled time of a layer on an MI50, by kernel</text>']
    return "\n".join(head + out + ["</svg>"]) + "\n"


def self_test():
    launch = mi50_launches.Launch("x", [], 0, 1)
    machine = dataclasses.replace(MI50, units=10, ghz=1.0, fma_tflops=10 * 64 * 2e-3, gb_s=1)
    counts = gfx906_isa.Counts(valu=25, valu_cycles=100, fma=20, lds_bytes=6400, load_bytes=640)

    def time(blocks, places=2, alone=0, waves=4, **changes):
        e = estimate(dataclasses.replace(launch, **changes), machine, counts, alone, blocks, places, waves)
        return round(e.us, 6), e.bound

    # A block of four waves: 100 VALU cycles on its unit, 200 of the LDS, 40 of the L1, at one a nanosecond.
    assert time(10) == (0.2, "LDS"), time(10)
    assert time(20) == (0.4, "LDS") and time(21) == (0.6, "LDS"), (time(20), time(21))
    assert time(10, alone=300) == (0.3, "latency") and time(20, alone=300) == (0.4, "LDS")
    assert time(10, bytes=1000) == (1.0, "memory")
    assert estimate(launch, machine, counts, 0, 10, 2, 4).floor_us == 0.08  # 20 multiply-adds of 4 cycles each
    for b, t, count, pieces in ((32, 0, 3, 1), (1, 512, 6, 1), (1, 4096, 6, 4)):
        assert [len(layer(b, t, 60)[0]), layer(b, t, 60)[1]] == [count, pieces]
        assert len(layer(b, t, 60, mode="BF16")[0]) == len(layer(b, t, 60, mode="Q8_0")[0]) == count + 1
        assert len(layer(b, t, 60, mode="half")[0]) == len(layer(b, t, 60, mode="int8")[0]) == count + 2
    assert mi50_launches.columns_of(1, 60) == 2 and mi50_launches.columns_of(2, 60) == 4
    # 128 tiles of 32 x 64 in three rounds, where 64 of 64 x 64 would take two, twice as long; 60 tiles of 64 x 64 take one. Blocks
    # that share the 128 take 18 rounds of features each instead of three times 8.
    for outputs, shares, blocks, trips in ((2048, False, 128, (8, 8)), (2048, True, 60, (18, 8, 1)), (1920, True, 60, (8, 8))):
        (part,) = mi50_launches.projection(128, (outputs,), 4096, "", shares).parts
        assert (part.blocks, part.trips) == (blocks, trips), part
    print("mi50_model: all launches take what they should")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("build", nargs="?", type=pathlib.Path)
    parser.add_argument("--write", action="store_true")
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--self-test", action="store_true")
    args = parser.parse_args()
    if args.self_test:
        return self_test()
    if args.build is None:
        parser.error("the folder of a hip-gfx906 build is missing")
    compiler = gfx906_resources.compiler_version()
    model = Model(gfx906_isa.read_build(args.build), {row["kernel"]: row for row in gfx906_resources.read_objects(args.build)})
    try:
        texts = {PAGE: page(model, compiler), PICTURE: picture(model)}
    except ValueError as error:
        sys.exit(f"mi50_model: {error}")
    if args.write:
        for path, text in texts.items():
            path.write_text(text, encoding="utf-8")
        return 0
    if not args.check:
        print(texts[PAGE])
        return 0
    recorded = PAGE.read_text(encoding="utf-8") if PAGE.exists() else ""
    if f"Compiler: {compiler}\n" not in recorded:
        print(f"mi50_model: {PAGE.name} is of another compiler than {compiler}; not compared")
        return 0
    wrong = [path.name for path, text in texts.items() if not path.exists() or path.read_text(encoding="utf-8") != text]
    if wrong:
        print(f"mi50_model: not as the build says: {', '.join(wrong)}; run scripts/mi50_model.py BUILD --write and look at what changed")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
