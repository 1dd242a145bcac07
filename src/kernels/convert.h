// Copies between tensors of different floating dtypes.
#pragma once

#include "src/device/stream.h"
#include "src/device/tensor.h"

namespace tandem {

// to[i] = from[i], rounded to nearest. One dtype is f32, the other f32, bf16 or fp16. Both tensors
// are on the stream's device; the copy is enqueued on the stream.
void convert(const Stream& stream, const Tensor& from, const Tensor& to);

// to = from, rounded to nearest in to's dtype. `from` is f32 in host memory that is not pinned. The
// copy is enqueued on the stream, which belongs to to's device.
void copy_rounded(Stream& stream, const Tensor& from, const Tensor& to);

// Returns an f32 copy of `from`, which is f32, bf16 or fp16, in `host`, memory of the CPU. Blocks
// the host until it is complete.
Tensor copied_as_f32(Stream& stream, const Tensor& from, Memory& host);

}  // namespace tandem
