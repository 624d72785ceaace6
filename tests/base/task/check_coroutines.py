#!/usr/bin/env python3
"""Fails where a coroutine has a form that GCC 12 compiles wrongly, or that is wrong with any compiler.

  check_coroutines.py [ROOT]       check the tree at ROOT (default: the repository this file is in)
  check_coroutines.py --self-test  plant one fault of each kind in a small tree and see each reported

GCC 12.2, measured at -O0 and -O2 (tests/base/task/coroutine_shapes_test.cc tries the forms that are right):
  braces     `co_await F({.a = b})`, `co_await T{}`, `T{co_await x}`: members are destroyed twice
  lambda     `co_await F([x] { ... })`: the captures are destroyed twice
  ?:         `co_await F(c ? T(x) : T())`: the result is destroyed twice
  condition  `if (co_await F(T()) == 1) co_return 0;`: the body is never run
  statement expression with co_await: the compiler crashes
With any compiler:
  binding    `auto [a, b] = co_await x`: some compilers drop the destructor of what is bound
  capture    a lambda that is a coroutine and captures: the captures go with the lambda, before the coroutine ends
  reference  a coroutine's parameter that is an rvalue reference; a const reference, a string_view or a Span of a coroutine
             that is started as a root task (Spawn): what it names is gone when the task runs
  lock       a lock or another value that belongs to a thread, kept in a block across a co_await; a thread_local there
The check reads text: it knows no types, and takes each co_await for itself.
"""

import os
import re
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", ".."))
import source_checks  # noqa: E402

FOLDERS = ("base/", "server/", "state_store/", "client/")
SKIPPED_FOLDERS = {"build", "__pycache__"}

COROUTINE = re.compile(r"\bco_(?:await|return|yield)\b")
WAIT = re.compile(r"(?<!operator )\bco_(?:await|yield)\b")
NOISE = re.compile(r'//[^\n]*|/\*.*?\*/|R"(\w*)\(.*?\)\1"|"(?:\\.|[^"\\\n])*"|(?<![0-9a-fA-F])\'(?:\\.|[^\'\\\n])+\'', re.DOTALL)
DEFINE = re.compile(r"^[ \t]*#[ \t]*define\b(?:[^\n]*\\\n)*[^\n]*", re.MULTILINE)
CONDITION = re.compile(r"\b(if|while|switch|for)\b(?:\s*constexpr)?\s*\(")
BINDING = re.compile(r"\bauto\s*&{0,2}\s*\[[^\[\]]*\]\s*=[^=]")
LAMBDA = re.compile(r"(?<![\w\])\[])\s*\[(?!\[)([^\[\]]*)\]\s*(?=[({]|mutable\b|->)")
LOCK = re.compile(r"\b(?:absl::|std::)?(?:MutexLock|ReaderMutexLock|WriterMutexLock|ReleasableMutexLock|MutexLockMaybe|lock_guard|"
                  r"unique_lock|scoped_lock|shared_lock|GivesWay)\b(?:\s*<[^;{}()]*>)?\s+\w+\s*[({;=]")
THREAD_LOCAL = re.compile(r"\bthread_local\b")
TASK_FUNCTION = re.compile(r"\bTask<[^;{}()]*>\s+(?:\w+::)*(\w+)\(")
SPAWN = re.compile(r"\bSpawn\(\s*(?:[\w>*]+(?:::|\.|->))*(\w+)\(")
BORROWED = re.compile(r"\bconst\b[^,]*&|\bstring_view\b|\bSpan<")
PAIRS = {"(": ")", "[": "]", "{": "}"}
OPENERS = {close: opener for opener, close in PAIRS.items()}


def blank(match):
    return re.sub(r"[^\n]", " ", match.group(0))


def code_of(text):
    """The text without comments, the insides of literals and macros' definitions, in the same places."""
    return DEFINE.sub(blank, NOISE.sub(blank, text))


