/* Printing text inside XML, SVG and HTML. */
#ifndef M3_IO_MARKUP_H
#define M3_IO_MARKUP_H

#include <stddef.h>
#include <stdio.h>

/* Prints the text of an element or the value of a quoted attribute. The text may contain any byte: those that such a
 * file cannot hold, and those that are not ASCII, become '?'. */
void m3_print_markup(FILE *out, const char *text);
void m3_print_markup_part(FILE *out, const char *text, size_t length);

/* Prints the part after '#' in a link to a heading: lower-case letters, blanks as '-', other marks omitted. */
void m3_print_anchor(FILE *out, const char *heading);

#endif
