"""What happened to a cluster, as an SVG over time: a bar for each host, tokens a second, and the events."""

from __future__ import annotations

from html import escape

WIDTH, LEFT, RIGHT = 1180, 80, 20
ROW, PLOT = 22, 110
COLOURS = {"up": "#4c9f70", "draining": "#e0a030", "cut off": "#c0504d"}
STYLE = """
  text { font: 12px system-ui, sans-serif; fill: #24292f }
  .axis { stroke: #8c959f } .grid { stroke: #d0d7de } .mark { stroke: #57606a; stroke-dasharray: 3 3 }
  .curve { fill: none; stroke: #2f6fb0; stroke-width: 1.5 }
  @media (prefers-color-scheme: dark) { text { fill: #e6edf3 } .grid { stroke: #30363d } .mark { stroke: #8c959f } }
"""


def picture(story, hosts: list[str]) -> str:
    end = max(story.now(), 1.0) if not story.events else max(at for at, _ in story.events) + 1

    def x(at: float) -> float:
        return LEFT + at / end * (WIDTH - LEFT - RIGHT)

    parts: list[str] = []
    y = 14
    for host in hosts:
        parts.append(f'<text x="8" y="{y + 13}">{escape(host)}</text>')
        for name, begin, finish, what in sorted(story.spans, key=lambda span: span[3] != "up"):
            if name == host:
                parts.append(f'<rect x="{x(begin):.1f}" y="{y + 2}" width="{max(1.0, x(finish) - x(begin)):.1f}" height="{ROW - 8}" '
                             f'rx="2" fill="{COLOURS[what]}"><title>{escape(host)} {escape(what)}</title></rect>')
        y += ROW
    top = y + 34
    seconds = [0] * (int(end) + 1)
    for at in story.tokens:
        seconds[int(at)] += 1
    most = max(seconds) or 1
    for share in (0.5, 1.0):
        level = top + PLOT - share * PLOT
        parts.append(f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{level:.1f}" y2="{level:.1f}"/>')
        parts.append(f'<text x="{LEFT - 6}" y="{level + 4:.1f}" text-anchor="end">{share * most:.0f}</text>')
    parts.append(f'<text x="8" y="{top - 12}">tokens a second</text>')
    points = " ".join(f"{x(second + 0.5):.1f},{top + PLOT - count / most * PLOT:.1f}" for second, count in enumerate(seconds[:-1]))
    parts.append(f'<polyline class="curve" points="{points}"/>')
    base = top + PLOT
    parts.append(f'<line class="axis" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{base}" y2="{base}"/>')
    for second in range(0, int(end) + 1, 10):
        parts.append(f'<text x="{x(second):.1f}" y="{base + 15}" text-anchor="middle">{second}</text>')
    parts.append(f'<text x="{WIDTH - RIGHT}" y="{base + 30}" text-anchor="end">seconds</text>')
    line = base + 36
    last = -100.0
    for number, (at, what) in enumerate(story.events, start=1):
        last = max(x(at), last + 16)  # numbers of events at one moment side by side
        parts.append(f'<line class="mark" x1="{x(at):.1f}" x2="{x(at):.1f}" y1="14" y2="{base}"/>')
        parts.append(f'<text x="{last:.1f}" y="11" text-anchor="middle">{number}</text>')
        parts.append(f'<text x="{LEFT}" y="{line + number * 17}">{number}. {at:.1f} s: {escape(what)}</text>')
    height = line + len(story.events) * 17 + 14
    return (f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" role="img">\n'
            f"<title>What happened to the cluster, by seconds</title>\n<style>{STYLE}</style>\n" + "\n".join(parts) + "\n</svg>\n")
