#include "comm/sharding/eight_bits/blocks.h"

#include <algorithm>

#include "comm/sharding/eight_bits/block_functions.h"
#include "src/core/philox.h"
#include "src/kernels/map.h"

namespace tandem::kernels {

namespace {

// body(block) for all blocks of n elements.
template <class F>
void for_blocks(int64_t n, F body) {
#pragma omp parallel for schedule(static) if (n >= kParallelElements)
  for (int64_t block = 0; block < n / kBlockElements; ++block) {
    body(block);
  }
}

template <class T>
void write_block(const T* from, const BlockRounding& rounding, int64_t block, int32_t* to) {
  float x[kBlockElements];
  int32_t largest = 0;
#pragma omp simd reduction(max : largest)
  for (int64_t i = 0; i < kBlockElements; ++i) {
    x[i] = static_cast<float>(from[i]);
    largest = std::max(largest, math::magnitude_bits(x[i]));
  }
  const float scale = block_scale(largest);
  to[kBlockLanes] = std::bit_cast<int32_t>(scale);
  if (largest >= kBlockInfinity) {
    std::fill_n(to, kBlockLanes, 0);
    return;
  }
  uint32_t words[kLaneElements][kBlockLanes];
  if (rounding.noise) {
    for (int lane = 0; lane < kBlockLanes; ++lane) {
      const uint64_t counter = noise_counter(rounding.first, rounding.turn, block, lane);
      words[0][lane] = static_cast<uint32_t>(counter);
      words[1][lane] = static_cast<uint32_t>(counter >> 32);
      words[2][lane] = rounding.noise->step;
      words[3][lane] = rounding.noise->micro_step;
    }
    philox(rounding.noise->key, words);
  } else {
    std::fill_n(words[0], kBlockElements, kNearest);
  }
#pragma omp simd
  for (int lane = 0; lane < kBlockLanes; ++lane) {
    uint32_t word = 0;
    for (int j = 0; j < kLaneElements; ++j) {
      const float u = uniform_from(words[j][lane]);
      word |= block_byte(x[j * kBlockLanes + lane], scale, u) << 8 * j;
    }
    to[lane] = static_cast<int32_t>(word);
  }
}

}  // namespace

void make_noise(Cpu, const StepNumbers* numbers, uint32_t rank, BlockNoise* to) {
  *to = noise_of(*numbers, rank);
}

template <class T>
void write_blocks(Cpu, int64_t n, const T* from, BlockRounding rounding, int32_t* to) {
  for_blocks(n, [=](int64_t block) {
    write_block(from + block * kBlockElements, rounding, block, to + block * kBlockWords);
  });
}

template <class T>
void sum_blocks(Cpu, int64_t parts, int64_t n, const int32_t* from, T* to) {
  for_blocks(n, [=](int64_t block) {
    float sums[kBlockElements];
    for (int64_t part = 0; part < parts; ++part) {
      const int32_t* words = from + part * block_words(n) + block * kBlockWords;
      const float scale = std::bit_cast<float>(words[kBlockLanes]);
      for (int j = 0; j < kLaneElements; ++j) {
#pragma omp simd
        for (int lane = 0; lane < kBlockLanes; ++lane) {
          const float value = block_element(words[lane], j, scale);
          float& sum = sums[j * kBlockLanes + lane];
          sum = part == 0 ? value : sum + value;
        }
      }
    }
    for (int64_t i = 0; i < kBlockElements; ++i) {
      to[block * kBlockElements + i] = T(sums[i]);
    }
  });
}

template void write_blocks<double>(Cpu, int64_t, const double*, BlockRounding, int32_t*);
template void write_blocks<float>(Cpu, int64_t, const float*, BlockRounding, int32_t*);
template void write_blocks<Bf16>(Cpu, int64_t, const Bf16*, BlockRounding, int32_t*);
template void write_blocks<Fp16>(Cpu, int64_t, const Fp16*, BlockRounding, int32_t*);
template void sum_blocks<double>(Cpu, int64_t, int64_t, const int32_t*, double*);
template void sum_blocks<float>(Cpu, int64_t, int64_t, const int32_t*, float*);
template void sum_blocks<Bf16>(Cpu, int64_t, int64_t, const int32_t*, Bf16*);
template void sum_blocks<Fp16>(Cpu, int64_t, int64_t, const int32_t*, Fp16*);

}  // namespace tandem::kernels
