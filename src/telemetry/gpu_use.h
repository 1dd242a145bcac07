// What one GPU did in a stretch of time, as a fixed row of figures.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace tandem {

enum class GpuFigure : uint8_t {
  kSamples,          // how many samples the figures are of
  kUse,              // mean share of time in which a kernel ran, 0 to 1
  kMemoryBytes,      // greatest, of all processes
  kPowerW,           // mean, W
  kEnergyJ,          // spent, J
  kTemperatureC,     // greatest, degrees Celsius
  kClockMhz,         // mean of the multiprocessors, MHz
  kThrottled,        // share of samples with a clock held down by power or heat, 0 to 1
  kEccErrors,        // uncorrected, since the watch began
  kRemappedPending,  // 1: rows of memory will be remapped at the next reset
  kRemappedFailed,   // 1: remapping a row has failed
  kNvlinkBytes,      // sent and received over all links
  kXids,             // errors that the driver has reported since the watch began
};
inline constexpr size_t kGpuFigures = 13;
std::string_view name_of(GpuFigure figure);  // "energy_j", as in metrics.jsonl

// By GpuFigure; empty: not known.
struct GpuUse {
  std::array<std::optional<double>, kGpuFigures> figures{};

  std::optional<double>& operator[](GpuFigure figure) {
    return figures[static_cast<size_t>(figure)];
  }
  const std::optional<double>& operator[](GpuFigure figure) const {
    return figures[static_cast<size_t>(figure)];
  }
  // Words with spaces between them, for a control message: a number, or "-" for what is not known.
  // from_text() reads them back with the same bits; Error kInternal if they are others.
  std::string text() const;
  static GpuUse from_text(std::string_view text);
  bool operator==(const GpuUse&) const = default;
};

// Makes the figures of a stretch of time from samples. In a sample kEnergyJ, kEccErrors and
// kNvlinkBytes are counters that began at any time, and kThrottled is 0 or 1.
class GpuWindow {
 public:
  void add(const GpuUse& sample);
  // The figures since the last take(). What counters counted begins at the last sample before it,
  // or at the first of all.
  GpuUse take();

 private:
  struct Figure {
    double mean = 0, greatest = 0, last = 0;  // the mean of equal values has their bits
    int64_t count = 0;                        // of samples that know it, since the last take
    std::optional<double> first{}, taken{};   // of all, and the last one before the last take
  };
  std::array<Figure, kGpuFigures> figures_{};
  int64_t samples_ = 0;
};

}  // namespace tandem
