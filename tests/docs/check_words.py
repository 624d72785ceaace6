#!/usr/bin/env python3
"""Fails where a page for readers has a sentence that is hard to read.

  check_words.py [ROOT] [PAGE ..]   check README.md and docs/ at ROOT (default: the repository this file is in), or these pages
  check_words.py --self-test        plant one fault of each kind in a page and see each reported

A fault is: a sentence of more than 30 words; a sentence that begins with Of, What, Where, Whose, Who, That of or As, unless
it is a question; "where" after a comma or a semicolon, which should be "if". A cell of a table and an item of a list are texts of
their own. Code in `code style` counts as one word, blocks of code are passed over, and so are links' targets.
"""

import os
import re
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
import source_checks  # noqa: E402

MOST_WORDS = 30
PAGES = ("README.md", "docs/")
OPENER = re.compile(r"(?:Of|What|Where|Whose|Who|That of|Those of|As|For who|For whom|On which|In which)\b(?! for )")
# "e.g." and the like do not end a sentence; a number's point has no space after it.
END = re.compile(r"(?<![ (]e\.g)(?<![ (]i\.e)(?<!\betc)(?<!\bvs)([.!?][\"')\]]*)\s+(?=[\"'(\[]?[A-Z0-9`_*-])")
BLOCK = re.compile(r"^\s*(?:[-*+] |\d+[.)] |> )")


def texts_of(lines):
    """(line number, text) for each paragraph, item, heading and cell."""
    fenced, start, held = False, 0, []
    for number, line in enumerate(lines, 1):
        fence = line.lstrip().startswith(("```", "~~~"))
        fenced ^= fence
        plain = line.strip()
        ends = fence or fenced or not plain or plain.startswith(("|", "#", "<")) or line.startswith("    ") and not held
        if (ends or BLOCK.match(line)) and held:
            yield start, " ".join(held)
            held = []
        if fence or fenced or not plain or plain.startswith("<"):
            continue
        if plain.startswith("|"):
            for cell in re.split(r"(?<!\\)\|", plain.strip("|")):
                if cell.strip(" -:"):
                    yield number, cell.strip()
        elif plain.startswith("#"):
            yield number, plain.lstrip("# ")
        elif not ends:
            if not held:
                start = number
            held.append(BLOCK.sub("", line).strip())
    if held:
        yield start, " ".join(held)


def plain_text(text):
    """Without Markdown: code is one word, a link is its text."""
    text = re.sub(r"``.*?``|`[^`]*`", "CODE", text)
    text = re.sub(r"!?\[([^\]]*)\]\([^)]*\)", r"\1", text)
    text = re.sub(r"<[^>]*>", " ", text)
    return re.sub(r"(?<!\w)[*_]+|[*_]+(?!\w)", "", text)


def sentences_of(text):
    return [piece.strip() for piece in END.sub(r"\1\n", plain_text(text)).split("\n") if piece.strip()]


def words_of(sentence):
    return [word for word in sentence.split() if re.search(r"\w", word)]


def faults_of(lines):
    for number, text in texts_of(lines):
        for sentence in sentences_of(text):
            count = len(words_of(sentence))
            if count > MOST_WORDS:
                yield number, f"{count} words, at most {MOST_WORDS}: {sentence[:70]}.."
            if OPENER.match(sentence) and not sentence.endswith("?"):
                yield number, f"begins with '{OPENER.match(sentence).group(0)}': {sentence[:70]}.."
            if re.search(r"[,;:] where (?!it says|you )", sentence) and re.search(r"[,;:] where (?:there|it|no|nobody|one|a|the) ", sentence):
                yield number, f"'where' for a condition, write 'if': {sentence[:90]}.."


def self_test():
    planted = {
        "too long": "The server " + "very " * 29 + "slowly starts.",
        "opener": "It starts. Where it cannot, it says so.",
        "cell": "| a | What is kept of calls. |",
        "item": "- Of these only one is left.",
        "where": "The server ends, where there is no model.",
    }
    clean = ["Why does it start? It says so.", "What does it need?", "# What", "`a b` " * 25 + "ends.", "```", "Of code " * 40, "```",
             "It ends (e.g. Now) here. " * 9]
    missed = [name for name, line in planted.items() if not list(faults_of([line]))]
    false = [line for line in clean[:2] + clean[3:4] + clean[7:] if list(faults_of([line]))] + list(faults_of(clean[4:7]))
    if missed or false:
        sys.exit(f"check_words.py: not reported: {missed}; reported without reason: {false}")
    print(f"check_words.py: {len(planted)} planted faults reported")


def main(arguments):
    if arguments == ["--self-test"]:
        return self_test()
    root = arguments[0] if arguments else os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..")
    pages = arguments[1:] or sorted(
        path for path in source_checks.files_of(root, {"build", "golden"}) if path.endswith(".md") and path.startswith(PAGES))
    found = [f"{page}:{number}: {fault}" for page in pages for number, fault in faults_of(source_checks.read_lines(root, page))]
    print("\n".join(found + [f"{len(pages)} pages read, {len(found)} faults"]))
    sys.exit(bool(found))


if __name__ == "__main__":
    main(sys.argv[1:])
