#include <algorithm>
#include <bit>

#include "layers/cross_entropy/cross_entropy.h"
#include "src/device/cuda.h"
#include "src/device/ptx.cuh"
#include "src/kernels/block.cuh"
#include "src/kernels/pack.cuh"

namespace tandem::kernels {

namespace {

constexpr int kThreads = 256, kThreadsOfLongRows = 1024;
constexpr int64_t kLongRowBytes = 32 * 1024;
// Shared memory for the sums of a block, beside the rows that it holds.
constexpr int64_t kSumBytes = 1024;

__device__ float exp_of(float x) { return ptx::exp2(x * 1.44269504f); }  // log2(e)

// A row. Elements are counted from the last 16-byte boundary before it, so element `begin` is the
// first one, and packs begin at multiples of kPack<T>.
template <class T>
struct Row {
  Global<T> data;
  int begin, classes_end, end;
  int32_t target;
  bool aligned;  // the logits are: packs can be accessed as such

  // Past the last row all rows are ignored.
  __device__ Row(Global<T> logits, Global<const int32_t> targets, LogitRows shape, int64_t row,
                 bool logits_aligned)
      : target(row < shape.rows ? targets.load(row) : kIgnoreTarget), aligned(logits_aligned) {
    const int64_t first = row * shape.width;
    begin = static_cast<int>(first % kPack<T>);
    data = logits + (first - begin);
    classes_end = begin + static_cast<int>(shape.classes);
    end = begin + static_cast<int>(shape.width);
  }
};

// The elements among [first, last) that are in whole packs: [begin, end).
template <class T>
struct PackRange {
  int begin, end;

  __device__ PackRange(int first, int last, bool aligned) {
    const int next_pack = (first + kPack<T> - 1) / kPack<T> * kPack<T>;
    begin = aligned && next_pack < last ? next_pack : last;
    end = last - (last - begin) % kPack<T>;
  }
};

// Calls f<kCount>(i) for elements [i, i + kCount) that together cover [first, last). Each element
// is visited by one thread of the block, and by the same one in each call. Elements in whole packs
// are visited as packs, those before and after one by one.
template <int kBlock, class T, class F>
__device__ void visit(int first, int last, bool aligned, F f) {
  const PackRange<T> packs(first, last, aligned);
  const int thread = static_cast<int>(threadIdx.x);
  for (int i = first + thread; i < packs.begin; i += kBlock) {
    f.template operator()<1>(i);
  }
#pragma unroll 2
  for (int i = packs.begin + thread * kPack<T>; i < packs.end; i += kBlock * kPack<T>) {
    f.template operator()<kPack<T>>(i);
  }
  for (int i = packs.end + thread; i < last; i += kBlock) {
    f.template operator()<1>(i);
  }
}

template <int kBlock, class T>
__device__ void set_to_zero(const Row<T>& row, int first) {
  visit<kBlock, T>(first, row.end, row.aligned, [&]<int kCount>(int i) {
    const float zeros[kCount] = {};
    store_pack(row.data, i, zeros);
  });
}

// The number that is subtracted from exponents: the largest logit, or 0 if that is -infinity,
// because -infinity minus itself is NaN.
__device__ float base_of(float largest) { return largest == -INFINITY ? 0.0f : largest; }

// The sum of exp(x - base_of(largest)) over the logits seen so far (Milakov and Gimelshein 2018,
// arXiv:1805.02867). If a logit is NaN, so is the sum.
struct OnlineSum {
  float largest = -INFINITY;
  float total = 0;

  template <class T, int kCount>
  __device__ void add(const Elements<T, kCount>& x) {
    const float before = largest;
#pragma unroll
    for (int k = 0; k < kCount; ++k) {
      const float value = x.of[k];
      largest = fmaxf(value, largest);
    }
    const float base = base_of(largest);
    total *= exp_of(before - base);
#pragma unroll
    for (int k = 0; k < kCount; ++k) {
      total += exp_of(float(x.of[k]) - base);
    }
  }

