"""What scripts/mi50_model.py models: two machines, the launches of a layer's kernels, and what an H200 measured of them.

A line a kernel says how many blocks run, how often each loop does (in the order that `gfx906_isa.py BUILD REGEX` prints them; 0:
never entered) and how many bytes must pass between memory and device once. When a kernel's loops change, its line does.

  launch = mi50_launches.projection(rows=32, outputs=(8192,), features=2048, name="projection")
"""

import dataclasses
import json
import pathlib

import gfx906_walk

RUN = pathlib.Path(__file__).resolve().parent.parent / "docs" / "evidence" / "performance" / "fma" / "h200.json"

# ---- the machines


@dataclasses.dataclass(frozen=True)
class Machine:
    name: str
    units: int  # CUs or multiprocessors
    ghz: float
    fma_tflops: float  # float32 multiply-adds
    gb_s: float
    lds_bytes: int  # a clock and unit
    asked_bytes: int  # that a unit's loads and stores can ask for, a clock
    shared_pipe: bool  # whether both of these are one
    latencies: gfx906_walk.Latencies
    launch_us: tuple  # least and most a launch adds

    def simd_cycles(self):
        """Vector cycles, of 16 lanes each, that a unit has a second."""
        return self.fma_tflops * 1e12 / 2 / 16 / self.units


MI50 = Machine("MI50", 60, 1.725, 13.3, 820, 128, 64, False, gfx906_walk.Latencies(), (5, 8))
# Limits as measured (docs/evidence/gpu-verification.md, docs/evidence/performance/fma/h200.json); latencies of Hopper by microbenchmarks; a launch in
# a replayed graph, which is what was timed.
H200 = Machine("H200", 132, 1.98, 57.8, 4440, 128, 128, True, gfx906_walk.Latencies(lds=33, scalar=40, memory=650, issue=0.5),
              (1.5, 1.5))

# ---- what runs: a layer, of Qwen3-Next unless of_layer says otherwise; BF16 weights, float32 states, activations unless said

K, V, W, LOG, CHUNK, PIECE = 128, 128, 4, 16, 32, 1024


def of_layer(key_heads, value_heads, hidden):
    """Makes all that follows be of a layer with these dimensions."""
    global H, HV, D, CHANNELS, STATE, ENTRY, IN_OUTPUTS, RULE_IN
    H, HV, D = key_heads, value_heads, hidden
    CHANNELS = 2 * H * K + HV * V
    STATE = 4 * HV * K * V
    ENTRY = 4 * (H * K + HV * V + HV)  # of the decode log
    IN_OUTPUTS = (CHANNELS + HV * V, 2 * HV)  # the in-projections' matrices; features: D
    RULE_IN = 4 * (2 * H * K + HV * V + 2 * HV)  # q, k, v, g, beta of a token


QWEN3_NEXT = (16, 32, 2048)
of_layer(*QWEN3_NEXT)


@dataclasses.dataclass
class Part:
    """Blocks of a launch that do the same."""
    kernel: str
    blocks: int
    trips: tuple


@dataclasses.dataclass
class Launch:
    name: str
    parts: list
    bytes: float  # that memory must give and take once
    resident: int  # blocks a multiprocessor of an H200 holds, by the launch bounds in the source
    fma: float = 0  # multiply-adds by formula, where the model has one


