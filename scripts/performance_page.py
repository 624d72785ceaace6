#!/usr/bin/env python3
"""docs/evidence/performance.md and its plots, from the runs kept in docs/evidence/performance/.

  performance_page.py --add NAME RUN.json.. [--peers PEERS.json] [--parity PARITY.txt]
                                                         keep runs of `gdn_bench kernel --json` (and of bench_peers.py, and
                                                         gdn_parity's table); the first says what the machine is
  performance_page.py --write                            write the page and the plots anew
  performance_page.py --check                            exit 1 where they are not what the kept runs say

scripts/bench.sh does all of it.
"""

import argparse
import datetime
import json
import math
import pathlib
import re
import subprocess
import sys
import textwrap

ROOT = pathlib.Path(__file__).resolve().parent.parent
DATA = ROOT / "docs" / "evidence" / "performance"
PAGE = ROOT / "docs" / "evidence" / "performance.md"
IMAGES = ROOT / "docs" / "images"
COLOURS = ["#1f6feb", "#8b949e", "#d1242f", "#bf8700", "#1a7f37", "#8250df"]

# ---- runs


def rounded(value):
    return float(f"{value:.5g}")


def parity_errors(text):
    """The largest relative norm error of each test of gdn_parity, {"suite/test": error}."""
    errors = {}
    for line in text.splitlines():
        words = line.split()
        if len(words) < 9 or words[-1] != "PASS":
            continue
        test = f"{words[0]}/{words[1]}"
        errors[test] = max(errors.get(test, 0.0), float(words[-3]))
    return errors


def error_of(case, errors):
    """The error of the case's operator, by gdn_parity's test of it; None where there is none."""
    if case.endswith("state=bf16"):
        return None
    what = case.split("/")[0]
    suite = "kda" if "kda" in case else "delta_rule"
    tests = {"decode_in_place": f"{suite}/recurrent_in_place", "decode_deferred": f"{suite}/deferred_decode",
             "decode_hot": f"{suite}/deferred_decode", "decode_at": f"{suite}/deferred_decode", "prefill_scan": f"{suite}/scan",
             "prefill_chunk": f"{suite}/chunk", "prefill_long": f"{suite}/chunk"}
    if what.startswith("projection"):
        return errors.get(f"layer_ops/{what}_{case.split('/')[1]}") if not re.search("/(int8|half|narrow)/", case) else None
    if what.startswith("layer"):
        return errors.get("layer/hidden_states_interleaved_BF16")
    return errors.get(tests.get(what))


def shown_error(error):
    return "" if error is None else f"{error:.1e}"


def keep(name, run_files, peers_file, parity_file):
    runs = [json.loads(pathlib.Path(file).read_text(encoding="utf-8")) for file in run_files]
    run = runs[0]
    cases = {}
    for case in (case for each in runs for case in each["cases"]):
        cases[case["name"]] = {
            "us": [rounded(case["time_us"][key]) for key in ("median", "p10", "p90")],
            "of_limit": [rounded(case["fraction_of_limit"][key]) for key in ("median", "p10", "p90")],
            "limit_us": rounded(case["limit_us"]["median"]), "bound": case["bound"], "cold": case["cold"]}
    last = run["cases"][-1]["limits"]
    kept = {"date": datetime.date.today().isoformat(),
            "commit": subprocess.run(["git", "-C", ROOT, "rev-parse", "--short", "HEAD"], capture_output=True, text=True,
                                     check=False).stdout.strip(),
            "backend": run["backend"], "gpu": run.get("gpu"), "load_average": run["load_average"], "repeat": run["repeat"],
            "limits": {key: rounded(value["median"]) for key, value in last.items()}, "cases": cases}
    if peers_file:
        peers = json.loads(pathlib.Path(peers_file).read_text(encoding="utf-8"))
        kept["peers"] = peers["peers"]
        kept["peer_rounds"] = peers["rounds"]
        kept["beside"] = {case: {peer: {key: rounded(value) for key, value in row.items()} for peer, row in rows.items()}
                          for case, rows in peers["cases"].items()}
    if parity_file:
        kept["errors"] = {test: rounded(error) for test, error in parity_errors(pathlib.Path(parity_file).read_text(encoding="utf-8")).items()
                          if test.split("/")[0] in ("delta_rule", "kda", "layer", "layer_ops")}
    DATA.mkdir(exist_ok=True)
    (DATA / f"{name}.json").write_text(json.dumps(kept, indent=1) + "\n", encoding="utf-8")