def close_of(code, opened):
    """Where the bracket at `opened` is closed; the end of the text if it is not."""
    depth = 0
    for at in range(opened, len(code)):
        if code[at] in PAIRS:
            depth += 1
        elif code[at] in OPENERS:
            depth -= 1
            if depth == 0:
                return at
    return len(code)


def is_block(code, brace):
    """Whether the `{` there opens a block of statements, not a list of values."""
    before = code[:brace].rstrip()
    if not before or before[-1] in ");{}:" or re.search(r"\b(?:else|do|try|const|noexcept|override|final|mutable)$", before):
        return True
    if before[-1] == "(":  # a statement expression, or an aggregate
        return ";" in code[brace:close_of(code, brace)]
    if before[-1] == "]":  # a lambda without parameters, or an array
        return bool(re.search(r"(?<![\w\])])\s*\[[^\[\]]*\]$", before))
    head = re.split(r"[;{}]", before)[-1]
    return bool(re.search(r"->\s*[\w:<>,&*\s]+$", head) or
                re.match(r"\s*(?:template\s*<.*>\s*)?(?:inline\s+)?(?:namespace|class|struct|union|enum|extern)\b", head, re.DOTALL))


def statement_around(code, at):
    """(begin, end) of the statement that has the co_await at `at`; lists of values belong to it, blocks do not."""
    depth, begin = 0, at
    while begin > 0:
        char = code[begin - 1]
        if char == "}" and depth == 0 and is_block(code, matching_open(code, begin - 1)):
            break
        if char in OPENERS:
            depth += 1
        elif char == "{" and depth == 0:
            if is_block(code, begin - 1):
                break
        elif char in PAIRS:
            depth = max(depth - 1, 0)
        elif char == ";" and depth == 0:
            break
        begin -= 1
    end = at
    while end < len(code) and code[end] != ";":
        if code[end] == "{" and is_block(code, end) and ")" in code[at:end] and not LAMBDA.search(code, at, end):
            break
        end = close_of(code, end) + 1 if code[end] in PAIRS else end + 1
    return begin, min(end, len(code))


def matching_open(code, closed):
    depth = 0
    for at in range(closed, -1, -1):
        if code[at] in OPENERS:
            depth += 1
        elif code[at] in PAIRS:
            depth -= 1
            if depth == 0:
                return at
    return 0


def block_end(code, at):
    """Where the block that has the place `at` ends."""
    depth = 0
    for end in range(at, len(code)):
        depth += (code[end] == "{") - (code[end] == "}")
        if depth < 0:
            return end
    return len(code)


def check_statements(code):
    for wait in WAIT.finditer(code):
        begin, end = statement_around(code, wait.start())
        statement = code[begin:end]
        if BINDING.search(code[begin:wait.start()]):
            yield wait.start(), "binding: a structured binding of a co_await; name the result first"
        if LAMBDA.search(statement):
            yield wait.start(), "lambda: a lambda in a statement with co_await; name it first"
        elif "{" in statement:
            yield wait.start(), "braces: a list in braces in a statement with co_await; name the object first"
        if "?" in statement:
            yield wait.start(), "?: in a statement with co_await; use if, or name the value first"


def check_blocks(code):
    for head in CONDITION.finditer(code):
        inside = code[head.end() - 1:close_of(code, head.end() - 1)]
        if WAIT.search(inside):
            yield head.start(), f"condition: co_await in the head of {head.group(1)}; name the result first"
    for opened in re.finditer(r"\(\s*\{", code):
        brace = opened.end() - 1
        body = code[brace:close_of(code, brace)]
        if ";" in body and COROUTINE.search(body) and code[brace + len(body) + 1:].lstrip().startswith(")"):
            yield opened.start(), "statement expression with co_await"
    for introduced in LAMBDA.finditer(code):
        at = introduced.end()
        if code[at] == "(":
            at = close_of(code, at) + 1
        body = re.compile(r"[^;{}()]*\{").match(code, at)
        if introduced.group(1).strip() and body and COROUTINE.search(code, body.end(), close_of(code, body.end() - 1)):
            yield introduced.start(1), "capture: a lambda that captures is a coroutine; pass parameters to a function"
    for kind, pattern in (("lock", LOCK), ("lock", THREAD_LOCAL)):
        for kept in pattern.finditer(code):
            if WAIT.search(code, kept.end(), block_end(code, kept.end())):
                yield kept.start(), f"{kind}: {kept.group(0).strip(' ({;=')} lives across a co_await; end its block before"


