#!/usr/bin/env python3
"""What each kernel takes of a gfx906, from the metadata that the compiler wrote into the objects of a hip-gfx906 build.

  gfx906_resources.py BUILD            print the table
  gfx906_resources.py BUILD --write    write docs/evidence/gfx906-resources.md
  gfx906_resources.py BUILD --check    exit 1 on a spill, scratch, too much LDS, or a table that is no longer true
  gfx906_resources.py --self-test      plant each fault in a table and see it reported

The table is compared only under the compiler it names; limits hold under any.
"""

import argparse
import pathlib
import re
import struct
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
TABLE = ROOT / "docs" / "evidence" / "gfx906-resources.md"
LDS_BYTES = 64 * 1024
VGPRS = 256
MAX_WAVES = 10
WAVE = 64
MAGIC = b"__CLANG_OFFLOAD_BUNDLE__"

FIELDS = {
    "vgpr": r"\.vgpr_count:\s+(\d+)",
    "sgpr": r"\.sgpr_count:\s+(\d+)",
    "lds": r"\.group_segment_fixed_size:\s+(\d+)",
    "scratch": r"\.private_segment_fixed_size:\s+(\d+)",
    "vgpr_spill": r"\.vgpr_spill_count:\s+(\d+)",
    "sgpr_spill": r"\.sgpr_spill_count:\s+(\d+)",
    "threads": r"\.max_flat_workgroup_size:\s+(\d+)",
}


def tool(name):
    """The LLVM tool beside the hipcc in use, by its versioned or its plain name."""
    for candidate in (f"{name}-15", f"/opt/rocm/llvm/bin/{name}", name):
        try:
            subprocess.run([candidate, "--version"], check=True, capture_output=True)
            return candidate
        except (OSError, subprocess.CalledProcessError):
            continue
    sys.exit(f"gfx906_resources: no {name}; scripts/setup.sh --hip installs it")


def compiler_version():
    text = subprocess.run(["hipcc", "--version"], check=True, capture_output=True, text=True).stdout
    hip = re.search(r"HIP version: (\S+)", text)
    clang = re.search(r"clang version (\S+)", text)
    return f"HIP {hip.group(1) if hip else '?'}, clang {clang.group(1) if clang else '?'}"


def device_code(fat, target):
    """The parts of a fat binary that are for `target`."""
    begin = fat.find(MAGIC)
    while begin >= 0:
        count, = struct.unpack_from("<Q", fat, begin + len(MAGIC))
        at = begin + len(MAGIC) + 8
        for _ in range(count):
            offset, size, length = struct.unpack_from("<QQQ", fat, at)
            triple = fat[at + 24:at + 24 + length].decode()
            at += 24 + length
            if triple.endswith(target) or f"--{target}:" in triple:
                yield fat[begin + offset:begin + offset + size]
        begin = fat.find(MAGIC, at)


def kernel_name(mangled):
    return short_name(subprocess.run(["c++filt", mangled], check=True, capture_output=True, text=True).stdout.strip())


def short_name(demangled):
    """Without namespaces, return type and parameters."""
    text = demangled.replace("(anonymous namespace)::", "").replace("gdn::gpu::", "").replace("gdn::", "")
    text = re.sub(r"^void ", "", text)
    depth = 0
    for at in range(len(text) - 1, -1, -1):  # the parameters are the last parentheses; casts in templates come before
        depth += {")": 1, "(": -1}.get(text[at], 0)
        if text[at] == "(" and depth == 0:
            return text[:at]
    return text


