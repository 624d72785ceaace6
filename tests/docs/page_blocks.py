"""The code blocks of a Markdown page: their language, their place, and why a block is not run."""

import dataclasses
import os
import re

# A block in one of these is run or parsed. Blocks in the others are for reading only.
RUN_LANGUAGES = ("bash", "python", "cpp", "c", "yaml", "json")
READ_LANGUAGES = ("proto", "text")
REASONS = ("root", "Docker", "a GPU", "Kubernetes", "a large model", "several machines", "torch", "the network", "a build",
           "a package", "certificates", "hours")

FENCE = re.compile(r"^(\s*)(`{3,}|~{3,})\s*(\S*)\s*$")
NOT_RUN = re.compile(r"^\s*<!-- not run:(.*)-->\s*$")
NEEDS = re.compile(r"needs (.+)$")
GENERATED, GENERATED_END = "<!-- generated", "<!-- end -->"


@dataclasses.dataclass
class Block:
    language: str
    line: int  # of the first line of code, from 1
    lines: list  # without the newlines
    reasons: tuple  # why it is not run; empty if it is
    generated: bool  # between the marks of a generated part

    @property
    def runs(self):
        return self.language in RUN_LANGUAGES and not self.reasons and not self.generated


def reasons_of(text):
    """The reasons in "needs root, Docker and a GPU", or None if one of them is not in REASONS."""
    match = NEEDS.match(text.strip())
    named = tuple(re.split(r", | and ", match.group(1))) if match else ()
    return named if named and all(reason in REASONS for reason in named) else None


def read_blocks(lines):
    """(blocks, [(line number, fault)]) of a page's lines."""
    blocks, faults = [], []
    block, fence, reasons, generated = None, "", (), False
    for number, line in enumerate(lines, 1):
        match = FENCE.match(line)
        if block is not None:
            if match and match.group(2).startswith(fence) and not match.group(3):
                blocks.append(block)
                block = None
            else:
                block.lines.append(line)
            continue
        if match:
            _, fence, language = match.groups()
            if not language:
                faults.append((number, "this block has no language; 'text' is for output"))
            elif language not in RUN_LANGUAGES + READ_LANGUAGES:
                faults.append((number, f"'{language}' is none of the languages {', '.join(RUN_LANGUAGES + READ_LANGUAGES)}"))
            block = Block(language, number + 1, [], reasons, generated)
            reasons = ()
            continue
        if reasons:
            faults.append((number - 1, "'not run' is not directly above a block"))
            reasons = ()
        match = NOT_RUN.match(line)
        if match:
            reasons = reasons_of(match.group(1))
            if reasons is None:
                faults.append((number, f"'{match.group(1).strip()}' is not 'needs' and reasons of: {', '.join(REASONS)}"))
                reasons = ("unknown",)
        generated = (generated or line.startswith(GENERATED)) and not line.startswith(GENERATED_END)
    if block is not None:
        faults.append((block.line - 1, "this block does not end"))
    return blocks, faults


def pages_of(root):
    """The pages whose blocks are run, as paths from the root."""
    pages = ["README.md", "capi/python/README.md", "client/python/README.md", "examples/README.md"]
    for folder, _, names in os.walk(os.path.join(root, "docs")):
        pages += [os.path.relpath(os.path.join(folder, name), root) for name in names if name.endswith(".md")]
    return sorted(page for page in pages if os.path.exists(os.path.join(root, page)))
