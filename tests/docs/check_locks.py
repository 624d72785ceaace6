#!/usr/bin/env python3
"""Fails where the section "Locks" of ARCHITECTURE.md and the mutexes of the product differ.

  check_locks.py [ROOT]       check the tree at ROOT (default: the repository this file is in)
  check_locks.py --self-test  plant one mistake of each kind in a small tree and see each reported

A mutex is named by its class and member: `Batcher::mu_`, `SharedMemory::Registration::mu_`. Checked: each mutex that a class of
the product declares (FOLDERS) is in the first column of one row of the section's table; each mutex that the section names is
declared; the last column, which says what is taken under the row's mutexes, makes no cycle. A mutex that is local to a function
is passed over.
"""

import os
import re
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
import source_checks  # noqa: E402

PAGE = "ARCHITECTURE.md"
SECTION = "## Locks"
FOLDERS = ("base/", "state_store/", "server/", "kernels/", "capi/", "client/cpp/")
EXCEPT = ("kernels/gpu/on_host/", "client/cpp/testing/")
SUFFIXES = (".h", ".cc", ".hip", ".inc")

# Strings, comments and preprocessor lines. One expression matches them all, because each may contain text that looks like
# another.
NO_CODE = re.compile(r'R"(\w*)\(.*?\)\1"|"(?:\\.|[^"\\\n])*"|(?<!\w)\'(?:\\.|[^\'\\\n])+\'|'
                     r"//[^\n]*|/\*.*?\*/|^[ \t]*#(?:\\\n|[^\n])*", re.DOTALL | re.MULTILINE)
CLASS = re.compile(r"(?<!enum )\b(?:class|struct)\s+(?:\[\[\w+\]\]\s*|[A-Z_]+(?:\([^)]*\))?\s+)*([A-Za-z_][\w:]*)(?:\s+final)?\s*"
                   r"(?::(?!:)[^;{}]*)?$")
NAMESPACE = re.compile(r"\bnamespace(?:\s+[\w:]+)?\s*$|\bextern\s*$")
MUTEX = r"(?:absl::Mutex|std::(?:\w+_)?mutex)"
DECLARED = re.compile(r"(?:^|[\s:])(?:" + MUTEX + r"|(?:std|absl)::\w+<\s*" + MUTEX + r"\s*(?:,[^;<>]*)?>)\s+"
                      r"(\w+(?:\s*,\s*\w+)*)\s*"
                      r"(?:\([^()]*\bkConstInit\)\s*)?(?:ABSL_\w+\([^)]*\)\s*)*(?:=.*)?$", re.DOTALL)
LOCKS = re.compile(r"std::(?:unique_lock|lock_guard|scoped_lock|shared_lock)<")
CODE = re.compile(r"`([\w:]+)`")
LIKE_A_MUTEX = re.compile(r"(?:\w+::)+(?:\w*_)?mu_?")


def mutexes_of(text):
    """(name, line) of each mutex that is a member of a class, or of a namespace."""
    text = NO_CODE.sub(lambda match: re.sub(r"[^\n]", " ", match.group(0)), text)
    scopes = []  # the class's name; "": a namespace; None: a function or an initializer
    begin = 0
    for match in re.finditer(r"[;{}]", text):
        statement = text[begin:match.start()].rstrip()
        in_function = bool(scopes) and scopes[-1] is None
        declared = None if in_function or LOCKS.search(statement) else DECLARED.search(statement)
        if declared and match.group(0) != "}":
            line = text.count("\n", 0, begin + declared.start(1)) + 1
            for member in re.split(r"\s*,\s*", declared.group(1)):
                yield "::".join([scope for scope in scopes if scope] + [member]), line
        if match.group(0) == "{":
            class_name = CLASS.search(statement)
            scopes.append(class_name.group(1) if class_name else "" if NAMESPACE.search(statement) else None)
        elif match.group(0) == "}" and scopes:
            scopes.pop()
        begin = match.end()


def section_of(lines):
    """(line number, line) of the section; nothing if there is none."""
    inside = False
    for number, line in enumerate(lines, 1):
        if line.startswith("## "):
            inside = line.strip() == SECTION
        if inside:
            yield number, line


def cycle_of(taken):
    """A cycle of the mutexes that are taken under others, or None."""
    done = set()

    def walk(name, path):
        if name in path:
            return path[path.index(name):] + [name]
        if name in done:
            return None
        for other in taken.get(name, ()):
            found = walk(other, path + [name])
            if found:
                return found
        done.add(name)
        return None

    return next(filter(None, (walk(name, []) for name in sorted(taken))), None)


