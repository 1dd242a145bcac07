// Plants causes of slow steps in `tandem train`, which test_planted_causes.py starts with this library preloaded.
//
//   PLANT_KERNEL_US    a parallel kernel takes this long on top, without a processor: it runs on a timed device
//   PLANT_READ_US      so does a read of the loader's thread
//   PLANT_SYNC_US      so does an fsync in the folder checkpoints
//   PLANT_FACTOR       kernels take so many times as long
//   PLANT_RANK         reads, fsyncs and the factor concern this rank alone
#define _GNU_SOURCE
#include <dlfcn.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/types.h>
#include <unistd.h>

static double number(const char* name, double otherwise) {
  const char* text = getenv(name);
  return text == NULL ? otherwise : atof(text);
}

static int planted(void) {
  const char *wanted = getenv("PLANT_RANK"), *rank = getenv("OMPI_COMM_WORLD_RANK");
  return wanted == NULL || (rank != NULL && strcmp(wanted, rank) == 0);
}

static void take(const char* name, double factor) { usleep((useconds_t)(factor * number(name, 0))); }

void GOMP_parallel(void (*body)(void*), void* data, unsigned threads, unsigned flags) {
  void (*real)(void (*)(void*), void*, unsigned, unsigned) = dlsym(RTLD_NEXT, "GOMP_parallel");
  take("PLANT_KERNEL_US", planted() ? number("PLANT_FACTOR", 1) : 1);
  real(body, data, threads, flags);
}

ssize_t pread(int file, void* into, size_t count, off_t at) {
  ssize_t (*real)(int, void*, size_t, off_t) = dlsym(RTLD_NEXT, "pread");
  if (planted() && gettid() != getpid()) take("PLANT_READ_US", 1);
  return real(file, into, count, at);
}

int fsync(int file) {
  int (*real)(int) = dlsym(RTLD_NEXT, "fsync");
  char link[64], path[PATH_MAX] = "";
  snprintf(link, sizeof link, "/proc/self/fd/%d", file);
  if (planted() && readlink(link, path, sizeof path - 1) > 0 && strstr(path, "/checkpoints")) take("PLANT_SYNC_US", 1);
  return real(file);
}
