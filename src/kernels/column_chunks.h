// How a GPU cuts the rows of a [rows, columns] matrix into chunks that it sums apart:
// column_sums.cuh says how. For the size of the workspace, which every build knows.
#pragma once

#include <algorithm>
#include <cstdint>

namespace tandem {

// Chunks are so long that their sums are little beside the matrix, and 1024 at most.
struct ColumnChunks {
  int64_t chunk_rows, chunks;

  ColumnChunks(int64_t rows, int64_t columns)
      : chunk_rows(std::max({int64_t{64}, 8192 / columns, (rows + 1023) / 1024})),
        chunks((rows + chunk_rows - 1) / chunk_rows) {}
};

}  // namespace tandem
