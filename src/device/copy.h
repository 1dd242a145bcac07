// Copies between tensors, on one device or between the host and a GPU; and zeros.
#pragma once

#include "src/device/stream.h"
#include "src/device/tensor.h"

namespace tandem {

// to = from, bit by bit; dtypes and sizes must be equal. The copy runs in stream order; a compute
// stream of the CPU copies at once. The host may free both tensors after the call, unless one is
// pinned: a pinned tensor must live and keep its contents until the stream has done the copy.
void copy(Stream& stream, const Tensor& from, const Tensor& to);

// All bits zero, in the order of the stream.
void zero(Stream& stream, const Tensor& tensor);

// Returns a copy in `memory`; blocks the host until it is complete. A dry stream copies nothing:
// the result is zeros, so that host code may still read it.
Tensor copied(Stream& stream, const Tensor& from, Memory& memory);

}  // namespace tandem