# ---- plots

# Names of the peers in pictures, and how bench_peers.py runs each.
PEERS = {
    "ggml": ("llama.cpp", "the operator GATED_DELTA_NET of llama.cpp's test-backend-ops. It repeats one step, so its state is in a cache, as in "
             "our `decode_hot`. It has a key head for each value head, and normalises q and k."),
    "ggml-mul-mat": ("llama.cpp", "{}. MUL_MAT with 512 rows of float32 inputs, which it rounds to int8 too, and weights in the file's order."),
    "fla": ("FLA, float32", "{}. Inputs are float32. It runs as a CUDA graph and repeats one step, so small states are in a cache."),
    "fla-bf16": ("FLA, bfloat16", "{}. It runs in the same way with bfloat16 inputs. Our inputs and products are float32."),
    "transformers": ("transformers, bfloat16", "{}. Its `Qwen3NextGatedDeltaNet`, a whole layer in bfloat16, runs as a CUDA graph. "
                     "Our cases `narrow` have bfloat16 inputs too."),
}
OURS, LIMIT = "gdn-service", "limit, float32 states"


class Plot:
    """Lines over a logarithmic x axis and a y axis that is logarithmic, or linear from 0."""

    PLOT_WIDTH, HEIGHT, LEFT, TOP, BOTTOM = 440, 380, 64, 40, 46
    CHARACTER = 7.2  # the width of a character of 12 px, at most

    def __init__(self, title, x_name, y_name, linear=False):
        self.title, self.x_name, self.y_name, self.linear, self.lines = title, x_name, y_name, linear, []

    def line(self, name, points, dashed=False):
        if points:
            self.lines.append((name, sorted(points), dashed))

    def x_ticks(self, xs, at_x):
        """The values whose labels fit; the largest is among them."""
        left_of_last = math.inf
        for x in sorted(set(xs), reverse=True):
            half = self.CHARACTER * len(f"{x:,}") / 2
            if at_x(x) + half + 6 <= left_of_last:
                left_of_last = at_x(x) - half
                yield x

    def y_axis(self, ys):
        """(ticks, value -> share of the height)"""
        if self.linear:
            top = max(1.0, math.ceil(max(ys) * 5) / 5)
            return [i / 5 for i in range(round(top * 5) + 1)], lambda y: y / top
        low, high = math.floor(math.log10(min(ys)) * 2) / 2, math.ceil(math.log10(max(ys)) * 2) / 2
        ticks = [factor * 10.0**decade for decade in range(math.floor(low), math.ceil(high) + 1) for factor in (1, 3)]
        return ([y for y in ticks if low - 1e-9 <= math.log10(y) <= high + 1e-9],
                lambda y: (math.log10(y) - low) / (high - low))

    def svg(self):
        xs = [x for _, points, _ in self.lines for x, _ in points]
        ys = [y for _, points, _ in self.lines for _, y in points]
        x0, x1 = math.log10(min(xs)), math.log10(max(xs))
        right, bottom = self.LEFT + self.PLOT_WIDTH, self.HEIGHT - self.BOTTOM
        longest = max(len(name) for name, _, _ in self.lines)
        width = max(right + 46 + self.CHARACTER * longest, self.LEFT + 8.8 * len(self.title) + 10)
        ticks, share = self.y_axis(ys)
        at_x = lambda x: self.LEFT + (math.log10(x) - x0) / (x1 - x0) * self.PLOT_WIDTH
        at_y = lambda y: bottom - share(y) * (bottom - self.TOP)
        out = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0f} {self.HEIGHT}" font-family="sans-serif" '
               'font-size="12">', f'<rect width="{width:.0f}" height="{self.HEIGHT}" fill="white"/>',
               f'<text x="{self.LEFT}" y="22" font-size="14" font-weight="bold">{self.title}</text>']
        for y in ticks:
            out.append(f'<line x1="{self.LEFT}" y1="{at_y(y):.1f}" x2="{right}" y2="{at_y(y):.1f}" stroke="#d8dee4"/>')
            out.append(f'<text x="{self.LEFT - 6}" y="{at_y(y) + 4:.1f}" text-anchor="end">{y:,.10g}</text>')
        for x in self.x_ticks(xs, at_x):
            out.append(f'<line x1="{at_x(x):.1f}" y1="{bottom}" x2="{at_x(x):.1f}" y2="{bottom + 4}" stroke="#57606a"/>')
            out.append(f'<text x="{at_x(x):.1f}" y="{bottom + 17}" text-anchor="middle">{x:,}</text>')
        out.append(f'<text x="{(self.LEFT + right) / 2:.0f}" y="{self.HEIGHT - 8}" text-anchor="middle">{self.x_name}</text>')
        middle = (self.TOP + bottom) / 2
        out.append(f'<text x="14" y="{middle:.0f}" text-anchor="middle" transform="rotate(-90 14 {middle:.0f})">{self.y_name}</text>')
        for i, (name, points, dashed) in enumerate(self.lines):
            colour = COLOURS[i % len(COLOURS)]
            stroke = f'stroke="{colour}" stroke-width="2"' + (' stroke-dasharray="5 4"' if dashed else "")
            if len(points) > 1:
                path = " ".join(f"{at_x(x):.1f},{at_y(y):.1f}" for x, y in points)
                out.append(f'<polyline points="{path}" fill="none" {stroke}/>')
            y = self.TOP + 14 + 20 * i
            if len(points) > 1:
                out.append(f'<line x1="{right + 14}" y1="{y - 4}" x2="{right + 34}" y2="{y - 4}" {stroke}/>')
            dots = [] if dashed else [(at_x(x), at_y(v)) for x, v in points] + [(right + 24, y - 4)]
            out += [f'<circle cx="{cx:.1f}" cy="{cy:.1f}" r="3.5" fill="{colour}"/>' for cx, cy in dots]
            out.append(f'<text x="{right + 40}" y="{y}">{name}</text>')
        return "\n".join(out + ["</svg>"]) + "\n"


