#!/usr/bin/env python3
"""The machine code of a hip-gfx906 build, walked: what a wave issues on its way, and how long one takes that has a SIMD alone.

  gfx906_isa.py BUILD REGEX     print the loops of the kernels whose name matches, outer before inner
  gfx906_isa.py BUILD --check   exit 1 where a kernel spends a fifth of its vector instructions on choosing registers
  gfx906_isa.py --self-test     walk listings whose counts are known

Code has no trip counts, so whoever walks declares them: one a loop, in the order of the loops' first blocks; 0 for one that is
never entered. A wave's way is the heaviest through the rest: of two sides that a wave chooses between the longer one, of two
that its lanes choose between both, as a wave takes both.
"""

import dataclasses
import pathlib
import re
import subprocess
import sys
import tempfile

import gfx906_resources

LANES = 64
LINE = re.compile(r"^\s+(\S+)\s*(.*?)\s*// ([0-9A-F]+): (?:[0-9A-F]{8} ?)+(?:<\S+?(?:\+0x([0-9a-f]+))?>)?")
SYMBOL = re.compile(r"^([0-9a-f]{16}) <(\S+)>:")

# Cycles of a SIMD of 16 lanes for a wave: 4 where a lane takes an element a cycle; 8 for double precision, which gfx906 has at
# half rate; 16 for transcendental functions and 32-bit products of integers, at a quarter.
QUARTER_RATE = re.compile(r"v_(rcp|rsq|sqrt|exp|log|sin|cos)\w*_f\d\d|v_mul_(lo|hi)_[ui]32|v_mad_[ui]64_[ui]32")
HALF_RATE = re.compile(r"v_\w+_f64")
FMA = re.compile(r"v_(fma|fmac|mac|mad)_f32")
DS_BYTES = re.compile(r"ds_(?:read|write)(2?)(?:st64)?_[bui](\d+)")
MEMORY = re.compile(r"(?:global|flat|buffer)_(load|store)_(?:dword(?:x([234]))?|[us]?(byte|short)\w*)")
# Cycles from issue to the value, of one wave alone, as microbenchmarks of GCN and Vega cards give them.
LDS_LATENCY, SCALAR_LATENCY, MEMORY_LATENCY = 100, 200, 500
BRANCH_CYCLES = 16


@dataclasses.dataclass
class Instruction:
    address: int
    name: str
    operands: str = ""
    target: int | None = None

    @property
    def cycles(self):
        if self.name.startswith("v_"):
            return 16 if QUARTER_RATE.match(self.name) else 8 if HALF_RATE.match(self.name) else 4
        return BRANCH_CYCLES if self.target is not None else 4


