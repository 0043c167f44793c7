#!/usr/bin/env python3
"""The pages say what is so: every rule code that is cited anywhere is defined, the tables of docs/architecture.md are
those that test_includes.py tests, and files, functions and links that pages name are there. So are the names of the code
in CONTRIBUTING.md.

    test_pages.py            prints each offence, and exits 1 if there is one; run from anywhere
    test_pages.py --write    first brings the tables of layers in docs/architecture.md up to date with test_includes.py

Codes are defined in docs/locks.md: rules S1, L3, T1 and A to G with their numbers by a line "- **S1** ...", letters by a
heading "### A. ...", lines of the table of commands and idioms by rows; traps by rows of docs/traps.md.
"""
import fnmatch
import os
import re
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
sys.dont_write_bytecode = True

import test_includes  # noqa: E402

ROOT = test_includes.ROOT
ARCHITECTURE = "docs/architecture.md"
README_LINES = 180
WAY_STEPS = 10


def read(path):
    with open(os.path.join(ROOT, path), encoding="utf-8") as f:
        return f.read()


def tree(*tops):
    """Paths of all files below these folders, but for the fuzzers' inputs and what tests leave behind."""
    for top in tops:
        for folder, folders, files in os.walk(os.path.join(ROOT, top)):
            folders[:] = sorted(f for f in folders if f not in ("corpus", "node_modules", "__pycache__"))
            for name in sorted(files):
                yield os.path.relpath(os.path.join(folder, name), ROOT)


def pages():
    """Every page, by its path from the root."""
    own = [name for name in os.listdir(ROOT) if name.endswith(".md")]
    return sorted(own + [p for p in tree("docs", "tests") if p.endswith(".md")])


def rows(text, first):
    """The cells of the rows of the table whose first heading is `first`; None: there is no such table."""
    lines, found = iter(text.splitlines()), None
    for line in lines:
        if re.match(r"\| *%s *\|" % re.escape(first), line):
            found = []
            next(lines)
            for row in lines:
                if not row.startswith("|"):
                    break
                found.append([cell.strip() for cell in re.split(r"(?<!\\)\|", row)[1:-1]])
            break
    return found


# ---- codes -----------------------------------------------------------------------------------------

CODE_FILES = re.compile(r"\.(c|h|lua|py|pml|sh|js|md|conf|txt|html)$|^\.ci/")
# Kind of code, and how it is cited; the group is the code.
CITATIONS = [
    ("rule", re.compile(r"\b([SLT][1-9])\b")),
    ("rule", re.compile(r"\b([A-G][1-9])\b")),
    ("letter", re.compile(r"\b[Rr]ules? ([A-Z])\b")),
    ("letter", re.compile(r"(?:/\*|----) ([A-Z])(?:, [A-Z])*: ")),
    ("letter", re.compile(r"---- [A-Z], ([A-Z]): ")),
    ("line", re.compile(r"\blines? (\d+) of the table\b")),
    ("idiom", re.compile(r"\b[Ii]diom (\d+)\b")),
    ("trap", re.compile(r"(?:\b|_)traps?[ _](\d+)")),
]


def defined_codes():
    locks, traps = read("docs/locks.md"), read("docs/traps.md")
    numbers = {"line": rows(locks, "line"), "idiom": rows(locks, "idiom"), "trap": rows(traps, "trap")}
    codes = {kind: {int(row[0]) for row in found or []} for kind, found in numbers.items()}
    codes["rule"] = set(re.findall(r"^- \*\*([A-Z][1-9])\*\* ", locks, re.M))
    codes["letter"] = set(re.findall(r"^### ([A-Z])\. ", locks, re.M)) | {rule[0] for rule in codes["rule"]}
    return codes


def cited_codes(text):
    """What a text cites: kind, code, and the line it stands on."""
    for number, line in enumerate(text.splitlines(), 1):
        for kind, pattern in CITATIONS:
            for code in pattern.findall(line):
                yield kind, int(code) if code.isdigit() else code, number


