/* The part of Markdown that SPEC.md and VERDICTS.md use, as markup: headings, paragraphs, lists, quotations, tables,
 * indented code; in a line `code`, **strong**, *emphasis* and the text of links. Every element is closed. */
#include <ctype.h>
#include <string.h>

#include "io/markup.h"
#include "oracle/report/private/html.h"

enum block { NO_BLOCK, PARAGRAPH, LIST, TABLE, CODE };

struct page {
    FILE *out;
    enum block block;
    int quoted;                 /* inside a quotation */
    int blank;                  /* empty lines inside code, not yet printed */
};

/* ---- inside a line */

/* The position of `mark` in text[from, length), or `length`. */
static size_t find(const char *text, size_t from, size_t length, const char *mark)
{
    const size_t size = strlen(mark);
    for (size_t i = from; i + size <= length; i++)
        if (memcmp(text + i, mark, size) == 0) return i;
    return length;
}

/* The length of the span that begins here, with its marks; 0: none does. Its text is at *inner, *size bytes long. */
static size_t span(const char **tag, const char **inner, size_t *size, const char *text, size_t at, size_t length)
{
    static const struct {
        const char *mark, *tag;
    } marks[] = { { "`", "code" }, { "**", "strong" }, { "*", "em" } };
    for (size_t k = 0; k < sizeof marks / sizeof *marks; k++) {
        const size_t width = strlen(marks[k].mark), begin = at + width;
        if (begin >= length || memcmp(text + at, marks[k].mark, width) != 0) continue;
        const size_t end = find(text, begin, length, marks[k].mark);
        const int is_code = *text && text[at] == '`';
        if (end == length || end == begin) continue;
        if (!is_code && (isspace((unsigned char)text[begin]) || isspace((unsigned char)text[end - 1]))) continue;
        if (!is_code && at > 0 && isalnum((unsigned char)text[at - 1])) continue;
        *tag = marks[k].tag, *inner = text + begin, *size = end - begin;
        return end + width - at;
    }
    return 0;
}

/* The length of "[text](target)" here; 0: there is no link. */
static size_t link_length(size_t *size, const char *text, size_t at, size_t length)
{
    if (text[at] != '[') return 0;
    const size_t middle = find(text, at, length, "]("), end = find(text, middle, length, ")");
    if (middle == length || end == length) return 0;
    *size = middle - at - 1;
    return end + 1 - at;
}

static void print_line(FILE *out, const char *text, size_t length)
{
    for (size_t i = 0, used; i < length; i += used) {
        const char *tag, *inner;
        size_t size;
        if ((used = span(&tag, &inner, &size, text, i, length)) > 0) {
            fprintf(out, "<%s>", tag);
            if (text[i] == '`') m3_print_markup_part(out, inner, size);
            else print_line(out, inner, size);
            fprintf(out, "</%s>", tag);
        } else if ((used = link_length(&size, text, i, length)) > 0) {
            print_line(out, text + i + 1, size);
        } else {
            used = 1;
            if (text[i] != '\\' || i + 1 == length) m3_print_markup_part(out, text + i, 1);
        }
    }
}

/* ---- blocks */

static void end_block(struct page *p)
{
    static const char *const ends[] = { "", "</p>\n", "</li></ul>\n", "</tbody></table>\n", "</pre>\n" };
    fputs(ends[p->block], p->out);
    p->block = NO_BLOCK;
    p->blank = 0;
}

static void begin_block(struct page *p, enum block block)
{
    static const char *const begins[] = { "", "<p>", "<ul>", "<table class=\"small\"><tbody>\n", "<pre>" };
    end_block(p);
    fputs(begins[block], p->out);
    p->block = block;
}

static void print_cells(FILE *out, const char *text, size_t length)
{
    fputs("<tr>", out);
    for (size_t i = 1, end; i < length; i = end + 1) {
        for (end = i; end < length && !(text[end] == '|' && text[end - 1] != '\\');) end++;
        if (end == length && i == end) break;
        fputs("<td>", out);
        print_line(out, text + i, end - i);
        fputs("</td>", out);
    }
    fputs("</tr>\n", out);
}

static void print_code(struct page *p, const char *text, size_t length)
{
    if (p->block != CODE) begin_block(p, CODE);
    for (; p->blank > 0; p->blank--) fputc('\n', p->out);
    m3_print_markup_part(p->out, text, length);
    fputc('\n', p->out);
}

static void print_heading(struct page *p, const char *text, size_t length)
{
    end_block(p);
    while (length > 0 && (*text == '#' || *text == ' ')) text++, length--;
    fputs("<h4>", p->out);
    print_line(p->out, text, length);
    fputs("</h4>\n", p->out);
}

static void print_item(struct page *p, const char *text, size_t length)
{
    if (p->block == LIST) fputs("</li>\n<li>", p->out);
    else begin_block(p, LIST), fputs("<li>", p->out);
    print_line(p->out, text, length);
}

static void print_text(struct page *p, const char *text, size_t length)
{
    if (p->block != PARAGRAPH && p->block != LIST) begin_block(p, PARAGRAPH);
    else fputc('\n', p->out);
    print_line(p->out, text, length);
}

static void quote(struct page *p, int quoted)
{
    if (quoted == p->quoted) return;
    end_block(p);
    fputs(quoted ? "<blockquote>\n" : "</blockquote>\n", p->out);
    p->quoted = quoted;
}

static void take_line(struct page *p, const char *text, size_t length)
{
    const int is_code = length >= 4 && memcmp(text, "    ", 4) == 0;
    quote(p, length > 0 && *text == '>');
    if (length > 0 && *text == '>') {
        const size_t mark = length > 1 && text[1] == ' ' ? 2 : 1;
        text += mark, length -= mark;
    }
    if (is_code && p->block != LIST && p->block != PARAGRAPH) {
        print_code(p, text + 4, length - 4);
        return;
    }
    while (length > 0 && *text == ' ') text++, length--;
    if (length == 0 && p->block == CODE) p->blank++;
    else if (length == 0) end_block(p);
    else if (*text == '#') print_heading(p, text, length);
    else if (*text == '|' && length > 1 && (text[1] == '-' || text[1] == ':')) return;
    else if (*text == '|') {
        if (p->block != TABLE) begin_block(p, TABLE);
        print_cells(p->out, text, length);
    } else if (length > 2 && memcmp(text, "- ", 2) == 0) print_item(p, text + 2, length - 2);
    else print_text(p, text, length);
}

void m3_html_markdown(FILE *out, const char *text, size_t length)
{
    struct page page = { .out = out };
    for (size_t at = 0, end; at < length; at = end + 1) {
        end = find(text, at, length, "\n");
        take_line(&page, text + at, end - at);
    }
    end_block(&page);
    quote(&page, 0);
}
