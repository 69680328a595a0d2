/* Included first in every file that `make analyze` reads: what base/status.h promises and an analyser of one file cannot
 * see, namely that a failure is not 0. Without it each check of a status looks like a path on which nothing failed. */
#include "base/status.h"
#define m3_fail(error, status, ...) ((m3_fail)(error, status, __VA_ARGS__), (status))
#define m3_fail_memory(error, for_what, bytes) ((m3_fail_memory)(error, for_what, bytes), M3_INTERNAL)

#ifdef M3_CPPCHECK /* which does not read the headers of jansson */
#define json_object_foreach(object, key, value) while (m3_next(object, &(key), &(value)))
#define json_array_foreach(array, i, value) for ((i) = 0; ((value) = json_array_get(array, i)); (i)++)
#endif
