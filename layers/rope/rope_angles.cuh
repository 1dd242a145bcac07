// The angles of a rotation, on a GPU. Internal to rope.
#pragma once

#include "layers/rope/rope.h"
#include "src/kernels/launch.cuh"

namespace tandem::rope_angles {

inline constexpr int kSamplesPerBlock = 8;  // these share a position's angles

struct Angle {
  float cosine, sine;
};

// Cosine and sine of `turns` full turns. Whole quarters of a turn are subtracted in f64. What is
// left is at most pi / 4, where the polynomials (sinf and cosf of Cephes) are accurate to 1e-7.
__device__ inline Angle angle_of(double turns) {
  const double quarters = rint(4 * turns);
  const float x = static_cast<float>((turns - 0.25 * quarters) * 6.283185307179586), z = x * x;
  const float sine =
      x + x * z * (-1.6666654611e-1f + z * (8.3321608736e-3f + z * -1.9515295891e-4f));
  const float cosine =
      1.0f - 0.5f * z +
      z * z * (4.166664568298827e-2f + z * (-1.388731625493765e-3f + z * 2.443315711809948e-5f));
  const bool odd = static_cast<int64_t>(quarters) & 1, flipped = static_cast<int64_t>(quarters) & 2;
  const float sign = flipped ? -1.0f : 1.0f;
  return {sign * (odd ? -sine : cosine), sign * (odd ? cosine : sine)};
}

// The angles of one position, [half]. All threads of the block compute them together.
__device__ inline const Angle* angles_of(int64_t position, float direction, int half,
                                         double log2_theta, const RopeFrequencies& frequencies) {
  Angle* angles = dynamic_shared<Angle>();
  const int thread = static_cast<int>(threadIdx.y * blockDim.x + threadIdx.x);
  for (int i = thread; i < half; i += static_cast<int>(blockDim.x * blockDim.y)) {
    const double frequency = frequencies.scaled(exp2(-log2_theta * i / half));
    const Angle angle = angle_of(static_cast<double>(position) * frequency * 0.15915494309189535);
    angles[i] = {angle.cosine, direction * angle.sine};  // 0.159... is 1 / (2 pi)
  }
  __syncthreads();
  return angles;
}

}  // namespace tandem::rope_angles
