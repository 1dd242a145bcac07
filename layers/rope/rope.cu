#include <algorithm>
#include <cmath>

#include "layers/rope/rope_angles.cuh"
#include "src/kernels/pack.cuh"
#include "src/kernels/transform.cuh"

namespace tandem::kernels {

namespace {

using namespace rope_angles;

constexpr int kThreads = 256;

// A block rotates one position of every gridDim.y-th sample. Threads along x share half a head;
// threads along y take different heads. With `positions`, all rows are of one sample.
template <int kWidth, class T>
__global__ void __launch_bounds__(kThreads)
    rope_kernel(Global<const T> x, Global<T> y, float direction, Global<const int32_t> positions,
                int64_t batch, int64_t row, int heads, int half, double log2_theta,
                RopeFrequencies frequencies) {
  const int64_t position = positions ? positions.load(blockIdx.x) : blockIdx.x;
  const Angle* angles = angles_of(position, direction, half, log2_theta, frequencies);
  const int step = static_cast<int>(blockDim.x) * kWidth;
  for (int i = static_cast<int>(threadIdx.x) * kWidth; i < half; i += step) {
    float cosine[kWidth], sine[kWidth];
#pragma unroll
    for (int k = 0; k < kWidth; ++k) {
      cosine[k] = angles[i + k].cosine;
      sine[k] = angles[i + k].sine;
    }
    for (int64_t b = blockIdx.y; b < batch; b += gridDim.y) {
      const int64_t row_at = (b * gridDim.x + blockIdx.x) * row;
      for (int h = static_cast<int>(threadIdx.y); h < heads; h += static_cast<int>(blockDim.y)) {
        const int64_t at = row_at + int64_t{h} * 2 * half + i;
        float first[kWidth], second[kWidth], turned[kWidth];
        load_pack(x, at, first);
        load_pack(x, at + half, second);
#pragma unroll
        for (int k = 0; k < kWidth; ++k) {
          turned[k] = first[k] * cosine[k] - second[k] * sine[k];
          second[k] = second[k] * cosine[k] + first[k] * sine[k];
        }
        store_pack(y, at, turned);
        store_pack(y, at + half, second);
      }
    }
  }
}

// y = x for columns >= first.
template <int kWidth, class T>
__global__ void __launch_bounds__(kMatrixThreads)
    copy_columns_kernel(Global<const T> x, Global<T> y, int64_t rows, int64_t row, int64_t first) {
  for_matrix<kWidth>(rows, row - first, [&](int64_t r, int64_t j) {
    float same[kWidth];
    load_pack(x, r * row + first + j, same);
    store_pack(y, r * row + first + j, same);
  });
}

template <int kWidth, class T>
void start_rope(Cuda device, const Rotation& of, const T* x, T* y, float direction) {
  const int64_t half = of.width / 2, row = of.row();
  const int64_t batch = of.positions ? 1 : of.batch, length = of.batch * of.length / batch;
  const int64_t blocks = std::clamp<int64_t>(batch / kSamplesPerBlock, 1, 65535);
  const unsigned across = static_cast<unsigned>(std::min<int64_t>(half / kWidth, kThreads));
  launch<rope_kernel<kWidth, T>>(
      device, dim3(static_cast<unsigned>(length), static_cast<unsigned>(blocks)),
      dim3(across, kThreads / across), static_cast<size_t>(half) * sizeof(Angle), x, y, direction,
      of.positions, batch, row, static_cast<int>(of.turned_heads()), static_cast<int>(half),
      std::log2(of.frequencies.theta), of.frequencies);
  const int64_t turned = of.turned_heads() * of.width;
  if (x != y && turned < row) {
    launch<copy_columns_kernel<kWidth, T>>(
        device, matrix_grid(of.batch * of.length, row - turned, kWidth), matrix_block(), 0, x, y,
        of.batch * of.length, row, turned);
  }
}

}  // namespace

template <class T>
void rope_rotate(Cuda device, const Rotation& of, const T* x, T* y, Wide<T> direction) {
  if (of.batch * of.length * of.width == 0) {
    return;
  }
  with_pack<T>(packs_fit(of.width / 2, x, y) && packs_fit(of.row(), x, y),
               [&]<int kWidth>() { start_rope<kWidth>(device, of, x, y, direction); });
}

template void rope_rotate<float>(Cuda, const Rotation&, const float*, float*, float);
template void rope_rotate<Bf16>(Cuda, const Rotation&, const Bf16*, Bf16*, float);
template void rope_rotate<Fp16>(Cuda, const Rotation&, const Fp16*, Fp16*, float);

}  // namespace tandem::kernels
