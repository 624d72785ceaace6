#!/usr/bin/env python3
"""docs/evidence/performance.md and its plots, from the runs kept in docs/evidence/performance/.

  performance_page.py --add NAME RUN.json.. [--peers PEERS.json]
                                                         keep runs of `gdn_bench kernel --json` (and of bench_peers.py); the
                                                         first says what the machine is
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

ROOT = pathlib.Path(__file__).resolve().parent.parent
DATA = ROOT / "docs" / "evidence" / "performance"
PAGE = ROOT / "docs" / "evidence" / "performance.md"
IMAGES = ROOT / "docs" / "images"
COLOURS = ["#1f6feb", "#8b949e", "#d1242f", "#bf8700", "#1a7f37", "#8250df"]

# ---- runs


def rounded(value):
    return float(f"{value:.5g}")


def keep(name, run_files, peers_file):
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
    DATA.mkdir(exist_ok=True)
    (DATA / f"{name}.json").write_text(json.dumps(kept, indent=1) + "\n", encoding="utf-8")


# ---- plots


class Plot:
    """Lines over two logarithmic axes."""

    WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 680, 380, 64, 190, 34, 46

    def __init__(self, title, x_name, y_name):
        self.title, self.x_name, self.y_name, self.lines = title, x_name, y_name, []

    def line(self, name, points, dashed=False):
        if len(points) > 1:
            self.lines.append((name, sorted(points), dashed))

    def svg(self):
        xs = [x for _, points, _ in self.lines for x, _ in points]
        ys = [y for _, points, _ in self.lines for _, y in points]
        x0, x1 = math.log10(min(xs)), math.log10(max(xs))
        y0, y1 = math.floor(math.log10(min(ys)) * 2) / 2, math.ceil(math.log10(max(ys)) * 2) / 2
        right, bottom = self.WIDTH - self.RIGHT, self.HEIGHT - self.BOTTOM
        at_x = lambda x: self.LEFT + (math.log10(x) - x0) / (x1 - x0) * (right - self.LEFT)
        at_y = lambda y: bottom - (math.log10(y) - y0) / (y1 - y0) * (bottom - self.TOP)
        out = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {self.WIDTH} {self.HEIGHT}" font-family="sans-serif" '
               'font-size="12">', f'<rect width="{self.WIDTH}" height="{self.HEIGHT}" fill="white"/>',
               f'<text x="{self.LEFT}" y="20" font-size="14" font-weight="bold">{self.title}</text>']
        for decade in range(math.floor(y0), math.ceil(y1) + 1):
            for factor in (1, 3):
                value = factor * 10.0**decade
                if y0 - 1e-9 <= math.log10(value) <= y1 + 1e-9:
                    y = at_y(value)
                    out.append(f'<line x1="{self.LEFT}" y1="{y:.1f}" x2="{right}" y2="{y:.1f}" stroke="#d8dee4"/>')
                    out.append(f'<text x="{self.LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{value:,.10g}</text>')
        shown = -math.inf
        for x in sorted(set(xs)):
            if at_x(x) - shown < 34:
                continue
            shown = at_x(x)
            out.append(f'<text x="{shown:.1f}" y="{bottom + 16}" text-anchor="middle">{x:,}</text>')
        out.append(f'<text x="{(self.LEFT + right) / 2:.0f}" y="{self.HEIGHT - 10}" text-anchor="middle">{self.x_name}</text>')
        middle = (self.TOP + bottom) / 2
        out.append(f'<text x="14" y="{middle:.0f}" text-anchor="middle" transform="rotate(-90 14 {middle:.0f})">{self.y_name}</text>')
        for i, (name, points, dashed) in enumerate(self.lines):
            colour = COLOURS[i % len(COLOURS)]
            path = " ".join(f"{at_x(x):.1f},{at_y(y):.1f}" for x, y in points)
            dash = ' stroke-dasharray="5 4"' if dashed else ""
            out.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"{dash}/>')
            out += [f'<circle cx="{at_x(x):.1f}" cy="{at_y(y):.1f}" r="3" fill="{colour}"/>' for x, y in points if not dashed]
            y = self.TOP + 14 + 18 * i
            out.append(f'<line x1="{right + 12}" y1="{y - 4}" x2="{right + 32}" y2="{y - 4}" stroke="{colour}" stroke-width="2"{dash}/>')
            out.append(f'<text x="{right + 38}" y="{y}">{name}</text>')
        return "\n".join(out + ["</svg>"]) + "\n"


def points_of(values, prefix, variable):
    found = {}
    for case, value in values.items():
        match = re.fullmatch(re.escape(prefix) + rf"/{variable}=(\d+)", case)
        if match:
            found[int(match.group(1))] = value
    return sorted(found.items())


def plots_of(name, run):
    times = {case: row["us"][0] for case, row in run["cases"].items()}
    limits = {case: row["limit_us"] for case, row in run["cases"].items()}
    beside = run.get("beside", {})
    plots = {}
    for key, title, prefix, variable, x_name in (
            ("decode", "Decode of B sessions, one token each, one layer", "decode_deferred", "B", "sessions (B)"),
            ("prefill", "Chunked prefill of one sequence, one layer", "prefill_chunk", "T", "tokens (T)")):
        plot = Plot(f"{title} ({name})", x_name, "microseconds")
        plot.line("ours", points_of(times, prefix, variable))
        plot.line("the machine's limit", points_of(limits, prefix, variable), dashed=True)
        for peer in run.get("peers", {}):
            theirs = {case: rows[peer]["time_us"] for case, rows in beside.items() if peer in rows}
            plot.line(peer, points_of(theirs, prefix, variable))
        if plot.lines:
            plots[f"performance-{name}-{key}.svg"] = plot.svg()
    fractions = {case: row["of_limit"][0] for case, row in run["cases"].items()}
    plot = Plot(f"Of the machine's limit ({name})", "sessions, rows or tokens", "fraction of the limit")
    for label, prefix, variable in (("decode", "decode_deferred", "B"), ("prefill", "prefill_chunk", "T"),
                                    ("projection, BF16, row-stable", "projection_row_stable/BF16", "rows"),
                                    ("projection, BF16, GEMM", "projection_sequence_gemm/BF16", "rows"),
                                    ("layer decode", "layer_decode/BF16", "B"), ("layer prefill", "layer_prefill/BF16", "T")):
        plot.line(label, points_of(fractions, prefix, variable))
    plots[f"performance-{name}-limit.svg"] = plot.svg()
    return plots


# ---- the page

HEAD = """# Performance of the kernels

