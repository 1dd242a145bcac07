// GPUs with the figures of their data sheets, and the networks of the machines that hold them.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

#include "comm/transport/dry_collectives.h"
#include "src/autograd/context.h"
#include "src/core/dtype.h"
#include "src/device/stream.h"

namespace tandem {

struct GpuModel {
  std::string_view name;       // as users type it: "a100-40"
  std::string_view cuda_name;  // is a word of CUDA's name: "A100" of "NVIDIA A100-SXM4-40GB"
  int64_t memory_bytes = 0;
  double f32_flops = 0, half_flops = 0;  // dense peaks, FLOP/s; f32 without TF32
  double bytes_per_s = 0;                // of its memory
  double host_bytes_per_s[2] = {};       // each way: alone, and while the node's other GPUs copy
  Network network;                       // as NCCL uses it on EC2 nodes of 8 GPUs

  double peak_flops(DType dtype) const { return dtype == DType::kF32 ? f32_flops : half_flops; }
  // The most that programs reach for a second: of a product of 8192 x 8192 bf16 operands, and of a
  // copy.
  Speed ceilings() const;
  // What products reach in a run of hours, when the power that the GPU may take limits its clock.
  double sustained_flops(DType dtype) const;
  // What products, attention with heads of this width, and other kernels reach in training.
  Speed reached(DType dtype, AttentionKernels attention, int64_t head_width) const;
};

std::span<const GpuModel> gpu_models();
// By the name that users type; null: there is none.
const GpuModel* gpu_named(std::string_view name);
// The model whose cuda_name is a word of `cuda_name`; null when none is, and for Hopper's cards for
// PCIe, which are slower.
const GpuModel* gpu_with_cuda_name(std::string_view cuda_name);

}  // namespace tandem
