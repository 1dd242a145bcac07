#include "src/machine/gpu_table.h"

#include <algorithm>
#include <array>

#include "layers/attention/attention.h"

namespace tandem {

namespace {

constexpr int64_t kMiB = 1 << 20;

// P4d: 231 GB/s were measured on one node (NVIDIA/nccl#527), and 41 GB/s over four EFA adapters
// (aws-parallelcluster, test_efa.py). P5 and P5e have eight times that network. The latencies are
// those of one step of a collective, over NVLink and over EFA.
constexpr Network kP4d = {{3.4e-6, 231e9}, {20e-6, 41e9}};
constexpr Network kP5 = {{3.4e-6, 360e9}, {20e-6, 320e9}};
// Without NVLink, messages cross the host's memory: 10 GB/s are assumed, and 0.8 of the 100 Gbit/s
// (400 for g6e) of a node, as on P4d.
constexpr Network kG5 = {{10e-6, 10e9}, {20e-6, 10e9}}, kG6e = {{10e-6, 10e9}, {20e-6, 40e9}};

// Assumed for PCIe 4 and 5 with 16 lanes. On a P4d node two GPUs share a switch.
constexpr double kPcie4[] = {25e9, 12e9}, kPcie5[] = {50e9, 50e9};

// name, cuda_name, memory_bytes, f32_flops, half_flops, bytes_per_s, host_bytes_per_s, network
constexpr std::array<GpuModel, 7> kModels = {{
    {"a100-40", "A100", 40960 * kMiB, 19.5e12, 312e12, 1.555e12, {kPcie4[0], kPcie4[1]}, kP4d},
    {"a100-80", "A100", 81920 * kMiB, 19.5e12, 312e12, 2.039e12, {kPcie4[0], kPcie4[1]}, kP4d},
    {"h100", "H100", 81920 * kMiB, 67e12, 989e12, 3.35e12, {kPcie5[0], kPcie5[1]}, kP5},
    {"h200", "H200", 144384 * kMiB, 67e12, 989e12, 4.8e12, {kPcie5[0], kPcie5[1]}, kP5},
    {"a10g", "A10G", 22888 * kMiB, 35e12, 70e12, 0.6e12, {kPcie4[0], kPcie4[1]}, kG5},
    {"l4", "L4", 22888 * kMiB, 30.3e12, 121e12, 0.3e12, {kPcie4[0], kPcie4[1]}, kG5},
    {"l40s", "L40S", 45776 * kMiB, 91.6e12, 362e12, 0.864e12, {kPcie4[0], kPcie4[1]}, kG6e},
}};

// What GPUs of a generation reach.
struct Generation {
  // Shares of the data sheet: products in short bursts, a copy, products in a long run.
  double products, copy, sustained;
  // FLOP/s of attention, forward and backward together (7 products of the causal half), with heads
  // of up to 64 and of up to 128, without the time of their bytes.
  double flash[2], cudnn[2];
};

// 270 TFLOP/s and 1.35 TB/s of 1.555 are assumed. FlashAttention-2 is published with 119 and 140
// TFLOP/s at 1,024 and 2,048 tokens of width 64, and 133 at 1,024 of 128. cuDNN is taken to do the
// same.
constexpr Generation kAmpere{
    270.0 / 312, 1.35 / 1.555, 270.0 / 312, {164e12, 189e12}, {164e12, 189e12}};
// On an H200 769 to 798 TFLOP/s were measured on random data in short bursts, and a copy at 4.3
// TB/s. A long run takes all the power that a GPU may: 400 W an A100, 700 W an H100 or H200. TSMC
// states 30 % less power for the same speed at 5 nm than at 7 nm, so 700 W sustain 270 x 700 / 400
// / 0.7 = 675 TFLOP/s. FlashAttention-2 is published with 192, 232 and 221 TFLOP/s on an H100;
// cuDNN 9.19 with 288 and 334 forward at 1,024 and 2,048 of width 64 there, and on an H200 with 591
// forward and 474 backward at 4,096 of 128.
constexpr Generation kHopper{
    790.0 / 989, 4.3 / 4.8, 270.0 * 700 / 400 / 0.7 / 989, {265e12, 311e12}, {363e12, 541e12}};

// A GPU of which nothing is published that a forecast can rest on: it is taken to reach the A100's
// shares of its data sheet, and to sustain `sustained` FLOP/s of products if that is less.
constexpr Generation like_ampere(double half_flops, double sustained) {
  const double share = std::min(kAmpere.sustained, sustained / half_flops);
  const double attention = share / kAmpere.sustained * half_flops / 312e12;
  const double flash[] = {attention * kAmpere.flash[0], attention * kAmpere.flash[1]};
  return {kAmpere.products, kAmpere.copy, share, {flash[0], flash[1]}, {flash[0], flash[1]}};
}

// By power as above: an L4 has 72 W and an L40S 350 W at 5 nm. An A10G has 300 W at 8 nm for fewer
// FLOP/s than an A100, so that power does not limit it.
constexpr Generation kA10g = like_ampere(70e12, 70e12);
constexpr Generation kL4 = like_ampere(121e12, 270e12 * 72 / 400 / 0.7);
constexpr Generation kL40s = like_ampere(362e12, 270e12 * 350 / 400 / 0.7);

const Generation& generation_of(const GpuModel& gpu) {
  return gpu.cuda_name == "A10G"          ? kA10g
         : gpu.cuda_name == "L4"          ? kL4
         : gpu.cuda_name == "L40S"        ? kL40s
         : gpu.cuda_name.starts_with("H") ? kHopper
                                          : kAmpere;
}

// Products reach this share of the sustained rate: the middle between 0.72, taken for cuBLASLt's
// first heuristic, and 0.88, for measured plans. Other kernels reach this share of a copy's rate.
constexpr double kProductShare = 0.8, kMemoryShare = 0.85;
constexpr double kLaunch_s = 3e-6;
// Our kernels have the structure of FlashAttention-2 and reach 0.9 of it, but compute 9 products.
constexpr double kOurs = 0.9 * 7 / 9;
// Attention on FP32 cores reaches this share of their peak, which follows from the arithmetic of
// tiles in shared memory.
constexpr double kOnF32Cores = 0.325;

}  // namespace

Speed GpuModel::ceilings() const {
  return {.flops_per_s = half_flops * generation_of(*this).products,
          .bytes_per_s = bytes_per_s * generation_of(*this).copy};
}

double GpuModel::sustained_flops(DType dtype) const {
  const Generation& generation = generation_of(*this);
  return dtype == DType::kF32 ? f32_flops * generation.products : half_flops * generation.sustained;
}

Speed GpuModel::reached(DType dtype, AttentionKernels attention, int64_t head_width) const {
  const Generation& generation = generation_of(*this);
  const int wide = head_width > 64 ? 1 : 0;
  const double ours = kernels::attention_on_tensor_cores(dtype, head_width)
                          ? kOurs * generation.flash[wide]
                          : kOnF32Cores * f32_flops;
  return {.flops_per_s = kProductShare * sustained_flops(dtype),
          .bytes_per_s = kMemoryShare * ceilings().bytes_per_s,
          .launch_s = kLaunch_s,
          .attention_flops_per_s =
              attention == AttentionKernels::kCudnn ? generation.cudnn[wide] : ours};
}

std::span<const GpuModel> gpu_models() { return kModels; }

const GpuModel* gpu_named(std::string_view name) {
  const auto found = std::ranges::find(kModels, name, &GpuModel::name);
  return found == kModels.end() ? nullptr : &*found;
}

// "NVIDIA L40S" is no L4.
const GpuModel* gpu_with_cuda_name(std::string_view cuda_name) {
  if (cuda_name.ends_with("H100 PCIe") || cuda_name.ends_with(" NVL")) {
    return nullptr;
  }
  const auto found = std::ranges::find_if(kModels, [&](const GpuModel& gpu) {
    const size_t at = cuda_name.find(gpu.cuda_name), end = at + gpu.cuda_name.size();
    return at != std::string_view::npos &&
           (end == cuda_name.size() || cuda_name[end] == ' ' || cuda_name[end] == '-');
  });
  return found == kModels.end() ? nullptr : &*found;
}

}  // namespace tandem