  // The logarithm of the sum over the whole block. Every thread must call this.
  __device__ float log_of_block() const {
    const float base = base_of(block_max(largest));
    return base + logf(block_sum(total * exp_of(largest - base)));
  }
};

template <int kBlock, class T>
__global__ void __launch_bounds__(kBlock)
    cross_entropy_kernel(Global<const T> logits, Global<const int32_t> targets,
                         Global<float> losses, LogitRows shape, bool aligned) {
  const Row<const T> row(logits, targets, shape, blockIdx.x, aligned);
  float loss = 0;
  if (row.target != kIgnoreTarget) {
    OnlineSum sum;
    visit<kBlock, T>(row.begin, row.classes_end, aligned,
                     [&]<int kCount>(int i) { sum.add(load_elements<kCount, T>(row.data, i)); });
    loss = sum.log_of_block() - float(row.data.load(row.begin + row.target));
  }
  if (threadIdx.x == 0) {
    losses.store(blockIdx.x, loss);
  }
}

// Packs of a block's rows in shared memory, or on their way to it. A thread has places of its own
// for the packs that it visits, and waits for its own copies alone. The places are a ring, in which
// rows follow each other.
template <int kBlock, class T>
class Ring {
 public:
  __device__ Ring(T* memory, int packs)
      : memory_(memory),
        first_(static_cast<int>(threadIdx.x) * kPack<T>),
        end_(first_ + (packs - static_cast<int>(threadIdx.x) + kBlock - 1) / kBlock * kStep),
        oldest_(first_) {}

  // Begins to copy a row, as far as places are free. The row that was begun before is complete.
  __device__ void begin(const Row<T>& row) {
    const PackRange<T> packs(row.begin, row.classes_end, row.aligned);
    next_ = packs.begin + first_;
    last_ = row.target == kIgnoreTarget ? 0 : packs.end;
    go_on(row);
  }
  // Copies more of it. It is complete once the row before has left its places.
  __device__ void go_on(const Row<T>& row) {
    const int size = end_ - first_;
    for (; used_ < size && next_ < last_; used_ += kStep) {
      const int place = oldest_ + used_;
      copy_to(place < end_ ? place : place - size, row);
    }
    ptx::copies_commit();
  }
  // Waits for all copies but those of the row that was begun last.
  __device__ void wait() const { ptx::copies_wait<1>(); }

  __device__ int oldest() const { return oldest_; }
  __device__ int after(int place) const { return place + kStep == end_ ? first_ : place + kStep; }
  __device__ Elements<T, kPack<T>> load(int place) const {
    return std::bit_cast<Elements<T, kPack<T>>>(memory_.template load_as<Words>(place));
  }
  // The oldest pack leaves its place to the next one of `row`.
  __device__ void replace_oldest(const Row<T>& row) {
    const int place = oldest_;
    oldest_ = after(place);
    if (next_ < last_) {  // no place was free
      copy_to(place, row);
    } else {
      used_ -= kStep;
    }
  }

 private:
  static constexpr int kStep = kBlock * kPack<T>;
  struct alignas(16) Words {
    uint32_t of[4];
  };

  __device__ void copy_to(int place, const Row<T>& row) {
    ptx::copy_async<16>(memory_ + place, Global<const T>(row.data), next_, true);
    next_ += kStep;
  }

