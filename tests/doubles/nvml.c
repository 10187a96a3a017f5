/* libnvidia-ml.so.1: what NVIDIA's management library says about the simulated GPUs, as nvml.h declares it.
 *
 * CUDA_VISIBLE_DEVICES means nothing here, as in reality. Knobs: see __init__.py. */
#include <stdint.h>

#include "machine.h"

enum {
  SUCCESS,
  UNINITIALIZED,
  INVALID_ARGUMENT,
  NOT_SUPPORTED,
  NOT_FOUND = 6,
  INSUFFICIENT_SIZE = 7,
  DRIVER_NOT_LOADED = 9,
  FUNCTION_NOT_FOUND = 13
};

typedef struct {
  int index;
} Device;

typedef struct { /* nvmlPciInfo_t */
  char bus_id_legacy[16];
  unsigned domain, bus, device, pci_device_id, pci_subsystem_id;
  char bus_id[32];
} PciInfo;

typedef struct { /* nvmlMemory_t */
  unsigned long long total, free, used;
} Memory;

typedef struct { /* nvmlProcessInfo_t of version 2 and 3 */
  unsigned pid;
  unsigned long long memory;
  unsigned gpu_instance, compute_instance;
} Process;

static Device devices[MOST_GPUS];
static int users, asked;

static int count(void) { return is_mig() && gpus_installed() ? 1 : gpus_installed(); }

static int bad(const Device *device) {
  return users <= 0 ? UNINITIALIZED : device < devices || device >= devices + count() ? INVALID_ARGUMENT : SUCCESS;
}

static int say(const char *text, char *to, unsigned size) {
  if (strlen(text) >= size) return INSUFFICIENT_SIZE;
  strcpy(to, text);
  return SUCCESS;
}

int nvmlInit_v2(void) {
  if (number("DOUBLE_NVML_NO_DRIVER", 0)) return DRIVER_NOT_LOADED;
  for (int k = 0; k < MOST_GPUS; k++) devices[k].index = k;
  users++;
  return SUCCESS;
}

int nvmlInit(void) { return nvmlInit_v2(); }
int nvmlInitWithFlags(unsigned flags) { return (void)flags, nvmlInit_v2(); }
int nvmlShutdown(void) { return users > 0 ? (users--, SUCCESS) : UNINITIALIZED; }

const char *nvmlErrorString(int code) {
  switch (code) {
    case SUCCESS: return "Success";
    case UNINITIALIZED: return "Uninitialized";
    case INVALID_ARGUMENT: return "Invalid Argument";
    case NOT_SUPPORTED: return "Not Supported";
    case NOT_FOUND: return "Not Found";
    case INSUFFICIENT_SIZE: return "Insufficient Size";
    case DRIVER_NOT_LOADED: return "Driver Not Loaded";
    case FUNCTION_NOT_FOUND: return "Function Not Found";
    default: return "Unknown Error";
  }
}

int nvmlSystemGetDriverVersion(char *version, unsigned size) {
  return users > 0 ? say(knob("DOUBLE_NVML_DRIVER", "575.57.08"), version, size) : UNINITIALIZED;
}

int nvmlSystemGetCudaDriverVersion_v2(int *version) {
  *version = (int)number("DOUBLE_DRIVER", 12090);
  return users > 0 ? SUCCESS : UNINITIALIZED;
}

int nvmlSystemGetCudaDriverVersion(int *version) { return nvmlSystemGetCudaDriverVersion_v2(version); }

int nvmlDeviceGetCount_v2(unsigned *found) {
  *found = (unsigned)count();
  return users > 0 ? SUCCESS : UNINITIALIZED;
}

int nvmlDeviceGetHandleByIndex_v2(unsigned index, Device **device) {
  if (users <= 0) return UNINITIALIZED;
  if (index >= (unsigned)count()) return INVALID_ARGUMENT;
  *device = &devices[index];
  return SUCCESS;
}

int nvmlDeviceGetHandleByUUID(const char *uuid, Device **device) {
  char text[64];
  for (int k = 0; users > 0 && k < count(); k++) {
    uuid_text("GPU", k, text, sizeof text);
    if (!strcmp(text, uuid)) return *device = &devices[k], SUCCESS;
  }
  return users > 0 ? NOT_FOUND : UNINITIALIZED;
}

/* "0000:1B:00.0" and "00000000:1B:00.0", in either case. */
int nvmlDeviceGetHandleByPciBusId_v2(const char *text, Device **device) {
  unsigned domain, bus, slot;
  if (users <= 0) return UNINITIALIZED;
  if (sscanf(text, "%x:%x:%x", &domain, &bus, &slot) != 3) return INVALID_ARGUMENT;
  for (int k = 0; k < count(); k++)
    if (!domain && !slot && bus == (unsigned)pci_bus(k)) return *device = &devices[k], SUCCESS;
  return NOT_FOUND;
}

int nvmlDeviceGetIndex(Device *device, unsigned *index) {
  if (bad(device)) return bad(device);
  *index = (unsigned)device->index;
  return SUCCESS;
}

