#!/usr/bin/env python3
"""The pages are in plain words: no sentence has "who" as a noun, and none leans on the sentence before it.

    test_words.py            prints each offence with its file and line, and exits 1 if there is one; run from anywhere
    test_words.py --count    prints the number of offences of each file besides

Blocks of code, and text between backquotes or double quotes, are left out: a command, an option or an error keeps its words. The
files stand in COVERED, the words in WORDS.
"""
import fnmatch
import os
import re
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
sys.dont_write_bytecode = True

import test_pages  # noqa: E402

# Which files are read: globs of paths from the root; * stands for / too. To cover code, add its globs here ("proxy/*.h"):
# prose() knows the comments of each language.
COVERED = ("*.md", "conf/*", "parser/*", "proxy/*.[ch]", "scripts/*.sh", "scripts/lua/*.lua", "tests/*")
# This test quotes the words itself. The others have strings or names with them.
LEFT_OUT = ("tests/unit/test_words.py", "tests/clients/contend/pools.py", "tests/clients/contend/run.py",
            "tests/integration/certificates.py", "tests/integration/library_locks.py")

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

# A quotation may go on over a line's end, but not over a paragraph's. The target of a link is quoted too.
QUOTED = re.compile(r"`[^`\n]*(?:\n[^`\n]+)?`|\"[^\"\n]*(?:\n[^\"\n]+)?\"|\]\([^)\s]*\)")

# The prose of a file, by its ending: of a page all but blocks of code, of code its comments. Other files have none.
HASH = re.compile(r"^[ \t]*#.*$|[ \t]#[ \t].*$", re.M)
LITERAL = re.compile(r"\"((?:[^\"\\]|\\.)*)\"")
PROSE = {
    (".md",): None,
    (".1",): re.compile(r".+"),
    (".c", ".h"): re.compile(r"/\*(?:.|\n)*?\*/|//.*"),
    (".lua",): re.compile(r"--\[\[(?:.|\n)*?\]\]|--.*"),
    (".py",): re.compile(r"\"\"\"(?:.|\n)*?\"\"\"|" + HASH.pattern, re.M),
    (".sh", ".conf", ".yml", ".yaml", ".cmake", ".service", ".socket", ".in", ".awk", "Dockerfile", "postinst", "prerm",
     "postrm"): HASH,
}


def covered():
    """The files that are read, by their paths from the root."""
    files = [name for name in os.listdir(test_pages.ROOT) if os.path.isfile(os.path.join(test_pages.ROOT, name))]
    files += test_pages.tree("docs", "tests", "conf", "scripts", "parser", "proxy")
    return sorted(f for f in files if any(fnmatch.fnmatch(f, glob) for glob in COVERED)
                  and not any(fnmatch.fnmatch(f, glob) for glob in LEFT_OUT)
                  and any(f.endswith(endings) for endings in PROSE))


def blank(text):
    return re.sub(r"[^\n]", " ", text)


def prose(path, text):
    """A text with code and quotations blanked out, line for line."""
    pattern = next(p for endings, p in PROSE.items() if path.endswith(endings))
    if path.endswith(".md"):
        text = re.sub(r"^[ ]*```(?:.|\n)*?^[ ]*```", lambda found: blank(found.group(0)), text, flags=re.M)
    else:
        kept, end = [], 0
        for found in pattern.finditer(text):
            kept += [blank(text[end:found.start()]), found.group(0).replace('"""', "   ")]
            end = found.end()
        text = "".join(kept) + blank(text[end:])
    # A quotation becomes a word, so that the words beside it do not meet.
    return QUOTED.sub(lambda found: re.sub(r"[^\n]", "x", found.group(0)), text)


def said(path, text):
    """The sentences of the program: its replies, log lines and errors, line for line. A literal without a blank is a name."""
    if not path.endswith((".c", ".h")) or path.startswith("tests/"):
        return ""
    text = re.sub(r"/\*(?:.|\n)*?\*/|'\"'", lambda found: blank(found.group(0)), text)
    return "\n".join(" ".join(t for t in LITERAL.findall(line) if " " in t) for line in text.split("\n"))


def offences(path, text):
    """What a text says wrongly: its line, the word, and what is wrong with it."""
    for read in prose(path, text), said(path, text):
        for why, pattern in PATTERNS:
            for found in pattern.finditer(read):
                if path.endswith((".c", ".h")) and found.group(0).isupper():
                    continue  # a name of the code's
                yield read.count("\n", 0, found.start()) + 1, " ".join(found.group(0).split()), why


def check_check(results):
    """What the check itself has to find, and what not."""
    cases = [
        ("x.md", "Who never releases is seen.", 1), ("x.md", "whoever asks", 1), ("x.md", "a client whose lease is over", 0),
        ("x.md", "The former wins, and likewise that one.", 3), ("x.md", "the earlier holder", 0),
        ("x.md", "of those, two", 1), ("x.md", "of\nthese", 1), ("x.md", "none of these.", 1), ("x.md", "its kin", 1),
        ("x.md", "rules that one line includes", 0), ("x.md", "versions of these libraries", 0),
        ("x.md", "this one's lease", 1), ("x.md", "these two clients", 0), ("x.md", "nobody waits", 1),
        ("x.md", "`who` is quoted, \"who\" too", 0), ("x.md", "`a quotation\nof who` goes on", 0),
        ("x.md", "```\nwho\n```\nwho", 1), ("x.md", "[a](who.md)", 0),
        ("x.c", "/* Who */ int who; // nobody", 2), ("x.lua", "local who = 1 -- who", 1), ("x.sh", "who # likewise", 1),
        ("x.c", 'log("nobody holds it"); key("who"); c = \'"\'; /* "who is there" */', 1), ("x.lua", 's = "nobody holds it"', 0),
        ("x.py", "def who():\n    \"\"\"Who asks.\"\"\"\n    return nobody", 1),
    ]
    for path, text, expected in cases:
        found = sorted({(n, w.lower()) for n, w, _ in offences(path, text)})
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