def parameters(code, opened):
    """The parameters of the function whose `(` is there."""
    text, depth, names = code[opened + 1:close_of(code, opened)], 0, [""]
    for char in text:
        depth += (char in "(<[{") - (char in ")>]}")
        if char == "," and depth == 0:
            names.append("")
        else:
            names[-1] += char
    return [name.strip() for name in names if name.strip()]


def check_parameters(code):
    for function in TASK_FUNCTION.finditer(code):
        for parameter in parameters(code, function.end() - 1):
            if "&&" in parameter:
                yield function.start(), f"reference: {function.group(1)} is a coroutine and has the parameter `{parameter}`; pass by value"


def borrowing_functions(code):
    return {function.group(1) for function in TASK_FUNCTION.finditer(code)
            if any(BORROWED.search(parameter) for parameter in parameters(code, function.end() - 1))}


def check_spawns(code, borrowing):
    for spawn in SPAWN.finditer(code):
        if spawn.group(1) in borrowing:
            yield spawn.start(), f"reference: {spawn.group(1)} is started as a root task and has a parameter that it does not own"


def check_tree(root):
    """(files read, ["file:line: what is wrong", ...])."""
    codes = {}
    for path in source_checks.files_of(root, SKIPPED_FOLDERS):
        if path.startswith(FOLDERS) and path.endswith((".h", ".cc")):
            codes[path] = code_of("\n".join(source_checks.read_lines(root, path)))
    borrowing = set().union(*map(borrowing_functions, codes.values()))
    errors = []
    for path, code in codes.items():
        found = list(check_parameters(code)) + list(check_spawns(code, borrowing))
        if COROUTINE.search(code):
            found += list(check_statements(code)) + list(check_blocks(code))
        numbered = {(code.count("\n", 0, at) + 1, text) for at, text in found}
        errors += [f"{path}:{number}: {text}" for number, text in sorted(numbered)]
    return len(codes), errors


def task(body):
    return f"Task<int> F(Parts& parts, Rows rows) {{\n{body}\n}}\n"


