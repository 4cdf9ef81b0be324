/* Two mounts of one file system, shown to a program as one: every call with a path below the first mount goes through the other mount than the call
 * with such a path before it. What a call has changed through one mount is looked at through the other by the next, so an answer from an old cache
 * fails a test that knows nothing of mounts.
 *
 * Preloaded, with TURNS_FIRST and TURNS_SECOND (the mount points, of equal lengths: a longest path is as long on both) and TURNS_COUNTS, a file that is
 * told at the end how many calls went through the first, how many through the second, and how many of those were held (below).
 *
 * What differs between two mounts and is no matter of coherence is made one here:
 * - They are two devices. Both paths of a rename or link go through one mount; `st_dev` of the second is told as that of the first.
 * - A program that is executed is busy (ETXTBSY) for the kernel, which knows that of one mount alone: calls with the path of the program
 *   that was started last are held to the mount that it was started from.
 * - What is in a symbolic link is left as it is, so an absolute one leads into the first mount from both.
 * Calls relative to a descriptor stay at its mount, as calls with the descriptor do. Other programs that this one starts take no turns. */
#define _GNU_SOURCE
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <spawn.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <sys/sysmacros.h>
#include <sys/uio.h>
#include <sys/un.h>
#include <unistd.h>

/* What a call that has no path below the first mount gets for a turn. */
enum { NONE = -1, FIRST, SECOND };

static const char *first, *second, *counts;
static size_t length;
static dev_t devices[2];
static atomic_ulong turns, calls[2], held;
/* The program that was started last, by its path below the first mount, and where. */
static char running[PATH_MAX];
static int running_at = NONE;

/* The function of this name that would have been called. */
#define NEXT(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))

/* Tests hand over pointers that lead nowhere, and the kernel is to say so. */
static int is_readable(const char *path) {
    char byte;
    struct iovec here = {&byte, 1}, there = {(void *)path, 1};
    return process_vm_readv(getpid(), &here, 1, &there, 1, 0) == 1;
}

static int is_below(const char *path, const char *top) {
    return strncmp(path, top, length) == 0 && (path[length] == '/' || path[length] == '\0');
}

static int is_ours(const char *path) {
    return first != NULL && is_readable(path) && is_below(path, first);
}

/* Through which mount a call with these paths goes; `other` may be null. */
static int take_turn(const char *path, const char *other) {
    int is_path_ours = is_ours(path), is_other_ours = is_ours(other);
    if (!is_path_ours && !is_other_ours) {
        return NONE;
    }
    int turn = atomic_fetch_add(&turns, 1) % 2;
    if (running_at != NONE &&
        ((is_path_ours && strcmp(path, running) == 0) || (is_other_ours && strcmp(other, running) == 0))) {
        turn = running_at;
        atomic_fetch_add(&held, 1);
    }
    atomic_fetch_add(&calls[turn], 1);
    return turn;
}

/* The path for a call whose turn this is, and in `copy` what is to be freed after it. */
static const char *at_turn(const char *path, int turn, char **copy) {
    *copy = NULL;
    if (turn != SECOND || !is_ours(path)) {
        return path;
    }
    *copy = strdup(path);
    if (*copy == NULL) {
        abort();
    }
    memcpy(*copy, second, length);
    return *copy;
}

/* Makes a path below the second mount one below the first. */
static void as_first(char *path) {
    if (first != NULL && is_below(path, second)) {
        memcpy(path, first, length);
    }
}

static int with_one_device(int code, dev_t *device) {
    if (code == 0 && first != NULL && *device == devices[SECOND]) {
        *device = devices[FIRST];
    }
    return code;
}

/* The next `name` with `arguments`, in which `path` and `other` lead through the mount whose turn it is. */
#define TWO(path, other, name, ...)                                                      \
    ({                                                                                   \
        char *copies[2];                                                                 \
        int turn = take_turn(path, other);                                               \
        path = at_turn(path, turn, &copies[0]);                                          \
        other = at_turn(other, turn, &copies[1]);                                        \
        __typeof__(name(__VA_ARGS__)) answer = NEXT(name)(__VA_ARGS__);                  \
        int error = errno;                                                               \
        free(copies[0]);                                                                 \
        free(copies[1]);                                                                 \
        errno = error;                                                                   \
        answer;                                                                          \
    })
