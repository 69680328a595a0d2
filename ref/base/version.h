/* The producer name that files contain. */
#ifndef M3_BASE_VERSION_H
#define M3_BASE_VERSION_H

#define M3_PRODUCER "m3ref 0.1"

/* The number of the arithmetic. It changes when a value or a bound of a run changes by a bit, so that what was kept by an
 * earlier program is used again unless it would be made otherwise. tests/whole/arithmetic states the number and the hash
 * of the bits that belong to it. */
#define M3_ARITHMETIC "1"

#endif