# (file, contents, the report expected of it, or None where it is allowed)
PLANTED = [
    ("base/good.cc", task("""  Rows rows{1, 2};  // co_await F({1})
  GDN_CO_ASSIGN_OR_RETURN(const Pins pins, co_await parts.residency.Bring(rows, caller.deadline()));
  GDN_CO_RETURN_IF_ERROR(co_await SleepUntil(parts.clock.Now() + absl::Seconds(1), deadline));
  if (pins.empty()) co_await Log("why? {}", 'x');
  for (const Row& row : rows) {
    const int one = co_await parts.One(row);
    sum += one > 0 ? one : 0;
  }
  const auto less = [&rows](int a, int b) { return rows[a] < rows[b]; };
  { absl::MutexLock lock(&mu_); ++open_; }
  if constexpr (kTrace) { co_await Trace(std::move(rows)); } else { co_await Hop(); }
  std::vector<int> all = {1, 2};
  co_return co_await Sum(std::move(all));"""), None),
    ("base/good_lambda.cc", "auto f = [](int x) -> Task<int> {\n  co_await Hop();\n  co_return x;\n};\n", None),
    ("base/good_spawn.cc", "Task<void> ByValue(Parts& parts, Rows rows);\nvoid G() { group.Spawn(parts.ByValue(parts, rows)); }\n", None),
    ("base/operator.h", "struct T {\n  A operator co_await() && { return A(f({1})); }\n};\n", None),
    ("base/macro.h", "#define GDN_CO_X(e) \\\n  if (co_await (e)) { \\\n  }\n", None),
    ("tests/base/anything.cc", task("  co_await G({1});"), None),
    ("base/aggregate.cc", task("  co_await G({.a = 1});"), "base/aggregate.cc:2: braces: "),
    ("base/awaiter.cc", task("  const int x =\n      co_await Hop{};"), "base/awaiter.cc:3: braces: "),
    ("base/init.cc", task("  Row row{co_await One(), 2};"), "base/init.cc:2: braces: "),
    ("base/init_list.cc", task("  std::vector<int> v = {1, co_await One()};"), "base/init_list.cc:2: braces: "),
    ("base/lambda.cc", task("  co_await Run([rows] { return rows.size(); });"), "base/lambda.cc:2: lambda: "),
    ("base/choice.cc", task("  const int x = c ? co_await One() : 2;"), "base/choice.cc:2: ?: "),
    ("base/choice_argument.cc", task("  co_await G(c ? a : b);"), "base/choice_argument.cc:2: ?: "),
    ("base/condition.cc", task("  if (co_await One() == 1) co_return 2;"), "base/condition.cc:2: condition: co_await in the head of if"),
    ("base/loop.cc", task("  for (int i = 0; i < co_await One(); ++i) {\n  }"), "base/loop.cc:2: condition: co_await in the head of for"),
    ("base/range.cc", task("  for (const Row& row : co_await All()) {\n  }"), "base/range.cc:2: condition: co_await in the head of for"),
    ("base/chosen.cc", task("  switch (co_await One()) {\n  }"), "base/chosen.cc:2: condition: co_await in the head of switch"),
    ("base/statement.cc", task("  const int x = ({ int y = co_await One(); y; });"), "base/statement.cc:2: statement expression"),
    ("base/binding.cc", task("  auto [a, b] = co_await Two();"), "base/binding.cc:2: binding: "),
    ("base/binding_reference.cc", task("  const auto& [a, b] = co_await Two();"), "base/binding_reference.cc:2: binding: "),
    ("base/capture.cc", "auto f = [this](int x) -> Task<int> { co_return x; };\n", "base/capture.cc:1: capture: "),
    ("base/capture_all.cc", "void G() {\n  Run([&] {\n    co_return;\n  });\n}\n", "base/capture_all.cc:2: capture: "),
    ("base/rvalue.h", "Task<int> F(int a, Rows&& rows);\n", "base/rvalue.h:1: reference: F is a coroutine and has the parameter `Rows&& rows`"),
    ("server/borrows.h", "Task<void> Evict(Parts& parts, const Session& session);\nTask<void> Named(std::string_view name);\n", None),
    ("server/spawns.cc", "void G() {\n  group_.Spawn(Evict(parts_, session));\n  group_.Spawn(Named(name));\n}\n",
     "server/spawns.cc:2: reference: Evict is started as a root task"),
    ("server/spawns_view.cc", "void G() { group_->Spawn(parts->Named(name)); }\n", "server/spawns_view.cc:1: reference: Named is started"),
    ("client/lock.cc", task("  const absl::MutexLock lock(&mu_);\n  ++open_;\n  co_await One();"), "client/lock.cc:2: lock: absl::MutexLock lock"),
    ("state_store/guard.cc", task("  {\n    std::unique_lock<std::mutex> lock(mu);\n    if (x) {\n      co_await One();\n    }\n  }"),
     "state_store/guard.cc:3: lock: std::unique_lock<std::mutex> lock"),
    ("base/way.cc", task("  const GivesWay gives_way;\n  co_await One();"), "base/way.cc:2: lock: GivesWay gives_way"),
    ("base/thread.cc", task("  static thread_local int x = 0;\n  co_await One();"), "base/thread.cc:2: lock: thread_local"),
]
# One file, two reports.
PLANTED.append(("server/other.cc", "", "server/spawns.cc:3: reference: Named is started as a root task"))


if __name__ == "__main__":
    sys.exit(source_checks.main(__doc__, check_tree, PLANTED, sys.argv[1:]))
