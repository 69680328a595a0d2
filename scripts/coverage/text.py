"""What SPEC.md states about operators, in pieces that the map must cover.

A piece is a line of a formula, or a sentence of the paragraphs on order, edges and ties, in a section on an operator. A
row of the map quotes the pieces that it covers. In pieces, the words of WORDS must lie inside a quotation: a sentence
with two clauses needs rows for both.
"""

import re

PARAGRAPHS = re.compile(r"\*\*(Order|Edges|Operands, order, edges)")
WORDS = re.compile(r"\b(?:min|max)\(|-limit\b|\bNaN\b|[-+]?\binf\b|\binfinity\b|\berror\b|\bties?\b|\blower id\b|"
                   r"\blowest id\b|\bgreatest score\b|\bequals? \+0\b|\bnot below 0\b|\bnot above own\b|\bnot twice\b|"
                   r"\boverflows?\b|\bzeros\b|`[a-z_]+=[a-z0-9]+`")


def plain(text):
    return " ".join(text.split())


def sections(page):
    """{number: text} of the sections 5.1, 5.2, .. without the quotation blocks for whoever checks."""
    found = {}
    for match in re.finditer(r"^### (5\.\d+) [^\n]*\n(.*?)(?=^### |^---)", page, re.S | re.M):
        found[match[1]] = "\n".join(line for line in match[2].split("\n") if not line.startswith(">"))
    return found


def pieces(section):
    """Formula lines and sentences of a section."""
    found, words, wanted = [], [], False

    def end_of_paragraph():
        if words:
            text = re.sub(r"^- \*\*[^*]*\*\*[,:]? ?", "", plain(" ".join(words)))
            found.extend(s for s in re.split(r"(?<=[.;]) (?=[A-Z`+\-])", text) if s)
            words.clear()

    for line in section.split("\n"):
        if line.startswith("- **") or not line.strip():
            end_of_paragraph()
            wanted = bool(PARAGRAPHS.search(line)) if line.startswith("- **") else wanted
        # In a list inside a paragraph, lines are indented by four; formulas there by six.
        in_list = words and wanted and not line.startswith("      ")
        if line.startswith("    ") and not in_list:
            end_of_paragraph()
            found.append(plain(line))
        elif wanted and line.strip():
            words.append(line)
        elif "`y = " in line:
            found.append(plain(line))
    end_of_paragraph()
    return found


def uncovered(page, rows):
    """Findings: sections without rows, quotations that SPEC.md does not have, pieces and words that no row quotes."""
    found, all_sections = [], sections(page)
    for number, section in all_sections.items():
        quotations = [plain(q) for row in rows if section_of(row) == number for q in row.get("spec", [])]
        if not any(section_of(row) == number for row in rows):
            found.append(f"SPEC.md {number}: no row of the map is about it")
        for quotation in quotations:
            if quotation not in plain(section):
                found.append(f"SPEC.md {number}: got the quotation \"{quotation}\", expected one of its text")
        for piece in pieces(section):
            spans = [(m.start(), m.end()) for q in quotations for m in re.finditer(re.escape(q), piece)]
            spans += [(0, len(piece)) for q in quotations if piece in q]
            if not spans:
                found.append(f"SPEC.md {number}: no row quotes \"{piece[:100]}\"")
            for word in WORDS.finditer(piece):
                if spans and not any(a <= word.start() and word.end() <= b for a, b in spans):
                    found.append(f"SPEC.md {number}: no row quotes {word[0]} in \"{piece[:100]}\"")
    return found


def section_of(row):
    return ".".join(row["id"].split(".")[:2]) if re.match(r"\d+\.\d", row["id"]) else row["id"].split(".")[0]
