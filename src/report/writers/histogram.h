// How values are distributed, in bins that grow with the distance from zero.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace tandem {

// Eight bins to each power of two from 2^-32 to 2^16, for either sign, and one for smaller values.
// Larger values count in the last bin; values that are not finite are left out. Everything is a
// sum, so that histograms of ranks can be added.
class Histogram {
 public:
  Histogram();
  void add(std::span<const float> values, float scale = 1);  // of values * scale

  // All sums, to be added over ranks and given back.
  std::vector<double>& sums() { return sums_; }

  double count() const;
  double sum() const;
  double sum_squares() const;
  // The bins from the first to the last that is not empty; nothing if all are empty. A bin holds
  // what lies below its limit and not below that of the bin before; the first one begins at
  // `least`.
  struct Bins {
    double least = 0;
    std::vector<double> limits{}, counts{};
  };
  Bins bins() const;

 private:
  std::vector<double> sums_;  // counts by bin in ascending order, sum, sum of squares
};

}  // namespace tandem
