#!/usr/bin/env python3
"""Fails where a document names a file, a heading or a class that is not there.

  check_links.py [ROOT]       check the tree at ROOT (default: the repository this file is in)
  check_links.py --self-test  plant one mistake of each kind in a small tree and see each reported

Checked: relative links of Markdown pages, their headings included; paths and file names in `code` and in blocks of commands;
`ClassNames` and `Class::Members`, which must occur in the sources; paths in comments of sources. What was built (build/) and
names with a placeholder (<operator>, *, {}) are passed over, and so are the names in CHANGELOG.md, which tells of what was.
"""

import os
import re
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
import source_checks  # noqa: E402

PAGE = ".md"
SOURCES = (".h", ".cc", ".hip", ".inc", ".proto", ".py", ".sh", ".cmake", "CMakeLists.txt", ".yaml", ".service")
SUFFIX = r"\.(?:h|cc|hip|inc|proto|py|sh|md|cmake|txt|svg|yaml)"
SKIPPED_FOLDERS = {"build", "__pycache__", "golden"}
HISTORY = "CHANGELOG.md"

LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)|<img [^>]*src=\"([^\"]+)\"|srcset=\"([^\"]+)\"")
CODE = re.compile(r"`([^`]+)`")
PATH = re.compile(r"[\w.-]+(?:/[\w.-]+)+/?")
FILE = re.compile(r"[A-Za-z]\w*" + SUFFIX)
NAME = re.compile(r"[A-Z][a-z0-9]+[A-Z]\w*(?:::\w+)?|[A-Z]\w+::\w+")
COMMENT_PATH = re.compile(r"(?:^|[\s(`'\"])((?:\w[\w-]*/)+[\w.-]*\w" + SUFFIX + r")(?![\w/])")


def slug(heading):
    """GitHub's anchor of a heading."""
    text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).replace("`", "").strip().lower()
    return re.sub(r"[^\w\- ]", "", text).replace(" ", "-")


class Tree:
    """What there is to be named."""

    def __init__(self, root):
        self.root, self.pages, self.sources = root, {}, {}
        self.files = list(source_checks.files_of(root, SKIPPED_FOLDERS))
        self.names = {path.split("/")[-1] for path in self.files}
        self.top = {path.split("/")[0] for path in self.files if "/" in path}
        for path in self.files:
            if path.endswith((PAGE,) + SOURCES):
                kind = self.pages if path.endswith(PAGE) else self.sources
                kind[path] = source_checks.read_lines(root, path)
        text = "\n".join("\n".join(lines) for lines in self.sources.values())
        self.identifiers = set(re.findall(r"\w+", text))

    def exists(self, path):
        return os.path.exists(os.path.join(self.root, path))

    def headings(self, page):
        fenced, anchors = False, set()
        for line in self.pages.get(page, []):
            fenced ^= line.startswith("```")
            if not fenced and line.startswith("#"):
                anchors.add(slug(line.lstrip("#")))
        return anchors


def check_link(tree, page, target):
    if re.match(r"[a-z]+:", target):
        return None
    path, _, anchor = target.partition("#")
    path = os.path.normpath(os.path.join(os.path.dirname(page), path)) if path else page
    if not tree.exists(path):
        return f"the link {target} leads nowhere"
    if anchor and anchor not in tree.headings(path):
        return f"{path} has no heading #{anchor}"
    return None


def check_word(tree, page, word):
    """What is wrong with one word of code, or None."""
    if PATH.fullmatch(word):
        first = word.split("/")[0]
        beside = os.path.join(os.path.dirname(page), word)
        if first in tree.top and not tree.exists(word) and not tree.exists(beside):
            return f"there is no {word}"
    elif FILE.fullmatch(word):
        if word not in tree.names:
            return f"no file is named {word}"
    elif NAME.fullmatch(word):
        missing = [part for part in word.split("::") if part not in tree.identifiers]
        if missing:
            return f"no source has the name {missing[0]}"
    return None


def words_of(code):
    """The words of a piece of code that could be names, without what clings to them."""
    for word in code.split():
        if not re.search(r"[<>*{}$]|\.\.\.", word):
            yield word.strip("\"'`,;:()[]=").rstrip(".")


def check_page(tree, page):
    fenced, prose = False, []
    for number, line in enumerate(tree.pages[page], 1):
        fence = line.lstrip().startswith("```")
        fenced ^= fence
        prose.append("" if fenced or fence else line)
        if fence or page == HISTORY:
            continue
        words = [w for piece in ([line] if fenced else CODE.findall(line)) for w in words_of(piece)]
        for error in filter(None, (check_word(tree, page, w) for w in words if not fenced or PATH.fullmatch(w))):
            yield f"{page}:{number}: {error}"
    text = "\n".join(prose)
    for match in LINK.finditer(text):  # a link may go over the end of a line
        error = check_link(tree, page, next(filter(None, match.groups())))
        if error:
            yield f"{page}:{text.count(chr(10), 0, match.end()) + 1}: {error}"


def check_comments(tree, path):
    mark = "//" if path.endswith((".h", ".cc", ".hip", ".inc", ".proto")) else "#"
    for number, line in enumerate(tree.sources[path], 1):
        before, is_comment, comment = line.partition(mark)
        if not is_comment or mark == "#" and before.strip():
            continue
        for name in COMMENT_PATH.findall(comment):
            if name.split("/")[0] in tree.top and not tree.exists(name):
                yield f"{path}:{number}: there is no {name}"


def check_tree(root):
    """(files read, what is wrong)."""
    tree = Tree(root)
    errors = []
    for page in tree.pages:
        errors += check_page(tree, page)
    for path in tree.sources:
        errors += check_comments(tree, path)
    return len(tree.pages) + len(tree.sources), errors


# (file, contents, the report expected of it, or None where it is right)
PLANTED = [
    ("base/error.h", "// See docs/guide.md.\nclass ErrorTable {};\n", None),
    ("docs/guide.md", "# A guide\n\n## How it `works`\n\n[up](../README.md#top-of-it)\n", None),
    ("README.md", "# Top of it\n\n[guide](docs/guide.md#how-it-works) `base/error.h` `error.h` `ErrorTable` `build/cpu/x`\n", None),
    ("docs/dead.md", "[x](gone.md)\n", "docs/dead.md:1: the link gone.md leads nowhere"),
    ("docs/anchor.md", "\n[x](guide.md#gone)\n", "docs/anchor.md:2: docs/guide.md has no heading #gone"),
    ("docs/over_lines.md", "[x\ny](gone.md)\n", "docs/over_lines.md:2: the link gone.md leads nowhere"),
    ("docs/image.md", '<img alt="x" src="images/gone.svg">\n', "docs/image.md:1: the link images/gone.svg"),
    ("docs/path.md", "`base/gone.h`\n", "docs/path.md:1: there is no base/gone.h"),
    ("docs/command.md", "```\nbase/gone.sh --now\n```\n", "docs/command.md:2: there is no base/gone.sh"),
    ("docs/name.md", "`gone.h`\n", "docs/name.md:1: no file is named gone.h"),
    ("docs/class.md", "`ErrorTable` and `ErrorTable::Gone`\n", "docs/class.md:1: no source has the name Gone"),
    ("base/comment.h", "int x;  // as base/gone.cc does\n", "base/comment.h:1: there is no base/gone.cc"),
    ("CHANGELOG.md", "`base/gone.h` is `base/error.h` now\n", None),
]


if __name__ == "__main__":
    sys.exit(source_checks.main(__doc__, check_tree, PLANTED, sys.argv[1:]))