def points_of(values, prefix, variable, suffix=""):
    found = {}
    for case, value in values.items():
        match = re.fullmatch(re.escape(prefix) + rf"/{variable}=(\d+)" + re.escape(suffix), case)
        if match:
            found[int(match.group(1))] = value
    return sorted(found.items())


def plots_of(name, run):
    """{file: (what it shows, SVG)}"""
    times = {case: row["us"][0] for case, row in run["cases"].items()}
    limits = {case: row["limit_us"] for case, row in run["cases"].items()}
    beside = run.get("beside", {})
    machine = short_machine(run)
    plots = {}
    for key, title, prefix, variable, x_name, always in (
            ("decode", "Delta rule, a decode step", "decode_deferred", "B", "sessions (B)", True),
            ("prefill", "Delta rule, a chunked prefill of one sequence", "prefill_chunk", "T", "tokens (T)", True),
            ("layer-decode", "Whole layer, a decode step", "layer_decode/BF16", "B", "sessions (B)", False),
            ("layer-prefill", "Whole layer, a prefill of one sequence", "layer_prefill/BF16", "T", "tokens (T)", False)):
        plot = Plot(f"{title} ({machine})", x_name, "microseconds")
        plot.line(OURS, points_of(times, prefix, variable))
        plot.line(LIMIT, points_of(limits, prefix, variable), dashed=True)
        plot.line(f"{OURS}, bfloat16 states", points_of(times, prefix, variable, "/state=bf16"))
        plot.line(f"{OURS}, states in a cache", points_of(times, "decode_hot", variable) if key == "decode" else [])
        for peer in run.get("peers", {}):
            theirs = points_of({case: rows[peer]["time_us"] for case, rows in beside.items() if peer in rows}, prefix, variable)
            plot.line(PEERS[peer][0], theirs)
            always |= bool(theirs)
        if always and len(points_of(times, prefix, variable)) > 1:
            plots[f"performance-{name}-{key}.svg"] = (title, plot.svg())
    fractions = {case: row["of_limit"][0] for case, row in run["cases"].items()}
    plot = Plot(f"Fraction of the machine's limit ({machine})", "sessions, rows or tokens", "fraction of the limit", linear=True)
    for label, prefix, variable in (("decode", "decode_deferred", "B"), ("prefill", "prefill_chunk", "T"),
                                    ("projection, row-stable", "projection_row_stable/BF16", "rows"),
                                    ("projection, GEMM", "projection_sequence_gemm/BF16", "rows"),
                                    ("layer decode", "layer_decode/BF16", "B"), ("layer prefill", "layer_prefill/BF16", "T")):
        plot.line(label, points_of(fractions, prefix, variable))
    plots[f"performance-{name}-limit.svg"] = ("Fractions of the limit", plot.svg())
    return plots


