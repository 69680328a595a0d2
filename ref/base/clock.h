/* A monotonic clock. */
#ifndef M3_BASE_CLOCK_H
#define M3_BASE_CLOCK_H

double m3_seconds(void);

#endif
