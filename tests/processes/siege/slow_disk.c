/* Preloaded library: while the file named by SLOW_DISK_FILE exists, each sync and each synchronous write takes longer by
 * the number of milliseconds in that file. Without the file it costs one failed open per sync. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <unistd.h>

static void wait_first(void)
{
    const char *path = getenv("SLOW_DISK_FILE");
    int fd = path == NULL ? -1 : open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return;
    char text[16] = {0};
    ssize_t length = read(fd, text, sizeof text - 1);
    close(fd);
    if (length > 0)
        usleep(1000 * (useconds_t)atoi(text));
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

static ssize_t slow_pwritev(const char *name, int fd, const struct iovec *vectors, int count, off64_t offset)
{
    if (fcntl(fd, F_GETFL) & O_DSYNC)
        wait_first();
    return ((ssize_t (*)(int, const struct iovec *, int, off64_t))dlsym(RTLD_NEXT, name))(fd, vectors, count, offset);
}

ssize_t pwritev(int fd, const struct iovec *vectors, int count, off_t offset)
{
    return slow_pwritev("pwritev", fd, vectors, count, offset);
}

ssize_t pwritev64(int fd, const struct iovec *vectors, int count, off64_t offset)
{
    return slow_pwritev("pwritev64", fd, vectors, count, offset);
}