  Shared<T> memory_;
  int first_, end_, oldest_;  // places
  int used_ = 0;              // kStep for each place that is not free
  int next_, last_;           // elements of the row that is being copied
};

// The rows that a block takes one after the other. It waits for the first, so they are several, and
// few enough for all multiprocessors to have blocks.
template <bool kHeld, int kBlock>
inline constexpr int kRowsOfBlock = (kHeld && kBlock == kThreadsOfLongRows) ? 8 : 1;

// If kHeld, shared memory has `packs` packs, at least those of a row. They stay there between the
// sum and the gradient, so each logit is read once.
//
// Held rows of more than kLongRowBytes: one block fills a multiprocessor's shared memory, so it has
// 64 registers a thread. It copies what fits of the next row before it computes a row, and the rest
// as the gradient leaves places, so that reads overlap arithmetic. With 50,257 classes of 16 bits
// 65 % of the next row fit on sm_80, and all of it on sm_90. Other rows: at most 32 registers, so
// that several blocks overlap.
template <bool kHeld, int kBlock, class T>
__global__ void __launch_bounds__(kBlock, kRowsOfBlock<kHeld, kBlock> > 1 ? 1 : 2048 / kBlock)
    cross_entropy_gradient_kernel(Global<T> logits, Global<const int32_t> targets,
                                  Global<float> losses, Global<const float> scales,
                                  int64_t scale_stride, LogitRows shape, bool aligned, int packs) {
  constexpr int kRows = kRowsOfBlock<kHeld, kBlock>;
  const int64_t first = int64_t{blockIdx.x} * kRows;
  const auto row_at = [&](int n) {
    return Row<T>(logits, targets, shape, n < kRows ? first + n : shape.rows, aligned);
  };
  Row<T> row = row_at(0), next = row_at(1);
  Ring<kBlock, T> ring(kHeld ? dynamic_shared<T>() : nullptr, packs);
  if constexpr (kHeld) {
    ring.begin(row);
    ring.begin(next);
  }
  for (int n = 0; n < kRows && first + n < shape.rows; ++n) {
    const Row<T> after_next = row_at(n + 2);
    float loss = 0;
    if (row.target == kIgnoreTarget) {
      set_to_zero<kBlock>(row, row.begin);
    } else {
      const int at_target = row.begin + row.target;
      const float target_logit = float(row.data.load(at_target));
      const float scale = scales.load((first + n) * scale_stride);
      const auto load = [&]<int kCount>(int i, int place) {
        if constexpr (kHeld && kCount > 1) {
          return ring.load(place);
        } else {
          return load_elements<kCount, T>(row.data, i);
        }
      };
      if constexpr (kHeld) {
        ring.wait();
      }
      OnlineSum sum;
      int place = ring.oldest();
      visit<kBlock, T>(row.begin, row.classes_end, aligned, [&]<int kCount>(int i) {
        sum.add(load.template operator()<kCount>(i, place));
        place = kCount > 1 ? ring.after(place) : place;
      });
      const float log_sum = sum.log_of_block();  // after it, the target's logit may be overwritten
      bool has_target = false;
      visit<kBlock, T>(row.begin, row.classes_end, aligned, [&]<int kCount>(int i) {
        const Elements<T, kCount> x = load.template operator()<kCount>(i, ring.oldest());
        float gradient[kCount];
#pragma unroll
        for (int k = 0; k < kCount; ++k) {
          gradient[k] = exp_of(float(x.of[k]) - log_sum) * scale;
        }
        store_pack(row.data, i, gradient);
        has_target |= i <= at_target && at_target < i + kCount;
        if constexpr (kHeld && kCount > 1) {
          ring.replace_oldest(next);
        }
      });
      if (has_target) {
        row.data.store(at_target, T(exp_of(target_logit - log_sum) * scale - scale));
      }
      set_to_zero<kBlock>(row, row.classes_end);
      loss = log_sum - target_logit;
    }
    if constexpr (kHeld) {
      ring.go_on(next);
      ring.begin(after_next);
    }
    if (losses && threadIdx.x == 0) {
      losses.store(first + n, loss);
    }
    row = next;
    next = after_next;
  }
}

// Numbers with the same order as the floats. Of equal floats (-0 equals 0) the one in the lower
// column is larger.
__device__ uint64_t rank_of(float x, int column) {
  const uint32_t bits = std::bit_cast<uint32_t>(x + 0.0f);
  const uint32_t ordered = bits >> 31 ? ~bits : bits | 0x80000000u;
  return uint64_t{ordered} << 32 | ~static_cast<uint32_t>(column);
}

template <class T>
__global__ void __launch_bounds__(kThreads)
    count_correct_kernel(Global<const T> logits, Global<const int32_t> targets, LogitRows shape,
                         bool aligned, Global<int64_t> result) {
  const Row<const T> row(logits, targets, shape, blockIdx.x, aligned);
  if (row.target == kIgnoreTarget) {
    return;
  }
  uint64_t best = 0;
  visit<kThreads, T>(row.begin, row.classes_end, aligned, [&]<int kCount>(int i) {
    float x[kCount];
    load_pack(row.data, i, x);
#pragma unroll
    for (int k = 0; k < kCount; ++k) {
      const uint64_t rank = rank_of(x[k], i + k - row.begin);
      best = rank > best ? rank : best;
    }
  });
  best = block_max(best);
  if (threadIdx.x == 0 && ~static_cast<uint32_t>(best) == static_cast<uint32_t>(row.target)) {
    result.atomic_add(0, 1);  // integers: every order gives the same sum
  }
}

// Calls f<kBlock>() with the number of threads for a row.
template <class T, class F>
void with_threads(LogitRows shape, F f) {
  shape.classes* int64_t{sizeof(T)} > kLongRowBytes ? f.template operator()<kThreadsOfLongRows>()
                                                    : f.template operator()<kThreads>();
}

}  // namespace

template <class T>
void cross_entropy(Cuda device, const T* logits, const int32_t* targets, Wide<T>* losses,
                   LogitRows shape) {
  if (shape.rows > 0) {
    with_threads<T>(shape, [&]<int kBlock>() {
      launch<cross_entropy_kernel<kBlock, T>>(device, blocks_for(shape.rows, 1), kBlock, 0, logits,
                                              targets, losses, shape, aligned16(logits));
    });
  }
}

template <class T>
void cross_entropy_gradient(Cuda device, T* logits, const int32_t* targets, Wide<T>* losses,
                            RowScale<Wide<T>> scale, LogitRows shape) {
  const int64_t row_packs = std::max<int64_t>(1, shape.classes / kPack<T>);
  const int64_t most_packs = (cuda::largest_shared_bytes() - kSumBytes) / 16;
  const auto start = [&]<bool kHeld, int kBlock>(int64_t packs) {
    launch<cross_entropy_gradient_kernel<kHeld, kBlock, T>>(
        device, blocks_for(shape.rows, kRowsOfBlock<kHeld, kBlock>), kBlock,
        static_cast<size_t>(packs) * 16, logits, targets, losses, scale.values, scale.stride, shape,
        aligned16(logits), static_cast<int>(packs));
  };
  if (shape.rows == 0) {
    return;
  }
  if (row_packs > most_packs) {
    return start.template operator()<false, kThreadsOfLongRows>(0);
  }
  with_threads<T>(shape, [&]<int kBlock>() {
    start.template operator()<true, kBlock>(kRowsOfBlock<true, kBlock> > 1 ? most_packs
                                                                           : row_packs);
  });
}

template <class T>
void count_correct(Cuda device, const T* logits, const int32_t* targets, LogitRows shape,
                   int64_t* result) {
  cuda::zero(result, sizeof *result, device.stream);
  if (shape.rows > 0) {
    launch<count_correct_kernel<T>>(device, blocks_for(shape.rows, 1), kThreads, 0, logits, targets,
                                    shape, aligned16(logits), result);
  }
}

template void cross_entropy<float>(Cuda, const float*, const int32_t*, float*, LogitRows);
template void cross_entropy<Bf16>(Cuda, const Bf16*, const int32_t*, float*, LogitRows);
template void cross_entropy<Fp16>(Cuda, const Fp16*, const int32_t*, float*, LogitRows);
template void cross_entropy_gradient<float>(Cuda, float*, const int32_t*, float*, RowScale<float>,
                                            LogitRows);
template void cross_entropy_gradient<Bf16>(Cuda, Bf16*, const int32_t*, float*, RowScale<float>,
                                           LogitRows);
template void cross_entropy_gradient<Fp16>(Cuda, Fp16*, const int32_t*, float*, RowScale<float>,
                                           LogitRows);
template void count_correct<float>(Cuda, const float*, const int32_t*, LogitRows, int64_t*);
template void count_correct<Bf16>(Cuda, const Bf16*, const int32_t*, LogitRows, int64_t*);
template void count_correct<Fp16>(Cuda, const Fp16*, const int32_t*, LogitRows, int64_t*);

}  // namespace tandem::kernels
