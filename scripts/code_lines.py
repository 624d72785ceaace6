#!/usr/bin/env python3
"""Lines of code of the product by folder: lines that are neither blank nor comment.

  code_lines.py              counts the working tree
  code_lines.py --since REV  counts REV beside it, and the difference

Counted are C++, HIP, C, protobuf, Python and CMake files of base, proto, kernels, state_store, server, client and capi, without
tests and without the host executor (kernels/gpu/on_host and acquisitions), which only tests run. A line with code and a comment counts; docstrings count as comments.
"""

import argparse
import collections
import pathlib
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
FOLDERS = ("base", "proto", "kernels", "state_store", "server", "client", "capi")
C_LIKE = {".h", ".cc", ".hip", ".inc", ".c", ".proto"}
HASH = {".py", ".txt", ".cmake"}


def code_lines(path, text):
    """Lines of `text` with code in them."""
    if pathlib.PurePath(path).suffix in C_LIKE:
        # Strings first, so that "//" in one begins no comment.
        text = re.sub(r'("(?:\\.|[^"\\\n])*")|//[^\n]*|/\*.*?\*/', lambda m: m.group(1) or "\n" * m.group(0).count("\n"), text, flags=re.S)
    else:
        text = re.sub(r'^\s*[rf]?"""(?:.|\n)*?"""', lambda m: "\n" * m.group(0).count("\n"), text, flags=re.M)
        text = re.sub(r"^\s*#.*$", "", text, flags=re.M)
    return sum(1 for line in text.split("\n") if line.strip())


def is_counted(path):
    parts = path.split("/")
    if path.startswith(("kernels/gpu/on_host/", "kernels/gpu/acquisitions/")):
        return False
    return (parts[0] in FOLDERS and pathlib.PurePath(path).suffix in C_LIKE | HASH and "tests" not in parts
            and not path.endswith(("package-lock.json", ".egg-info")))


def git(*arguments):
    return subprocess.run(["git", "-C", str(ROOT), *arguments], check=True, capture_output=True, text=True).stdout


def count(revision):
    sums = collections.Counter()
    if revision:
        paths = git("ls-tree", "-r", "--name-only", revision).splitlines()
    else:
        paths = git("ls-files", "--cached", "--others", "--exclude-standard").splitlines()
    for path in filter(is_counted, paths):
        if revision:
            text = git("show", f"{revision}:{path}")
        elif (ROOT / path).exists():
            text = (ROOT / path).read_text(encoding="utf-8")
        else:
            continue
        sums[path.split("/")[0]] += code_lines(path, text)
    return sums


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--since", metavar="REV")
    options = parser.parse_args()
    now = count(None)
    before = count(options.since) if options.since else None
    for folder in (*FOLDERS, "all"):
        lines = sum(now.values()) if folder == "all" else now[folder]
        if before is None:
            print(f"{folder:12} {lines:7}")
        else:
            was = sum(before.values()) if folder == "all" else before[folder]
            print(f"{folder:12} {was:7} {lines:7} {lines - was:+7}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
