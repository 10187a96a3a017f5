/* libnccl.so.2 on host memory, between real processes of one host.
 *
 * Its truth is nccl.h: the comment of each function is quoted above what does it. It shares no algorithm with
 * NCCL or with what it tests: every rank hands its input to whoever needs it, and each computes its own result.
 *
 * Ranks meet in a piece of anonymous memory of the process that made the unique id (/proc/PID/fd/N), so that no
 * file can be left. In it lies a box for each ordered pair of ranks, once for collectives and once for messages; a
 * box holds one piece of a message, and a send is done when its last piece has been taken.
 *
 * What is wrong is refused, not performed: see `check`. Knobs: see __init__.py. Built with -DOLD it is a library
 * without ncclAlltoAll, ncclGather and ncclScatter, as all before 2.28.
 *
 * A communication call returns when it has been performed, with these exceptions, which are how a GPU shows it: the
 * stream is left stuck, ncclSuccess is returned, and the stream is free again after ncclCommAbort,
 *   - when a rank of it hangs (DOUBLE_NCCL_HANG),
 *   - when a rank of it has ended or aborted; then ncclCommGetAsyncError also says ncclRemoteError.
 * One that waits longer than DOUBLE_PATIENCE returns ncclRemoteError. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdint.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "machine.h"

#ifdef OLD
#define VERSION 22703
__attribute__((used)) static const char built[] = "NCCL version 2.27.3+cuda12.9";
#else
#define VERSION 23007
__attribute__((used)) static const char built[] = "NCCL version 2.30.7+cuda12.9";
#endif

/* From cuda.c. */
typedef int (*Action)(void *argument, void *stream);
typedef struct {
  char name[256], pci[32];
  unsigned char uuid[16];
  unsigned long long memory;
  int l2, bus, major, minor, processors, installed_as;
} Properties;
extern int double_status(int runtime), double_device(void), double_properties(int device, Properties *found);
extern int double_pointer(const void *pointer, void **start, size_t *size, int *device);
extern int double_stream_device(void *stream), double_is_stuck(void *stream);
extern void double_bind(void), double_stick(void *stream), double_unstick(void *stream);
extern int double_capture(void *stream, Action action, void *argument);
extern int double_is_capturing(void *stream, int *status);
extern int double_graphs(void);
extern void double_log(const char *format, ...);

/* ncclResult_t, and one of our own: the operation never completes. */
typedef enum {
  Success,
  UnhandledCudaError,
  SystemError,
  InternalError,
  InvalidArgument,
  InvalidUsage,
  RemoteError,
  STUCK = 100
} Result;
typedef enum { Int8, Uint8, Int32, Uint32, Int64, Uint64, Float16, Float32, Float64, Bfloat16, TYPES } Type;
typedef enum { Sum, Prod, Max, Min, Avg, REDUCTIONS } Reduction;
typedef enum { AllReduce, Reduce, Broadcast, AllGather, ReduceScatter, AlltoAll, Gather, Scatter, Send, Recv } Function;
static const char *const names[] = {"ncclAllReduce", "ncclReduce", "ncclBroadcast", "ncclAllGather", "ncclReduceScatter",
                                    "ncclAlltoAll",  "ncclGather", "ncclScatter",   "ncclSend",      "ncclRecv"};
static const size_t sizes[] = {1, 1, 4, 4, 8, 8, 2, 4, 8, 2};

enum { RANKS = 32, PIECE = 1 << 16, COLLECTIVE = 0, MESSAGE = 1, CHANNELS = 2 };
enum { EMPTY, HERE, HUNG, GONE, ABORTED }; /* states of a seat */
enum { NO_PROCESS = -2 };                  /* in place of its descriptor: it has ended */

typedef struct {
  char internal[128];
} ncclUniqueId;

typedef struct { /* the beginning of an id */
  char magic[8];
  int pid, descriptor;
  uint64_t nonce;
} Address;

typedef struct { /* what both ends of a transfer must agree about */
  int function, type, reduction, root;
  uint64_t count;
} Header;

typedef struct {
  _Atomic uint64_t turn; /* even: empty, the sender's; odd: full, the receiver's */
  Header header;
  size_t length;
  char piece[PIECE];
} Box;

typedef struct {
  _Atomic int state;
  int pid, ranks, version, may_share;
  unsigned char gpu[16];
  char host[128];
} Seat;

typedef struct {
  uint64_t nonce;
  _Atomic int here, broken;
  char why[256];
  Seat seats[RANKS];
  Box boxes[];
} Room;

typedef struct Comm {
  struct Comm *next;
  int rank, ranks, device, calls;
  _Atomic int aborted, async;
  Room *room;
  size_t size;
  int processes[RANKS]; /* descriptors that become readable when the process ends */
  void *stuck;
} Comm;

typedef struct {
  Function function;
  char *send, *receive;
  size_t count;
  Type type;
  Reduction reduction;
  int root; /* or the peer */
  Comm *comm;
  void *stream;
  char **inputs; /* of a reduction: what came from each rank */
} Op;

typedef struct { /* calls that are one operation: a group, or a call outside any group */
  Op *ops;
  int count;
} Batch;

typedef struct Transfer {
  struct Transfer *before; /* on the same way: first in, first out */
  Comm *comm;
  int channel, peer, is_send, finished;
  char *data;
  size_t length, done;
  int begun;
  Header header;
} Transfer;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static Comm *comms;
static char last_error[1024];
static _Thread_local int depth;
static _Thread_local Result group_error;
static _Thread_local Batch group;

