/* A folder that appears complete or not at all. It may replace one that exists already and is empty. */
#ifndef M3_IO_NEW_FOLDER_H
#define M3_IO_NEW_FOLDER_H

#include <dirent.h>

#include "base/status.h"

struct m3_new_folder {
    char *path, *parent;
    char *name;                 /* temporary, to write into; NULL: there is none */
    DIR *entries;               /* what is in it: open, so that it can be removed when memory is short */
};

/* M3_USAGE if the folder holds anything or is a mount point, which cannot be replaced; M3_IO; M3_INTERNAL. *folder is
 * empty on failure. */
int m3_new_folder_open(struct m3_new_folder *folder, const char *path, struct m3_error *error);
/* Gives the folder its name; it is removed if that fails. */
int m3_new_folder_commit(struct m3_new_folder *folder, struct m3_error *error);
/* Removes the temporary folder; does nothing if *folder is empty. */
void m3_new_folder_abandon(struct m3_new_folder *folder);

#endif
