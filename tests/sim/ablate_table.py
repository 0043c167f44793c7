#!/usr/bin/env python3
"""The table of ablate.sh: ablate_table.py RESULTS < lines of ablations.txt

Prints what the whole engine reaches in each group of cells, and how the figures change without each rule. A change counts if
it is greater than all that other seeds change in the whole engine. A rule without a change is listed at the end, with the
number of cells in which it changes anything at all.
"""
import collections
import pathlib
import re
import sys

GROUPS = (  # the first pattern that matches a cell's name
    ("operators, two applications", r"operator|beside|against"),
    ("two proxies, losers release", r"two proxies.*losers"),
    ("two proxies, pools", r"two proxies, (pool|lifo|multiplexed)"),
    ("two proxies, own connections", r"two proxies"),
    ("a pool's first minute", r"minute|first second"),
    ("pools, losers try four times", r"pool, losers try"),
    ("pools, losers release", r"(pool|lifo|fifo)\b.*losers"),
    ("habits: a second DEL, throttles, nested attempts, EXPIRE", r"twice|throttle|nested|handed|EXPIRE|watchdog"),
    ("pools, late or forgotten", r"faults, (pool|lifo|fifo)|(pool|lifo), (burst|pauses|crashes|.*miss)"),
    ("pools", r"pool|lifo|fifo"),
    ("multiplexed, losers release", r"multiplex.*losers"),
    ("multiplexed", r"multiplex"),
    ("few own workers, often late", r"few own"),
    ("own connections, losers release", r"losers"),
    ("own connections, late or forgotten", r"faults|burst|pauses|crashes|miss"),
    ("own connections", r""),
)
FIGURES = ("wrong", "lost", "idle")
FLOORS = {"wrong": 2.0, "lost": 2.0, "idle": 0.15}  # of a group; a change below is none
CELL_FLOORS = {"wrong": 25.0, "lost": 25.0, "idle": 1.0}
MOST = 4  # groups in a row of the table


def group_of(cell):
    return next(name for name, pattern in GROUPS if re.search(pattern, cell))


def read(path):
    """The counts of the cells: {cell: (acquired, wrong, lost, idle, trips)}."""
    counts = {}
    for line in path.read_text().splitlines():
        name, *numbers = line.split("|")
        counts[name] = tuple(float(n) for n in numbers)
    return counts


def figures(rows):
    acquired, wrong, lost, idle, trips = (sum(column) for column in zip(*rows))
    unit = 10000 / max(acquired, 1)
    return {"wrong": wrong * unit, "lost": lost * unit, "idle": 100 * idle / trips}


def by_group(counts):
    rows = collections.defaultdict(list)
    for cell, numbers in counts.items():
        rows[group_of(cell)].append(numbers)
    return {group: figures(of) for group, of in rows.items()}


def by_cell(counts):
    return {cell: figures([numbers]) for cell, numbers in counts.items()}


def moved(seeds, value, floor):
    """How many spreads of the seeds the value lies beyond them: 0 if it is within them, or not farther than their spread."""
    low, high = min(seeds), max(seeds)
    beyond = max(value - high, low - value)
    spread = max(high - low, floor)
    return beyond / spread if beyond > spread else 0


def said(figure, whole, without):
    if figure == "idle":
        return f"idle {whole:.1f} % to {without:.1f} %"
    return f"{figure} {whole:.0f} to {without:.0f}"


def changes(whole, without, floors):
    """[(weight, place, text)] of what changes beyond the noise."""
    found = []
    for place, now in without.items():
        words, weight = [], 0
        for figure in FIGURES:
            seeds = [of[place][figure] for of in whole]
            by = moved(seeds, now[figure], floors[figure])
            if by:
                words.append(said(figure, sum(seeds) / len(seeds), now[figure]))
                weight = max(weight, by)
        if words:
            found.append((weight, place, ", ".join(words)))
    return sorted(found, reverse=True)


def print_whole(whole, mode):
    print(f"\nThe whole engine ({mode}), over {len(whole)} seeds:\n")
    print("| cells | wrong | lost | idle |\n| --- | ---: | ---: | ---: |")
    for group, _ in GROUPS:
        if group not in whole[0]:
            continue
        low = {f: min(of[group][f] for of in whole) for f in FIGURES}
        high = {f: max(of[group][f] for of in whole) for f in FIGURES}
        print(
            f"| {group} | {low['wrong']:.0f} to {high['wrong']:.0f} | {low['lost']:.0f} to {high['lost']:.0f} "
            f"| {low['idle']:.1f} % to {high['idle']:.1f} % |"
        )


def moves(folder, name, modes):
    """What the ablation moves: (weighed texts of groups, of cells, the number of cells that differ at all, runs)."""
    groups, cells, differ, runs = [], [], 0, 0
    for mode in modes:
        wholes = {path.suffixes[-2]: read(path) for path in folder.glob(f"whole.*.{mode}")}
        suffix = "" if mode == "instant" else " (in flight)"
        for path in folder.glob(f"{name}.*.{mode}"):
            counts = read(path)
            runs += 1
            differ += sum(counts[cell] != wholes[path.suffixes[-2]][cell] for cell in counts)
            for found, fold, floors in ((groups, by_group, FLOORS), (cells, by_cell, CELL_FLOORS)):
                found += [
                    (weight, f"{place}{suffix}: {text}")
                    for weight, place, text in changes([fold(of) for of in wholes.values()], fold(counts), floors)
                ]
    return sorted(groups, reverse=True), sorted(cells, reverse=True), differ, runs


def main():
    folder = pathlib.Path(sys.argv[1])
    rules = [line.rstrip("\n").split("|", 3)[:2] for line in sys.stdin if line.strip()]
    modes = sorted({path.suffix[1:] for path in folder.glob("whole.*")}, key=lambda m: m != "instant")
    rows, quiet = [], []
    for name, rule in rules:
        groups, cells, differ, runs = moves(folder, name, modes)
        if groups or cells:
            told = (groups[:MOST] if groups else []) + (cells[: MOST - len(groups)] if len(groups) < MOST else [])
            rows.append(f"| {rule} | " + "; ".join(text for _, text in told) + " |")
        elif runs:
            quiet.append(f"- {name} ({rule}): {differ} cells differ at all, of {runs} runs")
    for mode in modes:
        print_whole([by_group(read(p)) for p in sorted(folder.glob(f"whole.*.{mode}"))], mode)
    print("\n| rule | with it, and without it |\n| --- | --- |")
    print("\n".join(rows))
    print("\nNo cell moves beyond its noise without:\n")
    print("\n".join(quiet))


main()
