#!/usr/bin/env python3
"""Counts the hand-written and the generated lines of the pages in docs/, and fails above 3,000 hand-written ones.

  count_lines.py [-v]         -v also prints the lines of each page: hand-written, hand-written without empty lines, generated

The parts between "<!-- generated" and "<!-- end -->" are generated, and so is a page whose first lines say that a script generates it.
"""

import os
import re
import sys

ROOT = os.path.abspath(os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", ".."))
MOST_LINES = 3000
FIRST_LINES = 10
BY_SCRIPT = re.compile(r"`scripts/[^`]*` generates (?:it|the page)")
BEGIN, END = "<!-- generated", "<!-- end -->"


def count(lines):
    """(hand-written, hand-written without empty lines, generated) lines of a page."""
    by_script = BY_SCRIPT.search(" ".join(lines[:FIRST_LINES])) is not None
    hand, full, generated, inside = 0, 0, 0, False
    for line in lines:
        inside = inside or line.startswith(BEGIN)
        if inside or by_script:
            generated += 1
        else:
            hand += 1
            full += bool(line.strip())
        inside = inside and not line.startswith(END)
    return hand, full, generated


def main(arguments):
    if arguments not in ([], ["-v"]):
        print(__doc__.strip())
        return 2
    total = [0, 0, 0]
    for folder, subfolders, names in os.walk(os.path.join(ROOT, "docs")):
        subfolders.sort()
        for name in sorted(name for name in names if name.endswith(".md")):
            path = os.path.join(folder, name)
            with open(path, encoding="utf-8") as file:
                counted = count(file.read().splitlines())
            total = [before + more for before, more in zip(total, counted)]
            if arguments:
                print(f"{counted[0]:5} {counted[1]:5} {counted[2]:5}  {os.path.relpath(path, ROOT)}")
    hand, full, generated = total
    print(f"docs/: {hand:,} hand-written lines ({full:,} without empty ones), at most {MOST_LINES:,}; {generated:,} generated")
    return int(hand > MOST_LINES)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
