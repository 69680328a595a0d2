/* Text inside XML, SVG and HTML. */
#ifndef M3_IO_MARKUP_H
#define M3_IO_MARKUP_H

#include <stddef.h>
#include <stdio.h>

/* As the text of an element or the value of a quoted attribute. Any byte may be in it: what such a file cannot hold,
 * and what is not ASCII, becomes '?'. */
void m3_print_markup(FILE *out, const char *text);
void m3_print_markup_part(FILE *out, const char *text, size_t length);

/* What follows '#' in a link to a heading: letters small, blanks as '-', other marks left out. */
void m3_print_anchor(FILE *out, const char *heading);

#endif
