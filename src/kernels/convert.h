// Copies between tensors of different floating dtypes.
#pragma once

#include "src/device/stream.h"
#include "src/device/tensor.h"

namespace tandem {

// to[i] = from[i], rounded to the nearest: between f32 and f32, bf16 or fp16, either way. Both on
// the stream's device, in its order.
void convert(const Stream& stream, const Tensor& from, const Tensor& to);

// to = from, f32 in host memory that is not pinned, rounded to the nearest of to's dtype. In the
// order of the stream, of to's device.
void copy_rounded(Stream& stream, const Tensor& from, const Tensor& to);

}  // namespace tandem