static double now(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

__attribute__((format(printf, 2, 3))) static Result fail(Result code, const char *format, ...) {
  va_list arguments;
  va_start(arguments, format);
  vsnprintf(last_error, sizeof last_error, format, arguments);
  va_end(arguments);
  double_log("# %s", last_error);
  if (getenv("NCCL_DEBUG")) fprintf(stderr, "nccl double: NCCL WARN %s\n", last_error);
  return code;
}

/* -- communicators -------------------------------------------------------------------------------------------- */

static Comm *comm_of(void *handle) {
  pthread_mutex_lock(&lock);
  Comm *comm = comms;
  while (comm && comm != handle) comm = comm->next;
  pthread_mutex_unlock(&lock);
  return comm;
}

static Box *box(Comm *comm, int channel, int from, int to) {
  return &comm->room->boxes[(channel * comm->ranks + from) * comm->ranks + to];
}

Result ncclGetVersion(int *version) {
  if (!version) return fail(InvalidArgument, "GetVersion : version argument is NULL");
  *version = (int)number("DOUBLE_NCCL_VERSION", VERSION);
  return Success;
}

/* nccl.h: "Generates an Id to be used in ncclCommInitRank. ncclGetUniqueId should be called once and the Id should be
 * distributed to all ranks in the communicator before calling ncclCommInitRank." The process that made the id must
 * live until all ranks have it, as with NCCL. */
Result ncclGetUniqueId(ncclUniqueId *id) {
  Address address = {"doubleid", getpid(), memfd_create("commbench-double-nccl", MFD_CLOEXEC), 0};
  if (address.descriptor < 0 || getrandom(&address.nonce, sizeof address.nonce, 0) < 0)
    return fail(SystemError, "memfd_create: %s", strerror(errno));
  if (ftruncate(address.descriptor, sizeof(Room)) || pwrite(address.descriptor, &address.nonce, 8, 0) != 8)
    return fail(SystemError, "no shared memory: %s", strerror(errno));
  memset(id, 0, sizeof *id);
  memcpy(id, &address, sizeof address);
  double_log("ncclGetUniqueId");
  return Success;
}

static Result sit_down(Comm *comm, const Address *address) {
  char path[64];
  snprintf(path, sizeof path, "/proc/%d/fd/%d", address->pid, address->descriptor);
  int file = open(path, O_RDWR | O_CLOEXEC);
  if (file < 0) return fail(SystemError, "the process that made the unique id is gone: %s: %s", path, strerror(errno));
  comm->size = sizeof(Room) + (size_t)(CHANNELS * comm->ranks * comm->ranks) * sizeof(Box);
  int too_small = ftruncate(file, (off_t)comm->size); /* the same size from every rank */
  comm->room = mmap(NULL, comm->size, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  close(file);
  if (too_small || comm->room == MAP_FAILED) return fail(SystemError, "no shared memory: %s", strerror(errno));
  if (comm->room->nonce != address->nonce) return fail(SystemError, "that unique id is of another time");
  Seat *seat = &comm->room->seats[comm->rank];
  Properties gpu;
  double_properties(comm->device, &gpu);
  int nobody = EMPTY;
  if (atomic_load(&seat->state) != EMPTY) return fail(InvalidUsage, "rank %d is there already", comm->rank);
  seat->pid = getpid();
  seat->ranks = comm->ranks;
  ncclGetVersion(&seat->version);
  /* NCCL 2.30.3 and later look at the variable; earlier ones never allow it. */
  seat->may_share = seat->version >= 23003 && number("NCCL_MULTI_RANK_GPU_ENABLE", 0) == 1;
  memcpy(seat->gpu, gpu.uuid, sizeof gpu.uuid);
  snprintf(seat->host, sizeof seat->host, "%s", knob("NCCL_HOSTID", "this host"));
  if (!atomic_compare_exchange_strong(&seat->state, &nobody, HERE))
    return fail(InvalidUsage, "rank %d is there already", comm->rank);
  atomic_fetch_add(&comm->room->here, 1);
  return Success;
}

static Result await_all(Comm *comm) {
  double until = now() + number("DOUBLE_PATIENCE", 60);
  while (atomic_load(&comm->room->here) < comm->ranks) {
    if (now() > until)
      return fail(RemoteError, "%d of %d ranks came to ncclCommInitRank", atomic_load(&comm->room->here), comm->ranks);
    usleep(200);
  }
  return Success;
}

static Result judge(Comm *comm) {
  Seat *seats = comm->room->seats, *mine = &seats[comm->rank];
  for (int i = 0; i < comm->ranks; i++) {
    if (seats[i].ranks != mine->ranks) return fail(InvalidUsage, "ranks disagree about their number");
    if (seats[i].version != mine->version)
      return fail(InvalidUsage, "Mismatched NCCL version detected : rank %d version %d rank %d version %d", i,
                  seats[i].version, comm->rank, mine->version);
    for (int j = 0; j < i; j++) /* init.cc of 2.30.7: the same host and the same GPU */
      if (!mine->may_share && !strcmp(seats[i].host, seats[j].host) && !memcmp(seats[i].gpu, seats[j].gpu, 16))
        return mine->version >= 23003
                   ? fail(InvalidUsage, "Multiple Ranks are using the same GPU/Partition. Set NCCL_MULTI_RANK_GPU_ENABLE=1 to "
                                        "enable this configuration.")
                   : fail(InvalidUsage, "Duplicate GPU detected : rank %d and rank %d both on CUDA device %x", i, j,
                          pci_bus(0) << 12);
  }
  for (int i = 0; i < comm->ranks; i++) {
    comm->processes[i] = (int)syscall(SYS_pidfd_open, seats[i].pid, 0);
    if (comm->processes[i] < 0) comm->processes[i] = errno == ESRCH ? NO_PROCESS : -1;
  }
  return Success;
}

/* nccl.h: "Creates a new communicator (multi thread/process version). rank must be between 0 and nranks-1 and unique
 * within a communicator clique. Each rank is associated to a CUDA device, which has to be set before calling
 * ncclCommInitRank. ncclCommInitRank implicitly syncronizes with other ranks". */
Result ncclCommInitRank(Comm **handle, int ranks, ncclUniqueId id, int rank) {
  Address address;
  memcpy(&address, &id, sizeof address);
  double_log("ncclCommInitRank rank=%d ranks=%d device=%d depth=%d", rank, ranks, double_device(), depth);
  if (!handle) return fail(InvalidArgument, "CommInitRank : comm argument is NULL");
  *handle = NULL;
  if (depth) return fail(InvalidUsage, "this double has no ncclCommInitRank in a group");
  if (memcmp(address.magic, "doubleid", 8)) return fail(InvalidArgument, "that is no unique id");
  if (ranks < 1 || ranks > RANKS || rank < 0 || rank >= ranks)
    return fail(InvalidArgument, "Invalid rank requested : %d/%d", rank, ranks);
  int cuda = double_status(12000);
  if (cuda == 35) return fail(UnhandledCudaError, "Cuda failure 35 'CUDA driver version is insufficient for CUDA runtime version'");
  if (cuda) return fail(UnhandledCudaError, "Cuda failure %d 'no CUDA-capable device is detected'", cuda);
  double_bind();
  Comm *comm = calloc(1, sizeof *comm);
  *comm = (Comm){.rank = rank, .ranks = ranks, .device = double_device()};
  Result code = sit_down(comm, &address);
  if (!code) code = await_all(comm);
  if (address.pid == getpid()) close(address.descriptor);
  if (!code) code = judge(comm);
  if (code) return free(comm), code;
  pthread_mutex_lock(&lock);
  comm->next = comms;
  comms = comm;
  pthread_mutex_unlock(&lock);
  *handle = comm;
  double_log("double_comm comm=%p rank=%d", (void *)comm, rank);
  return Success;
}

/* The configuration's values are not looked at; blocking = 0 blocks all the same. */
Result ncclCommInitRankConfig(Comm **handle, int ranks, ncclUniqueId id, int rank, const void *config) {
  struct {
    size_t size;
    unsigned magic, version;
  } head;
  if (config) {
    memcpy(&head, config, sizeof head);
    if (head.magic != 0xcafebeef) return fail(InvalidArgument, "ncclConfig_t argument not initialized via NCCL_CONFIG_INITIALIZER");
  }
  return ncclCommInitRank(handle, ranks, id, rank);
}

/* As commDestroySync in NCCL's src/init.cc: "keep polling until all graphs referencing us die", here any graph of the
 * process, and as long as patience lasts. */
static Result leave(void *handle, int state, const char *name) {
  Comm *comm = comm_of(handle);
  double_log("%s comm=%p", name, handle);
  if (!handle) return Success;
  if (!comm) return fail(InvalidArgument, "%s : comm is not, or no longer, a communicator", name);
  for (double end = now() + number("DOUBLE_PATIENCE", 60); double_graphs();) {
    if (now() > end) return fail(InternalError, "%s : a CUDA graph still holds the communicator", name);
    usleep(1000);
  }
  pthread_mutex_lock(&lock);
  Comm **at = &comms;
  while (*at != comm) at = &(*at)->next;
  *at = comm->next;
  pthread_mutex_unlock(&lock);
  atomic_store(&comm->aborted, 1);
  atomic_store(&comm->room->seats[comm->rank].state, state);
  if (comm->stuck) double_unstick(comm->stuck);
  for (int i = 0; i < comm->ranks; i++)
    if (comm->processes[i] >= 0) close(comm->processes[i]);
  /* Neither the room nor the handle is given back: another thread may wait in there (ncclCommAbort). */
  return Success;
}

/* nccl.h: "Frees local resources associated with communicator object." */
Result ncclCommDestroy(void *comm) { return leave(comm, GONE, "ncclCommDestroy"); }

/* nccl.h: "Frees resources associated with communicator object and aborts any operations that might still be running on
 * the device." */
Result ncclCommAbort(void *comm) { return leave(comm, ABORTED, "ncclCommAbort"); }

/* nccl.h: "ncclCommFinalize flushes all issued communications": here none is ever outstanding. */
Result ncclCommFinalize(void *comm) {
  double_log("ncclCommFinalize comm=%p", comm);
  return comm_of(comm) ? Success : fail(InvalidArgument, "CommFinalize : comm is no communicator");
}

/* nccl.h: "Checks whether the comm has encountered any asynchronous errors". */
Result ncclCommGetAsyncError(void *handle, int *error) {
  Comm *comm = comm_of(handle);
  if (!comm || !error) return fail(InvalidArgument, "CommGetAsyncError : no communicator, or nowhere to answer");
  *error = atomic_load(&comm->async);
  return Success;
}

Result ncclCommCount(void *handle, int *count) {
  Comm *comm = comm_of(handle);
  if (!comm || !count) return fail(InvalidArgument, "CommCount : no communicator, or nowhere to answer");
  *count = comm->ranks;
  return Success;
}

Result ncclCommUserRank(void *handle, int *rank) {
  Comm *comm = comm_of(handle);
  if (!comm || !rank) return fail(InvalidArgument, "CommUserRank : no communicator, or nowhere to answer");
  *rank = comm->rank;
  return Success;
}

Result ncclCommCuDevice(void *handle, int *device) {
  Comm *comm = comm_of(handle);
  if (!comm || !device) return fail(InvalidArgument, "CommCuDevice : no communicator, or nowhere to answer");
  *device = comm->device;
  return Success;
}

/* init.cc, ncclGetErrorString. */
const char *ncclGetErrorString(int code) {
  static const char *const texts[] = {"no error",
                                      "unhandled cuda error (run with NCCL_DEBUG=INFO for details)",
                                      "unhandled system error (run with NCCL_DEBUG=INFO for details)",
                                      "internal error - please report this issue to the NCCL developers",
                                      "invalid argument (run with NCCL_DEBUG=WARN for details)",
                                      "invalid usage (run with NCCL_DEBUG=WARN for details)",
                                      "remote process exited or there was a network error",
                                      "NCCL operation in progress",
                                      "timeout"};
  return code >= 0 && code < (int)(sizeof texts / sizeof *texts) ? texts[code] : "unknown result code";
}

const char *ncclGetLastError(void *comm) {
  (void)comm;
  return last_error;
}

/* -- arithmetic ----------------------------------------------------------------------------------------------- */

static float from_bits(uint32_t bits) {
  float value;
  memcpy(&value, &bits, 4);
  return value;
}

static uint32_t to_bits(float value) {
  uint32_t bits;
  memcpy(&bits, &value, 4);
  return bits;
}

static float widen_bfloat16(uint16_t bits) { return from_bits((uint32_t)bits << 16); }

static uint16_t narrow_bfloat16(float value) { /* to nearest, ties to even */
  uint32_t bits = to_bits(value);
  if (value != value) return 0x7fff;
  return (uint16_t)((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
}

static float widen_float16(uint16_t bits) {
  int exponent = bits >> 10 & 31, fraction = bits & 1023;
  float value = exponent == 31 ? from_bits(0x7f800000u | (uint32_t)fraction << 13)
                : exponent     ? from_bits((uint32_t)(exponent + 112) << 23 | (uint32_t)fraction << 13)
                               : (float)fraction * 0x1p-24f;
  return bits & 0x8000 ? -value : value;
}

static uint16_t narrow_float16(float value) { /* to nearest, ties to even */
  uint32_t bits = to_bits(value), sign = bits >> 16 & 0x8000, size = bits & 0x7fffffff;
  if (size > 0x7f800000) return 0x7fff;
  if (size >= 0x477ff000) return (uint16_t)(sign | 0x7c00); /* from 65520 on: infinity */
  if (size < 0x38800000) {                                  /* below 2^-14: a multiple of 2^-24 */
    float shifted = from_bits(size) + 0.5f; /* 2^-24 is the last place of numbers from 0.5 to 1: the sum rounds */
    return (uint16_t)(sign | (to_bits(shifted) - 0x3f000000));
  }
  size += 0xfff + (size >> 13 & 1);
  return (uint16_t)(sign | ((size - 0x38000000) >> 13));
}

/* result = a (op) b, in rank order, rounded to the type after each step; AVG is "a sum across all ranks divided by the
 * number of ranks" (NCCL's documentation of ncclAvg). DOUBLE_NCCL_AVG=premultiply does what NCCL's kernels do for
 * floating point: multiply each by 1/ranks, rounded to the type, and sum. */
#define COMBINE(a, b)                                                                      \
  (op->reduction == Prod ? (a) * (b) : op->reduction == Max ? ((a) > (b) ? (a) : (b))      \
   : op->reduction == Min ? ((a) < (b) ? (a) : (b)) : (a) + (b))
#define SAME(x) (x)
#define REDUCE(T, WORK, WIDEN, NARROW, IS_FLOAT)                                             \
  for (size_t i = 0; i < count; i++) {                                                       \
    int early = IS_FLOAT && premultiply;                                                     \
    WORK part = WIDEN((T)NARROW((WORK)(early ? 1.0 / ranks : 1)));                           \
    T value = 0;                                                                             \
    for (int k = 0; k < ranks; k++) {                                                        \
      T next = ((const T *)inputs[k])[i];                                                    \
      if (early) next = (T)NARROW(WIDEN(next) * part);                                       \
      value = k ? (T)NARROW((WORK)COMBINE(WIDEN(value), WIDEN(next))) : next;                \
    }                                                                                        \
    if (op->reduction == Avg && !early) value = (T)NARROW((WORK)(WIDEN(value) / (WORK)ranks)); \
    ((T *)op->receive)[i] = value;                                                           \
  }

static void reduce(const Op *op, char **inputs) {
  size_t count = op->count;
  int ranks = op->comm->ranks;
  int premultiply = op->reduction == Avg && !strcmp(knob("DOUBLE_NCCL_AVG", "sum"), "premultiply");
  switch (op->type) { /* integers wrap around: -fwrapv */
    case Int8: REDUCE(int8_t, int8_t, SAME, SAME, 0) break;
    case Uint8: REDUCE(uint8_t, uint8_t, SAME, SAME, 0) break;
    case Int32: REDUCE(int32_t, int32_t, SAME, SAME, 0) break;
    case Uint32: REDUCE(uint32_t, uint32_t, SAME, SAME, 0) break;
    case Int64: REDUCE(int64_t, int64_t, SAME, SAME, 0) break;
    case Uint64: REDUCE(uint64_t, uint64_t, SAME, SAME, 0) break;
    case Float16: REDUCE(uint16_t, float, widen_float16, narrow_float16, 1) break;
    case Float32: REDUCE(float, float, SAME, SAME, 1) break;
    case Float64: REDUCE(double, double, SAME, SAME, 1) break;
    case Bfloat16: REDUCE(uint16_t, float, widen_bfloat16, narrow_bfloat16, 1) break;
    default: break;
  }
}

/* -- is a call right? ----------------------------------------------------------------------------------------- */

static int overlap(const char *a, size_t m, const char *b, size_t n) { return a < b + n && b < a + m; }

static Result check_buffer(const Op *op, const char *what, const char *at, size_t size) {
  void *start = NULL;
  size_t length = 0;
  int device = -1;
  const char *name = names[op->function];
  if (!double_pointer(at, &start, &length, &device) || device < 0)
    return fail(InvalidArgument, "%s : %s %p is not a valid pointer: it is in no memory of a device", name, what, (const void *)at);
  if (device != op->comm->device)
    return fail(InvalidArgument, "%s : %s allocated on device %d mismatchs with NCCL device %d", name, what, device,
                op->comm->device);
  size_t offset = (size_t)(at - (char *)start);
  if (offset + size > length)
    return fail(InvalidArgument, "%s : %s runs %zu bytes past the end of its allocation (%zu bytes, used from %zu to %zu)",
                name, what, offset + size - length, length, offset, offset + size);
  if ((uintptr_t)at % sizes[op->type])
    return fail(InvalidArgument, "%s : %s %p is not aligned to its type of %zu bytes", name, what, (const void *)at,
                sizes[op->type]);
  return Success;
}

/* How many blocks of `count` elements a rank's send and receive buffers hold: nccl.h, function by function. 0: the
 * buffer "is not used", or "may be NULL". */
static void extent(const Op *op, size_t *sends, size_t *receives) {
  size_t ranks = (size_t)op->comm->ranks;
  int is_root = op->comm->rank == op->root;
  *sends = *receives = 1;
  switch (op->function) {
    case Reduce: *receives = is_root; break;
    case Broadcast: *sends = is_root; break;
    case AllGather: *receives = ranks; break;
    case ReduceScatter: *sends = ranks; break;
    case AlltoAll: *sends = *receives = ranks; break;
    case Gather: *receives = is_root ? ranks : 0; break;
    case Scatter: *sends = is_root ? ranks : 0; break;
    case Send: *receives = 0; break;
    case Recv: *sends = 0; break;
    default: break;
  }
}

/* The documented in-place forms; no other overlap is one. */
static int is_in_place(const Op *op) {
  size_t block = op->count * sizes[op->type];
  switch (op->function) {
    case AllReduce:
    case Reduce:
    case Broadcast: /* "In-place operation will happen if sendbuff == recvbuff." */
      return op->send == op->receive;
    case AllGather: /* "if sendbuff == recvbuff + rank * sendcount" */
      return op->send == op->receive + (size_t)op->comm->rank * block;
    case ReduceScatter: /* "if recvbuff == sendbuff + rank * recvcount" */
      return op->receive == op->send + (size_t)op->comm->rank * block;
    case Gather: /* "if sendbuff == recvbuff + root * count" */
      return op->send == op->receive + (size_t)op->root * block;
    case Scatter: /* "if recvbuff == sendbuff + root * count" */
      return op->receive == op->send + (size_t)op->root * block;
    default: /* nccl.h names no in-place form of ncclAlltoAll */
      return 0;
  }
}

static Result check(const Op *op) {
  const char *name = names[op->function];
  size_t sends, receives, block = op->count * sizes[op->type < TYPES ? op->type : 0];
  Result code;
  if (op->root < 0 || op->root >= op->comm->ranks)
    return fail(InvalidArgument, "%s : invalid root %d (root should be in the 0..%d range)", name, op->root, op->comm->ranks);
  if ((unsigned)op->type >= TYPES) return fail(InvalidArgument, "%s : invalid type %d", name, (int)op->type);
  if ((unsigned)op->reduction >= REDUCTIONS)
    return fail(InvalidArgument, "%s : invalid reduction operation %d", name, (int)op->reduction);
  if (double_stream_device(op->stream) != op->comm->device)
    return fail(InvalidArgument, "%s : stream %p is not one of device %d", name, op->stream, op->comm->device);
  if (op->count > SIZE_MAX / 1024) return fail(InvalidArgument, "%s : count %zu", name, op->count);
  if (!op->count) return Success;
  extent(op, &sends, &receives);
  if (sends && (code = check_buffer(op, "sendbuff", op->send, sends * block))) return code;
  if (receives && (code = check_buffer(op, "recvbuff", op->receive, receives * block))) return code;
  if (sends && receives && overlap(op->send, sends * block, op->receive, receives * block) && !is_in_place(op))
    return fail(InvalidArgument, "%s : buffers overlap, but not in the in-place form of nccl.h", name);
  return Success;
}

/* Messages of a group progress together: what one writes no other may touch. And enqueue.cc of NCCL: "Trying to send to
 * self without a matching recv". */
static Result check_messages(const Batch *batch) {
  for (int i = 0; i < batch->count; i++) {
    const Op *a = &batch->ops[i];
    size_t m = a->count * sizes[a->type];
    int to_self = 0;
    for (int j = 0; j < batch->count; j++) {
      const Op *b = &batch->ops[j];
      size_t n = b->count * sizes[b->type];
      if (a->comm == b->comm && a->root == a->comm->rank && b->root == a->root)
        to_self += (b->function == Recv) - (b->function == Send);
      if (i == j || a->function != Recv || (b->function != Send && b->function != Recv)) continue;
      const char *other = b->function == Send ? b->send : b->receive;
      int same = b->function == Send && other == a->receive && a->root == a->comm->rank && b->root == a->root;
      if (overlap(a->receive, m, other, n) && !same)
        return fail(InvalidArgument, "ncclGroupEnd : what a ncclRecv of the group writes another call of it uses");
    }
    if ((a->function == Send || a->function == Recv) && a->root == a->comm->rank && to_self)
      return fail(InvalidUsage, to_self < 0 ? "Trying to send to self without a matching recv"
                                            : "Trying to recv to self without a matching send");
  }
  return Success;
}

/* -- moving --------------------------------------------------------------------------------------------------- */

__attribute__((format(printf, 2, 3))) static Result break_room(Comm *comm, const char *format, ...) {
  Room *room = comm->room;
  va_list arguments;
  int nobody = 0;
  if (atomic_compare_exchange_strong(&room->broken, &nobody, 1)) {
    va_start(arguments, format);
    vsnprintf(room->why, sizeof room->why, format, arguments);
    va_end(arguments);
    atomic_store(&room->broken, 2);
  }
  while (atomic_load(&room->broken) == 1) sched_yield();
  return fail(InvalidUsage, "%s", room->why);
}

static void describe(const Header *h, char *text, size_t size) {
  snprintf(text, size, "%s(count %llu, type %d, op %d, root %d)", names[h->function], (unsigned long long)h->count, h->type,
           h->reduction, h->root);
}

static Result agree(Transfer *t, const Header *other) {
  char ours[96], theirs[96];
  if (!memcmp(&t->header, other, sizeof *other)) return Success;
  describe(&t->header, ours, sizeof ours);
  describe(other, theirs, sizeof theirs);
  return break_room(t->comm, "rank %d: %s, but rank %d: %s", t->comm->rank, ours, t->peer, theirs);
}

/* One step of one transfer, if it can make one: 1 when it could. */
static int step(Transfer *t, Result *code) {
  int me = t->comm->rank;
  Box *b = t->is_send ? box(t->comm, t->channel, me, t->peer) : box(t->comm, t->channel, t->peer, me);
  uint64_t turn = atomic_load_explicit(&b->turn, memory_order_acquire);
  if ((int)(turn % 2) == t->is_send) return 0;
  if (t->is_send && t->begun && t->done == t->length) return t->finished = 1; /* the last piece has been taken */
  if (t->is_send) {
    b->header = t->header;
    b->length = t->length - t->done < PIECE ? t->length - t->done : PIECE;
    memcpy(b->piece, t->data + t->done, b->length);
  } else {
    if ((*code = agree(t, &b->header))) return 1;
    memcpy(t->data + t->done, b->piece, b->length);
  }
  t->begun = 1;
  t->done += b->length;
  if (!t->is_send && t->done == t->length) t->finished = 1;
  atomic_store_explicit(&b->turn, turn + 1, memory_order_release);
  return 1;
}

/* Why the wait for a transfer is in vain, 0 when it is not. */
enum { MEANT_TO_WAIT, WAS_ABORTED, WAS_BROKEN, PEER_HANGS, PEER_ABORTED, PEER_LEFT, PEER_ENDED, TOO_LONG };

static int in_vain(Transfer *t, double until) {
  Comm *comm = t->comm;
  int state = atomic_load(&comm->room->seats[t->peer].state);
  struct pollfd process = {comm->processes[t->peer], POLLIN, 0};
  if (atomic_load(&comm->aborted)) return WAS_ABORTED;
  if (atomic_load(&comm->room->broken)) return WAS_BROKEN;
  if (state != HERE) return state == HUNG ? PEER_HANGS : state == ABORTED ? PEER_ABORTED : PEER_LEFT;
  if (process.fd == NO_PROCESS || poll(&process, 1, 0) > 0) return PEER_ENDED;
  return now() < until ? MEANT_TO_WAIT : TOO_LONG;
}

static Result conclude(Transfer *t, int reason) {
  Comm *comm = t->comm;
  switch (reason) {
    case WAS_ABORTED: return fail(RemoteError, "the communicator was aborted");
    case WAS_BROKEN: return break_room(comm, "%s", "");
    case PEER_HANGS: return STUCK;
    default: break;
  }
  if (reason == TOO_LONG)
    fail(RemoteError, "%s: rank %d does not answer: it is elsewhere", names[t->header.function], t->peer);
  else
    fail(RemoteError, "rank %d %s", t->peer, reason == PEER_ABORTED ? "aborted" : reason == PEER_LEFT ? "left" : "ended");
  atomic_store(&comm->async, RemoteError);
  return reason == TOO_LONG ? RemoteError : STUCK;
}

static Result run_transfers(Transfer *all, int count) {
  int left = count, idle = 0, reason = 0;
  Transfer *suspect = NULL;
  double until = now() + number("DOUBLE_PATIENCE", 60);
  Result code = Success;
  for (int i = 0; i < count; i++)
    for (int j = i; j-- > 0 && !all[i].before;)
      if (all[j].comm == all[i].comm && all[j].channel == all[i].channel && all[j].peer == all[i].peer &&
          all[j].is_send == all[i].is_send)
        all[i].before = &all[j];
  while (left && !code) {
    int moved = 0;
    for (int i = 0; i < count && !code; i++) {
      if (all[i].finished || (all[i].before && !all[i].before->finished)) continue;
      moved |= step(&all[i], &code);
      left -= all[i].finished;
    }
    if (moved || code) {
      idle = reason = 0;
      continue;
    }
    /* A peer may have taken the last piece and left since the box was looked at: so look once more. */
    if (reason) return conclude(suspect, reason);
    sched_yield();
    if (++idle > 2000) usleep(50);
    for (int i = 0; idle % 64 == 0 && i < count && !reason; i++)
      if (!all[i].finished) reason = in_vain(suspect = &all[i], until);
  }
  return code;
}

typedef struct {
  Transfer *all;
  int count;
} List;

static void add(List *list, const Op *op, int channel, int peer, int is_send, char *data) {
  list->all = realloc(list->all, (size_t)(list->count + 1) * sizeof(Transfer));
  Header header = {op->function, op->type, op->reduction, op->root, op->count};
  if (channel == MESSAGE) header.function = Send, header.root = 0;
  list->all[list->count++] = (Transfer){NULL, op->comm, channel, peer, is_send, 0, data, op->count * sizes[op->type], 0, 0, header};
}

/* What has to travel for one call on this rank. */
static void plan(List *list, Op *op) {
  int ranks = op->comm->ranks, me = op->comm->rank, is_root = me == op->root, reduces = op->function <= Reduce || op->function == ReduceScatter;
  size_t block = op->count * sizes[op->type];
  if (op->function == Send) add(list, op, MESSAGE, op->root, 1, op->send);
  if (op->function == Recv) add(list, op, MESSAGE, op->root, 0, op->receive);
  if (op->function >= Send || !op->count) return; /* a collective of no elements is nothing */
  if (reduces) {
    op->inputs = calloc((size_t)ranks, sizeof *op->inputs);
    op->inputs[me] = op->send + (op->function == ReduceScatter ? (size_t)me * block : 0);
  }
  for (int peer = 0; peer < ranks; peer++) {
    if (peer == me) continue;
    int to_peer = 1, from_peer = 1; /* whether anything goes there, or comes */
    char *out = op->send, *in = op->receive + (size_t)peer * block;
    switch (op->function) {
      case Reduce:
      case Gather: to_peer = peer == op->root, from_peer = is_root; break;
      case Broadcast: to_peer = is_root, from_peer = peer == op->root, in = op->receive; break;
      case Scatter: to_peer = is_root, from_peer = peer == op->root, out += (size_t)peer * block, in = op->receive; break;
      case ReduceScatter:
      case AlltoAll: out += (size_t)peer * block; break;
      default: break;
    }
    if (reduces && from_peer) in = op->inputs[peer] = malloc(block);
    if (to_peer) add(list, op, COLLECTIVE, peer, 1, out);
    if (from_peer) add(list, op, COLLECTIVE, peer, 0, in);
  }
}

/* What is left when everything has arrived: this rank's own block, and the arithmetic. */
static void complete(Op *op) {
  size_t block = op->count * sizes[op->type], own = (size_t)op->comm->rank * block;
  int is_root = op->comm->rank == op->root;
  if (!op->count) return;
  switch (op->function) {
    case AllReduce:
    case ReduceScatter: reduce(op, op->inputs); break;
    case Reduce:
      if (is_root) reduce(op, op->inputs);
      break;
    case Broadcast:
      if (is_root) memmove(op->receive, op->send, block);
      break;
    case AllGather: memmove(op->receive + own, op->send, block); break;
    case AlltoAll: memmove(op->receive + own, op->send + own, block); break;
    case Gather:
      if (is_root) memmove(op->receive + own, op->send, block);
      break;
    case Scatter:
      if (is_root) memmove(op->receive, op->send + own, block);
      break;
    default: break;
  }
}

/* -- faults --------------------------------------------------------------------------------------------------- */

/* A knob "RANK:CALL" (or "*:CALL"): whether it means this rank and a call up to this one. */
static int fault(const char *name, Comm *comm, int exactly) {
  const char *text = getenv(name), *colon = text ? strchr(text, ':') : NULL;
  if (!colon || (*text != '*' && atoi(text) != comm->rank)) return 0;
  return exactly ? comm->calls == atoi(colon + 1) : comm->calls >= atoi(colon + 1);
}

static int is_to_hang(const Batch *batch) {
  int hangs = 0;
  for (int i = 0; i < batch->count; i++) hangs |= fault("DOUBLE_NCCL_HANG", batch->ops[i].comm, 0);
  return hangs;
}

static void spoil(const Op *op) {
  size_t sends, receives;
  extent(op, &sends, &receives);
  if (receives && op->count && fault("DOUBLE_NCCL_WRONG", op->comm, 0)) op->receive[0] ^= 1;
}

static void count_call(Comm *comm) {
  comm->calls++;
  if (fault("DOUBLE_NCCL_DIE", comm, 1)) kill(getpid(), SIGKILL);
  if (!fault("DOUBLE_NCCL_ERROR", comm, 0)) return;
  snprintf(last_error, sizeof last_error, "NET/IB : Got completion from peer with status=12 opcode=0 len=0 vendor err 129");
  atomic_store(&comm->async, RemoteError);
}

/* -- performing ----------------------------------------------------------------------------------------------- */

static int perform(void *argument, void *stream) {
  Batch *batch = argument;
  List list = {NULL, 0};
  Result code;
  if (double_is_stuck(stream)) return Success;
  for (int i = 0; i < batch->count; i++) { /* since it was called, memory may have been freed, or the communicator */
    if (!comm_of(batch->ops[i].comm)) return fail(InvalidArgument, "%s : comm is no longer a communicator", names[batch->ops[i].function]);
    if ((code = check(&batch->ops[i]))) return code;
  }
  for (int i = 0; i < batch->count; i++) plan(&list, &batch->ops[i]);
  if (is_to_hang(batch)) {
    code = STUCK;
    for (int i = 0; i < batch->count; i++) {
      Comm *comm = batch->ops[i].comm;
      atomic_store(&comm->room->seats[comm->rank].state, HUNG);
    }
  } else {
    code = run_transfers(list.all, list.count);
  }
  for (int i = 0; i < batch->count; i++) {
    Op *op = &batch->ops[i];
    if (!code) complete(op), spoil(op);
    for (int peer = 0; op->inputs && peer < op->comm->ranks; peer++)
      if (peer != op->comm->rank) free(op->inputs[peer]);
    free(op->inputs);
    op->inputs = NULL;
  }
  free(list.all);
  if (code == STUCK) {
    for (int i = 0; i < batch->count; i++) batch->ops[i].comm->stuck = stream;
    double_stick(stream);
    code = Success;
  }
  return (int)code;
}

/* Now, or into the graph of the stream that captures. */
static Result submit(Batch batch) {
  Result code = check_messages(&batch);
  int status = 0;
  void *stream = batch.count ? batch.ops[0].stream : NULL;
  for (int i = batch.count; i-- > 0 && !code;) { /* ends with the first, whose status decides */
    double_is_capturing(batch.ops[i].stream, &status);
    if (batch.ops[i].stream != stream && status)
      code = fail(InvalidUsage, "this double captures a group only where all of it is in one stream");
  }
  if (code || !batch.count || !status) {
    if (!code && batch.count) code = (Result)perform(&batch, stream);
    free(batch.ops);
    return code;
  }
  Batch *kept = malloc(sizeof *kept);
  *kept = batch;
  return double_capture(stream, perform, kept) == 1 ? Success : fail(InternalError, "the capture ended meanwhile");
}

static long offset_of(const void *pointer) {
  void *start = NULL;
  size_t size;
  int device;
  return double_pointer(pointer, &start, &size, &device) ? (long)((const char *)pointer - (char *)start) : -1;
}

static Result call(Function function, const void *send, void *receive, size_t count, int type, int reduction, int root,
                   void *handle, void *stream) {
  Comm *comm = comm_of(handle);
  int capturing = 0;
  Result code = Success;
  double_is_capturing(stream, &capturing);
  double_log("%s send=%p send_offset=%ld recv=%p recv_offset=%ld count=%zu dtype=%d op=%d root=%d comm=%p stream=%p depth=%d "
             "capture=%d rank=%d",
             names[function], send, offset_of(send), receive, offset_of(receive), count, type, reduction, root, handle, stream,
             depth, capturing, comm ? comm->rank : -1);
  if (!comm)
    code = fail(InvalidArgument, "%s : comm is not, or no longer, a communicator", names[function]);
  else if ((count_call(comm), atomic_load(&comm->async)) && !getenv("DOUBLE_NCCL_ERROR"))
    code = fail(RemoteError, "%s : the communicator has failed before", names[function]);
  Op op = {function, (char *)send, receive, count, (Type)type, (Reduction)reduction, root, comm, stream, NULL};
  if (!code) code = check(&op);
  if (code) {
    if (depth && !group_error) group_error = code;
    return code;
  }
  Batch *batch = depth ? &group : &(Batch){NULL, 0};
  batch->ops = realloc(batch->ops, (size_t)(batch->count + 1) * sizeof op);
  batch->ops[batch->count++] = op;
  return depth ? Success : submit(*batch);
}

/* nccl.h: "Start a group call. All calls to NCCL until ncclGroupEnd will be fused into a single NCCL operation. Nothing
 * will be started on the CUDA stream until ncclGroupEnd." */
Result ncclGroupStart(void) {
  double_log("ncclGroupStart depth=%d", depth);
  if (!depth++) group_error = Success;
  return Success;
}

/* nccl.h: "End a group call. Start a fused NCCL operation consisting of all calls since ncclGroupStart." An error of one
 * of them is an error of the group, which then does nothing. */
Result ncclGroupEnd(void) {
  double_log("ncclGroupEnd depth=%d", depth);
  if (!depth) return fail(InvalidUsage, "ncclGroupEnd: not in a group call.");
  if (--depth) return Success;
  Batch batch = group;
  group = (Batch){NULL, 0};
  if (!group_error) return submit(batch);
  free(batch.ops);
  return group_error;
}

/* -- the collectives, each under its comment in nccl.h -------------------------------------------------------- */

/* "Reduces data arrays of length count in sendbuff into recvbuff using op operation. recvbuff may be NULL on all calls
 * except for root device. root is the rank (not the CUDA device) where data will reside after the operation is complete.
 * In-place operation will happen if sendbuff == recvbuff." */
Result ncclReduce(const void *send, void *recv, size_t count, int type, int op, int root, void *comm, void *stream) {
  return call(Reduce, send, recv, count, type, op, root, comm, stream);
}

/* "(deprecated) Copies count values from root to all other devices. This operation is implicitely in place." */
Result ncclBcast(void *buffer, size_t count, int type, int root, void *comm, void *stream) {
  return call(Broadcast, buffer, buffer, count, type, Sum, root, comm, stream);
}

/* "Copies count values from root to all other devices. root is the rank (not the CUDA device) where data resides before
 * the operation is started. In-place operation will happen if sendbuff == recvbuff." */
Result ncclBroadcast(const void *send, void *recv, size_t count, int type, int root, void *comm, void *stream) {
  return call(Broadcast, send, recv, count, type, Sum, root, comm, stream);
}

/* "Reduces data arrays of length count in sendbuff using op operation, and leaves identical copies of result on each
 * recvbuff. In-place operation will happen if sendbuff == recvbuff." */
Result ncclAllReduce(const void *send, void *recv, size_t count, int type, int op, void *comm, void *stream) {
  return call(AllReduce, send, recv, count, type, op, 0, comm, stream);
}

/* "Reduces data in sendbuff using op operation and leaves reduced result scattered over the devices so that recvbuff on
 * rank i will contain the i-th block of the result. Assumes sendcount is equal to nranks*recvcount, which means that
 * sendbuff should have a size of at least nranks*recvcount elements. In-place operations will happen if recvbuff ==
 * sendbuff + rank * recvcount." */
Result ncclReduceScatter(const void *send, void *recv, size_t count, int type, int op, void *comm, void *stream) {
  return call(ReduceScatter, send, recv, count, type, op, 0, comm, stream);
}

/* "Each device gathers sendcount values from other GPUs into recvbuff, receiving data from rank i at offset i*sendcount.
 * Assumes recvcount is equal to nranks*sendcount, which means that recvbuff should have a size of at least
 * nranks*sendcount elements. In-place operations will happen if sendbuff == recvbuff + rank * sendcount." */
Result ncclAllGather(const void *send, void *recv, size_t count, int type, void *comm, void *stream) {
  return call(AllGather, send, recv, count, type, Sum, 0, comm, stream);
}

#ifndef OLD
/* "Each device sends count values to all other devices and receives count values from all other devices. Data to send to
 * destination rank j is taken from sendbuff+j*count and data received from source rank i is placed at recvbuff+i*count." */
Result ncclAlltoAll(const void *send, void *recv, size_t count, int type, void *comm, void *stream) {
  return call(AlltoAll, send, recv, count, type, Sum, 0, comm, stream);
}

/* "Each rank sends count elements from sendbuff to the root rank. On the root rank, data from rank i is placed at recvbuff
 * + i*count. On non-root ranks, recvbuff is not used. In-place operations will happen if sendbuff == recvbuff + root *
 * count." */
Result ncclGather(const void *send, void *recv, size_t count, int type, int root, void *comm, void *stream) {
  return call(Gather, send, recv, count, type, Sum, root, comm, stream);
}

/* "On the root rank, count elements from sendbuff+i*count are sent to rank i. On non-root ranks, sendbuff is not used.
 * Each rank receives count elements into recvbuff. In-place operations will happen if recvbuff == sendbuff + root *
 * count." */
Result ncclScatter(const void *send, void *recv, size_t count, int type, int root, void *comm, void *stream) {
  return call(Scatter, send, recv, count, type, Sum, root, comm, stream);
}
#endif

/* "Send data from sendbuff to rank peer. Rank peer needs to call ncclRecv with the same datatype and the same count from
 * this rank. This operation is blocking for the GPU. If multiple ncclSend and ncclRecv operations need to progress
 * concurrently to complete, they must be fused within a ncclGroupStart/ncclGroupEnd section." */
Result ncclSend(const void *send, size_t count, int type, int peer, void *comm, void *stream) {
  return call(Send, send, NULL, count, type, Sum, peer, comm, stream);
}

/* "Receive data from rank peer into recvbuff. Rank peer needs to call ncclSend with the same datatype and the same count
 * to this rank." And as ncclSend. */
Result ncclRecv(void *recv, size_t count, int type, int peer, void *comm, void *stream) {
  return call(Recv, NULL, recv, count, type, Sum, peer, comm, stream);
}
