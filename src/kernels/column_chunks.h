// How a GPU cuts the rows of a [rows, columns] matrix into chunks for a sum over rows
// (column_sums.cuh). This is a header of its own because builds without CUDA need the workspace
// size too.
#pragma once

#include <algorithm>
#include <cstdint>

namespace tandem {

// Chunks are long enough that their sums are small beside the matrix; there are at most 1024.
struct ColumnChunks {
  int64_t chunk_rows, chunks;

  ColumnChunks(int64_t rows, int64_t columns)
      : chunk_rows(std::max({int64_t{64}, 8192 / columns, (rows + 1023) / 1024})),
        chunks((rows + chunk_rows - 1) / chunk_rows) {}
};

}  // namespace tandem
