/* Rows that a user names: "0,5,128:130". */
#ifndef M3_BASE_ROW_LIST_H
#define M3_BASE_ROW_LIST_H

#include <stdint.h>

/* Sets chosen [count] to 1 for the rows of a list of numbers and ranges A:B (without B), separated by commas. -1: it is
 * no such list, or names a row that is not one of the `count`. */
int m3_rows_mark(unsigned char *chosen, const char *list, int64_t count);

#endif
