/* Preloaded library: delays every sync by the time given in the environment, as a failing disk does. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdlib.h>
#include <unistd.h>

static void wait_first(void)
{
    const char *delay_ms = getenv("SLOW_SYNC_MS");
    if (delay_ms != NULL)
        usleep(1000 * (useconds_t)atoi(delay_ms));
}

int fsync(int fd)
{
    wait_first();
    return ((int (*)(int))dlsym(RTLD_NEXT, "fsync"))(fd);
}

int fdatasync(int fd)
{
    wait_first();
    return ((int (*)(int))dlsym(RTLD_NEXT, "fdatasync"))(fd);
}
