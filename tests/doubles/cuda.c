/* libcuda.so.1 on host memory: the driver functions that commbench calls by address, and, under names that begin
 * with double_, what the fake CuPy and the NCCL double need. "Device memory" is host memory that is known here.
 *
 * Everything is done when it is enqueued, so a stream is a name, with three states: idle, capturing, stuck (after
 * an operation that never completes; see double_stick). Signatures and codes are those of the driver API and, for
 * double_ functions, the codes of the runtime API, which are the same numbers. Knobs: see __init__.py. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdint.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include "machine.h"

enum {
  INVALID_VALUE = 1,
  OUT_OF_MEMORY = 2,
  NOT_INITIALIZED = 3,
  INSUFFICIENT_DRIVER = 35,
  NO_DEVICE = 100,
  INVALID_DEVICE = 101,
  INVALID_CONTEXT = 201,
  PEER_UNSUPPORTED = 217,
  INVALID_HANDLE = 400,
  NOT_READY = 600,
  PEER_ALREADY_ENABLED = 704,
  PEER_NOT_ENABLED = 705,
  ALREADY_REGISTERED = 712,
  NOT_REGISTERED = 713,
  LAUNCH_FAILED = 719,
  CAPTURE_UNSUPPORTED = 900,
  CAPTURE_INVALIDATED = 901,
  CAPTURE_NOT_BEGUN = 904,
  CAPTURED_EVENT = 907
};
enum { HOST_TO_HOST, HOST_TO_DEVICE, DEVICE_TO_HOST, DEVICE_TO_DEVICE, ANY_DIRECTION };

typedef int (*Action)(void *argument, void *stream);

typedef struct Block { /* memory of a device, or pinned memory of the host (device -1) */
  struct Block *next;
  char *start;
  size_t size;
  int device, ours;
} Block;

typedef struct Node {
  struct Node *next;
  Action action;
  void *argument;
} Node;

typedef struct Graph { /* an executable graph shares the nodes of the graph it was made of; nodes are never freed */
  struct Graph *next;
  Node *first, **last;
  int is_executable;
} Graph;

typedef struct Stream {
  struct Stream *next;
  int device, blocking;
  int capturing, invalidated, strict; /* strict: the mode forbids unsafe calls while capturing */
  double stuck_since;                 /* 0: not stuck */
  Graph *graph;
} Stream;

typedef struct Event {
  struct Event *next;
  int timed, recorded, captured, device;
  Stream *pending; /* recorded behind something that never completed */
  double time;
} Event;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_once_t once = PTHREAD_ONCE_INIT;
static int initialized, visible[MOST_GPUS], visible_count, driver_version, log_file = -1;
static double patience;
static size_t used[MOST_GPUS];
static char enabled[MOST_GPUS][MOST_GPUS];
static Block *blocks;
static Graph *graphs;
static Stream *streams, default_streams[MOST_GPUS];
static Event *events;
static _Thread_local int current, bound, strict_captures;

