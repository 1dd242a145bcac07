#include "comm/sharding/exact/exact_sums.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>

#include "comm/sharding/exact/fixed_point.h"
#include "src/core/error.h"
#include "src/device/copy.h"

namespace tandem {

namespace {

constexpr int64_t kMostLeaves = int64_t{1} << 24;
constexpr int kGrowth = 10;  // a parameter's largest |g| may grow by 2^kGrowth from step to step
constexpr int kDepth = 26;   // ... and must stay at 2^(h - kDepth) or above
constexpr int kLargestExponent = 1022;  // 2^e and 2^-e are normal numbers of f64
constexpr double kNoBound = std::numeric_limits<double>::quiet_NaN();

// m 2^e is in [2^(h-11), 2^(h-10)). For m of f32 and h in [38, 62] e is in [-100, 200].
int32_t exponent_for(float m, int height) {
  int exponent = 0;
  std::frexp(m, &exponent);  // m in [2^(exponent-1), 2^exponent)
  return height - kGrowth - exponent;
}

bool fits(float m, int32_t exponent, int height) {
  if (m == 0 || exponent == ExactSums::kUnknown) {
    return m == 0;
  }
  const double scaled = std::ldexp(static_cast<double>(m), exponent);
  return scaled < std::ldexp(1, height) && scaled >= std::ldexp(1, height - kDepth);
}

double power(int32_t exponent, int sign) {
  return exponent == ExactSums::kUnknown ? 0 : std::ldexp(1, sign * exponent);
}

void check(std::span<const Extent> segments, int64_t elements, size_t parameters) {
  int64_t begin = 0;
  for (const Extent& s : segments) {
    require(s.parameter >= 0 && s.parameter < static_cast<int64_t>(parameters) &&
                s.in_flat >= begin && s.count >= 0 && s.in_flat + s.count <= elements,
            "ExactSums: a segment of parameter ", s.parameter, " at ", s.in_flat, ", ", s.count,
            " elements of ", elements, ", after one that ends at ", begin);
    begin = s.in_flat + s.count;
  }
}

}  // namespace

void zero_gaps(Stream& stream, const Tensor& flat, std::span<const Extent> segments) {
  int64_t begin = 0;
  const auto zero_until = [&](int64_t end) {
    if (begin < end) {
      zero(stream, flat.slice(begin, end - begin));
    }
  };
  for (const Extent& segment : segments) {
    zero_until(segment.in_flat);
    begin = segment.in_flat + segment.count;
  }
  zero_until(flat.elements());
}

ExactSums::ExactSums(Stream& stream, Memory& memory, int64_t parameters, int64_t leaves)
    : stream_(stream),
      leaves_(leaves),
      height_(62 - static_cast<int>(std::bit_width(static_cast<uint64_t>(leaves - 1)))),
      exponents_(static_cast<size_t>(parameters), kUnknown),
      next_(exponents_),
      bound_(kNoBound),
      largest_(Tensor::zeros(memory, {parameters}, DType::kI32, MemoryClass::kStaging)),
      digits_(
          Tensor::zeros(memory, {kernels::kSquareDigits + 1}, DType::kI64, MemoryClass::kStaging)) {
  require(leaves >= 1 && leaves <= kMostLeaves, "ExactSums: ", leaves,
          " leaves: it must be 1 to 2^24");
}

void ExactSums::begin_step() {
  exponents_ = next_;
  bound_ = kNoBound;
  zero(stream_, largest_);
}

void ExactSums::quantise(const Tensor& leaf, std::span<const Extent> segments, const Tensor& sums,
                         bool add) {
  require(leaf.elements() == sums.elements(), "ExactSums: as many sums as elements of a leaf");
  check(segments, leaf.elements(), exponents_.size());
  if (!add) {
    zero_gaps(stream_, sums, segments);
  }
  const double limit = std::ldexp(1, height_);
  on_device(stream_, touching(leaf, add ? sums : Tensor(), sums), [&](auto device) {
    for (const Extent& s : segments) {
      kernels::quantise(device, s.count, leaf.data<float>() + s.in_flat,
                        power(exponents_[s.parameter], 1), limit, sums.data<int64_t>() + s.in_flat,
                        add, largest_.data<int32_t>() + s.parameter);
    }
  });
}

void ExactSums::dequantise(const Tensor& sums, std::span<const Extent> segments,
                           const Tensor& values) const {
  require(sums.elements() == values.elements(), "ExactSums: as many values as sums");
  check(segments, sums.elements(), exponents_.size());
  zero_gaps(stream_, values, segments);
  on_device(stream_, touching(sums, values), [&](auto device) {
    for (const Extent& s : segments) {
      kernels::dequantise(device, s.count, sums.data<int64_t>() + s.in_flat,
                          power(exponents_[s.parameter], -1), values.data<float>() + s.in_flat);
    }
  });
}

// By parameter, over all leaves of all ranks. Compared as integers, the bits have the order of the
// numbers, and NaN stays the largest.
std::vector<float> ExactSums::largest_of_all(Control& control) {
  const Tensor own = copied(stream_, largest_, host_);
  std::vector<int32_t> bits(exponents_.size(), 0);
  const size_t bytes = static_cast<size_t>(own.bytes());
  for (const std::string& text :
       control.all_gather(std::string(reinterpret_cast<const char*>(own.raw()), bytes))) {
    require(text.size() == bytes, "ExactSums: ranks with other parameters");
    std::vector<int32_t> theirs(bits.size());
    std::memcpy(theirs.data(), text.data(), bytes);
    std::ranges::transform(bits, theirs, bits.begin(),
                           [](int32_t a, int32_t b) { return std::max(a, b); });
  }
  std::vector<float> largest(bits.size());
  std::ranges::transform(bits, largest.begin(), [](int32_t b) { return std::bit_cast<float>(b); });
  return largest;
}

ExactSums::Verdict ExactSums::judge(Control& control) {
  const std::vector<float> largest = largest_of_all(control);
  bound_ = kNoBound;
  if (!std::ranges::all_of(largest, [](float m) { return std::isfinite(m); })) {
    return Verdict::kNonFinite;
  }
  bool good = true;
  float most = 0;
  for (size_t p = 0; p < largest.size(); ++p) {
    good = good && fits(largest[p], exponents_[p], height_);
    most = std::max(most, largest[p]);
    next_[p] = largest[p] > 0 ? exponent_for(largest[p], height_) : exponents_[p];
  }
  if (!good) {
    return Verdict::kAgain;
  }
  bound_ = static_cast<double>(leaves_) * most;
  return Verdict::kGood;
}

double ExactSums::squared_norm(Collectives& group, std::span<const Tensor> parts,
                               Timeline& timeline) {
  require(std::isfinite(bound_), "ExactSums: squared_norm() of a step that was not judged good");
  int exponent = 0;  // elements are at most G, so the integers are at most 2^31
  std::frexp(bound_, &exponent);
  exponent = 31 - exponent;
  zero(stream_, digits_);
  for (const Tensor& part : parts) {
    on_device(stream_, touching(part), [&](auto device) {
      kernels::add_squares(device, part.elements(), part.data<float>(), std::ldexp(1, exponent),
                           digits_.data<int64_t>());
    });
  }
  group.stream().wait(stream_.record());
  group.all_reduce(digits_, Traffic::kControl);
  timeline.during(stream_, Phase::kCommunication, [&] { group.wait(group.stream().record()); });
  const Tensor digits = copied(stream_, digits_, host_);
  const std::span<const int64_t> digit = digits.as<int64_t>();
  require(digit[kernels::kSquareDigits] == 0, "ExactSums: ", digit[kernels::kSquareDigits],
          " elements above ", bound_, ", which no sum of this step can be");
  __int128 total = 0;
  for (int d = kernels::kSquareDigits - 1; d >= 0; --d) {
    total = (total << kernels::kSquareDigitBits) + digit[d];
  }
  return std::ldexp(static_cast<double>(total), -2 * exponent);
}

void ExactSums::set_exponents(std::vector<int32_t> exponents) {
  const bool possible = std::ranges::all_of(exponents, [](int32_t e) {
    return e == kUnknown || (e >= -kLargestExponent && e <= kLargestExponent);
  });
  if (exponents.size() != next_.size() || !possible) {
    fail_data("exponents of exact sums: ", exponents.size(), " for ", next_.size(), " parameters",
              possible ? "" : ", one out of range",
              ": the checkpoint is of another model, or damaged");
  }
  next_ = std::move(exponents);
}

}  // namespace tandem
