// A micro-batch in the memory that kernels read.
#pragma once

#include "src/device/tensor.h"

namespace tandem {

struct DeviceBatch {
  Tensor input;        // tokens i32 [B, T], or images of the compute dtype [B, H, W, C]
  Tensor targets;      // i32 [B * T] or [B]; -1: no target
  Tensor positions{};  // i32 [B, T]: Context::positions
};

}  // namespace tandem
