// Copies between tensors, on one device or between the host and a GPU; and zeros.
#pragma once

#include "src/device/stream.h"
#include "src/device/tensor.h"

namespace tandem {

// to = from, bit by bit; equal dtypes and sizes. In the order of the stream; on a compute stream of
// the CPU at once. The host may let go of both tensors right away, except of pinned ones: those
// must live and keep their contents until the stream got here.
void copy(Stream& stream, const Tensor& from, const Tensor& to);

// All bits zero, in the order of the stream.
void zero(Stream& stream, const Tensor& tensor);

// A copy in `memory`; blocks the host until it is there. On a dry stream, which copies nothing,
// zeros: for hosts that read what they do not use.
Tensor copied(Stream& stream, const Tensor& from, Memory& memory);

}  // namespace tandem
