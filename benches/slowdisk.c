/* A slow disk: in front of the C library's, each flush takes SLOWDISK_MS milliseconds longer.
 *
 *     cc -O2 -shared -fPIC -o slowdisk.so benches/slowdisk.c -ldl
 *     SLOWDISK_MS=5 SLOWDISK_LOG=/tmp/flushes LD_PRELOAD=./slowdisk.so meshd …
 *
 * With SLOWDISK_LOG each flush adds a line there: when it began and ended (microseconds of CLOCK_MONOTONIC), the thread,
 * the call and the path. What calls the kernel past the C library is not seen.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

static long long now(void) { struct timespec t; clock_gettime(CLOCK_MONOTONIC, &t); return t.tv_sec * 1000000ll + t.tv_nsec / 1000; }

static int done(int result, long long begun, const char *call, int fd) {
    int error = errno;
    const char *ms = getenv("SLOWDISK_MS"), *log = getenv("SLOWDISK_LOG");
    double wait = ms ? atof(ms) : 0;
    struct timespec pause = { wait / 1e3, (long long)(wait * 1e6) % 1000000000ll };
    if (wait > 0) nanosleep(&pause, 0);
    if (log) {
        char link[64], path[3000] = "", line[4096];
        snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
        ssize_t length = readlink(link, path, sizeof path - 1);
        if (length > 0) path[length] = 0;
        int size = snprintf(line, sizeof line, "%lld %lld %ld %s %s\n", begun, now(), syscall(SYS_gettid), call, path);
        int out = open(log, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0600);
        if (out >= 0) { if (write(out, line, size) != size) perror(log); close(out); }
    }
    errno = error;
    return result;
}

#define SLOW(name, parameters, arguments)                                                                  \
    int name parameters {                                                                                  \
        static int(*real) parameters;                                                                      \
        if (!real) real = (int(*) parameters)dlsym(RTLD_NEXT, #name);                                      \
        long long begun = now();                                                                           \
        return done(real arguments, begun, #name, fd);                                                     \
    }

SLOW(fsync, (int fd), (fd))
SLOW(fdatasync, (int fd), (fd))
SLOW(syncfs, (int fd), (fd))
SLOW(sync_file_range, (int fd, off_t from, off_t length, unsigned flags), (fd, from, length, flags))
