/* A clock that only runs forward. */
#ifndef M3_BASE_CLOCK_H
#define M3_BASE_CLOCK_H

double m3_seconds(void);

#endif