# ---- the page

HEAD = """# Performance of the kernels

This page has the times of the kernels on each machine that was measured. It compares them with the machine's own limits and with
other projects. `scripts/bench.sh` generates the page from the runs in [performance/](performance); do not edit it by hand.

**No figure here is of a gfx906.** The product's target is AMD gfx906 (MI50, MI60, Radeon VII), but no kernel has run on such a
card yet. [mi50-model.md](mi50-model.md) has computed times. NVIDIA is a second target. It runs some kernels that gfx906 does not
run. The tables name them.

How to read the tables:

- [benchmarks.md](benchmarks.md#the-timed-cases) says what each case times, and how its limit is measured.
- The limit is the shortest time in which the machine can do the case's work. Its measured memory bandwidth or its float32
  multiply-add rate sets the limit; `bound` says which. `of the limit` is the limit divided by the time, so 1.00 is best.
- Times are medians over the rounds, and p10 and p90 are percentiles over the rounds.
- `\\*`: part of the data may have come from a cache, so the fraction can exceed 1.
- A comparison with another project is a run of its own, so its times differ a little from those under "All cases".
- `error` is the relative Euclidean norm of the difference from double precision. Ours is the largest of `gdn_parity`'s cases of the
  operator in that run: of a layer with BF16 weights, and of projections by their weights. A peer's is that of the first 2,048 tokens of
  the case, for the inputs as it gets them. A field is empty where no error was measured.
"""

ON_GFX906 = """The column `not on gfx906` names the kernels of a case that gfx906 does not run:

| name | kernel on waves of 32 lanes (NVIDIA) | gfx906 runs instead |
|---|---|---|
| streamed decode | `delta_rule_decode_stream`, for many heads with K of 64, 128 or 256 | `delta_rule_decode` |
| states and outputs | `delta_rule_states` and `delta_rule_outputs`, for K up to 128 | `delta_rule_chunk`, one kernel for both |
| matrix units | `delta_rule_matrix_..`, for one decay a head and K up to 128; `projection_terms_gemm` and `projection_few_terms`, of BF16 weights, and of others in prefills | `delta_rule_chunk`; `projection_few_rows` and `projection_tiles` |
| large GEMM | `projection_gemm`, for products of more than 64 rows that fill the device | `projection_tiles` |

`none` means that gfx906 runs the same kernels from the same sources. Other projections of 9 to 64 rows use other tiles there. On NVIDIA
from sm_90 on, a kernel also [starts while the one before it ends](kernel-notes.md#kernels-that-overlap); gfx906 cannot do that.
"""


