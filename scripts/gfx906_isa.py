#!/usr/bin/env python3
"""The machine code of a hip-gfx906 build: instructions with their costs, basic blocks, loops. gfx906_walk.py walks them.

  gfx906_isa.py BUILD REGEX     print the loops of the kernels whose name matches, by first address, indented by depth
  gfx906_isa.py BUILD --check   exit 1 where a kernel spends a fifth of its vector instructions on choosing registers
  gfx906_isa.py --self-test     plant such a kernel, and count instructions whose costs are known
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
FMA = re.compile(r"v_(fma|fmac|mac|mad)_f32|v_dot2_f32_f16|v_dot4_i32_i8")  # of fp16 two, of int8 four multiply-adds
DS_BYTES = re.compile(r"ds_(?:read|write)(2?)(?:st64)?_[bui](\d+)")
MEMORY = re.compile(r"(?:global|flat|buffer)_(load|store)_(?:dword(?:x([234]))?|[us]?(byte|short)\w*)")
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


def self_test():
    chain = [Instruction(4 * n, name) for n, name in enumerate(["v_cmp_eq_u32_e32", "v_cndmask_b32_e32"] * 8)]
    sums = [Instruction(400 + 4 * n, "v_fmac_f32_e32") for n in range(80)]
    assert choice_error("K", chain + sums[:60]) and not choice_error("K", chain + sums)
    counts = Counts()
    for name in ("v_exp_f32_e32", "v_add_f64", "v_add_f32_e32", "ds_read2st64_b64", "ds_swizzle_b32", "global_load_dwordx3",
                 "global_store_short_d16_hi", "s_barrier"):
        counts.add(Instruction(0, name), 2)
    assert (counts.valu, counts.valu_cycles, counts.lds, counts.barriers) == (6, 2 * (16 + 8 + 4), 4, 2), counts
    assert counts.lds_bytes == 2 * 64 * (16 + 4) and counts.load_bytes == 2 * 64 * 12 and counts.store_bytes == 2 * 64 * 2, counts
    print("gfx906_isa: the planted kernel was reported, all costs were known")


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
