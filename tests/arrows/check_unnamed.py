#!/usr/bin/env python3
"""Fails where two sources of one target have the same name in an unnamed namespace.

  check_unnamed.py [ROOT]       check the tree at ROOT (default: the repository this file is in)
  check_unnamed.py --self-test  plant mistakes in a small tree and see each reported

CMake compiles several sources of a target as one (cmake/GdnTargets.cmake). Which ones share a compilation changes with each file that is
added, so such a pair may compile today and break tomorrow. Functions may have the same name if their parameters differ.
"""

import os
import re
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
import source_checks  # noqa: E402

SKIPPED_FOLDERS = {"build", "node_modules", "__pycache__"}
TARGET = re.compile(r"^gdn_(?:library|binary|test)\((\w+)\s(.*?)\)$", re.DOTALL | re.MULTILINE)
SETTING = re.compile(r"^\s*set\((\w+)\s([^)]*)\)", re.MULTILINE)
NAMESPACE = re.compile(r"^(?:inline )?namespace ?([\w:]*) \{")
TYPE = re.compile(r"^(?:struct|class|enum(?: class)?|union) (\w+)[^;()]*(?:\{|$)")
ALIAS = re.compile(r"^using (\w+) =")
VALUE = re.compile(r"^(?:static |inline |thread_local )*(?:constexpr|const)\b[^()]*?\b(\w+)(?:\[\w*\])*(?: =|\{|\(|;)")
FUNCTION = re.compile(r"^(?!return|using|typedef|static_assert|GDN_|TEST|INSTANTIATE|BENCHMARK)[\w:<][\w:<>,*& \[\]]*?[ *&](\w+)\(")
OWN_COMPILATION = "hwy/foreach_target.h"


def types_of(parameters):
    """The parameters' types alone, so that names and defaults do not tell two functions apart."""
    depth, one, all_of_them = 0, "", []
    for character in parameters + ",":
        depth += (character in "<({[") - (character in ">)}]")
        if character == "," and depth == 0:
            one = re.sub(r"/\*.*?\*/|=.*$", "", one, flags=re.DOTALL).strip()
            all_of_them.append(re.sub(r"\s+", "", re.sub(r"([\w>&*]\s+|[&*])\w+(\[\])?$", r"\1", one)))
            one = ""
        else:
            one += character
    return ",".join(all_of_them)


def unnamed_names(lines):
    """(name with its namespace and, for a function, its parameters' types; the name; its line; an alias) of unnamed namespaces."""
    spaces, templated = [], ""
    for number, line in enumerate(lines, 1):
        opened = NAMESPACE.match(line)
        if opened:
            spaces.append(opened.group(1))
            continue
        if line.startswith("}  // namespace"):
            spaces = spaces[:-1]
            continue
        if "" not in spaces or not line or line[0] in " \t#}/":
            continue
        if line.startswith("template"):
            templated = line
            continue
        place = "::".join(spaces)
        for form in (ALIAS, TYPE, VALUE):
            found = form.match(line)
            if found:
                if "<" not in line.split(found.group(1))[-1].split("{")[0]:  # else a specialisation
                    same = line if form is ALIAS else ""  # an alias may be declared twice if both say the same
                    yield f"{place}::{found.group(1)}", found.group(1), number, same
                break
        else:
            found = FUNCTION.match(line)
            if found:
                text = " ".join(l.strip() for l in lines[number - 1:number + 12])[found.end():]
                depth, end = 1, 0
                while depth and end < len(text):
                    depth += (text[end] == "(") - (text[end] == ")")
                    end += 1
                yield f"{place}::{found.group(1)}({types_of(text[:end - 1])}){templated}", found.group(1), number, ""
        templated = ""


def targets_of(text):
    """(target, its sources) of a CMakeLists.txt."""
    settings = dict(SETTING.findall(text))
    for name, arguments in TARGET.findall(text):
        for _ in range(3):
            arguments = re.sub(r"\$\{(\w+)\}", lambda m: settings.get(m.group(1), ""), arguments)
        yield name, [word for word in arguments.split() if word.endswith(".cc")]


def check_tree(root):
    """(files read, ["file:line: what is wrong", ...])."""
    count, errors = 0, []
    for path in source_checks.files_of(root, SKIPPED_FOLDERS):
        if os.path.basename(path) != "CMakeLists.txt":
            continue
        count += 1
        for target, sources in targets_of("\n".join(source_checks.read_lines(root, path))):
            seen = {}
            for source in sources:
                source = os.path.normpath(os.path.join(os.path.dirname(path), source))
                if not os.path.exists(os.path.join(root, source)):
                    continue
                lines = source_checks.read_lines(root, source)
                if any(OWN_COMPILATION in line for line in lines):
                    continue
                for key, name, number, same in unnamed_names(lines):
                    other, said = seen.setdefault(key, (source, same))
                    if other != source and (not same or said != same):
                        errors.append(f"{source}:{number}: {name} is in an unnamed namespace of {other} too, and {target} may "
                                      "compile both as one; rename one")
    return count, errors


def planted_source(text):
    return "namespace gdn {\nnamespace {\n" + text + "\n}  // namespace\n}  // namespace gdn\n"


PLANTED = [
    ("base/CMakeLists.txt", "set(more\n  c.cc\n  d.cc)\ngdn_library(base\n  SOURCES\n    a.cc\n    b.cc\n    ${more}\n  DEPS x)\n", None),
    ("base/a.cc", planted_source("constexpr char kOp[] = \"a\";\nstruct Part {\n};\nint Load(const char* at) {\n}\nvoid Twice(int a, char b) {\n}\nusing Json = int;"),
     None),
    ("base/b.cc", planted_source("constexpr char kOp[] = \"b\";"), "base/b.cc:3: kOp is in an unnamed namespace of base/a.cc too"),
    ("base/c.cc", planted_source("struct Part {\n};\nusing Json = int;\nvoid Twice(int a, int b) {\n}\nvoid Use() {\n  int kOp = 1;\n}"),
     "base/c.cc:3: Part is in an unnamed namespace of base/a.cc too"),
    ("base/d.cc", "namespace gdn {\nint Load(const char* at) {\n}\n}  // namespace gdn\nnamespace other {\nnamespace {\nstruct Part {\n};\n"
     "}  // namespace\n}  // namespace other\n" + planted_source("using Load = int;\nint Load(const char* with) {\n}"),
     "base/d.cc:14: Load is in an unnamed namespace of base/a.cc too"),
    ("base/other/CMakeLists.txt", "gdn_binary(x SOURCES main.cc DEPS y)\ngdn_binary(z SOURCES ../a.cc DEPS y)\n", None),
    ("base/other/main.cc", planted_source("constexpr char kOp[] = \"main\";"), None),
]
PLANTED.append(("base/e/CMakeLists.txt", "gdn_test(t SOURCES one_test.cc two_test.cc)\n", None))
PLANTED.append(("base/e/one_test.cc", "namespace gdn::one {\nnamespace {\nint Load(const char* at) {\n}\n}  // namespace\n}  // namespace gdn::one\n",
                None))
PLANTED.append(("base/e/two_test.cc", "namespace gdn::two {\nnamespace {\nint Load(const char* at) {\n}\n}  // namespace\n}  // namespace gdn::two\n",
                None))


if __name__ == "__main__":
    sys.exit(source_checks.main(__doc__, check_tree, PLANTED, sys.argv[1:]))
