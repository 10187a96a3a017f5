/* The peer of benchmarks/overhead.py: what a plain C program measures, by commbench's own definition.
 *
 * Hot buffers on huge pages, two barriers before each call, CLOCK_MONOTONIC around the single call, maximum over
 * ranks per iteration, median over iterations; chunks of 256 with three unrecorded calls, as commbench's. Before
 * and after each cell it reads the state of the cores: a cache line handed from rank 0 to rank 1 and back.
 *
 *     mpicc -O2 overhead.c -o overhead && mpiexec -n 2 ./overhead SECONDS
 *
 * Prints one line a cell: operation, bytes, median seconds, hand-over seconds before and after.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <mpi.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

enum { CHUNK = 256, LEAD = 3, MOST = 1 << 20, HUGE_PAGE = 2 << 20, ROUNDS = 25, BLOCKS = 20 };

static int rank;
static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec + t.tv_nsec * 1e-9;
}

static int64_t nanoseconds(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1000000000LL + t.tv_nsec;
}

static int ascending(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double median(double *values, int count) {
    qsort(values, count, sizeof *values, ascending);
    return values[count / 2];
}

static void *pages(size_t size) {
    size_t room = (size + HUGE_PAGE - 1) / HUGE_PAGE * HUGE_PAGE + HUGE_PAGE;
    char *start = mmap(NULL, room, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    madvise(start, room, MADV_HUGEPAGE);
    start += -(uintptr_t)start % HUGE_PAGE;
    memset(start, 0, size);
    return start;
}

static double handover(_Atomic int64_t *line, int64_t base) {
    double blocks[BLOCKS];
    int64_t turn = base;
    MPI_Barrier(MPI_COMM_WORLD);
    for (int b = 0; b < BLOCKS; b++) {
        int64_t start = nanoseconds();
        for (int r = 0; r < ROUNDS; r++)
            for (int who = 0; who < 2; who++) {
                turn++;
                if (who == rank)
                    atomic_store_explicit(line, turn, memory_order_release);
                else
                    for (long waited = 0; atomic_load_explicit(line, memory_order_acquire) < turn;)
                        if (++waited > 1000000) return -1;
            }
        blocks[b] = (nanoseconds() - start) * 1e-9 / (2 * ROUNDS);
    }
    return median(blocks, BLOCKS);
}

/* One call: an all-reduce, or a round trip between rank 0 and rank 1. */
static void call(int p2p, char *send, char *receive, int bytes, MPI_Comm comm) {
    if (!p2p) {
        MPI_Allreduce(send, receive, bytes / 4, MPI_FLOAT, MPI_SUM, comm);
        return;
    }
    if (rank == 0) MPI_Send(send, bytes / 4, MPI_FLOAT, 1, 0, comm);
    MPI_Recv(receive, bytes / 4, MPI_FLOAT, 1 - rank, 0, comm, MPI_STATUS_IGNORE);
    if (rank == 1) MPI_Send(send, bytes / 4, MPI_FLOAT, 0, 0, comm);
}

int main(int argc, char **argv) {
    static const struct { int p2p, bytes; } cells[] = {{0, 8}, {0, 65536}, {0, 4 << 20}, {1, 8}};
    double seconds = argc > 1 ? atof(argv[1]) : 0.3;
    MPI_Comm comm, control;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_dup(MPI_COMM_WORLD, &comm);
    MPI_Comm_dup(MPI_COMM_WORLD, &control);

    char name[64];
    int owner = getpid();
    MPI_Bcast(&owner, 1, MPI_INT, 0, MPI_COMM_WORLD);
    snprintf(name, sizeof name, "/commbench-overhead-%d", owner);
    int file = rank == 0 ? shm_open(name, O_RDWR | O_CREAT, 0600) : -1;
    if (rank == 0 && ftruncate(file, 4096)) return 1;
    MPI_Barrier(MPI_COMM_WORLD);
    if (rank) file = shm_open(name, O_RDWR, 0600);
    _Atomic int64_t *line = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    MPI_Barrier(MPI_COMM_WORLD);
    if (rank == 0) shm_unlink(name);

    static double out[CHUNK], slowest[CHUNK];
    double *all = malloc(MOST * sizeof *all);
    for (unsigned c = 0; c < sizeof cells / sizeof *cells; c++) {
        int p2p = cells[c].p2p, bytes = cells[c].bytes, count = 0, again = 1;
        char *send = pages(2 * (size_t)bytes + 8192), *receive = send + (bytes + 4095) / 4096 * 4096;
        double before = handover(line, (int64_t)c * 100000), lap = 1e-6;
        for (int i = 0; i < 20; i++) call(p2p, send, receive, bytes, comm);
        double start = now();
        while (again) {
            /* 1 ms at least, 20 to 256 calls: rank 0 decides, as in commbench. */
            int size = 1e-3 / lap < 20 ? 20 : 1e-3 / lap > CHUNK ? CHUNK : (int)(1e-3 / lap);
            MPI_Bcast(&size, 1, MPI_INT, 0, control);
            double began = now();
            for (int i = -LEAD; i < size; i++) {
                if (!p2p) {
                    MPI_Barrier(comm);
                    MPI_Barrier(comm);
                }
                int64_t t0 = nanoseconds();
                call(p2p, send, receive, bytes, comm);
                int64_t t1 = nanoseconds();
                if (i >= 0) out[i] = (t1 - t0) * 1e-9 * (p2p ? (rank == 0 ? 0.5 : 0.0) : 1.0);
            }
            MPI_Allreduce(out, slowest, size, MPI_DOUBLE, MPI_MAX, control);
            lap = (now() - began) / size;
            for (int i = 0; i < size && count < MOST; i++) all[count++] = slowest[i];
            again = now() - start < seconds;
            MPI_Bcast(&again, 1, MPI_INT, 0, control);
        }
        double after = handover(line, (int64_t)c * 100000 + 50000);
        if (rank == 0)
            printf("%s %d %.9g %.9g %.9g\n", p2p ? "p2p" : "allreduce", bytes, median(all, count), before, after);
    }
    MPI_Finalize();
    return 0;
}