int nvmlDeviceGetName(Device *device, char *name, unsigned size) {
  char text[256];
  if (bad(device)) return bad(device);
  gpu_name(device->index, text, sizeof text);
  return say(text, name, size);
}

int nvmlDeviceGetUUID(Device *device, char *uuid, unsigned size) {
  char text[64];
  if (bad(device)) return bad(device);
  uuid_text("GPU", device->index, text, sizeof text);
  return say(text, uuid, size);
}

int nvmlDeviceGetPciInfo_v3(Device *device, PciInfo *info) {
  if (bad(device)) return bad(device);
  memset(info, 0, sizeof *info);
  info->bus = (unsigned)pci_bus(device->index);
  info->pci_device_id = 0x233010de;
  snprintf(info->bus_id, sizeof info->bus_id, "%08X:%02X:00.0", 0, info->bus);
  snprintf(info->bus_id_legacy, sizeof info->bus_id_legacy, "%04X:%02X:00.0", 0, info->bus & 255);
  return SUCCESS;
}

int nvmlDeviceGetClockInfo(Device *device, int type, unsigned *mhz) {
  if (bad(device)) return bad(device);
  *mhz = (unsigned)(type == 2 ? 2619 : number("DOUBLE_NVML_SM_CLOCK", 1755)); /* 0 graphics, 1 SM, 2 memory */
  return SUCCESS;
}

int nvmlDeviceGetMaxClockInfo(Device *device, int type, unsigned *mhz) {
  if (bad(device)) return bad(device);
  *mhz = type == 2 ? 2619 : 1980;
  return SUCCESS;
}

/* The mask, always or for the first so many questions of this process. */
int nvmlDeviceGetCurrentClocksThrottleReasons(Device *device, unsigned long long *reasons) {
  if (bad(device)) return bad(device);
  double first = number("DOUBLE_NVML_REASONS_FIRST", -1);
  *reasons = first < 0 || asked++ < first ? strtoull(knob("DOUBLE_NVML_REASONS", "0"), NULL, 0) : 0;
  return SUCCESS;
}

/* The newer name; drivers before 535 do not have it. */
int nvmlDeviceGetCurrentClocksEventReasons(Device *device, unsigned long long *reasons) {
  return number("DOUBLE_NVML_OLD", 0) ? FUNCTION_NOT_FOUND : nvmlDeviceGetCurrentClocksThrottleReasons(device, reasons);
}

int nvmlDeviceGetMigMode(Device *device, unsigned *current, unsigned *pending) {
  if (bad(device)) return bad(device);
  *current = *pending = (unsigned)is_mig();
  return SUCCESS;
}

/* Index 2 is NVLink. Without peer access the driver of a consumer card answers "chipset not supported" (1). */
int nvmlDeviceGetP2PStatus(Device *device, Device *peer, int index, int *status) {
  if (bad(device) || bad(peer)) return bad(device) ? bad(device) : bad(peer);
  if (device == peer) return INVALID_ARGUMENT;
  *status = !number("DOUBLE_PEER_ACCESS", 1) ? 1 : index == 2 && !number("DOUBLE_NVLINK", 1) ? 5 : 0;
  return SUCCESS;
}

int nvmlDeviceGetTemperature(Device *device, int sensor, unsigned *degrees) {
  (void)sensor;
  if (bad(device)) return bad(device);
  *degrees = 41;
  return SUCCESS;
}

typedef struct { /* nvmlTemperature_v1_t, which newer pynvml asks with */
  unsigned version;
  int sensor, degrees;
} Temperature;

int nvmlDeviceGetTemperatureV(Device *device, Temperature *temperature) {
  temperature->degrees = 41;
  return bad(device);
}

int nvmlDeviceGetPowerUsage(Device *device, unsigned *milliwatts) {
  *milliwatts = 118000;
  return bad(device);
}

int nvmlDeviceGetPersistenceMode(Device *device, int *mode) {
  *mode = (int)number("DOUBLE_NVML_PERSISTENCE", 1);
  return bad(device);
}

int nvmlDeviceGetEccMode(Device *device, int *current, int *pending) {
  *current = *pending = 1;
  return bad(device);
}

int nvmlDeviceGetMemoryInfo(Device *device, Memory *memory) {
  if (bad(device)) return bad(device);
  *memory = (Memory){gpu_memory(), gpu_memory(), 0};
  return SUCCESS;
}

/* DOUBLE_NVML_PROCESSES is "PID:BYTES,...", on every GPU. */
int nvmlDeviceGetComputeRunningProcesses_v3(Device *device, unsigned *found, Process *processes) {
  unsigned room = *found, k = 0;
  if (bad(device)) return bad(device);
  for (const char *at = getenv("DOUBLE_NVML_PROCESSES"); at && *at; k++) {
    char *end;
    Process one = {(unsigned)strtoul(at, &end, 10), 0, 0xffffffff, 0xffffffff};
    if (*end == ':') one.memory = strtoull(end + 1, &end, 10);
    if (processes && k < room) processes[k] = one;
    at = *end == ',' ? end + 1 : NULL;
  }
  *found = k;
  return k > room ? INSUFFICIENT_SIZE : SUCCESS;
}
