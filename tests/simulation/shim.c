/* Preloaded into a Redis server: replaces its wall clock with a number of microseconds from a file.

   The environment variable SIMULATED_CLOCK contains the path of the file, which this library maps
   into memory. Without the variable, or while the number is 0, the server uses the real wall clock.
   Monotonic clocks stay real, because the event loop of the server needs them.

   Valkey 9.1 reads the wall clock once per millisecond and adds processor cycles to it, if
   /proc/cpuinfo reports the speed of the processor. Therefore this library hides that file. */

#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static const volatile int64_t *shared;

__attribute__((constructor)) static void open_clock(void) {
    const char *path = getenv("SIMULATED_CLOCK");
    int file = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
    if (file < 0) return;
    void *found = mmap(NULL, sizeof *shared, PROT_READ, MAP_SHARED, file, 0);
    close(file);
    if (found != MAP_FAILED) shared = found;
}

int clock_gettime(clockid_t clock, struct timespec *out) {
    int wall = clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE;
    int64_t now = wall && shared ? *shared : 0;
    if (!now) return (int)syscall(SYS_clock_gettime, clock, out);
    out->tv_sec = now / 1000000;
    out->tv_nsec = now % 1000000 * 1000;
    return 0;
}

int gettimeofday(struct timeval *restrict out, void *restrict zone) {
    struct timespec now;
    (void)zone;
    clock_gettime(CLOCK_REALTIME, &now);
    out->tv_sec = now.tv_sec;
    out->tv_usec = now.tv_nsec / 1000;
    return 0;
}

time_t time(time_t *out) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    if (out) *out = now.tv_sec;
    return now.tv_sec;
}

FILE *fopen64(const char *path, const char *mode) {
    FILE *(*real)(const char *, const char *) = dlsym(RTLD_NEXT, "fopen64");
    if (shared && !strcmp(path, "/proc/cpuinfo")) {
        errno = ENOENT;
        return NULL;
    }
    return real(path, mode);
}
