"""The clients' reference pages: Python's from docstrings, C++'s from the installed headers. Used by generate_docs.py.

Sources are read and not run. Everything that a package's `__all__` names has to have a docstring, and every public method
of it; every installed header a comment at its top. What has none is an error of the page.
"""

import ast
import re

PYTHON = "client/python/src"
MODULES = ["gdn_client", "gdn_client.aio", "gdn_client.torch"]
CPP = "client/cpp/package/CMakeLists.txt"
SECTION = re.compile(r"(Args|Attributes|Raises|Returns|Yields):")


class Undocumented(Exception):
    """Something public has no docstring or comment, or is not written the way this module reads it."""


# ---- Python


def module_file(root, name):
    path = root / PYTHON / name.replace(".", "/")
    return path / "__init__.py" if path.is_dir() else path.with_suffix(".py")


class Package:
    """The modules of the package, read when they are asked for."""

    def __init__(self, root):
        self.root, self.trees = root, {}

    def tree(self, module):
        if module not in self.trees:
            self.trees[module] = ast.parse(module_file(self.root, module).read_text())
        return self.trees[module]

    def find(self, module, name):
        """(the module that defines it, its class or function), None of what protoc writes."""
        for node in self.tree(module).body:
            if isinstance(node, (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)) and node.name == name:
                return module, node
            if isinstance(node, ast.ImportFrom) and any((alias.asname or alias.name) == name for alias in node.names):
                return None if ".proto" in node.module else self.find(node.module, name)
        raise Undocumented(f"{PYTHON}: {module} does not define {name}")

    def names(self, module):
        for node in self.tree(module).body:
            if isinstance(node, ast.Assign) and getattr(node.targets[0], "id", "") == "__all__":
                return ast.literal_eval(node.value)
        raise Undocumented(f"{PYTHON}: {module} has no __all__")


def prose(text):
    """A docstring as Markdown: its sections as lists, indented examples as code."""
    out, code, section, listed = [], False, False, False
    for line in text.splitlines():
        indented = line.startswith("    ")
        if SECTION.fullmatch(line):
            section, listed = True, False
            out += ["", f"*{line[:-1]}*", ""]
        elif section and indented:
            item = re.match(r"    (\*{0,2}[\w, ]+): (.*)", line)  # others go on with the one before
            listed = listed or bool(item)
            out.append(f"- `{item.group(1)}`: {item.group(2)}" if item else "  " * listed + line.strip())
        elif section and not line.strip():
            out.append("")
        else:
            section = False
            if indented != code and line.strip():
                out += ["```python"] if indented else ["```", ""]
                code = indented
            out.append(line[4:] if code else line)
    while out and not out[-1]:
        out.pop()
    return re.sub(r"\n{3,}", "\n\n", "\n".join([*out, "```"] if code else out)).replace("\n\n```\n\n", "\n```\n\n")


def documentation(node, where):
    text = ast.get_docstring(node)
    if not text:
        raise Undocumented(f"{PYTHON}: {where} has no docstring")
    return text


def signature(node, owner=None):
    """As it is called: without self; an argument a line where it is long."""
    arguments = re.sub(r"^(self|cls)(, )?", "", ast.unparse(node.args))
    parts = [re.sub(r"^(\w+: [^=]+)=", r"\1 = ", part) for part in split_arguments(arguments)]
    returns = f" -> {ast.unparse(node.returns)}" if node.returns is not None and node.name != "__init__" else ""
    name = node.name if owner is None else owner if node.name == "__init__" else f"{owner}.{node.name}"
    prefix = "await " if isinstance(node, ast.AsyncFunctionDef) else ""
    text = f"{prefix}{name}({', '.join(parts)}){returns}"
    if len(text) > 100:
        text = f"{prefix}{name}(\n" + "".join(f"    {part},\n" for part in parts) + f"){returns}"
    return f"```python\n{text}\n```"


def split_arguments(text):
    """At the commas that are in no bracket."""
    parts, depth, begin = [], 0, 0
    for at, char in enumerate(text):
        depth += (char in "[({") - (char in "])}")
        if char == "," and depth == 0:
            parts.append(text[begin:at].strip())
            begin = at + 1
    return [*parts, text[begin:].strip()]


def methods(package, module, node):
    """The public ones, those of base classes in the package first."""
    found = {}
    for base in node.bases:
        if isinstance(base, ast.Name):
            try:
                where = package.find(module, base.id)
            except Undocumented:
                where = None  # Exception and the like
            if where is not None:
                found.update(methods(package, *where))
    for part in node.body:
        if isinstance(part, (ast.FunctionDef, ast.AsyncFunctionDef)) and not part.name.startswith("_"):
            found[part.name] = part
    return found


def class_page(package, module, node):
    lines = [prose(documentation(node, node.name))]
    for part in node.body:
        if isinstance(part, ast.FunctionDef) and part.name == "__init__" and "Args:" in ast.get_docstring(node):
            lines.insert(0, signature(part, node.name))
    for name, part in methods(package, module, node).items():
        if any(isinstance(mark, ast.Attribute) and mark.attr == "setter" for mark in part.decorator_list):
            continue
        attribute = any(getattr(mark, "id", getattr(mark, "attr", "")) in ("property", "cached_property")
                        for mark in part.decorator_list)
        text = documentation(part, f"{node.name}.{name}")
        if attribute:
            lines += [f"**`{node.name}.{name}`**: `{ast.unparse(part.returns)}`. {prose(text)}"]
        else:
            lines += [signature(part, node.name), prose(text)]
    return "\n\n".join(lines)


