#include "src/machine/gpu_table.h"

#include <algorithm>
#include <array>

namespace tandem {

namespace {

constexpr int64_t kMiB = 1 << 20;

// P4d: 231 GB/s were measured on one node (NVIDIA/nccl#527), and 41 GB/s over four EFA adapters
// (aws-parallelcluster, test_efa.py). P5 and P5e have eight times that network. The latencies are
// those of one step of a collective, over NVLink and over EFA.
constexpr Network kP4d = {{3.4e-6, 231e9}, {20e-6, 41e9}};
constexpr Network kP5 = {{3.4e-6, 360e9}, {20e-6, 320e9}};

// name, cuda_name, memory_bytes, f32_flops, half_flops, bytes_per_s, network
constexpr std::array<GpuModel, 4> kModels = {{
    {"a100-40", "A100", 40960 * kMiB, 19.5e12, 312e12, 1.555e12, kP4d},
    {"a100-80", "A100", 81920 * kMiB, 19.5e12, 312e12, 2.039e12, kP4d},
    {"h100", "H100", 81920 * kMiB, 67e12, 989e12, 3.35e12, kP5},
    {"h200", "H200", 144384 * kMiB, 67e12, 989e12, 4.8e12, kP5},
}};

// Shares of the data sheet. On an H200 769 to 798 TFLOP/s were measured on random data, and a copy
// at 4.3 TB/s; for an A100 270 TFLOP/s and 1.35 TB/s of 1.555 are assumed.
constexpr double kHopperProducts = 790.0 / 989, kHopperCopy = 4.3 / 4.8;
constexpr double kAmpereProducts = 270.0 / 312, kAmpereCopy = 1.35 / 1.555;

}  // namespace

Speed GpuModel::ceilings() const {
  const bool hopper = cuda_name.starts_with("H");
  return {.flops_per_s = half_flops * (hopper ? kHopperProducts : kAmpereProducts),
          .bytes_per_s = bytes_per_s * (hopper ? kHopperCopy : kAmpereCopy)};
}

std::span<const GpuModel> gpu_models() { return kModels; }

const GpuModel* gpu_named(std::string_view name) {
  const auto found = std::ranges::find(kModels, name, &GpuModel::name);
  return found == kModels.end() ? nullptr : &*found;
}

const GpuModel* gpu_with_cuda_name(std::string_view cuda_name) {
  const auto found = std::ranges::find_if(kModels, [&](const GpuModel& gpu) {
    return cuda_name.find(gpu.cuda_name) != std::string_view::npos;
  });
  return found == kModels.end() ? nullptr : &*found;
}

}  // namespace tandem
