// The rows of a rotation and their angles, on the CPU. Internal to rope.
#pragma once

#include <algorithm>
#include <cmath>
#include <vector>

#include "layers/rope/rope.h"
#include "src/kernels/map.h"

namespace tandem::rope_rows {

inline constexpr int64_t kStretch = 16;  // positions that share one computed angle

// The cosines and sines of consecutive positions. Each position's angle is the last one plus one
// step, in f64. A new stretch starts at each multiple of kStretch, so that an angle depends only on
// its position.
class Angles {
 public:
  Angles(int64_t position, int64_t half, const RopeFrequencies& frequencies)
      : cosine_(half), sine_(half), step_cosine_(half), step_sine_(half) {
    for (int64_t i = 0; i < half; ++i) {
      const double frequency = frequencies.scaled(
          std::pow(frequencies.theta, -static_cast<double>(i) / static_cast<double>(half)));
      const double angle = static_cast<double>(position) * frequency;
      cosine_[i] = std::cos(angle);
      sine_[i] = std::sin(angle);
      step_cosine_[i] = std::cos(frequency);
      step_sine_[i] = std::sin(frequency);
    }
  }
  void advance() {
    for (size_t i = 0; i < cosine_.size(); ++i) {
      const double cosine = cosine_[i] * step_cosine_[i] - sine_[i] * step_sine_[i];
      sine_[i] = sine_[i] * step_cosine_[i] + cosine_[i] * step_sine_[i];
      cosine_[i] = cosine;
    }
  }
  template <class W>
  void write(W direction, W* cosine, W* sine) const {
    for (size_t i = 0; i < cosine_.size(); ++i) {
      cosine[i] = static_cast<W>(cosine_[i]);
      sine[i] = direction * static_cast<W>(sine_[i]);
    }
  }

 private:
  std::vector<double> cosine_, sine_, step_cosine_, step_sine_;
};

// Calls f(position, cosine, sine) for positions [first, end), in parallel if `is_much` work. The
// arrays are [half].
template <class W, class F>
void for_angles(int64_t first, int64_t end, int64_t half, const RopeFrequencies& frequencies,
                W direction, bool is_much, const F& f) {
#pragma omp parallel for schedule(static) if (is_much)
  for (int64_t stretch = first / kStretch; stretch <= (end - 1) / kStretch; ++stretch) {
    Angles angles(stretch * kStretch, half, frequencies);
    std::vector<W> cosine(half), sine(half);
    const int64_t last = std::min(end, (stretch + 1) * kStretch);
    for (int64_t position = stretch * kStretch; position < last; ++position, angles.advance()) {
      if (position >= first) {
        angles.write(direction, cosine.data(), sine.data());
        f(position, cosine.data(), sine.data());
      }
    }
  }
}

// Calls f(row of [batch * length], cosine, sine), as for_angles does. With positions as given, the
// angles of all that may occur come first.
template <class W, class F>
void for_rows(const kernels::Rotation& of, W direction, const F& f) {
  const int64_t half = of.width / 2, rows = of.batch * of.length, first = of.first_position;
  const bool is_much = rows * of.row() >= kParallelElements;
  if (!of.positions) {
    return for_angles(first, first + of.length, half, of.frequencies, direction, is_much,
                      [&](int64_t position, const W* cosine, const W* sine) {
                        for (int64_t b = 0; b < of.batch; ++b) {
                          f(b * of.length + position - first, cosine, sine);
                        }
                      });
  }
  std::vector<W> cosines(of.length * half), sines(of.length * half);
  for_angles(0, of.length, half, of.frequencies, direction, is_much,
             [&](int64_t position, const W* cosine, const W* sine) {
               std::copy_n(cosine, half, &cosines[position * half]);
               std::copy_n(sine, half, &sines[position * half]);
             });
#pragma omp parallel for schedule(static) if (is_much)
  for (int64_t n = 0; n < rows; ++n) {
    const int64_t at = of.positions[n] * half;
    f(n, &cosines[at], &sines[at]);
  }
}

}  // namespace tandem::rope_rows
