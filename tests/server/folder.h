/* A folder that a test made and leaves behind. */
#ifndef MXC_TESTS_SERVER_FOLDER_H
#define MXC_TESTS_SERVER_FOLDER_H

/* Removes it with all that it holds; 0, or -1. */
int folder_remove(const char *folder);

#endif
