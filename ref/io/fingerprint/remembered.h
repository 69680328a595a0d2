/* Hashes of files, remembered between runs. Used only by fingerprint.c. */
#ifndef M3_IO_FINGERPRINT_REMEMBERED_H
#define M3_IO_FINGERPRINT_REMEMBERED_H

#include <sys/stat.h>

/* The lines of the file; NULL if there is none. To be freed. */
char *m3_remembered_read(const char *memory);

/* What a line says of a file besides its hash, by which it is found: " SAMPLES SIZE TIMES INODE PATH"; samples: the hash
 * of some blocks, which edits through a memory map change although the times stay. To be freed; NULL if the file cannot
 * be remembered. */
char *m3_remembered_key(const char *path, const struct stat *state, const char *samples);

/* hex := the hash of the line with this key. Returns whether there is one. */
int m3_remembered_find(char hex[65], const char *lines, const char *key);

/* Replaces the file by its lines and new ones; lines with the same path are dropped. Failures are ignored. */
void m3_remembered_write(const char *memory, const char *lines, char *const *keys, char (*hashes)[65], long count);

#endif
