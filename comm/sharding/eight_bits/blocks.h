// Messages of eight-bit numbers. A block of 128 elements becomes 132 bytes: 128 signed bytes and an
// f32 scale; element = byte * scale (blockwise quantisation, Dettmers et al. 2022, "8-bit
// optimizers via block-wise quantization"; in ZeRO: Wang et al. 2023, "ZeRO++").
//
// The scale is the block's largest magnitude / 127, and at least 2^-126. It is rounded up to 16
// significant bits: then byte * scale is exact in f32, and a fused multiply-add gives the same bits
// as a product and a sum. A block with an element that is not finite is NaN. So is one above
// 3.4027e38, or it becomes infinite.
//
// Rounded to nearest, an element moves by at most scale / 2. Rounded at random, it moves to one of
// its two neighbours, by less than scale, and its mean over random numbers is the element: such
// errors average out without a memory of them.
//
// The bits do not depend on the device or the number of threads.
#pragma once

#include "src/core/rng.h"
#include "src/core/step_numbers.h"
#include "src/device/dispatch.h"

namespace tandem {

inline constexpr int64_t kBlockElements = 128;
// 4 elements each, and the scale. Word w has elements w, w + 32, w + 64, w + 96, the first in the
// lowest byte.
inline constexpr int64_t kBlockWords = kBlockElements / 4 + 1;

// 32-bit words of a message of n elements, a multiple of kBlockElements.
inline constexpr int64_t block_words(int64_t n) { return n / kBlockElements * kBlockWords; }

// The random numbers of one rank's messages in one micro-step.
struct alignas(16) BlockNoise {
  PhiloxKey key;
  uint32_t step, micro_step;
};

// How a message is rounded. Random numbers are a function of the noise, the element's number in the
// message plus `first`, and the turn.
struct BlockRounding {
  const BlockNoise* noise = nullptr;  // in device memory; null: to nearest, ties down
  uint64_t first = 0;                 // a multiple of kBlockElements; another one for each bucket
  uint32_t turn = 0;                  // another one for each rounding of the same element
};

namespace kernels {

// *to = the noise of rank `rank` in the micro-step of *numbers.
void make_noise(Cpu, const StepNumbers* numbers, uint32_t rank, BlockNoise* to);
void make_noise(Cuda, const StepNumbers* numbers, uint32_t rank, BlockNoise* to);

// to [block_words(n)] = the message of from [n]. T: f32, bf16, fp16; on the CPU f64, too.
template <class T>
void write_blocks(Cpu, int64_t n, const T* from, BlockRounding rounding, int32_t* to);
template <class T>
void write_blocks(Cuda, int64_t n, const T* from, BlockRounding rounding, int32_t* to);

// to [n] = the sum of `parts` messages of n elements, which follow each other in `from`, added in
// f32 in this order and rounded to T once. T: as above.
template <class T>
void sum_blocks(Cpu, int64_t parts, int64_t n, const int32_t* from, T* to);
template <class T>
void sum_blocks(Cuda, int64_t parts, int64_t n, const int32_t* from, T* to);

}  // namespace kernels

}  // namespace tandem
