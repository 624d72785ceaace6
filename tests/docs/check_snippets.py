#!/usr/bin/env python3
"""Runs the code blocks of the pages for readers, as a reader would.

  check_snippets.py BUILD_DIR PAGE..       run the blocks of these pages with the programs in BUILD_DIR/bin
  check_snippets.py --blocks               check the fences and reasons of all pages, and count the blocks that are not run
  check_snippets.py --self-test BUILD_DIR  plant one fault of each kind in a page and see each reported

The blocks of a page run in order in a temporary folder that looks like the root of a clone. All bash blocks share one shell,
all python blocks one interpreter. cpp and c blocks are whole files and are compiled; yaml and json blocks are parsed; proto
and text blocks are only read. Ports, model folders and folders to write to are replaced (page_run.py). A line that starts
gdn_server starts it in the background; the server ends at the next such line or at the end of the page.
`<!-- not run: needs root -->` above a block says why it is not run. Exits 77 if the Python packages cannot be installed.
"""

import collections
import os
import re
import sys
import tempfile
import time

import page_blocks
import page_python
import page_run

ROOT = os.path.abspath(os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", ".."))
SKIPPED = 77
LIMIT_S = 60
# Pages that need longer, and why.
LIMITS = {
    "docs/how-to/troubleshoot.md": 280,  # gdn_parity compares every operator
    "docs/evidence/benchmarks.md": 280,  # six benchmarks
}


def read(root, page):
    with open(os.path.join(root, page), encoding="utf-8") as file:
        return file.read().splitlines()


def run_page(root, build_dir, python, page, limit=LIMIT_S):
    """(blocks run, blocks not run, faults)."""
    blocks, faults = page_blocks.read_blocks(read(root, page))
    faults = [f"{page}:{number}: {fault}" for number, fault in faults]
    runs = [block for block in blocks if block.runs]
    if runs and not faults:
        run = page_run.PageRun(ROOT, build_dir, python, page, limit)
        try:
            for block in runs:
                run.run(block)
        except page_run.Failure as failure:
            faults.append(f"{failure}\n{run.output()}")
        finally:
            run.end()
    return len(runs), len([block for block in blocks if block.reasons]), faults


def run_pages(build_dir, pages):
    python, failed = page_python.python_of(ROOT, build_dir), False
    for page in pages:
        began = time.monotonic()
        run, left, faults = run_page(ROOT, build_dir, python, page, LIMITS.get(page, LIMIT_S))
        print("\n".join(faults + [f"{page}: {run} blocks run, {left} not run, {len(faults)} faults, "
                                  f"{time.monotonic() - began:.1f} s"]), flush=True)
        failed = failed or bool(faults)
    return int(failed)


def check_blocks():
    """Fences and reasons of all pages, and whether a test runs each page that has blocks to run."""
    with open(os.path.join(ROOT, "tests/docs/CMakeLists.txt"), encoding="utf-8") as file:
        registered = set(re.findall(r"[\w/-]+\.md\b", file.read()))
    faults, kinds, reasons = [], collections.Counter(), collections.Counter()
    for page in page_blocks.pages_of(ROOT):
        blocks, found = page_blocks.read_blocks(read(ROOT, page))
        faults += [f"{page}:{number}: {fault}" for number, fault in found]
        for block in blocks:
            kind = "not run" if block.reasons else "generated" if block.generated else "run" if block.runs else "read"
            kinds[kind] += 1
            reasons.update(block.reasons)
        if any(block.runs for block in blocks) and page not in registered:
            faults.append(f"{page}: it has blocks to run, and tests/docs/CMakeLists.txt does not name it")
    print("\n".join(faults + ["blocks: " + ", ".join(f"{count} {kind}" for kind, count in sorted(kinds.items()))]))
    print("not run: " + ", ".join(f"{reason} {count}" for reason, count in reasons.most_common()))
    print(f"{len(faults)} faults")
    return int(bool(faults))


SERVER = "```bash\nbuild/cpu/bin/gdn_server --model qwen=/models/Any \\\n  --listen 127.0.0.1:50061 --disk-dir gdn-states\n```\n"
CLIENT = ("import gdn_client, os\nclient = gdn_client.Client('127.0.0.1:50061')\nassert os.path.exists('gdn-states/lock')\n"
          "session = client.session('qwen')\n")
# (name, page, a part of the expected report; None if the page is right)
PLANTED = (
    ("clean", SERVER + "```python\n" + CLIENT + "```\n```bash\nid=a\ngdnctl sessions create --model qwen --id $id\n```\n```python\n"
     "session.delete()\n```\n```bash\ngdnctl sessions show $id | grep -q qwen\ntest \"$(gdnctl health)\" = SERVING\n"
     "echo x > tests/docs/made-by-a-page\ngdn_server --version\n```\n```json\n{\"a\": [1]}\n```\n```yaml\na: {b: c}\n```\n"
     "<!-- not run: needs root, Docker and a GPU -->\n```bash\nfalse\n```\n```text\nfalse\n```\n"
     "```c\n#include <gdn/gdn.h>\nint main(void) { return gdn_last_error() == 0; }\n```\n", None),
    ("server_ends", SERVER + "```bash\nbuild/cpu/bin/gdn_server --listen 127.0.0.1:9464\n"
     "gdnctl models --target 127.0.0.1:50061 --timeout 2s\n```\n",
     "planted.md:7: failed with code 1: gdnctl models"),
    ("command", "```bash\ntrue\nfalse\ntrue\n```\n", "planted.md:3: failed with code 1: false"),
    ("later_command", "```bash\ncd docs\n```\n\n```bash\n(false)\n```\n", "planted.md:6: failed with code 1"),
    ("python", "```python\nx = 1\n```\n```python\nassert x == 2\n```\n", 'planted.md", line 5'),
    ("cpp", '```cpp\n#include "gdn/client.h"\nint main() { return gdn::Client::Gone(); }\n```\n', "planted.md:3:34: error:"),
    ("c", "```c\n#include <gdn/gdn.h>\nint main(void) { return gdn_gone(); }\n```\n", "gdn_gone"),
    ("json", "```json\n{\"a\": }\n```\n", "this json block failed"),
    ("yaml", "```yaml\na: [b\n```\n", "this yaml block failed"),
    ("no_language", "```\nx\n```\n", "planted.md:1: this block has no language"),
    ("unknown_language", "```fortran\nx\n```\n", "planted.md:1: 'fortran' is none of the languages"),
    ("no_end", "text\n```bash\ntrue\n", "planted.md:2: this block does not end"),
    ("reason", "<!-- not run: needs luck -->\n```bash\ntrue\n```\n", "planted.md:1: 'needs luck' is not"),
    ("reason_elsewhere", "<!-- not run: needs root -->\n\n```bash\ntrue\n```\n", "planted.md:1: 'not run' is not directly above"),
    ("server", "```bash\ngdn_server --model qwen=nowhere\n```\n", "the server is not ready: gdn_server --model qwen=nowhere"),
    ("time", "```bash\nsleep 60\n```\n", "the page's time ran out"),
)


def self_test(build_dir):
    python, wrong = page_python.python_of(ROOT, build_dir), []
    for name, text, expected in PLANTED:
        with tempfile.TemporaryDirectory() as folder:
            with open(os.path.join(folder, "planted.md"), "w", encoding="utf-8") as file:
                file.write(text)
            _, _, faults = run_page(folder, build_dir, python, "planted.md", limit=2 if name == "time" else LIMIT_S)
        report = "\n".join(faults)
        right = expected in report if expected else not report
        print(f"{name}: {'ok' if right else 'WRONG'}", flush=True)
        if not right:
            wrong.append(f"{name}: expected {expected}, got:\n{report}")
    if os.path.exists(os.path.join(ROOT, "tests/docs/made-by-a-page")):
        wrong.append("a page wrote into the clone")
    print("\n".join(wrong + [f"self-test: {len(PLANTED) - len(wrong)} of {len(PLANTED)} as expected"]))
    return int(bool(wrong))


def main(arguments):
    try:
        if arguments == ["--blocks"]:
            return check_blocks()
        if len(arguments) == 2 and arguments[0] == "--self-test":
            return self_test(os.path.abspath(arguments[1]))
        if len(arguments) >= 2 and not arguments[0].startswith("-"):
            return run_pages(os.path.abspath(arguments[0]), arguments[1:])
    except page_python.NoEnvironment as reason:
        print(reason)
        return SKIPPED
    print(__doc__.strip())
    return 2


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
