/* Temporary files and folders that have a name: one that a killed program left is removed by the next program that
 * writes the same output. */
#ifndef M3_IO_LEFTOVER_H
#define M3_IO_LEFTOVER_H

#include <dirent.h>

/* "FOLDER/.NAME.m3ref.PLACE.PID.NUMBER.tmp" for the output FOLDER/NAME, to be freed; NULL if memory is short. Of a
 * longer name only the first 200 bytes are in it. PLACE says on which machine and in which container PID is a process. */
char *m3_leftover_name(const char *folder, const char *path, int number);

/* Removes what programs of this machine and container that have ended left for this output. Failures are ignored. */
void m3_leftover_sweep(const char *folder, const char *path);
/* Removes the files in a folder. It needs no memory. */
void m3_leftover_empty(DIR *folder);

#endif