def not_on_gfx906(case, gpu, units):
    """The kernels of a case that only waves of 32 lanes take; units: with matrix units. As the launches in kernels/ choose:
    UsesRecords and DecodeRecordFloatsGpu (delta_rule_decode), GemmFillsDevice and UsesMatrixUnits (projection), DeltaRuleChunkGpu and
    TakesMatrixUnits (delta_rule_chunk)."""
    value = lambda name, default: int((re.search(rf"\b{name}=(\d+)", case) or [0, default])[1])
    heads, whole, rows = value("B", 1) * value("HV", 32), value("K", 128) in (64, 128, 256), value("rows", 0)
    found = []
    if units and (case.startswith("layer_prefill") or case.startswith("projection_sequence_gemm") and not re.search("/(int8|half)/", case)
                  or case.startswith(("prefill_chunk", "prefill_long")) and value("K", 128) <= 128 and "kda" not in case):
        return "matrix units"
    decoded = units and re.match("(projection_row_stable|layer_(decode|decode_served|draft))/BF16/(?!int8|half)", case)
    if decoded:
        found.append("matrix units")
    if case.startswith("decode_") and not case.startswith("decode_in_place") and whole and heads >= 4 * gpu["processors"]:
        found.append("streamed decode")
    if case.startswith("layer_decode"):
        rows = value("B", 1)
        if whole and heads >= gpu["processors"]:
            found.append("streamed decode")
    if case.startswith(("prefill_chunk", "prefill_long")) and value("K", 128) <= 128:
        found.append("states and outputs")
    if case.startswith("layer_prefill"):
        rows = value("B", 1) * value("T", 0)
        found.append("states and outputs")
    outputs = 8192 if case.startswith("projection") else 12288  # of the matrix, or of the layer's in-projections
    if rows > 64 and not decoded and 4 * math.ceil(outputs / 64) * math.ceil(rows / 128) >= 3 * gpu["processors"]:
        found.append("large GEMM")
    return ", ".join(found) or "none"


def machine_of(run):
    gpu, backend = run["gpu"], run["backend"]
    if gpu:
        return (f"{gpu['name']} ({gpu['architecture']}), runtime {gpu['runtime_version']}, driver {gpu['driver_version']}, "
                f"{gpu['clock_khz'] / 1e6:.2f} GHz")
    return f"{backend['device']}, {backend['threads']} threads"


def short_machine(run):
    return run["gpu"]["name"] if run["gpu"] else f"{run['backend']['device']}, {run['backend']['threads']} threads"


# Whether a token takes longer far from a session's beginning.
FLAT = (("A prefill takes {} us a token for {} tokens and {} us a token for {}", "prefill_long/T=", True),
        ("A decode step takes {} us after {} tokens and {} us after {}", "decode_at/position=", False))


def flat_lines(cases):
    out = []
    for words, prefix, share in FLAT:
        points = sorted((int(case[len(prefix):]), row["us"][0]) for case, row in cases.items()
                        if case.startswith(prefix) and "/" not in case[len(prefix):])
        if len(points) < 2:
            continue
        (near, first), (far, last) = points[0], points[-1]
        first, last = (first / near, last / far) if share else (first, last)
        out.append(f"- {words.format(f'{first:.3g}', f'{near:,}', f'{last:.3g}', f'{far:,}').replace('after 1 tokens', 'after 1 token')}. "
                   f"That is {last / first:.3f} times as long.")
    return ["The time of a token does not depend much on its position.", "", *out, ""] if out else []


def earlier_of(run):
    """What the run line says of cases that are kept from an earlier run, whose kernels have not changed since."""
    kept = run.get("earlier")
    if not kept:
        return ""
    names = " and ".join(f"`{start}..`" for start in kept["cases"])
    return f" Cases {names}: {kept['date']}, commit {kept['commit']}."


