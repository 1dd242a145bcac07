// The rows of a rotation and their angles, on the CPU. Internal to rope.
#pragma once

#include <algorithm>
#include <cmath>
#include <vector>

#include "layers/rope/rope.h"
#include "src/kernels/map.h"

namespace tandem::rope_rows {

inline constexpr int64_t kStretch = 16;  // positions that share one computed angle

// The cosines and sines of a position. Each position's angle is the last one plus one step, in f64.
// A new stretch starts at each multiple of kStretch, so that an angle depends only on its position.
class Angles {
 public:
  Angles(int64_t half, const RopeFrequencies& frequencies)
      : frequency_(half), cosine_(half), sine_(half), step_cosine_(half), step_sine_(half) {
    for (int64_t i = 0; i < half; ++i) {
      frequency_[i] = frequencies.scaled(
          std::pow(frequencies.theta, -static_cast<double>(i) / static_cast<double>(half)));
      step_cosine_[i] = std::cos(frequency_[i]);
      step_sine_[i] = std::sin(frequency_[i]);
    }
  }
  void turn_to(int64_t position) {
    const int64_t stretch = position / kStretch * kStretch;
    if (position_ < stretch || position_ > position) {
      for (size_t i = 0; i < cosine_.size(); ++i) {
        const double angle = static_cast<double>(stretch) * frequency_[i];
        cosine_[i] = std::cos(angle);
        sine_[i] = std::sin(angle);
      }
      position_ = stretch;
    }
    for (; position_ < position; ++position_) {
      for (size_t i = 0; i < cosine_.size(); ++i) {
        const double cosine = cosine_[i] * step_cosine_[i] - sine_[i] * step_sine_[i];
        sine_[i] = sine_[i] * step_cosine_[i] + cosine_[i] * step_sine_[i];
        cosine_[i] = cosine;
      }
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
  int64_t position_ = -1;
  std::vector<double> frequency_, cosine_, sine_, step_cosine_, step_sine_;
};

// Calls f(row of [batch * length], cosine, sine), with arrays of [half], in parallel if that is
// much work. Samples without positions of their own share each position's angles.
template <class W, class F>
void for_rows(const kernels::Rotation& of, W direction, const F& f) {
  const int64_t half = of.width / 2, rows = of.batch * of.length;
  const int64_t places = of.positions ? rows : of.length,
                samples = rows / std::max<int64_t>(places, 1);
#pragma omp parallel if (rows * of.row() >= kParallelElements)
  {
    Angles angles(half, of.frequencies);
    std::vector<W> cosine(half), sine(half);
#pragma omp for schedule(static)
    for (int64_t place = 0; place < places; ++place) {
      angles.turn_to(of.positions ? of.positions[place] : place);
      angles.write(direction, cosine.data(), sine.data());
      for (int64_t sample = 0; sample < samples; ++sample) {
        f(sample * places + place, cosine.data(), sine.data());
      }
    }
  }
}

}  // namespace tandem::rope_rows
