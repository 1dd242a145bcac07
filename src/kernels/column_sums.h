// Sums over the rows of a [rows, columns] matrix, in two stages: first over chunks of rows, then
// over the chunks. The second stage is one launch for many matrices. On a CPU there is one chunk.
// The order of all additions depends only on the shape, so the bits are the same on every GPU and
// for every number of threads.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>

#include "src/device/dispatch.h"

namespace tandem {

// The chunks of a GPU. They are long enough that their sums are small beside the matrix. There are
// about 2048 blocks of 256 columns, and at most 1024 chunks.
struct ColumnChunks {
  int64_t chunk_rows, chunks;

  ColumnChunks(int64_t rows, int64_t columns)
      : chunk_rows(std::max({int64_t{64}, 8192 / columns, (rows + 1023) / 1024,
                             (rows * ((columns + 255) / 256) + 2047) / 2048})),
        chunks((rows + chunk_rows - 1) / chunk_rows) {}
};

// The sums over the chunks of one matrix, and where they belong.
template <class W>
struct PartialRows {
  const W* partial;  // [chunks, columns]
  W* total;          // [columns]
  int64_t chunks, columns;
  W beta;  // 0: total is overwritten; 1: it is added to
};

namespace kernels {

int64_t row_chunks(Device device, int64_t rows, int64_t columns);

// The first stage. partial [row_chunks, columns]; T is f32, f64 (on the CPU), bf16 or fp16.
template <class T>
void sum_rows(Cpu, const T* matrix, Wide<T>* partial, int64_t rows, int64_t columns);
template <class T>
void sum_rows(Cuda, const T* matrix, Wide<T>* partial, int64_t rows, int64_t columns);

// The second stage: total[c] = beta * total[c] + sum over i of partial[i, c], for each of `sums`.
// Their totals are different memory. W is float or double (on the CPU).
template <class W>
void add_partial_rows(Cpu, std::span<const PartialRows<W>> sums);
template <class W>
void add_partial_rows(Cuda, std::span<const PartialRows<W>> sums);

}  // namespace kernels
}  // namespace tandem