def check_codes(results):
    codes = defined_codes()
    for kind in ("rule", "letter", "line", "idiom", "trap"):
        results.append([] if codes[kind] else ["docs/: no %s is defined" % kind])
    for path in tree("parser", "proxy", "scripts", "tests", "docs"):
        if not CODE_FILES.search(path) or path == "tests/unit/test_pages.py":
            continue
        results.append(["%s:%d: %s %s is defined nowhere" % (path, number, kind, code)
                        for kind, code, number in cited_codes(read(path)) if code not in codes[kind]])


def check_rules_have_keepers(results):
    """A rule S, L or T says which file keeps it, and which test watches it."""
    text = read("docs/locks.md")
    for rule in re.finditer(r"^- \*\*([SLT][1-9])\*\* (.*?)(?=^- |^## )", text, re.M | re.S):
        said = " ".join(rule.group(2).split())
        kept, _, watched = said.partition("watched by")
        ok = "Kept by" in kept and ("`" in kept or "forwarding" in kept) and "`tests/" in watched
        results.append([] if ok else ["docs/locks.md: %s: nothing keeps it, or nothing watches it" % rule.group(1)])


# ---- layers ----------------------------------------------------------------------------------------

def cell_of(names, everything, quoted, own=None):
    if names and set(names) >= set(everything):
        return "all"
    return ", ".join("`%s`" % n if quoted else n for n in names if n != own) or "-"


def names_of(cell, everything):
    if cell == "all":
        return set(everything)
    return set() if cell == "-" else {name.strip().strip("`") for name in cell.split(",")}


def check_layers(results):
    text = read(ARCHITECTURE)
    for first, table, cells in (("folder", test_includes.LAYERS, 4), ("files", test_includes.FILES, 3)):
        said = {row[0].strip("`").replace("\\|", "|"): row for row in rows(text, first) or []}
        for name in sorted(set(said) | set(table)):
            if name not in table:
                why = "test_includes.py knows nothing of it"
            elif name not in said:
                why = "it is missing"
            else:
                row = said[name]
                folders, libraries = table[name]
                why = None
                if len(row) != cells:
                    why = "it has %d cells" % len(row)
                elif not all(row):
                    why = "a cell is empty"
                elif names_of(row[-2], test_includes.EVERYTHING) | {name} != set(folders) | {name}:
                    why = "it may include %s" % cell_of(folders, test_includes.EVERYTHING, True, name)
                elif names_of(row[-1], test_includes.LIBRARIES) != set(libraries):
                    why = "its libraries are %s" % cell_of(libraries, test_includes.LIBRARIES, False)
            results.append([] if why is None else ["%s: %s: %s" % (ARCHITECTURE, name, why)])


def write_layers():
    """The tables as test_includes.py has them; a folder that is new gets a row without a job."""
    lines = read(ARCHITECTURE).split("\n")
    for first, table in (("folder", test_includes.LAYERS), ("files", test_includes.FILES)):
        start = next(i for i, line in enumerate(lines) if re.match(r"\| *%s *\|" % first, line)) + 2
        end = start
        while end < len(lines) and lines[end].startswith("|"):
            end += 1
        jobs = {row[0].strip("`"): row[1] for row in rows("\n".join(lines), first)}
        made = []
        for name, (folders, libraries) in table.items():
            cells = ["`%s`" % name.replace("|", "\\|")]
            if first == "folder":
                cells.append(jobs.get(name, ""))
            cells += [cell_of(folders, test_includes.EVERYTHING, True, name),
                      cell_of(libraries, test_includes.LIBRARIES, False)]
            made.append("| %s |" % " | ".join(cells))
        lines[start:end] = made
    with open(os.path.join(ROOT, ARCHITECTURE), "w", encoding="utf-8") as f:
        f.write("\n".join(lines))


# ---- what pages name -------------------------------------------------------------------------------

FILE = re.compile(r"`(?!/)([\w./*-]+\.(?:c|h|lua|py|sh|pml|md|conf|cmake|txt|html|js|awk|service))`")
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")


def slug(heading):
    """The anchor of a heading, as sites make it."""
    text = re.sub(r"[^\w\- ]", "", heading.strip().lower().replace("`", ""))
    return text.replace(" ", "-")


def anchors(text):
    plain = re.sub(r"^```.*?^```", "", text, flags=re.M | re.S)
    return {slug(h) for h in re.findall(r"^#+ (.*)$", plain, re.M)}