def section(name, run):
    limits, errors = run["limits"], run.get("errors", {})
    gpu = run["gpu"] if run["gpu"] and run["gpu"]["wave_width"] == 32 else None
    units = run["backend"]["numerics_id"].endswith("-mma")
    missing = (lambda case: f" {not_on_gfx906(case, gpu, units)} |") if gpu else lambda case: ""
    heading, rule = (" not on gfx906 |", "---|") if gpu else ("", "")
    where = "the CPU" if name == "cpu" else run["gpu"]["name"] if run["gpu"] else run["backend"]["device"]
    out = [f"## {short_machine(run)}", "",
           f"- Machine: {machine_of(run)}. Numerics: `{run['backend']['numerics_id']}`.",
           f"- Run: {run['date']}, commit {run['commit']}, {run['repeat']} rounds a case, load average {run['load_average']:.1f} before it."
           + earlier_of(run),
           f"- Measured limits: read {limits['read_gb_s']:.0f} GB/s, copy {limits['copy_gb_s']:.0f} GB/s, update "
           f"{limits['update_gb_s']:.0f} GB/s, {limits['fma_gflop_s']:,.0f} GFLOP/s.", ""]
    out += ON_GFX906.splitlines() + [""] if gpu else []
    for plot, (what, _) in plots_of(name, run).items():
        out += [f"![{what}](../images/{plot})", ""]
    if run.get("beside"):
        out += [f"### Other projects on {where}", "",
                f"Each peer and gdn-service were timed alternately in one run. The ratio is our time divided by the peer's, as the median of",
                f"{run['peer_rounds']} rounds. Below 1, gdn-service is faster.", ""]
        for peer, version in run["peers"].items():
            out += textwrap.wrap(f"- `{peer}`: {PEERS[peer][1].format(version)}", width=125, subsequent_indent="  ", break_on_hyphens=False)
        out.append("")
        out += ["| case | peer | gdn-service, us | peer, us | ratio | least .. most | our error | peer's error |" + heading,
                "|---|---|--:|--:|--:|--:|--:|--:|" + rule]
        for case, rows in run["beside"].items():
            for peer, row in rows.items():
                run_of = f", run of {row['run']}" if "run" in row else ""  # of a peer that the newest run left out
                out.append(f"| `{case}` | {peer}{run_of} | {row['ours_us']:,.1f} | {row['time_us']:,.1f} | {row['ratio']:.2f} | "
                           + (f"{row['least']:.2f} .. {row['most']:.2f} |" if "least" in row else "|")
                           + f" {shown_error(error_of(case, errors))} | {shown_error(row.get('error'))} |" + missing(case))
        out.append("")
    out += [f"### All cases on {where}", ""] + flat_lines(run["cases"])
    out += ["| case | us | p10 .. p90 | of the limit | p10 .. p90 | bound | error |" + heading, "|---|--:|--:|--:|--:|---|--:|" + rule]
    for case, row in run["cases"].items():
        us, share = row["us"], row["of_limit"]
        warm = "" if row["cold"] or row["bound"] != "memory" else " \\*"
        out.append(f"| `{case}` | {us[0]:,.1f} | {us[1]:,.1f} .. {us[2]:,.1f} | {share[0]:.2f}{warm} | {share[1]:.2f} .. {share[2]:.2f} | "
                   f"{row['bound']} | {shown_error(error_of(case, errors))} |" + missing(case))
    return out + [""]


TAIL = """## To repeat it

Close other programs first. The script builds what it needs, runs every case, and writes this page.

<!-- not run: needs hours -->
```bash
scripts/bench.sh cpu                       # this machine's processors
scripts/bench.sh cpu --test-backend-ops=$HOME/llama.cpp/build/bin/test-backend-ops   # and llama.cpp's operator in turns
scripts/bench.sh gpu                       # a gfx906
PRESET=cuda scripts/bench.sh gpu --name=h200   # an NVIDIA GPU; FLA and transformers if Python has them
```
"""


def files():
    out, page = {}, HEAD.splitlines() + [""]
    for path in sorted(DATA.glob("*.json")):
        run = json.loads(path.read_text(encoding="utf-8"))
        page += section(path.stem, run)
        out.update({IMAGES / plot: svg for plot, (_, svg) in plots_of(path.stem, run).items()})
    out[PAGE] = "\n".join(page) + "\n" + TAIL
    return out


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    group = parser.add_mutually_exclusive_group(required=True)
    group.add_argument("--add", nargs="+", metavar="ARGUMENT")
    group.add_argument("--write", action="store_true")
    group.add_argument("--check", action="store_true")
    parser.add_argument("--peers", metavar="FILE")
    parser.add_argument("--parity", metavar="FILE")
    options = parser.parse_args()
    if options.add:
        if len(options.add) < 2:
            parser.error("--add takes NAME RUN.json..")
        keep(options.add[0], options.add[1:], options.peers, options.parity)
        return
    wrong = [path for path, text in files().items() if not path.exists() or path.read_text(encoding="utf-8") != text]
    if options.write:
        for path, text in files().items():
            path.write_text(text, encoding="utf-8")
    elif wrong:
        sys.exit("not as the kept runs say: " + ", ".join(str(path.relative_to(ROOT)) for path in wrong))
    print(f"performance page: {len(wrong)} files {'written anew' if options.write else 'differ'}")


if __name__ == "__main__":
    main()