Generated by `scripts/bench.sh` from the runs in [performance/](performance); do not edit. What a case is, what its limit is
and how both are measured: [benchmarks.md](benchmarks.md). 1.00 of the limit is what the machine's memory or multiply-add units,
measured in the same rounds, allow for the work that any implementation must do.
"""


def machine_of(run):
    gpu, backend = run["gpu"], run["backend"]
    if gpu:
        return (f"{gpu['name']} ({gpu['architecture']}), runtime {gpu['runtime_version']}, driver {gpu['driver_version']}, "
                f"{gpu['clock_khz'] / 1e6:.2f} GHz")
    return f"{backend['device']}, {backend['threads']} threads"


# How much longer a token takes far from a session's beginning.
FLAT = (("a prefill's token, in {} tokens and in {}", "prefill_long/T=", True),
        ("a decode's token, after {} tokens and after {}", "decode_at/position=", False))


def flat_lines(cases):
    out = []
    for words, prefix, share in FLAT:
        points = sorted((int(case[len(prefix):]), row["us"][0]) for case, row in cases.items()
                        if case.startswith(prefix) and "/" not in case[len(prefix):])
        if len(points) < 2:
            continue
        (near, first), (far, last) = points[0], points[-1]
        first, last = (first / near, last / far) if share else (first, last)
        out.append(f"- {words.format(f'{near:,}', f'{far:,}')}: {first:.3g} and {last:.3g} us, {last / first:.3f} times as long")
    return ["Flat in length:", "", *out, ""] if out else []


def section(name, run):
    limits = run["limits"]
    out = [f"## {name}", "",
           f"{machine_of(run)}; numerics `{run['backend']['numerics_id']}`; {run['date']}, commit {run['commit']}, "
           f"{run['repeat']} rounds a case, load average {run['load_average']:.1f} before the run. Limits: read "
           f"{limits['read_gb_s']:.0f} GB/s, copy {limits['copy_gb_s']:.0f}, update {limits['update_gb_s']:.0f}, "
           f"{limits['fma_gflop_s']:.0f} GFLOP/s.", ""]
    out += [f"![{plot}](../images/{plot})" for plot in plots_of(name, run)] + [""]
    if run.get("beside"):
        out += ["Beside other projects, timed in turns in one run (median of "
                f"{run['peer_rounds']} rounds; below 1 ours is faster):", ""]
        out += [f"- {peer}: {version}" for peer, version in run["peers"].items()] + [""]
        out += ["| case | peer | ours, us | theirs, us | ours / theirs | least .. most |", "|---|---|--:|--:|--:|--:|"]
        for case, rows in run["beside"].items():
            for peer, row in rows.items():
                out.append(f"| `{case}` | {peer} | {row['ours_us']:,.1f} | {row['time_us']:,.1f} | {row['ratio']:.2f} | "
                           + (f"{row['least']:.2f} .. {row['most']:.2f} |" if "least" in row else "|"))
        out.append("")
    out += flat_lines(run["cases"])
    out += ["| case | us | p10 .. p90 | of the limit | p10 .. p90 | bound |", "|---|--:|--:|--:|--:|---|"]
    for case, row in run["cases"].items():
        us, share = row["us"], row["of_limit"]
        warm = "" if row["cold"] or row["bound"] != "memory" else " \\*"
        out.append(f"| `{case}` | {us[0]:,.1f} | {us[1]:,.1f} .. {us[2]:,.1f} | {share[0]:.2f}{warm} | {share[1]:.2f} .. {share[2]:.2f} | "
                   f"{row['bound']} |")
    return out + ["", "\\*: part of the working set may have come from a cache.", ""]


def files():
    out, page = {}, HEAD.splitlines() + [""]
    for path in sorted(DATA.glob("*.json")):
        run = json.loads(path.read_text(encoding="utf-8"))
        page += section(path.stem, run)
        out.update({IMAGES / plot: svg for plot, svg in plots_of(path.stem, run).items()})
    page += ["## To run it", "", "```", "scripts/bench.sh cpu                       # this machine's processors",
             "scripts/bench.sh gpu                       # its GPU (build for gfx906: hipcc; for NVIDIA: PRESET=cuda)",
             "scripts/bench.sh cpu --test-backend-ops=PATH   # llama.cpp's operator beside it", "```", ""]
    out[PAGE] = "\n".join(page)
    return out


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    group = parser.add_mutually_exclusive_group(required=True)
    group.add_argument("--add", nargs="+", metavar="ARGUMENT")
    group.add_argument("--write", action="store_true")
    group.add_argument("--check", action="store_true")
    parser.add_argument("--peers", metavar="FILE")
    options = parser.parse_args()
    if options.add:
        if len(options.add) < 2:
            parser.error("--add takes NAME RUN.json..")
        keep(options.add[0], options.add[1:], options.peers)
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
