#!/usr/bin/env python3
"""Draws README's picture from a table under "Other engines" in data/measurements:

    tools/plot_peers.py data/measurements/intel-xeon-emerald-rapids-2-cores.md > data/measurements/peers.svg

A row of the table is a model in a format, a column a kind of work; a cell holds how many times as many tokens/s as the first
engine we made, a stroke, and the same of the second. The picture shows the first.
"""
import html
import sys

COLUMNS = {"prefill 512": ("#9db8d2", "a prompt"), "decode, batch 1": ("#4f81ad", "one request"),
           "64, independent": ("#16405f", "64 requests")}
WIDTH, LABEL, BAR, GAP, TOP, MOST = 760, 190, 11, 12, 58, 8.0


def read_table(path):
    """Rows (name, {column: ratio to the first engine}) of the first table under "## Other engines"."""
    with open(path, encoding="utf-8") as file:
        section = file.read().split("\n## Other engines\n", 1)[1].split("\n## ", 1)[0]
    table = []
    for line in section.splitlines():
        if line.startswith("|"):
            table.append([cell.strip() for cell in line.strip("|").split("|")])
        elif table:
            break
    rows, model = [], ""
    for cells in table[2:]:
        label = cells[0].split(",")[0]  # "Qwen2.5-0.5B bf16", "… int8"
        model = label.rsplit(" ", 1)[0] if not label.startswith("…") else model
        rows.append((label.replace("…", model), {
            name: float(cell.split("/")[0]) for name, cell in zip(table[0], cells) if name in COLUMNS}))
    return rows


def draw(rows):
    scale = (WIDTH - LABEL - 60) / MOST
    height = TOP + len(rows) * (len(COLUMNS) * BAR + GAP) + 8
    out = [f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{height}" viewBox="0 0 {WIDTH} {height}" '
           'font-family="sans-serif" font-size="12">', f'<rect width="{WIDTH}" height="{height}" fill="#ffffff"/>',
           '<text x="8" y="20" font-size="14">Tokens/s of llm-batch on two CPU cores; 1 is llama.cpp in the same run</text>']
    x = LABEL
    for color, text in COLUMNS.values():
        out.append(f'<rect x="{x}" y="32" width="10" height="10" fill="{color}"/><text x="{x + 15}" y="41">{text}</text>')
        x += 110
    y = TOP
    for label, ratios in rows:
        out.append(f'<text x="{LABEL - 8}" y="{y + BAR * 2}" text-anchor="end">{html.escape(label)}</text>')
        for name, (color, _) in COLUMNS.items():
            length = ratios[name] * scale
            out.append(f'<rect x="{LABEL}" y="{y}" width="{length:.1f}" height="{BAR - 1}" fill="{color}"/>'
                       f'<text x="{LABEL + length + 4:.1f}" y="{y + BAR - 1}" font-size="10">{ratios[name]:g}</text>')
            y += BAR
        y += GAP
    x = LABEL + scale
    out.append(f'<line x1="{x:.1f}" y1="{TOP - 6}" x2="{x:.1f}" y2="{height - 12}" stroke="#c0392b" stroke-dasharray="3 3"/>')
    return "\n".join(out) + "\n</svg>\n"


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: plot_peers.py data/measurements/FILE.md > peers.svg")
    sys.stdout.write(draw(read_table(sys.argv[1])))
