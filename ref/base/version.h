/* The producer name that files contain. */
#ifndef M3_BASE_VERSION_H
#define M3_BASE_VERSION_H

#define M3_PRODUCER "m3ref 0.1"

#endif
