#!/usr/bin/env python3
"""The pages are in plain words: no sentence has "who" as a noun, and none leans on the sentence before it.

    test_words.py            prints each offence with its file and line, and exits 1 if there is one; run from anywhere
    test_words.py --count    prints the number of offences of each file besides

Blocks of code, and text between backquotes or double quotes, are left out: a command, an option or an error keeps its words.
"""
import fnmatch
import os
import re
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
sys.dont_write_bytecode = True

import test_pages  # noqa: E402

# Which files are read. Globs of paths from the root; * stands for / too.
COVERED = ("README.md", "CONTRIBUTING.md", "SECURITY.md", "CHANGELOG.md", "docs/*.md", "tests/*README.md", "conf/*")
# docs/locks.md has the words of the code until both are renamed.
LEFT_OUT = ("docs/locks.md", "conf/grafana/*")

# What follows a noun, and no adjective.
END = r"(?=['.,;:!?)|]|\s*$|\s+(?:is|are|was|were|has|have|had|may|must|can|will|does|do|that|which|whose|to|of|in|on|at|by|for|" \
      r"from|with|under|and|or|but|if|alone|again|too|first|then|there|here|ends?|over|as|two|three)\b)"

# The words that are counted, by what is wrong with them.
WORDS = [
    # "Who asks may release": the subject is a client, a session, a worker. "a client who ..." is "a client that ...".
    # "whose" is allowed: a client whose lease is over.
    ("a noun \"who\"", r"\bwho(?:ever|m|mever|soever)?\b"),
    # These send the reader back to find out which thing is meant: say the thing again. "These two clients" is allowed, as is
    # "the rules that one line includes": what follows tells the noun from the adjective.
    ("leans", r"\b(?:that|this|such(?: an?)?) ones?\b" + END),
    ("leans", r"\bsuch(?: as)? (?:these|those)\b|\bas such\b"),
    ("leans", r"\b(?:of|with|by|for|from|to|in|on|at|under|between|among) (?:these|those)\b" + END),
    ("leans", r"\b(?:these|those) (?:two|three|four)\b" + END),
    ("leans", r"\blikewise\b"),
    ("leans", r"\bthe (?:former|latter)\b"),
    ("leans", r"\b(?:its|their|the) kin\b"),
    ("leans", r"\bthe same goes\b"),
    # "Nobody", "anybody", "somebody" and "everybody" hide which thing of the program acts.
    ("hides the thing", r"\b(?:no|any|some|every)body(?:'s)?\b"),
    ("hides the thing", r"\b(?:some|any|every)one(?:'s)?\b"),
    # Words of ours without a meaning in the field.
    ("not a word of the field", r"\blatecomers?\b|\bstrangers?\b"),
]
PATTERNS = [(why, re.compile(pattern.replace(" ", r"\s+"), re.I)) for why, pattern in WORDS]

FENCE = re.compile(r"^\s*```")
# A quotation may go on over a line's end, but not over a paragraph's.
QUOTED = re.compile(r"`[^`\n]*(?:\n[^`\n]+)?`|\"[^\"\n]*(?:\n[^\"\n]+)?\"|\]\([^)\s]*\)")


def covered():
    """The files that are read, by their paths from the root."""
    files = [name for name in os.listdir(test_pages.ROOT) if os.path.isfile(os.path.join(test_pages.ROOT, name))]
    files += test_pages.tree("docs", "tests", "conf")
    return sorted(f for f in files if any(fnmatch.fnmatch(f, glob) for glob in COVERED)
                  and not any(fnmatch.fnmatch(f, glob) for glob in LEFT_OUT) and f.endswith(kinds(f)))


def kinds(path):
    """The endings of the files with prose below a folder."""
    return (".conf", ".md", ".yml", ".yaml", ".service", ".socket", ".1", ".sh", "Dockerfile", "postinst", "prerm", "postrm") \
        if path.startswith("conf/") else (".md",)


def prose(path, text):
    """A text with quotations and code blanked out, line for line; of a file that is no page, its comments alone."""
    code, page = False, path.endswith((".md", ".1"))
    lines = []
    for line in text.split("\n"):
        if FENCE.match(line):
            code = not code
            lines.append("")
        elif code or not page and not line.lstrip().startswith("#"):
            lines.append("")
        else:
            lines.append(line)
    # A quotation becomes a word, so that the words beside it do not meet.
    return QUOTED.sub(lambda found: re.sub(r"[^\n]", "x", found.group(0)), "\n".join(lines))


def offences(path, text):
    """What a text says wrongly: its line, the word, and what is wrong with it."""
    read = prose(path, text)
    for why, pattern in PATTERNS:
        for found in pattern.finditer(read):
            yield read.count("\n", 0, found.start()) + 1, " ".join(found.group(0).split()), why


def check_check(results):
    """What the check itself has to find, and what not."""
    cases = [
        ("Who never releases is seen.", 1), ("whoever asks", 1), ("a client whose lease is over", 0),
        ("The former wins, and likewise that one.", 3), ("the earlier holder", 0), ("of those, two", 1), ("of\nthese", 1),
        ("rules that one line includes", 0), ("versions of these libraries", 0), ("this one's lease", 1),
        ("`who` is quoted, \"who\" too", 0), ("```\nwho\n```\nwho", 1), ("[a](who.md)", 0), ("nobody waits", 1),
        ("`a quotation\nof who` goes on", 0), ("these two clients", 0), ("its kin", 1), ("none of these.", 1),
    ]
    for text, expected in cases:
        found = sorted({(n, w.lower()) for n, w, _ in offences("x.md", text)})
        results.append([] if len(found) == expected else ["test_words.py: %r has %r" % (text, found)])


def main():
    results = []
    check_check(results)
    for path in covered():
        found = ["%s:%d: \"%s\": %s" % (path, number, word, why)
                 for number, word, why in offences(path, test_pages.read(path))]
        results.append(sorted(set(found), key=found.index))
        if sys.argv[1:] == ["--count"] and found:
            print("%5d %s" % (len(results[-1]), path))
    failed = [r for r in results if r]
    for found in failed:
        print("\n".join(found))
    print("%d passed, %d failed" % (len(results) - len(failed), len(failed)))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
