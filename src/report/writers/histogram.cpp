#include "src/report/writers/histogram.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <numeric>

namespace tandem {

namespace {

constexpr int kLeastExponent = -32, kMostExponent = 16;
constexpr int kBinsOfSign = 8 * (kMostExponent - kLeastExponent);
constexpr int kBins = 2 * kBinsOfSign + 1;  // negative ones, that of zero, positive ones

// The exponent and the first three bits of the fraction number the bins of a sign.
int bin_of(float value) {
  constexpr int kExponentBias = 127;
  const uint32_t magnitude = std::bit_cast<uint32_t>(value) & 0x7fffffffU;
  const int number = static_cast<int>(magnitude >> 20U) - 8 * (kExponentBias + kLeastExponent);
  if (number < 0) {
    return kBinsOfSign;
  }
  const int bin = std::min(number, kBinsOfSign - 1);
  return value < 0 ? kBinsOfSign - 1 - bin : kBinsOfSign + 1 + bin;
}

// The lower limit of the magnitudes in a sign's bin.
double magnitude_from(int bin) { return std::ldexp(1 + bin % 8 / 8.0, kLeastExponent + bin / 8); }

// The lower limit of a bin, by its number in ascending order; kBins gives the limit of the last.
double lower_limit(int bin) {
  return bin <= kBinsOfSign ? -magnitude_from(kBinsOfSign - bin)
                            : magnitude_from(bin - kBinsOfSign - 1);
}

}  // namespace

Histogram::Histogram() : sums_(kBins + 2) {}

void Histogram::add(std::span<const float> values, float scale) {
  for (const float unscaled : values) {
    const float value = unscaled * scale;
    if (std::isfinite(value)) {
      ++sums_[static_cast<size_t>(bin_of(value))];
      sums_[kBins] += value;
      sums_[kBins + 1] += static_cast<double>(value) * value;
    }
  }
}

double Histogram::count() const {
  return std::accumulate(sums_.begin(), sums_.begin() + kBins, 0.0);
}
double Histogram::sum() const { return sums_[kBins]; }
double Histogram::sum_squares() const { return sums_[kBins + 1]; }

Histogram::Bins Histogram::bins() const {
  const auto begin = sums_.begin(), end = begin + kBins;
  const auto is_used = [](double count) { return count > 0; };
  const auto first = std::find_if(begin, end, is_used);
  if (first == end) {
    return {};
  }
  Bins bins{.least = lower_limit(static_cast<int>(first - begin))};
  const auto last = std::find_if(std::make_reverse_iterator(end), sums_.rend(), is_used).base();
  for (auto bin = first; bin != last; ++bin) {
    bins.limits.push_back(lower_limit(static_cast<int>(bin - begin) + 1));
    bins.counts.push_back(*bin);
  }
  return bins;
}

}  // namespace tandem
