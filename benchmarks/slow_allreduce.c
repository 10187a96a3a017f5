/* An MPI_Allreduce that takes SLOW_PERCENT longer: what gate_real.py gives the gate to find.
 *
 * Preloaded, it answers dlsym("MPI_Allreduce"), through which commbench's compiled loop gets the function, with a
 * wrapper that spins for a share of what the call has just taken. With SLOW_PERCENT=0 it reads the clock all the same,
 * so that both sides of a gate pay for that. Linux with glibc.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

typedef int (*allreduce_t)(const void *, void *, int, long, long, long);
typedef void *(*dlsym_t)(void *, const char *);

static allreduce_t real_allreduce;
static double share = -1;

static unsigned long long ticks(void) {
#if defined(__x86_64__)
    return __builtin_ia32_rdtsc();
#else
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * 1000000000ull + now.tv_nsec;
#endif
}

/* Handles are int in MPICH and pointers in Open MPI: long holds either. */
static int slow_allreduce(const void *send, void *receive, int count, long type, long op, long comm) {
    unsigned long long begun = ticks();
    int code = real_allreduce(send, receive, count, type, op, comm);
    unsigned long long done = ticks();
    unsigned long long until = done + (unsigned long long)(share * (double)(done - begun));
    while (share > 0 && ticks() < until)
        ;
    return code;
}

void *dlsym(void *handle, const char *name) {
    static dlsym_t real;
    if (!real) {
        real = (dlsym_t)dlvsym(RTLD_NEXT, "dlsym", "GLIBC_2.34");
        if (!real)
            real = (dlsym_t)dlvsym(RTLD_NEXT, "dlsym", "GLIBC_2.2.5");
        const char *percent = getenv("SLOW_PERCENT");
        share = percent ? atof(percent) / 100 : 0;
    }
    void *found = real(handle, name);
    if (found && strcmp(name, "MPI_Allreduce") == 0) {
        real_allreduce = (allreduce_t)found;
        return (void *)slow_allreduce;
    }
    return found;
}