#define ONE(path, name, ...)                                                             \
    ({                                                                                   \
        const char *no_other = NULL;                                                     \
        TWO(path, no_other, name, __VA_ARGS__);                                          \
    })

#define MODE_OF_OPEN(flags)                                                              \
    ({                                                                                   \
        mode_t given = 0;                                                                \
        if (((flags)&O_CREAT) != 0 || ((flags)&O_TMPFILE) == O_TMPFILE) {                \
            va_list more;                                                                \
            va_start(more, flags);                                                       \
            given = va_arg(more, mode_t);                                                \
            va_end(more);                                                                \
        }                                                                                \
        given;                                                                           \
    })

int open(const char *path, int flags, ...) {
    mode_t mode = MODE_OF_OPEN(flags);
    return ONE(path, open, path, flags, mode);
}

int open64(const char *path, int flags, ...) {
    mode_t mode = MODE_OF_OPEN(flags);
    return ONE(path, open64, path, flags, mode);
}

int openat(int at, const char *path, int flags, ...) {
    mode_t mode = MODE_OF_OPEN(flags);
    return ONE(path, openat, at, path, flags, mode);
}

int openat64(int at, const char *path, int flags, ...) {
    mode_t mode = MODE_OF_OPEN(flags);
    return ONE(path, openat64, at, path, flags, mode);
}

DIR *opendir(const char *path) { return ONE(path, opendir, path); }
int mkdir(const char *path, mode_t mode) { return ONE(path, mkdir, path, mode); }
int mkfifo(const char *path, mode_t mode) { return ONE(path, mkfifo, path, mode); }
int mknod(const char *path, mode_t mode, dev_t device) { return ONE(path, mknod, path, mode, device); }
int rmdir(const char *path) { return ONE(path, rmdir, path); }
int unlink(const char *path) { return ONE(path, unlink, path); }
int unlinkat(int at, const char *path, int flags) { return ONE(path, unlinkat, at, path, flags); }
int chmod(const char *path, mode_t mode) { return ONE(path, chmod, path, mode); }
int chown(const char *path, uid_t user, gid_t group) { return ONE(path, chown, path, user, group); }
int lchown(const char *path, uid_t user, gid_t group) { return ONE(path, lchown, path, user, group); }
int truncate(const char *path, off_t size) { return ONE(path, truncate, path, size); }
int truncate64(const char *path, off64_t size) { return ONE(path, truncate64, path, size); }
long pathconf(const char *path, int name) { return ONE(path, pathconf, path, name); }
int statfs(const char *path, struct statfs *told) { return ONE(path, statfs, path, told); }
int statfs64(const char *path, struct statfs64 *told) { return ONE(path, statfs64, path, told); }

int fchmodat(int at, const char *path, mode_t mode, int flags) {
    return ONE(path, fchmodat, at, path, mode, flags);
}

int fchownat(int at, const char *path, uid_t user, gid_t group, int flags) {
    return ONE(path, fchownat, at, path, user, group, flags);
}

int utimensat(int at, const char *path, const struct timespec times[2], int flags) {
    return ONE(path, utimensat, at, path, times, flags);
}

ssize_t readlink(const char *path, char *told, size_t size) {
    return ONE(path, readlink, path, told, size);
}

int symlink(const char *target, const char *path) { return ONE(path, symlink, target, path); }

int symlinkat(const char *target, int at, const char *path) {
    return ONE(path, symlinkat, target, at, path);
}

int link(const char *path, const char *other) { return TWO(path, other, link, path, other); }

int linkat(int at, const char *path, int other_at, const char *other, int flags) {
    return TWO(path, other, linkat, at, path, other_at, other, flags);
}

int rename(const char *path, const char *other) { return TWO(path, other, rename, path, other); }

int renameat(int at, const char *path, int other_at, const char *other) {
    return TWO(path, other, renameat, at, path, other_at, other);
}

int stat(const char *path, struct stat *told) {
    return with_one_device(ONE(path, stat, path, told), &told->st_dev);
}

int stat64(const char *path, struct stat64 *told) {
    return with_one_device(ONE(path, stat64, path, told), &told->st_dev);
}

int lstat(const char *path, struct stat *told) {
    return with_one_device(ONE(path, lstat, path, told), &told->st_dev);
}

