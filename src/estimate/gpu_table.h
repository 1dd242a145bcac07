// What GPUs do by their data sheets, and the networks of the machines that they come in.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

#include "comm/transport/dry_collectives.h"
#include "src/core/dtype.h"

namespace tandem {

struct GpuModel {
  std::string_view name;       // as users type it: "a100-40"
  std::string_view cuda_name;  // part of CUDA's: "A100"
  int64_t memory_bytes = 0;
  double f32_flops = 0, half_flops = 0;  // dense peaks, FLOP/s; f32 without TF32
  double bytes_per_s = 0;                // of its memory
  Network network;                       // what NCCL reaches on EC2's nodes of eight

  double peak_flops(DType dtype) const { return dtype == DType::kF32 ? f32_flops : half_flops; }
};

std::span<const GpuModel> gpu_models();
// By part of CUDA's name; null for one that is not listed.
const GpuModel* gpu_with_cuda_name(std::string_view cuda_name);

}  // namespace tandem
