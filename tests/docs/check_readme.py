#!/usr/bin/env python3
"""Fails if the README says what the project's own pages or programs do not.

  check_readme.py                 each figure of the README's table stands in the section of the page that its row links to
  check_readme.py --gdnctl FILE   `gdnctl try` prints the README's lines, numbers aside, and ends well
  check_readme.py --write FILE    puts what `gdnctl try` prints into the README
  check_readme.py --self-test     plants wrong figures and sees each reported
"""

import pathlib
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
README = ROOT / "README.md"
MOST_LINES = 120
HEAD = "| question | measured | on |"
NUMBER = re.compile(r"(?<![\w.])\d[\d,]*(?:\.\d+)?(?:e-?\d+)?(?![\w]*-bit)")
MARKER = "<!-- printed by gdnctl try"


def slug(heading):
    text = heading.replace("`", "").strip().lower()
    return re.sub(r"[^\w\- ]", "", text).replace(" ", "-")


def section(page, anchor):
    """The lines below a heading, as far as the next heading that is not deeper."""
    lines, depth, out = page.read_text(encoding="utf-8").splitlines(), 0, []
    for line in lines:
        level = len(line) - len(line.lstrip("#")) if line.startswith("#") else 0
        if level and depth and level <= depth:
            break
        if level and not depth and slug(line.lstrip("#")) == anchor:
            depth = level
        if depth:
            out.append(line)
    return "\n".join(out) if anchor else "\n".join(lines)


def rows_of(text):
    lines = text.splitlines()
    begin = next((i for i, line in enumerate(lines) if line.startswith(HEAD)), None)
    if begin is None:
        return
    for line in lines[begin + 2:]:
        if not line.startswith("|"):
            return
        yield [cell.strip() for cell in line.strip("|").split("|")]


def wrong_figures(text, root):
    count = 0
    for question, measured, link, *_ in rows_of(text):
        target = re.search(r"\(([^)#]+)#?([^)]*)\)", link)
        if target is None:
            yield f"the row '{question}' links to no page"
            continue
        told = section(root / target.group(1), target.group(2))
        if not told:
            yield f"the row '{question}' links to a section that is not there: {target.group(0)}"
        known = {number for number in NUMBER.findall(told)}
        figures = NUMBER.findall(measured)
        count += len(figures)
        if not figures:
            yield f"the row '{question}' has no figure"
        for number in figures:
            if number not in known:
                yield f"the row '{question}' has {number}, which {target.group(1)}#{target.group(2)} does not"
    if count < 12:
        yield f"{count} figures are there to compare, expected 12 or more"


def recorded(text):
    after = text[text.index(MARKER):]
    return after[after.index("```text\n") + 8:].split("```", 1)[0]


def shape(text):
    """Lines without what differs from run to run: numbers, paths and machines."""
    lines = []
    for line in text.strip().splitlines():
        line = re.sub(r"\S*gdn_server$", "gdn_server", line)
        line = re.sub(r"ready after .*", "ready after", line)
        line = re.sub(r"--model=try=\S+", "--model=try=DIR", line)
        lines.append(re.sub(r"\d+(?:\.\d+)?(?:e-?\d+)?", "N", line).rstrip())
    return lines


def try_output(gdnctl):
    return subprocess.run([gdnctl, "try"], cwd=ROOT, capture_output=True, text=True, timeout=120, check=True).stdout


def self_test():
    text = README.read_text(encoding="utf-8")
    figure = next(NUMBER.findall(row[1])[-1] for row in rows_of(text))
    planted = {
        "a wrong figure": text.replace(figure, "9.9e-09", 1),
        "a page that is not there": text.replace("#measured)", "#measured-not)", 1),
        "a row without a link": re.sub(r"\[CPU\]\(docs/evidence/reliability[^)]*\)", "CPU", text, count=1),
        "no table": text.replace(HEAD, "| a | b | c |"),
    }
    missed = [name for name, wrong in planted.items() if not list(wrong_figures(wrong, ROOT))]
    if missed or shape("1. a 2 s\n") != ["N. a N s"]:
        sys.exit(f"check_readme.py: not reported: {missed}")
    print(f"check_readme.py: {len(planted)} planted faults reported")


def main(arguments):
    text = README.read_text(encoding="utf-8")
    if arguments == ["--self-test"]:
        return self_test()
    if arguments[:1] in (["--gdnctl"], ["--write"]):
        printed = try_output(arguments[1])
        if arguments[0] == "--write":
            README.write_text(text.replace(recorded(text), printed.replace(f"{ROOT}/", "")), encoding="utf-8")
        elif shape(printed) != shape(recorded(text)):
            sys.exit("gdnctl try prints other lines than README.md has: check_readme.py --write GDNCTL\n" + printed)
        return None
    found = list(wrong_figures(text, ROOT))
    if len(text.splitlines()) > MOST_LINES:
        found.append(f"README.md has {len(text.splitlines())} lines, at most {MOST_LINES}")
    print("\n".join(found + [f"{len(found)} faults"]))
    sys.exit(bool(found))


if __name__ == "__main__":
    main(sys.argv[1:])
