#include "comm/sharding/eight_bits/block_functions.h"
#include "src/device/global.h"
#include "src/kernels/block.cuh"

namespace tandem::kernels {

namespace {

static_assert(kBlockLanes == kWarp);
constexpr int kThreads = 256;

// The block of this thread's warp.
__device__ int64_t block_of_warp() {
  return (int64_t{blockIdx.x} * kThreads + threadIdx.x) / kWarp;
}

template <auto kKernel, class... A>
void launch_for(Cuda device, int64_t n, A... arguments) {
  if (n > 0) {
    const int64_t blocks = n / kBlockElements;
    launch<kKernel>(device, blocks_for(blocks, kThreads / kWarp), kThreads, 0, blocks,
                    arguments...);
  }
}

__global__ void make_noise_kernel(Global<const StepNumbers> numbers, uint32_t rank,
                                  Global<BlockNoise> to) {
  to.store(0, noise_of(numbers.load(0), rank));
}

template <class T>
__global__ void __launch_bounds__(kThreads)
    write_blocks_kernel(int64_t blocks, Global<const T> from, Global<const BlockNoise> noise,
                        uint64_t first, uint32_t turn, Global<int32_t> to) {
  const int64_t block = block_of_warp();
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  if (block >= blocks) {
    return;  // all of the warp does
  }
  float x[kLaneElements];
  int32_t largest = 0;
#pragma unroll
  for (int j = 0; j < kLaneElements; ++j) {
    x[j] = static_cast<float>(from.load(block * kBlockElements + j * kWarp + lane));
    largest = max(largest, math::magnitude_bits(x[j]));
  }
  largest = warp_reduce<true>(largest);
  const float scale = block_scale(largest);
  PhiloxCounter words = {kNearest, kNearest, kNearest, kNearest};
  if (noise) {
    const BlockNoise own = noise.load(0);
    words =
        random_words(own.key, noise_counter(first, turn, block, lane), own.step, own.micro_step);
  }
  uint32_t word = 0;
#pragma unroll
  for (int j = 0; j < kLaneElements; ++j) {
    word |= largest < kBlockInfinity ? block_byte(x[j], scale, uniform_from(words[j])) << 8 * j : 0;
  }
  to.store(block * kBlockWords + lane, static_cast<int32_t>(word));
  if (lane == 0) {
    to.store(block * kBlockWords + kWarp, std::bit_cast<int32_t>(scale));
  }
}

template <class T>
__global__ void __launch_bounds__(kThreads)
    sum_blocks_kernel(int64_t blocks, int64_t parts, Global<const int32_t> from, Global<T> to) {
  const int64_t block = block_of_warp();
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  if (block >= blocks) {
    return;
  }
  float sums[kLaneElements];
  for (int64_t part = 0; part < parts; ++part) {
    const int64_t words = (part * blocks + block) * kBlockWords;
    const int32_t word = from.load(words + lane);
    const float scale = std::bit_cast<float>(from.load(words + kWarp));
#pragma unroll
    for (int j = 0; j < kLaneElements; ++j) {
      const float value = block_element(word, j, scale);
      sums[j] = part == 0 ? value : sums[j] + value;
    }
  }
#pragma unroll
  for (int j = 0; j < kLaneElements; ++j) {
    to.store(block * kBlockElements + j * kWarp + lane, T(sums[j]));
  }
}

}  // namespace

void make_noise(Cuda device, const StepNumbers* numbers, uint32_t rank, BlockNoise* to) {
  launch<make_noise_kernel>(device, 1, 1, 0, numbers, rank, to);
}

template <class T>
void write_blocks(Cuda device, int64_t n, const T* from, BlockRounding rounding, int32_t* to) {
  launch_for<write_blocks_kernel<T>>(device, n, from, rounding.noise, rounding.first, rounding.turn,
                                     to);
}

template <class T>
void sum_blocks(Cuda device, int64_t parts, int64_t n, const int32_t* from, T* to) {
  launch_for<sum_blocks_kernel<T>>(device, n, parts, from, to);
}

template void write_blocks<float>(Cuda, int64_t, const float*, BlockRounding, int32_t*);
template void write_blocks<Bf16>(Cuda, int64_t, const Bf16*, BlockRounding, int32_t*);
template void write_blocks<Fp16>(Cuda, int64_t, const Fp16*, BlockRounding, int32_t*);
template void sum_blocks<float>(Cuda, int64_t, int64_t, const int32_t*, float*);
template void sum_blocks<Bf16>(Cuda, int64_t, int64_t, const int32_t*, Bf16*);
template void sum_blocks<Fp16>(Cuda, int64_t, int64_t, const int32_t*, Fp16*);

}  // namespace tandem::kernels
