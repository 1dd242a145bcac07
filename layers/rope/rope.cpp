#include "layers/rope/rope.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "src/kernels/map.h"

namespace tandem {

namespace kernels {

namespace {

constexpr int64_t kStretch = 16;  // positions that share one computed angle

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

template <class T>
void rotate_row(const T* x, T* y, const Wide<T>* cosine, const Wide<T>* sine, int64_t row,
                int64_t heads, int64_t width) {
  const int64_t half = width / 2;
  for (int64_t h = 0; h < heads; ++h) {
    const T* from = x + h * width;
    T* to = y + h * width;
#pragma omp simd
    for (int64_t i = 0; i < half; ++i) {
      const Wide<T> first = from[i], second = from[i + half];
      to[i] = T(first * cosine[i] - second * sine[i]);
      to[i + half] = T(second * cosine[i] + first * sine[i]);
    }
  }
  if (x != y) {
    std::copy(x + heads * width, x + row, y + heads * width);
  }
}

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

// Positions as given: the angles of all that may occur come first.
template <class T>
void rotate_documents(const Rotation& of, const T* x, T* y, Wide<T> direction) {
  const int64_t half = of.width / 2, row = of.row(), rows = of.batch * of.length;
  const bool is_much = rows * row >= kParallelElements;
  std::vector<Wide<T>> cosines(of.length * half), sines(of.length * half);
  for_angles(0, of.length, half, of.frequencies, direction, is_much,
             [&](int64_t position, const Wide<T>* cosine, const Wide<T>* sine) {
               std::copy_n(cosine, half, &cosines[position * half]);
               std::copy_n(sine, half, &sines[position * half]);
             });
#pragma omp parallel for schedule(static) if (is_much)
  for (int64_t n = 0; n < rows; ++n) {
    const int64_t at = of.positions[n] * half;
    rotate_row(x + n * row, y + n * row, &cosines[at], &sines[at], row, of.turned_heads(),
               of.width);
  }
}

}  // namespace

template <class T>
void rope_rotate(Cpu, const Rotation& of, const T* x, T* y, Wide<T> direction) {
  if (of.positions) {
    return rotate_documents(of, x, y, direction);
  }
  const int64_t row = of.row(), first = of.first_position;
  for_angles(first, first + of.length, of.width / 2, of.frequencies, direction,
             of.batch * of.length * row >= kParallelElements,
             [&](int64_t position, const Wide<T>* cosine, const Wide<T>* sine) {
               for (int64_t b = 0; b < of.batch; ++b) {
                 const int64_t at = (b * of.length + position - first) * row;
                 rotate_row(x + at, y + at, cosine, sine, row, of.turned_heads(), of.width);
               }
             });
}

}  // namespace kernels

namespace {

struct RopeOp final : Op {
  kernels::Rotation rotation;
  Tensor positions;  // those of the rotation

  std::string_view name() const override { return "rope"; }
  void backward(Context& context, Tensor& dy) override {
    input(0).add(context, rotated(context, dy, -1));
  }
  // Reuses x's memory if no one else holds it.
  Tensor rotated(Context& context, const Tensor& x, double direction) const {
    Tensor y = x.unique() ? x : context.activation(x.shape(), x.dtype());
    // Values stay as they are.
    const int64_t turned = x.elements() / rotation.row() * rotation.turned_heads() * rotation.width;
    const Work work = touching(x.slice(0, turned), y.slice(0, turned));
    on_device(context.stream, work, x.dtype(), [&]<class T>(auto device) {
      kernels::rope_rotate(device, rotation, x.data<T>(), y.data<T>(),
                           static_cast<Wide<T>>(direction));
    });
    return y;
  }
};

}  // namespace

Variable rope(Context& context, Variable qkv, const HeadLayout& layout, int64_t first_position,
              const RopeFrequencies& frequencies) {
  require(qkv.shape().rank() == 3 && qkv.shape()[2] == layout.row() && layout.width % 2 == 0,
          [&] { return str("rope: qkv ", qkv.shape(), " with heads of width ", layout.width); });
  auto op = std::make_unique<RopeOp>();
  op->positions = context.positions;
  op->rotation = {{layout, qkv.shape()[0], qkv.shape()[1]},
                  first_position,
                  frequencies,
                  op->positions ? op->positions.data<int32_t>() : nullptr};
  Tensor y = op->rotated(context, qkv.value(), 1);
  return context.record(std::move(y), std::move(op), {qkv});
}

}  // namespace tandem