static double now(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static void see(int gpu) {
  if (visible_count < (is_mig() ? 1 : MOST_GPUS)) visible[visible_count++] = gpu; /* a process sees one MIG instance */
}

/* CUDA_VISIBLE_DEVICES: indices or (the beginnings of) UUIDs, in order, up to the first that does not exist. */
static void choose_devices(void) {
  int count = gpus_installed();
  const char *chosen = getenv("CUDA_VISIBLE_DEVICES");
  if (!chosen)
    for (int gpu = 0; gpu < count; gpu++) see(gpu);
  while (chosen && *chosen) {
    char word[64], uuid[64];
    size_t length = strcspn(chosen, ",");
    int found = -1;
    snprintf(word, sizeof word, "%.*s", (int)length, chosen);
    for (int gpu = 0; gpu < count; gpu++) {
      uuid_text(is_mig() ? "MIG" : "GPU", gpu, uuid, sizeof uuid);
      if (strlen(word) > 4 && strncmp(uuid, word, strlen(word)) == 0) found = gpu;
    }
    char *end = word;
    long index = strtol(word, &end, 10);
    if (end != word && *end == '\0' && index >= 0 && index < count) found = (int)index;
    if (found < 0) break;
    see(found);
    chosen += length + (chosen[length] == ',');
  }
}

static void open_log(void) {
  const char *pattern = getenv("DOUBLE_LOG"), *mark;
  char path[4096];
  if (!pattern || !*pattern) return;
  if ((mark = strstr(pattern, "%p")))
    snprintf(path, sizeof path, "%.*s%d%s", (int)(mark - pattern), pattern, (int)getpid(), mark + 2);
  else
    snprintf(path, sizeof path, "%s", pattern);
  log_file = open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
}

static void set_up(void) {
  driver_version = (int)number("DOUBLE_DRIVER", 12090);
  patience = number("DOUBLE_PATIENCE", 60);
  choose_devices();
  open_log();
  for (int device = 0; device < MOST_GPUS; device++) default_streams[device] = (Stream){.device = device, .blocking = 1};
}

static void ready(void) { pthread_once(&once, set_up); }

void double_log(const char *format, ...) {
  char line[1024];
  va_list arguments;
  ready();
  if (log_file < 0) return;
  va_start(arguments, format);
  int length = vsnprintf(line, sizeof line - 1, format, arguments);
  va_end(arguments);
  if (length > (int)sizeof line - 2) length = (int)sizeof line - 2;
  line[length++] = '\n';
  if (write(log_file, line, (size_t)length) < 0) log_file = -1;
}

/* -- devices -------------------------------------------------------------------------------------------------- */

/* What the CUDA runtime of `major` says before it does anything: the driver must be of its major version or later. */
int double_status(int runtime) {
  ready();
  if (driver_version / 1000 < runtime / 1000) return INSUFFICIENT_DRIVER;
  return visible_count ? 0 : NO_DEVICE;
}

int double_count(void) { return ready(), visible_count; }

int double_set_device(int device) {
  ready();
  if (device < 0 || device >= visible_count) return INVALID_DEVICE;
  current = device;
  bound = 1;
  return 0;
}

int double_device(void) { return current; }
void double_bind(void) { bound = 1; }

typedef struct {
  char name[256], pci[32];
  unsigned char uuid[16];
  unsigned long long memory;
  int l2, bus, major, minor, processors, installed_as;
} Properties;

int double_properties(int device, Properties *found) {
  static const struct {
    const char *word;
    int major, minor, processors;
  } kinds[] = {{"H100", 9, 0, 132}, {"H200", 9, 0, 132}, {"A100", 8, 0, 108}, {"4090", 8, 9, 128},
               {"3090", 8, 6, 82},  {"V100", 7, 0, 80},  {"T4", 7, 5, 40},    {"", 9, 0, 132}};
  ready();
  if (device < 0 || device >= visible_count) return INVALID_DEVICE;
  int gpu = visible[device], kind = 0;
  memset(found, 0, sizeof *found);
  gpu_name(gpu, found->name, sizeof found->name - 16);
  while (!strstr(found->name, kinds[kind].word)) kind++;
  if (is_mig()) strcat(found->name, " MIG 1g.10gb");
  gpu_uuid(gpu, found->uuid);
  found->bus = pci_bus(gpu);
  snprintf(found->pci, sizeof found->pci, "0000:%02X:00.0", found->bus);
  found->memory = gpu_memory();
  found->l2 = (int)number("DOUBLE_GPU_L2", 4194304);
  found->major = kinds[kind].major;
  found->minor = kinds[kind].minor;
  found->processors = kinds[kind].processors;
  found->installed_as = gpu;
  return 0;
}

int double_can_access(int device, int peer, int *can) {
  if (device < 0 || peer < 0 || device >= visible_count || peer >= visible_count) return INVALID_DEVICE;
  *can = device != peer && number("DOUBLE_PEER_ACCESS", 1) != 0;
  return 0;
}

int double_enable_peer(int peer, int enable) {
  int can, code = double_can_access(current, peer, &can);
  if (code) return code;
  if (enable && peer == current) return INVALID_DEVICE;
  if (enable && !can) return PEER_UNSUPPORTED;
  if (enable == enabled[current][peer]) return enable ? PEER_ALREADY_ENABLED : PEER_NOT_ENABLED;
  enabled[current][peer] = (char)enable;
  return 0;
}

/* -- memory --------------------------------------------------------------------------------------------------- */

static Block *block_of(const void *pointer) {
  const char *at = pointer;
  pthread_mutex_lock(&lock);
  Block *block = blocks;
  while (block && !(at >= block->start && at < block->start + block->size)) block = block->next;
  pthread_mutex_unlock(&lock);
  return block;
}

/* The allocation that `pointer` is in: 1 and where, how large, whose; 0 when it is in none. */
int double_pointer(const void *pointer, void **start, size_t *size, int *device) {
  Block *block = block_of(pointer);
  if (!block) return 0;
  *start = block->start;
  *size = block->size;
  *device = block->device;
  return 1;
}

static int add_block(void *start, size_t size, int device, int ours) {
  Block *block = malloc(sizeof *block);
  pthread_mutex_lock(&lock);
  *block = (Block){blocks, start, size, device, ours};
  blocks = block;
  pthread_mutex_unlock(&lock);
  return 0;
}

static int remove_block(void *start, int device_memory, int ours) {
  pthread_mutex_lock(&lock);
  Block **at = &blocks, *found = NULL;
  while (*at && (*at)->start != start) at = &(*at)->next;
  if (*at && ((*at)->device >= 0) == device_memory && (*at)->ours == ours) {
    found = *at;
    *at = found->next;
    if (device_memory) used[found->device] -= found->size;
  }
  pthread_mutex_unlock(&lock);
  if (!found) return 0;
  if (ours) munmap(found->start, found->size);
  free(found);
  return 1;
}

/* Fresh memory is not zero, as on a device: the first MiB is filled with something. */
static void *new_memory(size_t size) {
  void *start = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (start == MAP_FAILED) return NULL;
  memset(start, 0xCD, size < 1 << 20 ? size : 1 << 20);
  return start;
}

int double_malloc(size_t size, void **pointer) {
  ready();
  *pointer = NULL;
  if (strict_captures) return CAPTURE_UNSUPPORTED;
  bound = 1;
  if (!size) return 0;
  pthread_mutex_lock(&lock);
  int fits = size <= gpu_memory() - used[current];
  if (fits) used[current] += size;
  pthread_mutex_unlock(&lock);
  if (!fits || !(*pointer = new_memory(size))) return OUT_OF_MEMORY;
  return add_block(*pointer, size, current, 1);
}

int double_free(void *pointer) {
  bound = 1;
  return !pointer || remove_block(pointer, 1, 1) ? 0 : INVALID_VALUE;
}

int double_memory(size_t *unused, size_t *total) {
  bound = 1;
  *total = gpu_memory();
  *unused = *total - used[current];
  return 0;
}

int double_host_alloc(size_t size, void **pointer) {
  *pointer = size ? new_memory(size) : NULL;
  if (size && !*pointer) return OUT_OF_MEMORY;
  return size ? add_block(*pointer, size, -1, 1) : 0;
}

int double_host_free(void *pointer) { return !pointer || remove_block(pointer, 0, 1) ? 0 : INVALID_VALUE; }

int double_host_register(void *pointer, size_t size) {
  if (!pointer || !size) return INVALID_VALUE;
  return block_of(pointer) ? ALREADY_REGISTERED : add_block(pointer, size, -1, 0);
}

int double_host_unregister(void *pointer) { return remove_block(pointer, 0, 0) ? 0 : NOT_REGISTERED; }

/* -- streams -------------------------------------------------------------------------------------------------- */

static Stream *stream_of(void *handle) {
  if ((uintptr_t)handle <= 2) return &default_streams[current]; /* 0, legacy, per thread */
  pthread_mutex_lock(&lock);
  Stream *stream = streams;
  while (stream && stream != handle) stream = stream->next;
  pthread_mutex_unlock(&lock);
  return stream;
}

int double_stream_create(unsigned flags, void **handle) {
  Stream *stream = calloc(1, sizeof *stream);
  bound = 1;
  stream->device = current;
  stream->blocking = !(flags & 1);
  pthread_mutex_lock(&lock);
  stream->next = streams;
  streams = stream;
  pthread_mutex_unlock(&lock);
  *handle = stream;
  return 0;
}

int double_stream_destroy(void *handle) {
  if ((uintptr_t)handle <= 2) return INVALID_HANDLE;
  pthread_mutex_lock(&lock);
  Stream **at = &streams;
  while (*at && *at != handle) at = &(*at)->next;
  int found = *at != NULL;
  if (found) *at = (*at)->next; /* not freed: an event may still be behind it */
  pthread_mutex_unlock(&lock);
  return found ? 0 : INVALID_HANDLE;
}

/* The device of a stream, -1 when there is no such stream. */
int double_stream_device(void *handle) {
  Stream *stream = stream_of(handle);
  return stream ? stream->device : -1;
}

/* An operation in the stream never completes: whatever follows waits, until it is aborted or patience ends. */
void double_stick(void *handle) {
  Stream *stream = stream_of(handle);
  if (stream && !stream->stuck_since) stream->stuck_since = now();
}

void double_unstick(void *handle) {
  Stream *stream = stream_of(handle);
  if (stream) stream->stuck_since = 0;
}

int double_is_stuck(void *handle) {
  Stream *stream = stream_of(handle);
  return stream && stream->stuck_since != 0;
}

static int state_of(Stream *stream) {
  volatile double *since = &stream->stuck_since;
  if (!*since) return 0;
  return now() - *since > patience ? LAUNCH_FAILED : NOT_READY;
}

static int wait_for(Stream *stream) {
  int code;
  while ((code = state_of(stream)) == NOT_READY) usleep(1000);
  return code;
}

/* Calls that a capture forbids in its thread, or on its stream, also spoil it. */
static int refuse(Stream *stream) {
  if (!stream->capturing) return strict_captures ? CAPTURE_UNSUPPORTED : 0;
  stream->invalidated = 1;
  return CAPTURE_UNSUPPORTED;
}

int cuStreamSynchronize(void *handle) {
  Stream *stream = stream_of(handle);
  int code;
  if (!bound) return INVALID_CONTEXT;
  if (!stream) return INVALID_HANDLE;
  return (code = refuse(stream)) ? code : wait_for(stream);
}

int cuStreamQuery(void *handle) {
  Stream *stream = stream_of(handle);
  int code;
  if (!bound) return INVALID_CONTEXT;
  if (!stream) return INVALID_HANDLE;
  return (code = refuse(stream)) ? code : state_of(stream);
}

int double_synchronize(void) {
  if (strict_captures) return CAPTURE_UNSUPPORTED;
  bound = 1;
  for (Stream *stream = streams; stream; stream = stream->next)
    if (stream->device == current) {
      int code = wait_for(stream);
      if (code) return code;
    }
  return 0;
}

/* -- graphs --------------------------------------------------------------------------------------------------- */

static Graph *new_graph(void) {
  Graph *graph = calloc(1, sizeof *graph);
  graph->last = &graph->first;
  pthread_mutex_lock(&lock);
  graph->next = graphs;
  graphs = graph;
  pthread_mutex_unlock(&lock);
  return graph;
}

static Graph *graph_of(void *handle, int is_executable) {
  pthread_mutex_lock(&lock);
  Graph *graph = graphs;
  while (graph && !(graph == handle && graph->is_executable == is_executable)) graph = graph->next;
  pthread_mutex_unlock(&lock);
  return graph;
}

/* While the stream captures: keep the action for the graph and return 1. Otherwise 0; -1 when there is no such
 * stream. `argument` lives as long as the process. */
int double_capture(void *handle, Action action, void *argument) {
  Stream *stream = stream_of(handle);
  if (!stream) return -1;
  if (!stream->capturing) return 0;
  Node *node = calloc(1, sizeof *node);
  node->action = action;
  node->argument = argument;
  *stream->graph->last = node;
  stream->graph->last = &node->next;
  return 1;
}

int double_begin_capture(void *handle, int mode) {
  Stream *stream = stream_of(handle);
  if (!stream) return INVALID_HANDLE;
  if ((uintptr_t)handle <= 1) return CAPTURE_UNSUPPORTED; /* the legacy stream */
  if (stream->capturing) return INVALID_VALUE;
  stream->capturing = 1;
  stream->invalidated = 0;
  stream->strict = mode != 2; /* 0 global, 1 this thread, 2 relaxed */
  strict_captures += stream->strict;
  stream->graph = new_graph();
  double_log("cudaStreamBeginCapture stream=%p mode=%d", handle, mode);
  return 0;
}

int double_end_capture(void *handle, void **graph) {
  Stream *stream = stream_of(handle);
  *graph = NULL;
  if (!stream) return INVALID_HANDLE;
  if (!stream->capturing) return CAPTURE_NOT_BEGUN;
  stream->capturing = 0;
  strict_captures -= stream->strict;
  if (stream->invalidated) return CAPTURE_INVALIDATED;
  *graph = stream->graph;
  double_log("cudaStreamEndCapture stream=%p graph=%p", handle, *graph);
  return 0;
}

int double_is_capturing(void *handle, int *status) {
  Stream *stream = stream_of(handle);
  if (!stream) return INVALID_HANDLE;
  *status = !stream->capturing ? 0 : stream->invalidated ? 2 : 1;
  return 0;
}

int double_instantiate(void *handle, void **executable) {
  Graph *graph = graph_of(handle, 0);
  if (!graph) return INVALID_VALUE;
  Graph *made = new_graph();
  made->first = graph->first;
  made->is_executable = 1;
  *executable = made;
  return 0;
}

int double_destroy_graph(void *handle, int is_executable) {
  if (!graph_of(handle, is_executable)) return INVALID_VALUE;
  pthread_mutex_lock(&lock);
  Graph **at = &graphs;
  while (*at != handle) at = &(*at)->next;
  *at = (*at)->next;
  pthread_mutex_unlock(&lock);
  free(handle);
  return 0;
}

/* Graphs, also executable ones, in which something was captured. */
int double_graphs(void) {
  int found = 0;
  pthread_mutex_lock(&lock);
  for (Graph *graph = graphs; graph; graph = graph->next) found += graph->first != NULL;
  pthread_mutex_unlock(&lock);
  return found;
}

int cuGraphLaunch(void *handle, void *to) {
  Graph *graph = graph_of(handle, 1);
  Stream *stream = stream_of(to);
  if (!bound) return INVALID_CONTEXT;
  if (!graph) return INVALID_VALUE;
  if (!stream) return INVALID_HANDLE;
  if (stream->capturing) return CAPTURE_UNSUPPORTED;
  double_log("cuGraphLaunch graph=%p stream=%p", handle, to);
  for (Node *node = graph->first; node && !stream->stuck_since; node = node->next)
    if (node->action(node->argument, to)) return LAUNCH_FAILED;
  return 0;
}

/* -- events --------------------------------------------------------------------------------------------------- */

static Event *event_of(void *handle) {
  pthread_mutex_lock(&lock);
  Event *event = events;
  while (event && event != handle) event = event->next;
  pthread_mutex_unlock(&lock);
  return event;
}

int double_event_create(unsigned flags, void **handle) {
  Event *event = calloc(1, sizeof *event);
  bound = 1;
  event->timed = !(flags & 2);
  event->device = current;
  pthread_mutex_lock(&lock);
  event->next = events;
  events = event;
  pthread_mutex_unlock(&lock);
  *handle = event;
  return 0;
}

int double_event_destroy(void *handle) {
  pthread_mutex_lock(&lock);
  Event **at = &events;
  while (*at && *at != handle) at = &(*at)->next;
  int found = *at != NULL;
  if (found) *at = (*at)->next;
  pthread_mutex_unlock(&lock);
  if (found) free(handle);
  return found ? 0 : INVALID_HANDLE;
}

int cuEventRecord(void *handle, void *in) {
  Event *event = event_of(handle);
  Stream *stream = stream_of(in);
  if (!bound) return INVALID_CONTEXT;
  if (!event || !stream || event->device != stream->device) return INVALID_HANDLE;
  event->captured = stream->capturing; /* then it is an edge of the graph and no time is taken, now or later */
  if (stream->capturing) return 0;
  event->pending = stream->stuck_since ? stream : NULL;
  event->recorded = 1;
  event->time = now();
  double_log("cuEventRecord event=%p stream=%p", handle, in);
  return 0;
}

static int event_state(Event *event) {
  if (!event) return INVALID_HANDLE;
  if (event->captured) return CAPTURED_EVENT;
  return event->pending ? state_of(event->pending) : 0;
}

int cuEventQuery(void *handle) {
  if (!bound) return INVALID_CONTEXT;
  return strict_captures ? CAPTURE_UNSUPPORTED : event_state(event_of(handle));
}

int cuEventSynchronize(void *handle) {
  int code;
  if (!bound) return INVALID_CONTEXT;
  if (strict_captures) return CAPTURE_UNSUPPORTED;
  while ((code = event_state(event_of(handle))) == NOT_READY) usleep(1000);
  return code;
}

int cuEventElapsedTime(float *milliseconds, void *start, void *end) {
  Event *from = event_of(start), *to = event_of(end);
  int code;
  if (!bound) return INVALID_CONTEXT;
  if (!from || !to || !from->timed || !to->timed || !from->recorded || !to->recorded) return INVALID_HANDLE;
  if ((code = event_state(from)) || (code = event_state(to))) return code;
  *milliseconds = (float)(1e3 * (to->time - from->time));
  return 0;
}

int double_wait_event(void *handle, void *event) {
  Stream *stream = stream_of(handle);
  Event *first = event_of(event);
  if (!stream || !first) return INVALID_HANDLE;
  if (first->pending && first->pending != stream && state_of(first->pending)) double_stick(handle);
  return 0;
}

int cuStreamWaitEvent(void *stream, void *event, unsigned flags) {
  if (!bound) return INVALID_CONTEXT;
  return flags ? INVALID_VALUE : double_wait_event(stream, event);
}

/* -- copies --------------------------------------------------------------------------------------------------- */

/* What a list like DOUBLE_RATES="h2d=25e9,d2h=20e9" or DOUBLE_COPY_FAULTS="peer=hang" says of a kind of copy, "" for
 * nothing. */
static const char *said_of(const char *kind, const char *name) {
  const char *list = getenv(name);
  size_t length = strlen(kind);
  while (list && *list) {
    if (strncmp(list, kind, length) == 0 && list[length] == '=') return list + length + 1;
    list = strchr(list, ',');
    if (list) list++;
  }
  return "";
}

static int has_fault(const char *kind, const char *fault) {
  return strncmp(said_of(kind, "DOUBLE_COPY_FAULTS"), fault, strlen(fault)) == 0;
}

static int inside(Block *block, const void *at, size_t size) {
  return !block || (size_t)((const char *)at - block->start) + size <= block->size;
}

typedef struct {
  void *to;
  const void *from;
  size_t size;
  int value;
} Move;

static const char *kind_of(Block *to, Block *from) {
  int target = to ? to->device : -1, source = from ? from->device : -1;
  if (target >= 0 && source >= 0) {
    if (target == source) return "d2d";
    return enabled[target][source] || enabled[source][target] ? "peer" : "staged";
  }
  if (target >= 0) return from ? "h2d" : "pageable_h2d";
  if (source >= 0) return to ? "d2h" : "pageable_d2h";
  return "h2h";
}

static int move(void *argument, void *stream) {
  Move *m = argument;
  (void)stream;
  double start = now();
  const char *kind = kind_of(block_of(m->to), block_of(m->from));
  double rate = strtod(said_of(kind, "DOUBLE_RATES"), NULL), until = rate > 0 ? start + (double)m->size / rate : 0;
  memmove(m->to, m->from, m->size);
  if (has_fault(kind, "wrong")) ((char *)m->to)[m->size - 1] ^= 1;
  while (now() < until)
    if (until - now() > 2e-4) usleep(100);
  return 0;
}

static int fill(void *argument, void *stream) {
  Move *m = argument;
  (void)stream;
  memset(m->to, m->value, m->size);
  return 0;
}

/* Now, or into the graph of the stream that captures, or never where the stream is stuck. */
static int enqueue(Action action, Move what, void *handle, int async) {
  Stream *stream = stream_of(handle);
  if (!stream) return INVALID_HANDLE;
  bound = 1;
  if (!async && strict_captures) return CAPTURE_UNSUPPORTED;
  if (stream->capturing) {
    Move *kept = malloc(sizeof *kept);
    *kept = what;
    double_capture(handle, action, kept);
    return 0;
  }
  if (!async) {
    int code = wait_for(stream);
    if (code) return code;
  }
  return stream->stuck_since ? 0 : action(&what, handle);
}

int double_copy(void *to, const void *from, size_t size, int kind, void *stream, int async) {
  Block *target = block_of(to), *source = block_of(from);
  int to_device = target && target->device >= 0, from_device = source && source->device >= 0;
  ready();
  if (!size) return 0;
  if (!inside(target, to, size) || !inside(source, from, size)) return INVALID_VALUE;
  if (kind != ANY_DIRECTION && kind != (from_device ? DEVICE_TO_HOST : HOST_TO_HOST) + (to_device ? HOST_TO_DEVICE : 0))
    return INVALID_VALUE;
  const char *way = kind_of(target, source);
  if (has_fault(way, "hang")) double_stick(stream);
  if (has_fault(way, "die")) raise(SIGSEGV);
  double_log("copy_%s bytes=%zu stream=%p device=%d", way, size, stream, double_stream_device(stream));
  return enqueue(move, (Move){to, from, size, 0}, stream, async);
}

int double_copy_peer(void *to, int to_device, const void *from, int from_device, size_t size, void *stream, int async) {
  Block *target = block_of(to), *source = block_of(from);
  if (!target || !source || target->device != to_device || source->device != from_device) return INVALID_VALUE;
  return double_copy(to, from, size, DEVICE_TO_DEVICE, stream, async);
}

int double_fill(void *to, int value, size_t size, void *stream, int async) {
  Block *target = block_of(to);
  if (!size) return 0;
  if (!target || !inside(target, to, size)) return INVALID_VALUE;
  return enqueue(fill, (Move){to, NULL, size, value}, stream, async);
}

int cuMemcpyHtoD_v2(void *to, const void *from, size_t size) {
  return bound ? double_copy(to, from, size, HOST_TO_DEVICE, NULL, 0) : INVALID_CONTEXT;
}
int cuMemcpyDtoH_v2(void *to, const void *from, size_t size) {
  return bound ? double_copy(to, from, size, DEVICE_TO_HOST, NULL, 0) : INVALID_CONTEXT;
}
int cuMemcpyDtoD_v2(void *to, const void *from, size_t size) {
  return bound ? double_copy(to, from, size, DEVICE_TO_DEVICE, NULL, 0) : INVALID_CONTEXT;
}
int cuMemcpyAsync(void *to, const void *from, size_t size, void *stream) {
  return bound ? double_copy(to, from, size, ANY_DIRECTION, stream, 1) : INVALID_CONTEXT;
}
int cuMemcpyHtoDAsync_v2(void *to, const void *from, size_t size, void *stream) {
  return bound ? double_copy(to, from, size, HOST_TO_DEVICE, stream, 1) : INVALID_CONTEXT;
}
int cuMemcpyDtoHAsync_v2(void *to, const void *from, size_t size, void *stream) {
  return bound ? double_copy(to, from, size, DEVICE_TO_HOST, stream, 1) : INVALID_CONTEXT;
}
int cuMemcpyDtoDAsync_v2(void *to, const void *from, size_t size, void *stream) {
  return bound ? double_copy(to, from, size, DEVICE_TO_DEVICE, stream, 1) : INVALID_CONTEXT;
}

/* A context is a place in this array; the one of device k is its primary one. */
static char contexts[MOST_GPUS];

int cuCtxGetCurrent(void **context) {
  *context = bound ? &contexts[current] : NULL;
  return initialized ? 0 : NOT_INITIALIZED;
}

int cuMemcpyPeerAsync(void *to, void *context, const void *from, void *other, size_t size, void *stream) {
  if (!bound) return INVALID_CONTEXT;
  return double_copy_peer(to, (int)((char *)context - contexts), from, (int)((char *)other - contexts), size, stream, 1);
}

/* -- the driver itself ---------------------------------------------------------------------------------------- */

int cuInit(unsigned flags) {
  ready();
  if (flags) return INVALID_VALUE;
  if (!visible_count) return NO_DEVICE;
  initialized = 1;
  return 0;
}

int cuDriverGetVersion(int *version) {
  ready();
  *version = driver_version;
  return 0;
}

int cuDeviceGetCount(int *count) {
  ready();
  *count = visible_count;
  return initialized ? 0 : NOT_INITIALIZED;
}

int cuDeviceGet(int *device, int index) {
  ready();
  *device = index;
  return !initialized ? NOT_INITIALIZED : index < 0 || index >= visible_count ? INVALID_DEVICE : 0;
}

int cuDeviceGetName(char *name, int size, int device) {
  Properties found;
  if (!initialized || double_properties(device, &found)) return initialized ? INVALID_DEVICE : NOT_INITIALIZED;
  snprintf(name, (size_t)size, "%s", found.name);
  return 0;
}

int cuDeviceGetUuid_v2(unsigned char uuid[16], int device) {
  Properties found;
  if (!initialized || double_properties(device, &found)) return initialized ? INVALID_DEVICE : NOT_INITIALIZED;
  memcpy(uuid, found.uuid, 16);
  return 0;
}

int cuDeviceGetUuid(unsigned char uuid[16], int device) { return cuDeviceGetUuid_v2(uuid, device); }

int cuDeviceCanAccessPeer(int *can, int device, int peer) {
  return initialized ? double_can_access(device, peer, can) : NOT_INITIALIZED;
}

int cuGetErrorName(int code, const char **name) {
  static const struct {
    int code;
    const char *name;
  } names[] = {{0, "CUDA_SUCCESS"}, {1, "CUDA_ERROR_INVALID_VALUE"}, {2, "CUDA_ERROR_OUT_OF_MEMORY"},
               {3, "CUDA_ERROR_NOT_INITIALIZED"}, {100, "CUDA_ERROR_NO_DEVICE"}, {101, "CUDA_ERROR_INVALID_DEVICE"},
               {201, "CUDA_ERROR_INVALID_CONTEXT"}, {400, "CUDA_ERROR_INVALID_HANDLE"}, {600, "CUDA_ERROR_NOT_READY"},
               {719, "CUDA_ERROR_LAUNCH_FAILED"}, {900, "CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED"}};
  *name = NULL;
  for (size_t k = 0; k < sizeof names / sizeof *names; k++)
    if (names[k].code == code) *name = names[k].name;
  return *name ? 0 : INVALID_VALUE;
}

int cuGetErrorString(int code, const char **text) { return cuGetErrorName(code, text); }

/* -- the driver's own spelling of what CuPy asks the runtime for ------------------------------------------------ */

int cuDeviceGetPCIBusId(char *bus, int size, int device) {
  Properties found;
  if (!initialized || double_properties(device, &found)) return initialized ? INVALID_DEVICE : NOT_INITIALIZED;
  snprintf(bus, (size_t)size, "%s", found.pci);
  return 0;
}

int cuDeviceGetAttribute(int *value, int attribute, int device) {
  Properties found;
  if (!initialized || double_properties(device, &found)) return initialized ? INVALID_DEVICE : NOT_INITIALIZED;
  *value = attribute == 38 ? found.l2 : 0; /* CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE */
  return attribute == 38 ? 0 : INVALID_VALUE;
}

/* What follows needs a current context, which the runtime makes: an order that the real driver insists on. */
int cuMemGetInfo_v2(size_t *unused, size_t *total) { return bound ? double_memory(unused, total) : INVALID_CONTEXT; }
int cuCtxSynchronize(void) { return bound ? double_synchronize() : INVALID_CONTEXT; }
int cuStreamCreate(void **stream, unsigned flags) { return bound ? double_stream_create(flags, stream) : INVALID_CONTEXT; }
int cuEventCreate(void **event, unsigned flags) { return bound ? double_event_create(flags, event) : INVALID_CONTEXT; }
int cuStreamBeginCapture_v2(void *stream, int mode) { return double_begin_capture(stream, mode); }
int cuStreamEndCapture(void *stream, void **graph) { return double_end_capture(stream, graph); }

int cuGraphInstantiateWithFlags(void **executable, void *graph, unsigned long long flags) {
  return flags ? INVALID_VALUE : double_instantiate(graph, executable);
}

int cuGraphDestroy(void *graph) { return double_destroy_graph(graph, 0); }
int cuGraphExecDestroy(void *executable) { return double_destroy_graph(executable, 1); }