def python_page(root):
    package, out = Package(root), []
    for module in MODULES:
        out += [f"## {module}", prose(documentation(package.tree(module), module))]
        errors = []
        for name in package.names(module):
            found = package.find(module, name)
            if found is None:
                continue
            where, node = found
            if where.endswith(".errors") and name != "GdnError":
                errors.append(f"| `{name}` | {documentation(node, name).splitlines()[0]} |")
            elif isinstance(node, ast.ClassDef):
                out += [f"### {name}", class_page(package, where, node)]
            else:
                out += [f"### {name}", signature(node), prose(documentation(node, name))]
        if errors:
            out += ["### Errors", "Each is a `GdnError`.", "\n".join(["| class | when |", "|---|---|", *errors])]
    return "\n\n".join(out)


# ---- C++


def public_headers(root):
    listed = re.search(r"set\(public_headers\n(.*?)\)", (root / CPP).read_text(), re.DOTALL)
    if not listed:
        raise Undocumented(f"{CPP} has no set(public_headers ..)")
    return listed.group(1).split()


def installed_name(header):
    return header.replace("client/cpp/", "gdn/").replace("base/", "gdn/base/")


def comment_as_prose(lines):
    out, code = [], False
    for line in lines:
        indented = line.startswith("  ")
        if indented != code and line.strip():
            out += ["```cpp"] if indented else ["```"]
            code = indented
        out.append(line[2:] if code else line)
    return "\n".join([*out, "```"] if code else out)


def matching(text, at):
    """Where the brace at `at` is closed."""
    depth = 0
    for end in range(at, len(text)):
        depth += (text[end] == "{") - (text[end] == "}")
        if depth == 0:
            return end
    raise Undocumented("a brace is not closed")


TOKEN = re.compile(r"//[^\n]*|\"(?:[^\"\\\n]|\\.)*\"|[;{}()]|\b(?:public|private|protected):|\n[ \t]*\n")


def declarations(text, depth, public):
    """Lines of the public declarations with the comments before them; bodies of functions are left out."""
    out, comment, at, begin, parentheses = [], [], 0, 0, 0
    while match := TOKEN.search(text, at):
        token, at = match.group(0), match.end()
        statement = re.sub(rf"\n {{{2 * depth}}}", "\n", text[begin:match.start()].strip())
        parentheses += (token == "(") - (token == ")")
        if parentheses or token == ")":
            continue
        if token.startswith("//") and not statement:
            comment.append(token)
            begin = at
        elif token.endswith(":"):
            public, comment, begin = token == "public:", [], at
        elif token.startswith("\n") and not statement:
            if out and out[-1] != "":
                out.append("")
            comment, begin = [], at
        elif token in ";{":
            statement = re.sub(r"//[^\n]*\n\s*", "", statement)
            shown, kind = None, re.match(r"(?:template <[^{]*>\s*)?(?:struct|class|enum class|enum|namespace|union) ", statement)
            end = matching(text, match.end() - 1) if token == "{" else None
            if token == ";":
                shown, at = [f"{statement};"], match.end()
            elif kind and statement.startswith(("enum", "union")):
                body = text[match.end():end]
                shown = [statement + " {" + ("\n".join([""] + [f"  {line.strip()}" for line in body.strip().splitlines()] + [""]) if
                                             "\n" in body else body) + "};"]
            elif kind:
                a_class = re.match(r"(?:template <[^{]*>\s*)?class ", statement)
                inner = declarations(text[match.end():end], depth + 1, not a_class)
                access = [" public:"] if a_class else []
                inner = [f"  {line}" if line else "" for line in inner]
                shown = [statement + " {", *access, *inner, "}" if statement.startswith("namespace") else "};"]
            elif ")" in statement and not re.search(r"=\s*$", statement):
                head = re.split(r"(?<=\))\s*(?:const\s*|noexcept\s*)?:\s(?=\w)", statement)[0]
                shown = [f"{head};"]
            else:  # a value with its initializer
                end = text.index(";", end) - 1
                shown = [text[begin:end + 1].strip() + ";"]
            if end is not None:
                at = end + 1
                after = re.match(r"\s*;", text[at:])
                at += after.end() if after and not (")" in statement and not kind and "=" not in statement) else 0
            if note := re.match(r"[ \t]+//[^\n]*(?:\n {10,}//[^\n]*)*", text[at:]):  # to its right, and on below
                shown[-1] += re.sub(rf"\n {{{2 * depth}}}", "\n", note.group(0))
                at += note.end()
            hidden = not public or re.search(r"= delete;|^friend |^~|\boperator=\(|^(?:class|struct) \w+;", shown[0])
            if not hidden:
                out += [*comment, *"\n".join(shown).split("\n")]
            comment, begin = [], at
    while out and not out[-1]:
        out.pop()
    return out


def header_page(root, header):
    source = (root / header).read_text()
    if not source.startswith("// "):
        raise Undocumented(f"{header} has no comment at its top")
    top = [line[2:].removeprefix(" ") for line in source[:source.index("#")].strip().splitlines() if line.startswith("//")]
    out = [f"## {installed_name(header)}", comment_as_prose(top)]
    inside = re.search(r"\nnamespace gdn \{\n(.*)\n\}  // namespace gdn\n", source, re.DOTALL)
    if inside:
        without_macros = re.sub(r"^#.*$", "", inside.group(1), flags=re.MULTILINE)
        out.append("```cpp\n" + "\n".join(declarations(without_macros, 0, True)) + "\n```")
    return "\n\n".join(out)


def cpp_page(root):
    return "\n\n".join(header_page(root, header) for header in public_headers(root))


def sources(root):
    """What both pages are read from, for copies of the tree."""
    python = [str(path.relative_to(root)) for path in sorted((root / PYTHON).rglob("*.py")) if "/proto/" not in str(path)]
    return [CPP, *public_headers(root), *python]