def check_section(lines, declared):
    """(the mutexes that have a row, what is wrong with the section)."""
    section = list(section_of(lines))
    rows, taken, errors = {}, {}, []
    members = {name.split("::")[-1] for name in declared}
    for number, line in section:
        cells = [cell.strip() for cell in line.strip().strip("|").split("|")] if line.startswith("|") else []
        for name in CODE.findall(cells[0]) if cells else ():
            if name in rows:
                errors.append(f"{PAGE}:{number}: {name} has two rows, the other in line {rows[name]}")
            rows.setdefault(name, number)
            taken.setdefault(name, []).extend(CODE.findall(cells[-1]))
        under = CODE.findall(cells[0]) + CODE.findall(cells[-1]) if cells else []
        for name in dict.fromkeys(CODE.findall(line)):
            is_mutex = name in under or "::" in name and name.split("::")[-1] in members or LIKE_A_MUTEX.fullmatch(name)
            if is_mutex and name not in declared:
                errors.append(f"{PAGE}:{number}: no class of the product declares {name}")
    if not section:
        errors.append(f"{PAGE}:1: there is no section '{SECTION}'")
    cycle = cycle_of(taken)
    if cycle:
        errors.append(f"{PAGE}:{rows[cycle[0]]}: the order has a cycle: {' -> '.join(cycle)}")
    return rows, errors


def check_tree(root):
    """(files read, what is wrong)."""
    files = [path for path in source_checks.files_of(root, {"build", "golden", "__pycache__"})
             if path.startswith(FOLDERS) and not path.startswith(EXCEPT) and path.endswith(SUFFIXES)]
    declared = {}
    for path in files:
        for name, line in mutexes_of("\n".join(source_checks.read_lines(root, path))):
            declared.setdefault(name, f"{path}:{line}")
    rows, errors = check_section(source_checks.read_lines(root, PAGE), declared)
    errors += [f"{where}: {name} has no row in '{SECTION}' of {PAGE}" for name, where in declared.items() if name not in rows]
    return len(files) + 1, errors


PLANTED_PAGE = """# Architecture

## Locks

Take `Queue::mu_` as seldom as `Server::lost_mu_`.

| mutex | guards | under it | taken under it |
|---|---|---|---|
| `Queue::mu_`, `Table::Row::mu` | rows | `Queue::Push` | `Store::Shelf::mu_` |
| `Store::Shelf::mu_` | shelves | nothing | none |
| `Gone::mu_` | nothing | nothing | none |
| `First::mu_` | itself | nothing | `Second::guard_` |
| `Second::guard_` | itself | nothing | `First::mu_` |
| `Queue::mu_` | the same again | nothing | none |

## Another section

`Elsewhere::mu_`
"""
# (file, contents, the report expected of it, or None where it is right)
PLANTED = [
    (PAGE, PLANTED_PAGE, "ARCHITECTURE.md:5: no class of the product declares Server::lost_mu_"),
    ("base/queue.h", "namespace gdn {\nclass Queue final : public Base<int> {\n  mutable absl::Mutex mu_;  // one\n};\n}\n",
     "ARCHITECTURE.md:14: Queue::mu_ has two rows, the other in line 9"),
    ("base/table.h", "class Table {\n  struct Row {\n    std::mutex mu;\n  };\n};\n", None),
    ("state_store/store.cc", "struct Store::Shelf {\n  absl::Mutex mu_ ABSL_ACQUIRED_AFTER(other);\n};\n",
     "ARCHITECTURE.md:11: no class of the product declares Gone::mu_"),
    ("server/cycle.h", "class First {\n  absl::Mutex mu_;\n};\nclass Second {\n  std::shared_mutex guard_{};\n};\n",
     "ARCHITECTURE.md:12: the order has a cycle: First::mu_ -> Second::guard_ -> First::mu_"),
    ("server/missed.h", "class Missed {\n public:\n  explicit Missed(int n) : n_(n) {}\n\n  absl::Mutex mu_;\n};\n",
     "server/missed.h:5: Missed::mu_ has no row"),
    ("server/many.h", "struct Many {\n  std::array<std::mutex, 4> shards_;\n};\n",
     "server/many.h:2: Many::shards_ has no row"),
    ("capi/global.cc", "namespace {\nabsl::Mutex g_mu(absl::kConstInit);\n}\n", "capi/global.cc:2: g_mu has no row"),
    ("kernels/local.cc", "void Run() {\n  std::mutex mu;\n  const char* text = \"class X { std::mutex mu; };\";\n}\n", None),
    ("server/user.h", "class User {\n  explicit User(absl::Mutex& mu) : mu_(mu) {}\n  absl::Mutex& mu_;\n"
     "  std::unique_lock<std::mutex> held_;\n};\n", None),
    ("kernels/gpu/on_host/executor.h", "class Executor {\n  absl::Mutex mu_;\n};\n", None),
    ("client/cpp/testing/fake.h", "class Fake {\n  absl::Mutex mu_;\n};\n", None),
]


if __name__ == "__main__":
    sys.exit(source_checks.main(__doc__, check_tree, PLANTED, sys.argv[1:]))
