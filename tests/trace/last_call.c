// Notes the tag of the newest message of a tandem rank that is not one of the roll call, in the file LAST_CALL-RANK. tandem's tags
// hold the number and the kind of a collective (comm/transport/mpi_wire.cpp). The file is memory: it outlives a killed rank.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

static void note(int tag) {
  static volatile int* last;
  if (last == NULL) {
    char path[4096];
    snprintf(path, sizeof path, "%s-%s", getenv("LAST_CALL"), getenv("OMPI_COMM_WORLD_RANK"));
    int file = open(path, O_RDWR | O_CREAT, 0600);
    if (file < 0 || ftruncate(file, sizeof *last) != 0) abort();
    last = mmap(NULL, sizeof *last, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    if (last == MAP_FAILED) abort();
  }
  if (tag < 32766) *last = tag;
}

int MPI_Isend(const void* data, int count, MPI_Datatype type, int to, int tag, MPI_Comm comm, MPI_Request* request) {
  note(tag);
  return PMPI_Isend(data, count, type, to, tag, comm, request);
}

int MPI_Irecv(void* data, int count, MPI_Datatype type, int from, int tag, MPI_Comm comm, MPI_Request* request) {
  note(tag);
  return PMPI_Irecv(data, count, type, from, tag, comm, request);
}