def waves_per_simd(row):
    """min(10, 256 / VGPRs, 64 KB / LDS * waves a block / 4), each rounded down; VGPRs are given in fours."""
    by_registers = VGPRS // max(4, (row["vgpr"] + 3) // 4 * 4)
    waves = (row["threads"] + WAVE - 1) // WAVE
    by_lds = MAX_WAVES if row["lds"] == 0 else (LDS_BYTES // row["lds"]) * waves // 4
    return min(MAX_WAVES, by_registers, max(by_lds, 1 if row["lds"] <= LDS_BYTES else 0))


def read_objects(build):
    objcopy, readelf = tool("llvm-objcopy"), tool("llvm-readelf")
    objects = sorted((build / "kernels").rglob("*.hip.o"))
    if not objects:
        sys.exit(f"gfx906_resources: no *.hip.o in {build}/kernels; build the preset hip-gfx906 first")
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        fat, code = pathlib.Path(folder) / "fat", pathlib.Path(folder) / "code"
        for path in objects:
            subprocess.run([objcopy, "-O", "binary", "--only-section=.hip_fatbin", str(path), str(fat)], check=True)
            for image in device_code(fat.read_bytes(), "gfx906"):
                code.write_bytes(image)
                notes = subprocess.run([readelf, "--notes", str(code)], check=True, capture_output=True, text=True).stdout
                for entry in re.split(r"\n\s+- \.a[rg]", notes)[1:]:
                    name = re.search(r"\.name:\s+(\S+)\n\s+\.private", entry)
                    if not name:
                        continue
                    row = {key: int(re.search(pattern, entry).group(1)) for key, pattern in FIELDS.items()}
                    row["file"] = path.name.replace(".hip.o", ".hip")
                    row["kernel"] = kernel_name(name.group(1))
                    row["waves"] = waves_per_simd(row)
                    rows.append(row)
    if not rows:
        sys.exit("gfx906_resources: the objects hold no gfx906 kernels")
    return sorted(rows, key=lambda r: (r["file"], r["kernel"]))


def limit_errors(rows):
    errors = []
    for row in rows:
        where = f"{row['file']}: {row['kernel']}"
        if row["scratch"]:
            errors.append(f"{where} uses {row['scratch']} bytes of scratch a lane; expected none")
        if row["vgpr_spill"] or row["sgpr_spill"]:
            errors.append(f"{where} spills {row['vgpr_spill']} VGPRs and {row['sgpr_spill']} SGPRs; expected none")
        if row["lds"] > LDS_BYTES:
            errors.append(f"{where} takes {row['lds']} bytes of LDS; a block has {LDS_BYTES}")
        if row["waves"] < 1:
            errors.append(f"{where} does not fit a SIMD")
    return errors


def table(rows, compiler):
    lines = [
        "# Resources of the kernels on gfx906",
        "",
        "This page lists the registers, LDS, scratch and spills of every GPU kernel, as the compiler reports them for gfx906. It shows",
        "that no kernel spills, and how many waves of each kernel fit a SIMD.",
        "",
        "`scripts/gfx906_resources.py build/hip-gfx906 --write` generates it from the metadata in the compiled objects. The test",
        "`gfx906_resources` fails on any spill, any scratch, more than 64 KB of LDS, or a difference from this table under the same",
        "compiler.",
        "",
        "`Waves/SIMD` = min(10, floor(256 / VGPRs), floor(64 KB / LDS) * waves a block / 4). LDS is in bytes a block, scratch in bytes",
        "a lane.",
        "",
        f"Compiler: {compiler}",
        "",
        "| File | Kernel | Threads | VGPR | SGPR | LDS | Scratch | Spills | Waves/SIMD |",
        "|---|---|--:|--:|--:|--:|--:|--:|--:|",
    ]
    for r in rows:
        lines.append(f"| {r['file']} | `{r['kernel']}` | {r['threads']} | {r['vgpr']} | {r['sgpr']} | {r['lds']} | "
                     f"{r['scratch']} | {r['vgpr_spill'] + r['sgpr_spill']} | {r['waves']} |")
    return "\n".join(lines) + "\n"


def drift_errors(recorded, current, compiler):
    if f"Compiler: {compiler}\n" not in recorded:
        print(f"gfx906_resources: {TABLE.name} is of another compiler than {compiler}; only limits are checked")
        return []
    old, new = set(recorded.splitlines()), set(current.splitlines())
    errors = [f"no longer true: {line}" for line in recorded.splitlines() if line not in new]
    errors += [f"not recorded: {line}" for line in current.splitlines() if line not in old]
    if errors:
        errors.append(f"run scripts/gfx906_resources.py BUILD --write and look at what changed")
    return errors


def self_test():
    good = {"file": "a.hip", "kernel": "K", "vgpr": 64, "sgpr": 20, "lds": 16384, "scratch": 0, "vgpr_spill": 0,
            "sgpr_spill": 0, "threads": 256}
    good["waves"] = waves_per_simd(good)
    assert good["waves"] == 4, good
    assert waves_per_simd({**good, "vgpr": 129, "lds": 0}) == 1
    assert waves_per_simd({**good, "vgpr": 24, "lds": 0}) == 10
    assert waves_per_simd({**good, "lds": 33000}) == 1
    assert not limit_errors([good])
    for fault in ({"scratch": 4}, {"vgpr_spill": 1}, {"sgpr_spill": 2}, {"lds": LDS_BYTES + 4}):
        assert limit_errors([{**good, **fault}]), fault
    recorded = table([good], "c")
    assert not drift_errors(recorded, table([good], "c"), "c")
    assert drift_errors(recorded, table([{**good, "vgpr": 65}], "c"), "c")
    assert drift_errors(recorded, table([good, {**good, "kernel": "L"}], "c"), "c")
    assert not drift_errors(recorded, table([{**good, "vgpr": 65}], "d"), "d")
    print("gfx906_resources: every planted fault was reported")


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
    rows = read_objects(args.build)
    compiler = compiler_version()
    current = table(rows, compiler)
    errors = limit_errors(rows)
    if args.write:
        TABLE.write_text(current)
    elif args.check:
        errors += drift_errors(TABLE.read_text() if TABLE.exists() else "", current, compiler)
    else:
        print(current)
    for error in errors:
        print(error, file=sys.stderr)
    print(f"gfx906_resources: {len(rows)} kernels, {len(errors)} faults")
    return 1 if errors else 0


if __name__ == "__main__":
    sys.exit(main())
