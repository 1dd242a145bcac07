// Times the algorithms of cuBLASLt for given products on the GPU in use, and keeps the fastest.
// Only builds with CUDA have it; it needs neither MPI nor HDF5.
#pragma once

#include <functional>

#include "src/device/stream.h"
#include "src/product/plan_table.h"

namespace tandem {

// Told about each product once it has been timed. `row` is null if every algorithm was refused.
using TuneProgress = std::function<void(const ProductKey& key, const PlanTable::Row* row)>;

// A table with a row for each product, and for each of them without its last step. Operands are
// random, because a GPU is faster on zeros, and lie at addresses with just these alignments.
// A time is the median of several runs; of equally fast algorithms the library's earlier suggestion
// is kept.
//
// The stream is a CUDA stream, and blocks the host. Error kOutOfMemory if the operands of one
// product do not fit.
PlanTable tune_products(const Stream& stream, const ProductSet& products,
                        const TuneProgress& progress);

// Throws Error(kConfig), with `origin` in its line, unless the table was made with the cuBLASLt and
// on the kind of GPU that this process uses.
void require_fitting(const PlanTable& table, const std::string& origin);

}  // namespace tandem
