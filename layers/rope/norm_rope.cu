#include <algorithm>
#include <cmath>

#include "layers/rope/norm_rope.h"
#include "layers/rope/rope_angles.cuh"
#include "src/kernels/block.cuh"
#include "src/kernels/pack.cuh"

namespace tandem::kernels {

namespace {

using namespace rope_angles;

constexpr int kWarps = 8;  // of a block; each takes every kWarps-th head
constexpr int kThreads = kWarps * kWarp;

// What a block of either kernel computes: one position of every gridDim.y-th sample. With
// positions, all rows are of one sample.
struct Heads {
  int64_t batch, row;
  int queries, turned, all, half;
  double log2_theta;
  RopeFrequencies frequencies;
};

// A value and the one that it is paired with.
struct Pair {
  float first, second;
};

template <class T>
__device__ Pair pair_at(Global<const T> x, int64_t at, int half) {
  return {float(x.load(at)), float(x.load(at + half))};
}

__device__ Pair turned(const Pair& x, const Angle& by) {
  return {x.first * by.cosine - x.second * by.sine, x.second * by.cosine + x.first * by.sine};
}

template <class T>
__global__ void __launch_bounds__(kThreads)
    norm_rope_forward_kernel(Heads of, Global<const int32_t> positions, Global<const T> x,
                             Global<const T> gains, Global<T> y, Global<float> rstds,
                             float epsilon) {
  const int64_t position = positions ? positions.load(blockIdx.x) : blockIdx.x;
  const Angle* angles = angles_of(position, 1, of.half, of.log2_theta, of.frequencies);
  const int lane = static_cast<int>(threadIdx.x), width = 2 * of.half;
  for (int64_t b = blockIdx.y; b < of.batch; b += gridDim.y) {
    const int64_t n = b * gridDim.x + blockIdx.x;
    for (int h = static_cast<int>(threadIdx.y); h < of.all; h += kWarps) {
      const int64_t at = n * of.row + int64_t{h} * width;
      if (h >= of.turned) {  // a value
        for (int i = lane; i < width; i += kWarp) {
          y.store(at + i, x.load(at + i));
        }
        continue;
      }
      float squares = 0;
      for (int i = lane; i < of.half; i += kWarp) {
        const Pair pair = pair_at(x, at + i, of.half);
        squares += pair.first * pair.first + pair.second * pair.second;
      }
      const float rstd = 1 / sqrtf(warp_sum(squares) / static_cast<float>(width) + epsilon);
      if (lane == 0) {
        rstds.store(n * of.turned + h, rstd);
      }
      const int of_keys = h < of.queries ? 0 : width;
      for (int i = lane; i < of.half; i += kWarp) {
        const Pair pair = pair_at(x, at + i, of.half), gain = pair_at(gains, of_keys + i, of.half);
        const Pair result =
            turned({pair.first * rstd * gain.first, pair.second * rstd * gain.second}, angles[i]);
        y.store(at + i, T(result.first));
        y.store(at + i + of.half, T(result.second));
      }
    }
  }
}

// As backward_head on the CPU. Each warp sums the gradient of the gains over its heads in shared
// memory, after the angles; then the block adds the warps' sums in order.
template <class T>
__global__ void __launch_bounds__(kThreads)
    norm_rope_backward_kernel(Heads of, Global<const int32_t> positions, Global<const T> dy,
                              Global<const T> x, Global<const T> gains, Global<const float> rstds,
                              Global<T> dx, float beta, Global<float> dgains) {
  const int64_t position = positions ? positions.load(blockIdx.x) : blockIdx.x;
  const Angle* angles = angles_of(position, -1, of.half, of.log2_theta, of.frequencies);
  const int lane = static_cast<int>(threadIdx.x), width = 2 * of.half, both = 2 * width;
  float* sums = reinterpret_cast<float*>(dynamic_shared<Angle>() + of.half);
  float* mine = sums + static_cast<int>(threadIdx.y) * both;
  const auto store = [&](int64_t at, float value) {
    dx.store(at, T(beta == 0 ? value : beta * float(dx.load(at)) + value));
  };
  for (int64_t b = blockIdx.y; b < of.batch; b += gridDim.y) {
    const int64_t n = b * gridDim.x + blockIdx.x;
    for (int i = lane; i < both; i += kWarp) {
      mine[i] = 0;
    }
    __syncwarp();
    for (int h = static_cast<int>(threadIdx.y); h < of.all; h += kWarps) {
      const int64_t at = n * of.row + int64_t{h} * width;
      if (h >= of.turned) {
        for (int i = lane; i < width; i += kWarp) {
          store(at + i, float(dy.load(at + i)));
        }
        continue;
      }
      const float rstd = rstds.load(n * of.turned + h);
      const int of_keys = h < of.queries ? 0 : width;
      float dot = 0;
      for (int i = lane; i < of.half; i += kWarp) {
        const Pair pair = pair_at(x, at + i, of.half), gain = pair_at(gains, of_keys + i, of.half);
        const Pair back = turned(pair_at(dy, at + i, of.half), angles[i]);
        const float first = back.first * pair.first * rstd,
                    second = back.second * pair.second * rstd;
        mine[of_keys + i] += first;
        mine[of_keys + i + of.half] += second;
        dot += first * gain.first + second * gain.second;
      }
      const float mean = warp_sum(dot) / static_cast<float>(width);
      for (int i = lane; i < of.half; i += kWarp) {
        const Pair pair = pair_at(x, at + i, of.half), gain = pair_at(gains, of_keys + i, of.half);
        const Pair back = turned(pair_at(dy, at + i, of.half), angles[i]);
        store(at + i, rstd * (back.first * gain.first - pair.first * rstd * mean));
        store(at + i + of.half, rstd * (back.second * gain.second - pair.second * rstd * mean));
      }
    }
    __syncthreads();
    for (int i = static_cast<int>(threadIdx.y) * kWarp + lane; i < both; i += kThreads) {
      float total = 0;
      for (int warp = 0; warp < kWarps; ++warp) {
        total += sums[warp * both + i];
      }
      dgains.store(n * both + i, total);
    }
    __syncthreads();
  }
}

Heads heads_of(const Rotation& of) {
  return {of.positions ? 1 : of.batch,
          of.row(),
          static_cast<int>(of.heads),
          static_cast<int>(of.turned_heads()),
          static_cast<int>(of.turned_heads() + of.kv_heads),
          static_cast<int>(of.width / 2),
          std::log2(of.frequencies.theta),
          of.frequencies};
}

dim3 grid_of(const Rotation& of, const Heads& heads) {
  const int64_t samples = std::clamp<int64_t>(heads.batch / kSamplesPerBlock, 1, 65535);
  return {static_cast<unsigned>(of.batch * of.length / heads.batch),
          static_cast<unsigned>(samples)};
}

}  // namespace

template <class T>
void norm_rope_forward(Cuda device, const Rotation& of, const T* x, const T* gains, T* y,
                       Wide<T>* rstd, Wide<T> epsilon) {
  if (of.batch * of.length > 0) {
    const Heads heads = heads_of(of);
    launch<norm_rope_forward_kernel<T>>(device, grid_of(of, heads), dim3(kWarp, kWarps),
                                        static_cast<size_t>(heads.half) * sizeof(Angle), heads,
                                        of.positions, x, gains, y, rstd, epsilon);
  }
}

template <class T>
void norm_rope_backward(Cuda device, const Rotation& of, const T* dy, const T* x, const T* gains,
                        const Wide<T>* rstd, T* dx, Wide<T> beta, Wide<T>* dgains) {
  if (of.batch * of.length > 0) {
    const Heads heads = heads_of(of);
    const size_t bytes = static_cast<size_t>(heads.half) * sizeof(Angle) +
                         static_cast<size_t>(kWarps * 2 * of.width) * sizeof(float);
    launch<norm_rope_backward_kernel<T>>(device, grid_of(of, heads), dim3(kWarp, kWarps), bytes,
                                         heads, of.positions, dy, x, gains, rstd, dx, beta, dgains);
  }
}

#define TANDEM_NORM_ROPE(T)                                                                 \
  template void norm_rope_forward<T>(Cuda, const Rotation&, const T*, const T*, T*, float*, \
                                     float);                                                \
  template void norm_rope_backward<T>(Cuda, const Rotation&, const T*, const T*, const T*,  \
                                      const float*, T*, float, float*);
TANDEM_FOR_GPU(TANDEM_NORM_ROPE)

}  // namespace tandem::kernels