int lstat64(const char *path, struct stat64 *told) {
    return with_one_device(ONE(path, lstat64, path, told), &told->st_dev);
}

int fstatat(int at, const char *path, struct stat *told, int flags) {
    return with_one_device(ONE(path, fstatat, at, path, told, flags), &told->st_dev);
}

int fstatat64(int at, const char *path, struct stat64 *told, int flags) {
    return with_one_device(ONE(path, fstatat64, at, path, told, flags), &told->st_dev);
}

int fstat(int file, struct stat *told) { return with_one_device(NEXT(fstat)(file, told), &told->st_dev); }

int fstat64(int file, struct stat64 *told) {
    return with_one_device(NEXT(fstat64)(file, told), &told->st_dev);
}

int statx(int at, const char *path, int flags, unsigned int mask, struct statx *told) {
    int code = ONE(path, statx, at, path, flags, mask, told);
    if (code == 0 && first != NULL && makedev(told->stx_dev_major, told->stx_dev_minor) == devices[SECOND]) {
        told->stx_dev_major = major(devices[FIRST]);
        told->stx_dev_minor = minor(devices[FIRST]);
    }
    return code;
}

char *realpath(const char *path, char *told) {
    char *found = ONE(path, realpath, path, told);
    if (found != NULL) {
        as_first(found);
    }
    return found;
}

int bind(int file, const struct sockaddr *address, socklen_t bytes) {
    struct sockaddr_un place;
    size_t head = offsetof(struct sockaddr_un, sun_path);
    if (bytes <= head || bytes > sizeof place || address->sa_family != AF_UNIX) {
        return NEXT(bind)(file, address, bytes);
    }
    /* The path need not end with a zero in an address. */
    char path[sizeof place.sun_path + 1] = "";
    memcpy(path, (const char *)address + head, bytes - head);
    memcpy(&place, address, bytes);
    if (take_turn(path, NULL) == SECOND) {
        memcpy(place.sun_path, second, length);
    }
    return NEXT(bind)(file, (struct sockaddr *)&place, bytes);
}

int posix_spawnp(pid_t *process, const char *path, const posix_spawn_file_actions_t *actions,
                 const posix_spawnattr_t *attributes, char *const arguments[], char *const environment[]) {
    if (is_ours(path) && strlen(path) < sizeof running) {
        /* Where its turn is; what was held for another program is so no more. */
        running_at = NONE;
        strcpy(running, path);
        int turn = atomic_load(&turns) % 2;
        int code = ONE(path, posix_spawnp, process, path, actions, attributes, arguments, environment);
        running_at = turn;
        return code;
    }
    return NEXT(posix_spawnp)(process, path, actions, attributes, arguments, environment);
}

__attribute__((constructor)) static void begin(void) {
    /* Programs that this one starts are left alone. */
    unsetenv("LD_PRELOAD");
    const char *points[2] = {getenv("TURNS_FIRST"), getenv("TURNS_SECOND")};
    counts = getenv("TURNS_COUNTS");
    if (points[FIRST] == NULL || points[SECOND] == NULL || counts == NULL ||
        strlen(points[FIRST]) != strlen(points[SECOND])) {
        fprintf(stderr, "turns: TURNS_FIRST and TURNS_SECOND, of equal lengths, and TURNS_COUNTS are wanted\n");
        _exit(1);
    }
    for (int at = FIRST; at <= SECOND; at++) {
        struct stat told;
        if (NEXT(stat)(points[at], &told) != 0) {
            perror(points[at]);
            _exit(1);
        }
        devices[at] = told.st_dev;
    }
    if (devices[FIRST] == devices[SECOND]) {
        fprintf(stderr, "turns: %s and %s are not two mounts\n", points[FIRST], points[SECOND]);
        _exit(1);
    }
    second = points[SECOND];
    length = strlen(second);
    first = points[FIRST];
}

__attribute__((destructor)) static void end(void) {
    FILE *file = counts == NULL ? NULL : fopen(counts, "w");
    if (file != NULL) {
        fprintf(file, "%lu %lu %lu\n", atomic_load(&calls[FIRST]), atomic_load(&calls[SECOND]),
                atomic_load(&held));
        fclose(file);
    }
}
