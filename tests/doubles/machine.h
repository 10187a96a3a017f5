/* The GPUs of the simulated machine, as cuda.c and nvml.c both describe them. Knobs: see __init__.py. */
#ifndef MACHINE_H
#define MACHINE_H

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_GPUS = 16 };

static inline const char *knob(const char *name, const char *usual) {
  const char *value = getenv(name);
  return value && *value ? value : usual;
}

static inline double number(const char *name, double usual) {
  const char *value = getenv(name);
  return value && *value ? strtod(value, NULL) : usual;
}

static inline int gpus_installed(void) {
  int count = (int)number("DOUBLE_GPUS", 2);
  return count < 0 ? 0 : count > MOST_GPUS ? MOST_GPUS : count;
}

/* MIG: every "GPU" is an instance of the one card, with a UUID of its own and the card's bus id. */
static inline int is_mig(void) { return number("DOUBLE_MIG", 0) != 0; }

/* The k-th model of the list; the last one again where the list is shorter. */
static inline void gpu_name(int gpu, char *name, size_t size) {
  const char *from = knob("DOUBLE_GPU_MODELS", "NVIDIA H100 80GB HBM3");
  for (int k = 0; k < gpu && strchr(from, ','); k++) from = strchr(from, ',') + 1;
  snprintf(name, size, "%.*s", (int)strcspn(from, ","), from);
}

/* Odd GPUs have a zero byte inside, as one real UUID in sixteen has: a C string ends there. */
static inline void gpu_uuid(int gpu, unsigned char uuid[16]) {
  for (int k = 0; k < 16; k++) uuid[k] = (unsigned char)(0x5b + 38 * k + 102 * gpu) | 1;
  if (gpu % 2) uuid[5] = 0;
}

static inline void uuid_text(const char *prefix, int gpu, char *text, size_t size) {
  unsigned char u[16];
  gpu_uuid(gpu, u);
  snprintf(text, size, "%s-%02x%02x%02x%02x-%02x%02x-%02x%02x-%02x%02x-%02x%02x%02x%02x%02x%02x", prefix, u[0], u[1], u[2],
           u[3], u[4], u[5], u[6], u[7], u[8], u[9], u[10], u[11], u[12], u[13], u[14], u[15]);
}

static inline int pci_bus(int gpu) { return 0x1b + 0x0c * (is_mig() ? 0 : gpu); }

static inline unsigned long long gpu_memory(void) { return (unsigned long long)number("DOUBLE_GPU_MEMORY", 4294967296.0); }

#endif