def ceil(a, b):
    return -(-a // b)


def columns_of(sequences, units):  # ChooseColumns for K = V = 128
    return 2 if sequences * HV * V // (16 * 4) < 2 * units else 4


def decode(b, units):
    c = columns_of(b, units)  # A fold every 16th step; one wave of four adds up 2.5 times four decays.
    return Launch("decode", [Part(f"DeltaRuleDecodeKernel<64, 8, {c}, true, true, float>", b * HV * V // (16 * c), (2.5 / 4, 1, 0))],
                  b * (STATE * (1 + 1 / LOG) + ENTRY * ((LOG - 1) / 2 + 1) + RULE_IN + 4 * HV * V), 3)


def mixed_decode(b):
    """What a decode is between its projections: mixer_input, decode and gated norm in one launch."""
    inputs = 4 * (CHANNELS + HV * V + 2 * HV + W * CHANNELS)  # and the columns of the convolution
    return Launch("mixed decode", [Part("MixedDecodeKernel<64, 8, true, float>", b * HV, (0, 2.5 / 4, ceil(V, 64), 0, 1, 1))],
                  b * (STATE * (1 + 1 / LOG) + ENTRY * ((LOG - 1) / 2 + 1) + inputs + 4 * HV * V) + 4 * CHANNELS * W, 3)


# Where each key channel has a decay (KDA): g, and the log's, are K times as many.
CHANNEL_G = 4 * (K - 1)  # bytes more, a token and value head


def channel_decode(b, units):
    c = columns_of(b, units)
    return Launch("decode, by channel",
                  [Part(f"DeltaRuleChannelDecodeKernel<64, 8, {c}, true, true, float>", b * HV * V // (16 * c), (1, 0))],
                  b * (STATE * (1 + 1 / LOG) + (ENTRY + HV * CHANNEL_G) * ((LOG - 1) / 2 + 1) + RULE_IN + HV * CHANNEL_G + 4 * HV * V), 3)


def mixed_channel_decode(b):
    inputs = 4 * (CHANNELS + HV * V + HV * K + HV + W * CHANNELS)  # and the columns of the convolution
    return Launch("mixed decode, by channel", [Part("MixedChannelDecodeKernel<64, 8, float>", b * HV, (0, ceil(V, 64), 0, 1, 1))],
                  b * (STATE * (1 + 1 / LOG) + (ENTRY + HV * CHANNEL_G) * ((LOG - 1) / 2 + 1) + inputs + 4 * HV * V) + 4 * CHANNELS * W, 2)


def channel_prepared(chunks):
    return chunks * HV * 4 * (2 * CHUNK * CHUNK + K + 3 * CHUNK * K)


def channel_prepare(t, b=1):
    return Launch("chunk prepare, by channel", [Part("DeltaRuleChannelPrepareKernel", b * ceil(t, CHUNK) * HV, (K // 32, 8))],
                  b * (t * (4 * (2 * H * K + 2 * HV) + HV * CHANNEL_G) + channel_prepared(ceil(t, CHUNK))), 4)


# Blocks of the walk over chunks: WalkShape's arguments, columns; places, us of a block and of one alone (kWalkCosts in
# delta_rule_walk_gpu-inl.h); trips of the loops of a chunk for one decay a head and by channel.
WALKS = (("128, 8, 2", 16, (5, 46, 239), (0,) * 13, (0,)), ("256, 8, 2", 32, (2, 89, 162), (4, 0, 0, 4, 8, 0), (4, 4, 8, 0)),
         ("256, 8, 1", 16, (2, 76, 127), (2, 0, 0, 2, 8, 0), (2, 2, 8, 0)))
WIDE_WALK = WALKS[1]


def walk_of(b):
    def cost(shape):  # RoundsCost
        _, columns, (places, each, alone), *_ = shape
        full, rest = divmod(b * HV * ceil(V, columns), MI50.units * places)
        return full * max(places * each, alone) + (max(ceil(rest, MI50.units) * each, alone) if rest else 0)

    return min(reversed(WALKS), key=cost)


def channel_walk(t, b=1):
    chunks = ceil(t, CHUNK)
    shape, columns, _, _, trips = walk_of(b)
    return Launch("chunk walk, by channel",
                  [Part(f"DeltaRuleChannelWalkKernel<64, walk::WalkShape<{shape}>, true, float>", b * HV * ceil(V, columns), (chunks, *trips))],
                  b * (2 * STATE + t * 4 * 2 * HV * V + channel_prepared(chunks)), 2)


def materialize(b, units):
    c = columns_of(b, units)  # eight entries in the log, the convolution's columns to another slot
    conv = (W - 1 + 8) * CHANNELS
    blocks = b * HV * V // (16 * c)
    return Launch("materialize", [Part(f"MaterializeStateKernel<8, {c}, true, float>", blocks, (conv * b / blocks / 256, 1, 0, 1, 0, 8))],
                  b * (2 * STATE + 8 * ENTRY + 8 * conv), 4)


def tiles(rows, outputs, features, shapes, operands, steps, may_share=True):
    """The part of a launch of projection_tiles_gpu.hip. `shapes`: of (lanes down, rows and outputs of a lane, percent of CostOf).
    `steps`: of a group of features, by shape. `may_share`: blocks may share tiles."""
    rounds = ceil(features, 64 * 8)

    def count(shape):
        down, r, o, _ = shape
        return ceil(rows, down * r) * sum(ceil(out, 64 // down * o) for out in outputs)

    def division(shape):  # Division there: whether blocks share tiles, and how long that takes
        whole = ceil(count(shape), MI50.units) * rounds * 100
        each = ceil(count(shape) * rounds, MI50.units)
        shared = each * 116 + max(rounds - each, 0) * 12
        shares = may_share and shape[1] * shape[2] == 32 and rows <= 256 and shared < whole
        return shares, shared if shares else whole

    def cost(shape):  # CostOf
        return division(shape)[1] * 64 * shape[1] * shape[2] // shape[3]

    shape = min(shapes, key=cost)
    shares = division(shape)[0]
    kernel = f"TilesKernel<{operands}, Tile<64, {shape[0]}, {shape[1]}, {shape[2]}>, {str(shares).lower()}>"
    if not shares:
        return Part(kernel, count(shape), (rounds, steps(shape)))
    units = count(shape) * rounds
    blocks = min(units, MI50.units)
    return Part(kernel, blocks, (ceil(units, blocks), steps(shape), 1))


def projection(rows, outputs, features, name, may_share=True):
    groups = features // 64
    weights = "ScaledHalves" if features == D else "Bf16Weights"  # an out-projection never meets 16-bit inputs
    if rows > 8:
        part = tiles(rows, outputs, features, ((8, 8, 8, 95), (4, 8, 8, 95), (8, 4, 8, 90), (4, 4, 4, 60)),
                     f"PlainOperands<{weights}, true, (DType)1>", lambda shape: 64 // 16 if shape[1] * shape[2] == 16 else 8, may_share)
    else:
        r = 1 << (rows - 1).bit_length()

        def tiles_of(lanes):
            return sum(ceil(o, lanes * (1 if r <= 2 else 2)) for o in outputs)

        def used(lanes):  # PartUsed in projection_few_rows_gpu.hip
            return tiles_of(lanes) / (2 * MI50.units * ceil(tiles_of(lanes), 2 * MI50.units))

        lanes = 8 if used(8) > 1.5 * used(16) else 16
        teams, stages = 256 // lanes, 2 if r <= 2 else 4
        part = Part(f"FewRowsKernel<Tile<{weights}, {lanes}, {r}>, 64, true>", ceil(rows, r) * tiles_of(lanes),
                    (ceil(groups, teams), stages) if r <= 2 else (ceil(groups, teams), stages, 2))
    return Launch(name, [part], 2 * sum(outputs) * features + 4 * rows * (features + sum(outputs)), 4 if rows == 1 else 2,
                  rows * sum(outputs) * features)


def half(rows, outputs, features, name):
    """The same in products of fp16 numbers."""
    groups = features // 64
    if rows > 8:
        words = {64: 4, 32: 8, 16: 16}  # of a step, by results of a lane
        part = tiles(rows, outputs, features, ((8, 8, 8, 95), (8, 4, 8, 90), (4, 4, 4, 60)), "HalfOperands<true>",
                     lambda shape: 32 // words[shape[1] * shape[2]], may_share=False)
    else:
        r = 1 << (rows - 1).bit_length()

        def tiles_of(lanes):
            return sum(ceil(o, lanes * (1 if r <= 2 else 2)) for o in outputs)

        def used(lanes):  # PartUsed in projection_few_rows_gpu.hip
            return tiles_of(lanes) / (2 * MI50.units * ceil(tiles_of(lanes), 2 * MI50.units))

        lanes = 8 if r < 8 and used(8) > 1.5 * used(16) else 16
        rounds = ceil(groups, 256 // lanes)
        part = Part(f"FewRowsKernel<HalfTile<ScaledHalves, {lanes}, {r}>, 64, true>", ceil(rows, r) * tiles_of(lanes),
                    (rounds,) if r <= 2 else (rounds, 2, 2, 2, 2))
    rounded = 0 if rows <= 8 else rows * features // 64 * 35 * 4
    return Launch(name, [part], 2 * sum(outputs) * features + 4 * rows * (features + sum(outputs)) + rounded, 2)


def halve_rows(rows, features, x_bytes=4):
    return Launch("rounding to fp16", [Part("HalveRowsKernel<64>", ceil(rows, 16) * features // 64, ())],
                  x_bytes * rows * features + rows * features // 64 * 35 * 4, 8)


def layer_projection(mode, rows, outputs, features, name, may_share):
    """A projection of a layer in a mode (MODES), with the rounding of its inputs before it."""
    of_bf16 = features == D and mode != "exact"  # hidden states; the others are float32
    if mode == "half" or (mode == "BF16" and features == D):
        return [halve_rows(rows, features, x_bytes=2 if of_bf16 else 4)] * (rows > 8) + [half(rows, outputs, features, name)]
    if mode == "Q8_0":
        if features == D:
            return [halve_rows(rows, features, x_bytes=2)] * (rows > 8) + [half_blocks("Q8_0", rows, outputs, features, name)]
        return [quantised("Q8_0", rows, outputs[0], features, name)]
    if mode == "int8":
        return [round_rows(rows, features)] * (rows > 8) + [int8("Q8_0", rows, outputs, features, name)]
    return [projection(rows, outputs, features, name, may_share)]


# base/weight_format.h's formats: the number there, and the bytes on a GPU of a block of so many weights.
QUANTISED = {"Q8_0": (5, 34, 32), "Q4_0": (6, 18, 32), "Q4_K": (7, 144, 256), "Q5_K": (8, 176, 256), "Q6_K": (9, 210, 256),
             "Q4_1": (10, 20, 32), "Q5_0": (11, 22, 32), "Q5_1": (12, 24, 32), "IQ4_NL": (13, 18, 32), "Q2_K": (14, 84, 256),
             "Q3_K": (15, 110, 256), "IQ4_XS": (16, 136, 256), "IQ3_S": (17, 136, 256)}


def quantised(weights, rows, outputs, features, name):
    """A projection of float32 numbers; outputs is one matrix's."""
    number, bytes_of_block, block = QUANTISED[weights]
    if rows > 8:
        part = tiles(rows, (outputs,), features, ((8, 4, 8, 90), (4, 4, 4, 60)), f"QuantisedOperands<OneFormat<(WeightFormat){number}>, true, (DType)1>",
                     lambda shape: 64 // 16 if shape[1] * shape[2] == 16 else 8, may_share=False)
        return Launch(name, [part], outputs * features // block * bytes_of_block + 4 * rows * (features + outputs), 1)
    r = 1 << (rows - 1).bit_length()
    resident = {1: 4, 2: 3}.get(r, 2)  # places in projection_few_quantised_gpu-inl.h

    def tiles_of(lanes):
        return ceil(outputs, lanes * (1 if r <= 2 else 2))

    def used(lanes):  # PartUsed there
        return tiles_of(lanes) / (MI50.units * ceil(tiles_of(lanes), MI50.units))

    lanes = 8 if used(8) > 1.15 * used(16) else 16
    rounds = ceil(features // 64, 256 // lanes * (2 if r == 1 else 1))
    shape = f"{lanes}, {r}, {1 if r <= 2 else 2}, {2 if r == 1 else 1}, {2 if r <= 2 else 1}, 256, {3 if r <= 2 else 2}"
    part = Part(f"FewQuantisedKernel<QuantisedTile<(WeightFormat){number}, QuantisedShape{{{shape}}}>, 64, true>",
                ceil(rows, r) * tiles_of(lanes),
                (rounds,) if r <= 2 else (rounds, 2))
    return Launch(name, [part], outputs * features // block * bytes_of_block + 4 * rows * (features + outputs), resident,
                  rows * outputs * features)


def int8(weights, rows, outputs, features, name):
    """The same with x rounded to int8, for any number of rows and matrices of those outputs."""
    number, bytes_of_block, block = QUANTISED[weights]
    groups = features // 64
    if rows > 8:
        def cycles(shape):  # Int8CostOf in projection_int8_tiles_gpu-inl.h
            _, _, _, places, vector, alone = shape
            full, rest = divmod(blocks_of(shape), MI50.units * places)
            return full * max(places * vector, alone) + (max(ceil(rest, MI50.units) * vector, alone) if rest else 0)

        def blocks_of(shape):
            _, down, across, *_ = shape
            return ceil(rows, down) * sum(ceil(out, across) for out in outputs)

        shape = min((("64, 8, 8, 4, 1, 4, 1", 64, 128, 2, 109, 187), ("64, 4, 4, 4, 1, 1, 4", 16, 64, 3, 19, 53),
                     ("64, 4, 4, 4, 1, 1, 8", 16, 64, 1, 18, 27)), key=cycles)
        teams = int(shape[0].rsplit(", ", 1)[1])
        part = Part(f"Int8TilesKernel<Int8Tile<Int8TileShape<{shape[0]}>, (WeightFormat){number}> >", blocks_of(shape),
                    (groups + 1 if teams == 1 else ceil(groups, teams),))  # together: one round more, that loads alone
    else:
        r = 1 if rows == 1 else 4 if rows <= 4 else 8

        def tiles_of(lanes):
            return sum(ceil(out, lanes * (1 if r == 1 else 2)) for out in outputs)

        def used(lanes):  # PartUsed in projection_few_quantised_gpu-inl.h
            return tiles_of(lanes) / (MI50.units * ceil(tiles_of(lanes), MI50.units))

        lanes = 8 if r == 4 and used(8) > 1.15 * used(16) else 16
        shape = f"{lanes}, 1, 1, 2, 2, 256, 3" if r == 1 else f"{lanes}, {r}, 2, 1, 1, 256, 2"
        part = Part(f"FewQuantisedKernel<RoundedTile<(WeightFormat){number}, QuantisedShape{{{shape}}}>, 64, true>", tiles_of(lanes),
                    (ceil(groups, 32),) if r == 1 else (ceil(groups, 256 // lanes), 2))
    moved = sum(outputs) * features // block * bytes_of_block + 4 * rows * (features + sum(outputs))
    rounded = 0 if rows <= 8 else rows * features // 32 * 44
    return Launch(name, [part], moved + rounded, 2)


def half_blocks(weights, rows, outputs, features, name):
    """The same with x rounded to fp16."""
    number, bytes_of_block, block = QUANTISED[weights]
    groups = features // 64
    if rows > 8:
        part = tiles(rows, outputs, features, ((8, 4, 8, 90), (4, 4, 4, 60)), f"HalfBlockOperands<(WeightFormat){number}>",
                     lambda shape: 64 // 32, may_share=False)
    else:
        r = 1 if rows == 1 else 4 if rows <= 4 else 8
        shape = "16, 1, 1, 2, 2, 256, 3" if r == 1 else f"16, {r}, 2, 1, 2, 256, 2"
        part = Part(f"FewQuantisedKernel<HalvedTile<(WeightFormat){number}, QuantisedShape{{{shape}}}>, 64, true>",
                    sum(ceil(out, 16 * (1 if r == 1 else 2)) for out in outputs), (ceil(groups, 32 if r == 1 else 16),))
    moved = sum(outputs) * features // block * bytes_of_block + 4 * rows * (features + sum(outputs))
    return Launch(name, [part], moved + (0 if rows <= 8 else rows * groups * 35 * 4), 2)


def round_rows(rows, features):
    return Launch("rounding to int8", [Part("RoundRowsKernel<64>", ceil(rows, 32) * features // 32, ())],
                  4 * rows * features + rows * features // 32 * 44, 8)


def prepare(t, b=1):
    return Launch("chunk prepare", [Part("DeltaRulePrepareKernel<true>", b * ceil(t, CHUNK) * HV, (K // 64, 4))],
                  b * (t * 4 * (2 * H * K + 2 * HV) + ceil(t, CHUNK) * HV * 4 * (2 * CHUNK * CHUNK + 2 * CHUNK)), 4)


def walk(t, b=1, walk_shape=None):
    chunks = ceil(t, CHUNK)
    shape, columns, _, trips, _ = walk_shape or walk_of(b)
    return Launch("chunk walk",
                  [Part(f"DeltaRuleChunkKernel<64, walk::WalkShape<{shape}>, true, float>", b * HV * ceil(V, columns), (chunks, *trips))],
                  b * (2 * STATE + t * (RULE_IN + 4 * HV * V) + chunks * HV * 4 * (2 * CHUNK * CHUNK + 2 * CHUNK)), 2)


def scan(t, units, b=1):
    c = 4 if b * HV * V // 64 >= 4 * units else 2
    return Launch("scan", [Part(f"DeltaRuleScanKernel<64, 8, {c}, true, StoredGates, float>", b * HV * V // (16 * c), (t, 0))],
                  b * (2 * STATE + t * (RULE_IN + 4 * HV * V)), 2)


def mixer_input(b, t, units):
    heads, values, gates = 2 * H // 4, HV * V // 512, 1
    across = heads + 2 * values + gates
    tile = 4
    while tile < 16 and across * ceil(b * t, tile) > 16 * units:
        tile *= 2
    tiles = ceil(t, tile)
    groups = min(b, ceil(16 * units, across * tiles))
    n, k = b / groups, min(tile, t)  # sequences a block, tokens a tile
    ring = min(t, W - 1 + 8) / tiles
    kernel, unused = "MixerInputKernel<64, true, (Heads)1>", (0,)
    parts = [Part(kernel, gates * tiles * groups, (n, 1, ceil(k * HV, 128)) + unused * 12),
             Part(kernel, values * tiles * groups, unused * 3 + (n, 1, k) + unused * 9),
             Part(kernel, values * tiles * groups, unused * 6 + (n, 1, 0, k, ring) + unused * 4),
             Part(kernel, heads * tiles * groups, unused * 11 + (n, 1, k, ring))]
    moved = 4 * (2 * CHANNELS + 2 * HV * V + 4 * HV)
    return Launch("mixer_input", parts, b * (t * moved + 4 * CHANNELS * (W - 1 + min(t, W - 1 + 8))) + 4 * CHANNELS * W, 8)


def gated_norm(rows, units):
    needed = ceil(rows * HV, 8)
    blocks = min(needed, 16 * units)
    return Launch("gated norm", [Part("GatedRmsNormKernel<64, true>", blocks, (needed / blocks,))], rows * 3 * 4 * HV * V, 5)


# Exact products of float32 and of BF16 (or F16) inputs, and of BF16 inputs with Q8_0 weights; --math=half with BF16 inputs;
# --math=int8 with Q8_0 weights.
MODES = ("exact", "BF16", "Q8_0", "half", "int8")


def layer(b, t, units, one_launch=True, mode="exact"):
    """A decode of b sessions (t = 0), or a prefill of t tokens, which runs in pieces. one_launch: waves of 64, where a decode runs
    mixed_decode and blocks share tiles."""
    rows = b if t == 0 else min(t, PIECE)
    if t > 0:
        mixed = [mixer_input(1, rows, units), prepare(rows), walk(rows), gated_norm(rows, units)]
    else:
        mixed = [mixed_decode(b)] if one_launch else [mixer_input(b, 1, units), decode(b, units), gated_norm(b, units)]
    once = [*layer_projection(mode, rows, IN_OUTPUTS, D, "in-projections", one_launch), *mixed,
            *layer_projection(mode, rows, (D,), HV * V, "out-projection", one_launch)]
    return once, 1 if t == 0 else ceil(t, PIECE)


def rows_of(count):
    return "1 row" if count == 1 else f"{count:,} rows"


def launches(machine):
    u = machine.units
    return ([(f"B = {b}", decode(b, u)) for b in (1, 8, 32, 128, 512)] +
            [(f"B = {b}", mixed_decode(b)) for b in (1, 8, 32, 128, 512)] +
            [(f"B = {b}", f(b)) for f in (lambda b: channel_decode(b, u), mixed_channel_decode) for b in (1, 32, 128)] +
            [(rows_of(r), projection(r, (CHANNELS,), D, "projection")) for r in (1, 2, 8, 32, 128, 512, 2048)] +
            [(rows_of(r), projection(r, (D,), HV * V, "out-projection")) for r in (1, 32, 128)] +
            [(rows_of(r), quantised(w, r, CHANNELS, D, f"projection, {w}")) for w in ("Q8_0", "Q4_K") for r in (1, 8)] +
            [(rows_of(1), quantised(w, 1, CHANNELS, D, f"projection, {w}")) for w in QUANTISED if w not in ("Q8_0", "Q4_K")] +
            [(rows_of(1), quantised(w, 1, D, HV * V, f"out-projection, {w}")) for w in ("Q8_0", "Q4_K", "Q6_K")] +
            [(rows_of(r), quantised("Q8_0", r, D, HV * V, "out-projection, Q8_0")) for r in (32, 128, 1024)] +
            [(rows_of(r), int8(w, r, IN_OUTPUTS, D, f"int8 in-projections, {w}"))
             for w in ("Q8_0", "Q4_K") for r in (1, 8, 32, 128, 1024)] +
            [(rows_of(r), int8(w, r, (D,), HV * V, f"int8 out-projection, {w}"))
             for w in ("Q8_0", "Q4_K") for r in (1, 8, 32, 128, 1024)] +
            [(rows_of(1024), round_rows(1024, D))] +
            [(rows_of(r), half_blocks(w, r, IN_OUTPUTS, D, f"fp16 in-projections, {w}"))
             for w in ("Q8_0", "Q4_K") for r in (1, 8, 32, 128, 1024)] +
            [(rows_of(r), half(r, IN_OUTPUTS, D, "fp16 in-projections")) for r in (1, 2, 32, 128, 512, 1024)] +
            [(rows_of(r), half(r, (D,), HV * V, "fp16 out-projection")) for r in (1, 32, 128, 512, 1024)] +
            [(rows_of(r), projection(r, IN_OUTPUTS, D, "in-projections")) for r in (1, 2, 32, 128, 512, 1024)] +
            [(rows_of(r), projection(r, (D,), HV * V, "out-projection")) for r in (512, 1024)] +
            [(rows_of(1024), halve_rows(1024, D))] +
            [(f"T = {t:,}", f(t)) for f in (prepare, walk, channel_prepare, channel_walk) for t in (512, 4096)] +
            [(f"T = {t}", scan(t, u)) for t in (16, 64)] +
            [("B = 1", mixer_input(1, 1, u)), ("B = 128", mixer_input(128, 1, u)), ("T = 1,024", mixer_input(1, 1024, u))] +
            [("B = 1", gated_norm(1, u)), ("B = 128", gated_norm(128, u)), ("T = 1,024", gated_norm(1024, u))] +
            [("1 state", materialize(1, u)), ("32 states", materialize(32, u))])


# ---- measured on an H200

# Kernels that have changed since the run in docs/evidence/performance/fma/h200.json, or that it does not time alone: a commit's body.
WALK_COMMIT, SPLIT_COMMIT = "61d7227", "d5c1696"
SAME, REPLACED = "the same kernel", "the same kernel, replaced since"
TILES32, OTHER = "the same kernel, tiles half as wide", "another kernel"


def measured():
    """(kernel, case, launches, us, source, remark)"""
    run = json.loads(RUN.read_text(encoding="utf-8"))
    kept, u = run["commit"], H200.units
    rows = []

    def add(kernel, case, name, launch, remark=SAME):
        if name in run["cases"]:
            rows.append((kernel, case, launch, run["cases"][name]["us"][0], kept, remark))

    for b in (1, 8, 32, 128, 512):
        streamed = b * HV >= 4 * u
        add("decode", f"B = {b}", f"decode_deferred/B={b}", [decode(b, u)], OTHER if streamed else SAME)
    for t in (64, 512, 4096):
        add("scan", f"T = {t:,}", f"prefill_scan/T={t}", [scan(t, u)])
    rows += [("chunk prepare", "T = 4,096", [prepare(4096)], 107, WALK_COMMIT + ", counters", REPLACED),
             ("chunk walk", "T = 4,096", [walk(4096, walk_shape=WIDE_WALK)], 1273, WALK_COMMIT + ", counters", REPLACED),
             ("chunk walk", "T = 512, with prepare", [prepare(512), walk(512, walk_shape=WIDE_WALK)], 174.4, WALK_COMMIT, REPLACED)]
    for r, remark in ((1, SAME), (8, SAME), (32, TILES32), (128, OTHER), (512, OTHER), (2048, OTHER)):
        add("projection", rows_of(r), f"projection_{'row_stable' if r <= 128 else 'sequence_gemm'}/BF16/rows={r}",
            [projection(r, (CHANNELS,), D, "projection", may_share=False)], remark)
    for b, remark in ((1, "the same kernels"), (32, "another decode kernel"), (128, "other decode and in-projection kernels")):
        add("layer", f"decode, B = {b}", f"layer_decode/BF16/B={b}", layer(b, 0, u, one_launch=False)[0], remark)
    return rows


def split_rows():
    """What waves of 32 have instead of the walk, by formula: multiply-adds, LDS bytes, and bytes of states left in memory."""
    tokens, product = 4096, CHUNK * K * V  # of one product with S, a chunk and head
    chunks = tokens // CHUNK * HV
    lds = H200.lds_bytes * H200.ghz * 1e9 * H200.units
    for name, fma in (("delta_rule_states", chunks * (2 * product + CHUNK * CHUNK * V)),
                      ("delta_rule_outputs", chunks * (product + CHUNK * CHUNK * V))):
        yield name, fma, fma * 2 / H200.fma_tflops / 1e6, fma * 1.5 / lds * 1e6, chunks * STATE / HV / H200.gb_s / 1e3
