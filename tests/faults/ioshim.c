/* A disk that fails on demand, between a service and its C library.

   Preloaded, it counts what is done to the database file and its write-ahead
   log, and lets some of it fail. What to fail stands in a small file of 64-bit
   integers that a test changes while the service runs; `Shim` in
   tests/faults/io_shim.py writes it. */

#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/types.h>
#include <unistd.h>

enum { WRITE = 1, SYNC = 2, TRUNCATE = 4 };

struct control {
    int64_t kinds;  /* which operations count, as a sum of the above; 0: none */
    int64_t first;  /* the first one that fails, counted from 1 */
    int64_t times;  /* how many fail from there on */
    int64_t number; /* the errno they fail with */
    int64_t seen;
    int64_t failed;
};

static struct control *control;

__attribute__((constructor)) static void begin(void) {
    const char *path = getenv("IOSHIM_CONTROL");
    int fd = path ? open(path, O_RDWR | O_CLOEXEC) : -1;
    if (fd < 0)
        return;
    void *mapped = mmap(NULL, sizeof(struct control), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    close(fd);
    if (mapped != MAP_FAILED)
        control = mapped;
}

static int ends_with(const char *text, const char *end) {
    size_t size = strlen(text), tail = strlen(end);
    return size >= tail && strcmp(text + size - tail, end) == 0;
}

static int is_database(int fd) {
    char link[64], path[4096];
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t size = readlink(link, path, sizeof path - 1);
    if (size < 0)
        return 0;
    path[size] = 0;
    return ends_with(path, "/toolcrib.db") || ends_with(path, "/toolcrib.db-wal");
}

/* Whether this operation is one of those that must fail; errno says how. */
static int must_fail(int kind, int fd) {
    int kept = errno;
    if (!control || !(control->kinds & kind) || !is_database(fd)) {
        errno = kept;
        return 0;
    }
    int64_t place = __atomic_add_fetch(&control->seen, 1, __ATOMIC_SEQ_CST);
    errno = kept;
    if (place < control->first || place >= control->first + control->times)
        return 0;
    __atomic_add_fetch(&control->failed, 1, __ATOMIC_SEQ_CST);
    errno = (int)control->number;
    return 1;
}

#define REAL(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))

ssize_t write(int fd, const void *data, size_t size) {
    return must_fail(WRITE, fd) ? -1 : REAL(write)(fd, data, size);
}

ssize_t pwrite(int fd, const void *data, size_t size, off_t at) {
    return must_fail(WRITE, fd) ? -1 : REAL(pwrite)(fd, data, size, at);
}

ssize_t pwrite64(int fd, const void *data, size_t size, off64_t at) {
    return must_fail(WRITE, fd) ? -1 : REAL(pwrite64)(fd, data, size, at);
}

int fsync(int fd) { return must_fail(SYNC, fd) ? -1 : REAL(fsync)(fd); }

int fdatasync(int fd) { return must_fail(SYNC, fd) ? -1 : REAL(fdatasync)(fd); }

int ftruncate(int fd, off_t size) { return must_fail(TRUNCATE, fd) ? -1 : REAL(ftruncate)(fd, size); }

int ftruncate64(int fd, off64_t size) { return must_fail(TRUNCATE, fd) ? -1 : REAL(ftruncate64)(fd, size); }
