#!/usr/bin/env python3
"""Fails where libgdn exports what gdn.h does not declare, lacks what it does, or has another soname than its version.

  check_exports.py LIBRARY HEADER     by `nm -D` and `readelf -d`
  check_exports.py --self-test        plants a fault of each kind, and sees each reported
"""

import re
import subprocess
import sys

DECLARATION = re.compile(r"^GDN_API\b[^;]*?\b(gdn_\w+)\(", re.MULTILINE)
ABI_VERSION = re.compile(r"^#define GDN_ABI_VERSION (\d+)$", re.MULTILINE)


def faults(header, symbols, soname):
    declared = set(DECLARATION.findall(header))
    if not declared:
        yield "the header declares nothing"
    for name in sorted(set(symbols) - declared):
        yield f"exports {name}, which gdn.h does not declare"
    for name in sorted(declared - set(symbols)):
        yield f"does not export {name}, which gdn.h declares"
    expected = f"libgdn.so.{ABI_VERSION.search(header).group(1)}"
    if soname != expected:
        yield f"has the soname {soname}; expected {expected}, from GDN_ABI_VERSION"


def self_test():
    header = "#define GDN_ABI_VERSION 3\nGDN_API int gdn_one(int);\nGDN_API const char* gdn_two(void);\n"
    good = ["gdn_one", "gdn_two"]
    assert not list(faults(header, good, "libgdn.so.3"))
    for symbols, soname, words in ((good + ["_ZN3gdn1fEv"], "libgdn.so.3", "exports _ZN3gdn1fEv"),
                                   (["gdn_one"], "libgdn.so.3", "does not export gdn_two"),
                                   (good, "libgdn.so.2", "expected libgdn.so.3")):
        found = list(faults(header, symbols, soname))
        assert len(found) == 1 and words in found[0], found
    print("check_exports.py: every planted fault is reported")


def main(library, header):
    listing = subprocess.run(["nm", "-D", "--defined-only", library], check=True, capture_output=True, text=True).stdout
    dynamic = subprocess.run(["readelf", "-d", library], check=True, capture_output=True, text=True).stdout
    # Absolute symbols are the names of versions.
    symbols = [line.split()[-1].split("@")[0] for line in listing.splitlines() if " A " not in line]
    soname = re.search(r"soname: \[(.*)\]", dynamic)
    with open(header, encoding="utf-8") as file:
        found = list(faults(file.read(), symbols, soname.group(1) if soname else "none"))
    for fault in found:
        print(f"{library}: {fault}")
    print(f"{library}: {len(symbols)} symbols, {len(found)} faults")
    return 1 if found else 0


if __name__ == "__main__":
    if sys.argv[1:] == ["--self-test"]:
        sys.exit(self_test())
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    sys.exit(main(*sys.argv[1:]))