@dataclasses.dataclass
class Counts:
    """Of one wave: instructions by kind, SIMD cycles of the vector ones, bytes that its lanes ask for."""
    valu: float = 0
    valu_cycles: float = 0
    fma: float = 0
    scalar: float = 0
    lds: float = 0
    lds_bytes: float = 0  # a lane's exchange with another takes the same pipe: 4 bytes a lane
    load_bytes: float = 0
    store_bytes: float = 0
    barriers: float = 0
    alone_cycles: float = 0

    def add(self, instruction, times):
        name = instruction.name
        if name.startswith("v_"):
            self.valu += times
            self.valu_cycles += times * instruction.cycles
            self.fma += times * bool(FMA.match(name))
        elif name.startswith("ds_"):
            match = DS_BYTES.match(name)
            self.lds += times
            self.lds_bytes += times * LANES * (int(match.group(2)) // 8 * (2 if match.group(1) else 1) if match else 4)
        elif match := MEMORY.match(name):
            size = {"byte": 1, "short": 2}.get(match.group(3), 4) * int(match.group(2) or 1)
            if match.group(1) == "load":
                self.load_bytes += times * LANES * size
            else:
                self.store_bytes += times * LANES * size
        elif name.startswith("s_"):
            self.scalar += times
            self.barriers += times * (name == "s_barrier")


# ---- from a listing to a graph


def kernels_of(listing):
    """The functions of an llvm-objdump listing that end a wave: symbol -> instructions, branch targets as addresses."""
    found, code, start = {}, None, 0
    for line in listing.splitlines():
        if symbol := SYMBOL.match(line):
            start = int(symbol.group(1), 16)
            code = found.setdefault(symbol.group(2), [])
        elif code is not None and (match := LINE.match(line)):
            name, operands, address, offset = match.groups()
            target = start + int(offset or "0", 16) if name.startswith(("s_cbranch", "s_branch")) else None
            code.append(Instruction(int(address, 16), name, operands, target))
    return {name: code for name, code in found.items() if any(i.name == "s_endpgm" for i in code)}


@dataclasses.dataclass
class Block:
    code: list
    successors: list


@dataclasses.dataclass
class Loop:
    header: int
    blocks: set
    depth: int = 0


def blocks_of(code):
    """First address -> Block; the first one is where a wave starts."""
    starts = {code[0].address} | {i.target for i in code if i.target is not None}
    starts |= {after.address for i, after in zip(code, code[1:]) if i.target is not None or i.name == "s_endpgm"}
    blocks, current = {}, None
    for i in code:
        if i.address in starts:
            if current is not None and current.code[-1].name not in ("s_endpgm", "s_branch"):
                current.successors.append(i.address)
            current = blocks.setdefault(i.address, Block([], []))
        current.code.append(i)
        if i.target is not None:
            current.successors.append(i.target)
        if i.name == "s_endpgm":
            current.successors = []
    return blocks


def dominators_of(blocks):
    entry = next(iter(blocks))
    order, seen, stack = [], {entry}, [(entry, iter(blocks[entry].successors))]
    while stack:
        at, rest = stack[-1]
        for successor in rest:
            if successor not in seen:
                seen.add(successor)
                stack.append((successor, iter(blocks[successor].successors)))
                break
        else:
            order.append(at)
            stack.pop()
    order.reverse()
    before = {b: [p for p in order if b in blocks[p].successors] for b in order}
    dominators = {b: set(order) for b in order}
    dominators[entry] = {entry}
    changed = True
    while changed:
        changed = False
        for b in order[1:]:
            new = set.intersection(*(dominators[p] for p in before[b])) | {b}
            if new != dominators[b]:
                dominators[b], changed = new, True
    return dominators, before


def loops_of(blocks):
    """Natural loops, one a header, by the header's address: an edge back to a block that every way to it has passed."""
    dominators, before = dominators_of(blocks)
    found = {}
    for tail in dominators:
        for header in blocks[tail].successors:
            if header not in dominators[tail]:
                continue
            members = found.setdefault(header, {header})
            work = [tail]
            while work:
                at = work.pop()
                if at not in members:
                    members.add(at)
                    work += before[at]
    loops = [Loop(header, members) for header, members in sorted(found.items())]
    for loop in loops:
        loop.depth = sum(loop.header in o.blocks for o in loops if o is not loop)
    return loops


# ---- the way of a wave


class Walk:
    """The heaviest way through a kernel, given its loops' trip counts."""

    def __init__(self, code, trips):
        self.blocks = blocks_of(code)
        self.loops = loops_of(self.blocks)
        if len(trips) != len(self.loops):
            raise ValueError(f"the code has {len(self.loops)} loops, {len(trips)} trip counts are declared")
        self.trips = list(trips)
        self.ways = {}
        everything = set(self.blocks)
        self.way = self._heaviest(next(iter(self.blocks)), everything, None)

    def _child(self, block, region, parent):
        """The outermost loop inside the region that holds the block, if any."""
        holders = [n for n, loop in enumerate(self.loops)
                   if block in loop.blocks and n != parent and loop.blocks <= region and loop.header != self._header(parent)]
        return min(holders, key=lambda n: self.loops[n].depth) if holders else None

    def _header(self, parent):
        return None if parent is None else self.loops[parent].header

    def _heaviest(self, start, region, parent):
        """[block address or loop number, ..] from start to the region's end: a loop's edge back, or the end of the wave."""
        best, header = {}, self._header(parent)

        def visit(node):
            if node in best:
                if best[node] == "on the way":
                    raise ValueError("a cycle that is no loop with one entry")
                return best[node]
            best[node] = "on the way"
            if isinstance(node, tuple):
                number = node[1]
                loop = self.loops[number]
                if self.trips[number] == 0:
                    best[node] = None
                    return None
                own = self._way_of(number) * self.trips[number]
                exits = {s for b in loop.blocks for s in self.blocks[b].successors if s not in loop.blocks}
                ends = False
            else:
                own = sum(i.cycles for i in self.blocks[node].code)
                exits = set(self.blocks[node].successors)
                ends = parent is None and not exits
            ends = ends or (header is not None and header in exits)
            weights = [(0.0, None)] if ends else []
            for successor in sorted(exits - {header}):
                if successor in region:
                    child = self._child(successor, region, parent)
                    following = successor if child is None else ("loop", child)
                    if (further := visit(following)) is not None:
                        weights.append((further[0], following))
            best[node] = None
            if weights:
                heaviest = max(weights, key=lambda w: w[0])
                best[node] = (own + heaviest[0], heaviest[1])
            return best[node]

        child = self._child(start, region, parent)
        node = start if child is None else ("loop", child)
        if visit(node) is None:
            raise ValueError("no way through the code but by loops that are declared never entered")
        way = []
        while node is not None:
            way.append(node)
            node = best[node][1]
        return way

    def _way_of(self, number):
        loop = self.loops[number]
        if number not in self.ways:
            self.ways[number] = self._heaviest(loop.header, loop.blocks, number)
        return self._cycles(self.ways[number])

    def _cycles(self, way):
        return sum(self._way_of(n[1]) * self.trips[n[1]] if isinstance(n, tuple) else
                   sum(i.cycles for i in self.blocks[n].code) for n in way)

    def counts(self):
        counts = Counts()

        def add(way, times):
            for node in way:
                if isinstance(node, tuple):
                    add(self.ways[node[1]], times * self.trips[node[1]])
                else:
                    for i in self.blocks[node].code:
                        counts.add(i, times)

        add(self.way, 1.0)
        counts.alone_cycles = self.alone()
        return counts

    def alone(self):
        """Cycles of one wave, in order: each issue, and each wait until what it waits for is there."""
        state = Alone()

        def run(way):
            for node in way:
                if not isinstance(node, tuple):
                    for i in self.blocks[node].code:
                        state.issue(i)
                    continue
                trips, body = self.trips[node[1]], self.ways[node[1]]
                begin = state.now
                run(body)
                if trips <= 1:
                    state.skip((state.now - begin) * (trips - 1))
                    continue
                second = state.now
                run(body)  # as all that follow
                state.skip((state.now - second) * (trips - 2))

        run(self.way)
        return state.now


class Alone:
    """The clock of a wave that has its SIMD alone."""

    def __init__(self):
        self.now, self.vm, self.lgkm = 0.0, [], []

    def skip(self, cycles):
        self.now += cycles
        self.vm = [t + cycles for t in self.vm]
        self.lgkm = [t + cycles for t in self.lgkm]

    def issue(self, i):
        self.now += i.cycles
        if i.name.startswith("ds_"):
            self.lgkm.append(self.now + LDS_LATENCY)
        elif i.name.startswith("s_load"):
            self.lgkm.append(self.now + SCALAR_LATENCY)
        elif MEMORY.match(i.name):
            self.vm.append(self.now + MEMORY_LATENCY)
        elif i.name == "s_waitcnt":
            for counter, pending in (("vmcnt", self.vm), ("lgkmcnt", self.lgkm)):
                if match := re.search(counter + r"\((\d+)\)", i.operands):
                    due = len(pending) - int(match.group(1))
                    if due > 0:
                        self.now = max([self.now] + pending[:due])
                        del pending[:due]


# ---- builds


def read_build(build):
    """Kernel name, as in the resource table -> instructions, of all served kernels."""
    objcopy, objdump = gfx906_resources.tool("llvm-objcopy"), gfx906_resources.tool("llvm-objdump")
    found = {}
    with tempfile.TemporaryDirectory() as folder:
        fat, image = pathlib.Path(folder) / "fat", pathlib.Path(folder) / "code"
        for path in sorted((build / "kernels").glob("*.hip.o")):
            subprocess.run([objcopy, "-O", "binary", "--only-section=.hip_fatbin", str(path), str(fat)], check=True)
            for part in gfx906_resources.device_code(fat.read_bytes(), "gfx906"):
                image.write_bytes(part)
                listing = subprocess.run([objdump, "-d", "--mcpu=gfx906", str(image)], check=True, capture_output=True,
                                         text=True).stdout
                for symbol, code in kernels_of(listing).items():
                    found[symbol] = code
    names = subprocess.run(["c++filt"], input="\n".join(found), check=True, capture_output=True, text=True).stdout
    return {gfx906_resources.short_name(name): code for name, code in zip(names.splitlines(), found.values())}


def describe(name, code):
    blocks = blocks_of(code)
    loops = loops_of(blocks)
    print(f"{name}: {len(code)} instructions")
    for n, loop in enumerate(loops):
        own = Counts()
        for b in loop.blocks:
            if not any(b in o.blocks for o in loops if o.depth > loop.depth and o.blocks < loop.blocks):
                for i in blocks[b].code:
                    own.add(i, 1)
        print(f"  {n}: {'  ' * loop.depth}{loop.header:x}: {own.valu:g} VALU, {own.fma:g} of them FMA, {own.lds:g} LDS of "
              f"{own.lds_bytes / LANES:g} B a lane, {own.load_bytes / LANES:g} B loaded, {own.store_bytes / LANES:g} stored, "
              f"{own.barriers:g} barriers")


# An array in registers whose index the compiler does not know is read by comparing the index with 0, 1, 2 .. in turn.
MOST_CHOICES = 0.2


def choice_error(name, code):
    vector = [i.name for i in code if i.name.startswith("v_")]
    choices = sum(n.startswith(("v_cmp_eq_u32", "v_cndmask_b32")) for n in vector)
    if choices <= MOST_CHOICES * len(vector):
        return None
    return (f"{name}: {choices} of {len(vector)} vector instructions choose among registers; expected {MOST_CHOICES:.0%} at most. "
            "Is an array indexed by a value that the compiler does not know? A choice between two elements is one: choose values")


LISTING = """
0000000000001900 <kernel>:
	s_load_dwordx2 s[0:1], s[4:5], 0x0                         // 000000001900: C0060002 00000000
	s_waitcnt lgkmcnt(0)                                       // 000000001908: BF8CC07F
	s_cbranch_scc1 10                                          // 00000000190C: BF850003 <kernel+0x24>
	v_mov_b32_e32 v1, 0                                        // 000000001910: 7E020280
	v_mov_b32_e32 v2, 0                                        // 000000001914: 7E020280
	s_cbranch_execz 3                                          // 000000001918: BF880003 <kernel+0x20>
	v_add_f64 v[1:2], v[1:2], v[1:2]                           // 00000000191C: D2800001 00020301
	s_branch 1                                                 // 000000001920: BF820001 <kernel+0x28>
	v_mov_b32_e32 v3, 0                                        // 000000001924: 7E020280
	ds_read_b128 v[4:7], v1                                    // 000000001928: D9FE0000 04000001
	s_waitcnt lgkmcnt(0)                                       // 000000001930: BF8CC07F
	v_fmac_f32_e32 v1, v4, v5                                  // 000000001934: 76020B04
	v_fmac_f32_e32 v1, v6, v7                                  // 000000001938: 76020B04
	s_cbranch_scc0 65530                                       // 00000000193C: BF84FFFA <kernel+0x34>
	v_exp_f32_e32 v1, v1                                       // 000000001940: 7E024101
	s_cbranch_scc0 65530                                       // 000000001944: BF84FFFA <kernel+0x28>
	global_store_dwordx4 v[1:2], v[4:7], off                   // 000000001948: DC748000 007F0401
	s_endpgm                                                   // 000000001950: BF810000

0000000000002000 <helper>:
	v_mov_b32_e32 v0, 0                                        // 000000002000: 7E000280
"""


def self_test():
    kernels = kernels_of(LISTING)
    assert list(kernels) == ["kernel"], kernels  # what ends no wave is no kernel
    code = kernels["kernel"]
    loops = loops_of(blocks_of(code))
    assert [(hex(loop.header), loop.depth) for loop in loops] == [("0x1928", 0), ("0x1934", 1)], loops

    walk = Walk(code, (3, 5))
    counts = walk.counts()
    # 2 moves and a double sum on the heavier side, 3 x 5 x 2 multiply-adds, 3 exponentials.
    assert (counts.valu, counts.fma) == (2 + 1 + 30 + 3, 30), counts
    assert counts.valu_cycles == 2 * 4 + 8 + 30 * 4 + 3 * 16, counts
    assert (counts.lds, counts.lds_bytes, counts.store_bytes) == (3, 3 * 64 * 16, 64 * 16), counts
    # Each round of the outer loop waits for its own read; a branch costs 16 cycles, everything else 4 but as above.
    outer = 4 + LDS_LATENCY + 4 + 5 * (8 + BRANCH_CYCLES) + 16 + BRANCH_CYCLES
    before = 4 + 4 + SCALAR_LATENCY - 4 + BRANCH_CYCLES + 8 + BRANCH_CYCLES + 8 + BRANCH_CYCLES
    assert abs(counts.alone_cycles - (before + 3 * (outer - 4) + 4 + 4)) < 1e-9, (counts.alone_cycles, before, outer)
    # A loop that is never entered has no way round here.
    for trips, wrong in (((3,), "2 loops"), ((0, 5), "no way")):
        try:
            Walk(code, trips)
        except ValueError as error:
            assert wrong in str(error), error
        else:
            raise AssertionError(trips)

    chain = [Instruction(4 * n, name) for n, name in enumerate(["v_cmp_eq_u32_e32", "v_cndmask_b32_e32"] * 8)]
    sums = [Instruction(400 + 4 * n, "v_fmac_f32_e32") for n in range(80)]
    assert choice_error("K", chain + sums[:60]) and not choice_error("K", chain + sums)
    print("gfx906_isa: all listings walked as known")


def main():
    if sys.argv[1:] == ["--self-test"]:
        return self_test()
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    build = read_build(pathlib.Path(sys.argv[1]))
    if sys.argv[2] == "--check":
        errors = [error for name, code in sorted(build.items()) if (error := choice_error(name, code))]
        print("\n".join(errors + [f"gfx906_isa: {len(build)} kernels, {len(errors)} faults"]))
        return 1 if errors else 0
    for name, code in sorted(build.items()):
        if re.search(sys.argv[2], name):
            describe(name, code)
    return 0


if __name__ == "__main__":
    sys.exit(main())
