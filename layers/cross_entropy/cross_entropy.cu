#include <algorithm>
#include <bit>

#include "layers/cross_entropy/logit_row.cuh"
#include "src/device/cuda.h"

namespace tandem::kernels {

namespace {

// Shared memory for the sums of a block, beside the rows that it holds.
constexpr int64_t kSumBytes = 1024;

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

template <class T>
__global__ void __launch_bounds__(kThreads)
    count_correct_kernel(Global<const T> logits, Global<const int32_t> targets, LogitRows shape,
                         bool aligned, Global<int64_t> result) {
  const Row<const T> row(logits, targets, shape, blockIdx.x, aligned);
  if (row.target == kIgnoreTarget) {
    return;
  }
  const uint64_t best = largest_of<T>(row);
  if (threadIdx.x == 0 && ~static_cast<uint32_t>(best) == static_cast<uint32_t>(row.target)) {
    result.atomic_add(0, 1);  // integers: every order gives the same sum
  }
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

#define TANDEM_CROSS_ENTROPY(T)                                                              \
  template void cross_entropy<T>(Cuda, const T*, const int32_t*, float*, LogitRows);         \
  template void cross_entropy_gradient<T>(Cuda, T*, const int32_t*, float*, RowScale<float>, \
                                          LogitRows);                                        \
  template void count_correct<T>(Cuda, const T*, const int32_t*, LogitRows, int64_t*);
TANDEM_FOR_GPU(TANDEM_CROSS_ENTROPY)

}  // namespace tandem::kernels
