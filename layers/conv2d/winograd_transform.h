// The matrices of Winograd's algorithm (winograd.h) as functions of vectors, and how they are
// applied along both axes of a tile:
//
//     B^T = [ 1  0 -1  0 ]   G = [  1    0    0  ]   A^T = [ 1  1  1  0 ]
//           [ 0  1  1  0 ]       [ 1/2  1/2  1/2 ]         [ 0  1 -1 -1 ]
//           [ 0 -1  1  0 ]       [ 1/2 -1/2  1/2 ]
//           [ 0  1  0 -1 ]       [  0    0    1  ]
#pragma once

#include "src/kernels/vector.h"

namespace tandem::kernels {

inline constexpr int kSide = 4;  // inputs of a tile along an axis

// Vectors along one axis.
template <class T, int kCount>
struct Line {
  Vector<T> at[kCount];
};

template <class T>
[[gnu::always_inline]] inline Line<T, 4> b_transposed(const Line<T, 4>& d) {
  return {d.at[0] - d.at[2], d.at[1] + d.at[2], d.at[2] - d.at[1], d.at[1] - d.at[3]};
}

template <class T>
[[gnu::always_inline]] inline Line<T, 2> a_transposed(const Line<T, 4>& m) {
  return {m.at[0] + m.at[1] + m.at[2], m.at[1] - m.at[2] - m.at[3]};
}

template <class T>
[[gnu::always_inline]] inline Line<T, 4> a(const Line<T, 2>& y) {
  return {y.at[0], y.at[0] + y.at[1], y.at[0] - y.at[1], -y.at[1]};
}

template <class T>
[[gnu::always_inline]] inline Line<T, 4> g(const Line<T, 3>& w) {
  const Vector<T> sum = T(0.5) * (w.at[0] + w.at[2]), middle = T(0.5) * w.at[1];
  return {w.at[0], sum + middle, sum - middle, w.at[2]};
}

template <class T>
[[gnu::always_inline]] inline Line<T, 3> g_transposed(const Line<T, 4>& u) {
  const Vector<T> sum = T(0.5) * (u.at[1] + u.at[2]), difference = T(0.5) * (u.at[1] - u.at[2]);
  return {u.at[0] + sum, difference, sum + u.at[3]};
}

// Applies kMatrix, one of the functions above, along both axes. from(row, column) is an element;
// to(row, column, value) takes one of the result.
template <class T, auto kMatrix, int kFrom, int kTo, class From, class To>
[[gnu::always_inline]] inline void transform(From from, To to) {
  Line<T, kFrom> lines[kTo];
#pragma GCC unroll 4
  for (int column = 0; column < kFrom; ++column) {
    Line<T, kFrom> line;
#pragma GCC unroll 4
    for (int row = 0; row < kFrom; ++row) {
      line.at[row] = from(row, column);
    }
    const Line<T, kTo> result = kMatrix(line);
#pragma GCC unroll 4
    for (int row = 0; row < kTo; ++row) {
      lines[row].at[column] = result.at[row];
    }
  }
#pragma GCC unroll 4
  for (int row = 0; row < kTo; ++row) {
    const Line<T, kTo> result = kMatrix(lines[row]);
#pragma GCC unroll 4
    for (int column = 0; column < kTo; ++column) {
      to(row, column, result.at[column]);
    }
  }
}

}  // namespace tandem::kernels
