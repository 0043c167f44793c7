# conf_man.awk: makes the manual page lockkeeper.conf(5) from conf/lockkeeper.conf, whose comments are its text.
#
#   "#### NAME ####" is a section. A paragraph is one or more directives (set; or left out, as "# name value" behind an
#   empty comment line) and the comments on them. Indented comment lines are tables and examples, and keep their layout.
# Needs nothing but POSIX awk.

function escape(text) {
    gsub(/\\/, "\\e", text)
    gsub(/-/, "\\-", text)
    if (text ~ /^[.']/)
        text = "\\&" text
    return text
}

# What starts a paragraph: nothing behind a section's heading.
function paragraph() {
    if (!headed)
        return ".PP\n"
    headed = 0
    return ""
}

# Prints lines first to last as paragraphs; what is indented keeps its layout.
function print_text(first, last,    i, verbatim, apart) {
    apart = 1
    for (i = first; i <= last; i++) {
        if (text[i] == "") {
            apart = 1
            continue
        }
        if (text[i] ~ /^  /) {
            if (!verbatim)
                print paragraph() ".nf"
            else if (apart)
                print ".sp"
            verbatim = 1
        } else {
            if (verbatim)
                print ".fi"
            if (verbatim || apart)
                printf "%s", paragraph()
            verbatim = 0
        }
        apart = 0
        print escape(text[i])
    }
    if (verbatim)
        print ".fi"
}

# Whether lines first to the end are directives that the file leaves out ("# name value").
function are_directives(first,    i) {
    for (i = first; i <= lines; i++)
        if (text[i] !~ /^[a-z-]+ [^ ]/)
            return 0
    return first <= lines
}

# The end of a paragraph of the file: its directives, then what it says of them.
function end_group(    i, last) {
    last = lines
    if (!directives) {
        for (i = lines; i > 0 && text[i] != ""; i--)
            ;
        if (i > 0 && are_directives(i + 1)) {
            last = i - 1
            for (i++; i <= lines; i++)
                directive[++directives] = text[i]
        }
    }
    for (i = 1; i <= directives; i++)
        print (i == 1 ? paragraph() : ".br\n") "\\fB" escape(directive[i]) "\\fP"
    if (directives)
        print ".RS"
    print_text(1, last)
    if (directives)
        print ".RE"
    lines = directives = 0
}

BEGIN {
    print ".\\\" Made from conf/lockkeeper.conf."
    print ".TH LOCKKEEPER.CONF 5 \"2026-11-21\" \"lockkeeper\" \"File formats\""
    print ".SH NAME"
    print "lockkeeper.conf \\- configuration of the lock proxy for Redis"
    print ".SH DESCRIPTION"
    headed = 1
}

/^#+ [A-Z]+ #+$/ {
    end_group()
    gsub(/[# ]/, "")
    print ".SH " $0
    headed = 1
    next
}

/^$/ {
    end_group()
    next
}

/^#/ {
    sub(/^# ?/, "")
    text[++lines] = $0
    next
}

{ directive[++directives] = $0 }

END {
    end_group()
    print ".SH SEE ALSO"
    print ".BR lockkeeper (1)"
}
