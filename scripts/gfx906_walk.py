#!/usr/bin/env python3
"""A wave's way through a gfx906 kernel: what it issues on it, and how long that takes with a SIMD alone.

  gfx906_walk.py --self-test     walk a listing whose counts are known

Code has no trip counts, so whoever walks declares them: one a loop, in the order that `gfx906_isa.py BUILD REGEX` prints; 0 for
one that is never entered. The way is the heaviest through the rest: of two sides that a wave chooses between the longer one,
of two that its lanes choose between both, as a wave with lanes for both takes both.

  counts = gfx906_walk.Walk(code, (128, 4)).counts()
"""

import dataclasses
import re
import sys

from gfx906_isa import BRANCH_CYCLES, MEMORY, Counts, blocks_of, kernels_of, loops_of


@dataclasses.dataclass(frozen=True)
class Latencies:
    """Cycles from issue to the value, of one wave alone: about what microbenchmarks of GCN and Vega cards give; and from one
    instruction to the next, where that is not what the instruction takes of its SIMD."""
    lds: int = 100
    scalar: int = 200
    memory: int = 500
    issue: float = 1.0  # of the instruction's cycles


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

    def _taken(self, block, region):
        """Where the block's branch may lead. One over code that no lane wants is not taken: a wave is thought to have lanes
        for all of it."""
        successors, last = self.blocks[block].successors, self.blocks[block].code[-1]
        if last.name in ("s_cbranch_execz", "s_cbranch_execnz") and set(successors) <= region:
            over = last.name == "s_cbranch_execz"
            return {s for s in successors if (s != last.target) == over} or set(successors)
        return set(successors)

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
                exits = self._taken(node, region - {header})
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

    def counts(self, latencies=Latencies()):
        counts = Counts()

        def add(way, times):
            for node in way:
                if isinstance(node, tuple):
                    add(self.ways[node[1]], times * self.trips[node[1]])
                else:
                    for i in self.blocks[node].code:
                        counts.add(i, times)

        add(self.way, 1.0)
        counts.alone_cycles = self._alone(latencies)
        return counts

    def _alone(self, latencies):
        """Cycles of one wave, in order: each issue, and each wait until what it waits for is there."""
        state = Alone(latencies)

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

    def __init__(self, latencies):
        self.latencies, self.now, self.vm, self.lgkm = latencies, 0.0, [], []

    def skip(self, cycles):
        self.now += cycles
        self.vm = [t + cycles for t in self.vm]
        self.lgkm = [t + cycles for t in self.lgkm]

    def issue(self, i):
        self.now += i.cycles * self.latencies.issue
        if i.name.startswith("ds_"):
            self.lgkm.append(self.now + self.latencies.lds)
        elif i.name.startswith("s_load"):
            self.lgkm.append(self.now + self.latencies.scalar)
        elif MEMORY.match(i.name):
            self.vm.append(self.now + self.latencies.memory)
        elif i.name == "s_waitcnt":
            for counter, pending in (("vmcnt", self.vm), ("lgkmcnt", self.lgkm)):
                if match := re.search(counter + r"\((\d+)\)", i.operands):
                    due = len(pending) - int(match.group(1))
                    if due > 0:
                        self.now = max([self.now] + pending[:due])
                        del pending[:due]


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

    latencies = Latencies()
    counts = Walk(code, (3, 5)).counts(latencies)
    # 2 moves and a double sum on the heavier side, 3 x 5 x 2 multiply-adds, 3 exponentials.
    assert (counts.valu, counts.fma) == (2 + 1 + 30 + 3, 30), counts
    assert counts.valu_cycles == 2 * 4 + 8 + 30 * 4 + 3 * 16, counts
    assert (counts.lds, counts.lds_bytes, counts.store_bytes) == (3, 3 * 64 * 16, 64 * 16), counts
    # Each round of the outer loop waits for its own read; a branch costs 16 cycles, everything else 4 but as above.
    outer = 4 + latencies.lds + 4 + 5 * (8 + BRANCH_CYCLES) + 16 + BRANCH_CYCLES
    before = 4 + latencies.scalar + BRANCH_CYCLES + 8 + BRANCH_CYCLES + 8 + BRANCH_CYCLES
    assert abs(counts.alone_cycles - (before + 3 * (outer - 4) + 4 + 4)) < 1e-9, (counts.alone_cycles, before, outer)
    # A loop that is never entered has no way round here.
    for trips, wrong in (((3,), "2 loops"), ((0, 5), "no way")):
        try:
            Walk(code, trips)
        except ValueError as error:
            assert wrong in str(error), error
        else:
            raise AssertionError(trips)

    print("gfx906_walk: the listing was walked as known")


if __name__ == "__main__":
    if sys.argv[1:] != ["--self-test"]:
        sys.exit(__doc__)
    self_test()