def check_names(results):
    known = ["/" + p for p in (*tree("parser", "proxy", "scripts", "tests", "docs", "conf"), *os.listdir(ROOT))]
    for page in pages():
        text, offences = read(page), []
        for name in FILE.findall(text):
            if not fnmatch.filter(known, "*/" + os.path.normpath(name)):
                offences.append("%s: there is no file %s" % (page, name))
        for link in LINK.findall(text):
            target, _, anchor = link.partition("#")
            if "://" in link:
                continue
            path = os.path.normpath(os.path.join(os.path.dirname(page), target)) if target else page
            if not os.path.exists(os.path.join(ROOT, path)):
                offences.append("%s: a link leads to %s, which is not there" % (page, link))
            elif anchor and anchor not in anchors(read(path)):
                offences.append("%s: %s has no section #%s" % (page, path, anchor))
        results.append(offences)


# A name of the code: a word with _ in it, or of capitals; not a part of a file's name.
CODE_NAME = re.compile(r"(?<![\w./-])(?:[A-Za-z]\w*_\w+|[A-Z]{4,})(?![\w./-])")
# Names that the page makes up.
MADE_UP = {"TAKE", "RELEASE_IF", "module_verb"}


def check_recipes(results):
    """Functions, tables, macros and tests that CONTRIBUTING.md names between backquotes are in the code."""
    known = set(MADE_UP)
    for path in tree("parser", "proxy", "scripts", "tests"):
        if re.search(r"\.(c|h|lua|py)$", path) and path != "tests/unit/test_pages.py":
            known.update(re.findall(r"\w+", path + " " + read(path)))
    prose = re.sub(r"^```.*?^```", "", read("CONTRIBUTING.md"), flags=re.M | re.S)
    for quoted in re.findall(r"`([^`]+)`", prose):
        results.append(["CONTRIBUTING.md: the code has no %s" % name for name in CODE_NAME.findall(quoted) if name not in known])


def check_ways(results):
    """The functions by which a request, and a lock, are followed exist, and are ten at most."""
    code = "\n".join(read(p) for p in tree("parser", "proxy") if p.endswith(".c"))
    for heading in ("One request's way", "One lock's way"):
        _, found, section = read(ARCHITECTURE).partition("\n## %s\n" % heading)
        steps = [row[0].strip("`") for row in rows(section, "function") or []]
        results.append([] if found and 1 < len(steps) <= WAY_STEPS else
                       ["%s: %s: %d functions" % (ARCHITECTURE, heading, len(steps))])
        results.append(["%s: %s: there is no function %s" % (ARCHITECTURE, heading, name) for name in steps
                        if not re.search(r"^(?![ \t#*/]).*\b%s\([^;]*$" % name, code, re.M)])


def check_readme(results):
    lines = read("README.md").count("\n")
    results.append([] if lines <= README_LINES else ["README.md: %d lines, %d at most" % (lines, README_LINES)])


def check_check(results):
    """What the check itself has to find, and what not."""
    cases = [
        ("keeps S1 and L3", [("rule", "S1"), ("rule", "L3")]),
        ("-- S4, L2.", [("rule", "S4"), ("rule", "L2")]),
        ("/* C3: a missed release", [("rule", "C3")]),
        ("/* E: a lease", [("letter", "E")]),
        ("/* ---- C, D: releases ----", [("letter", "C"), ("letter", "D")]),
        ("by rule F, not by G", [("letter", "F")]),
        ("line 4 of the table", [("line", 4)]),
        ("def test_trap_04_moved", [("trap", 4)]),
        ("Idiom 18, the throttle", [("idiom", 18)]),
        ("SHA1 UTF8 S10 xS1 trapdoor", []),
    ]
    for text, expected in cases:
        found = [(kind, code) for kind, code, _ in cited_codes(text)]
        results.append([] if found == expected else ["test_pages.py: %r cites %r" % (text, found)])


def main():
    if sys.argv[1:] == ["--write"]:
        write_layers()
    results = []
    for check in (check_check, check_codes, check_rules_have_keepers, check_layers, check_names, check_recipes, check_ways, check_readme):
        check(results)
    failed = [r for r in results if r]
    for offences in failed:
        print("\n".join(offences))
    print("%d passed, %d failed" % (len(results) - len(failed), len(failed)))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
