#include "src/telemetry/gpu_use.h"

#include <algorithm>
#include <sstream>

#include "src/core/error.h"
#include "src/core/formatted.h"
#include "src/core/parse_number.h"

namespace tandem {

namespace {

enum class Over : uint8_t { kCount, kMean, kGreatest, kSinceTake, kSinceStart };

struct Row {
  std::string_view name;
  Over over;
};

constexpr std::array<Row, kGpuFigures> kRows = {{{"samples", Over::kCount},
                                                 {"use", Over::kMean},
                                                 {"memory_bytes", Over::kGreatest},
                                                 {"power_w", Over::kMean},
                                                 {"energy_j", Over::kSinceTake},
                                                 {"temperature_c", Over::kGreatest},
                                                 {"clock_mhz", Over::kMean},
                                                 {"throttled", Over::kMean},
                                                 {"ecc_errors", Over::kSinceStart},
                                                 {"remapped_pending", Over::kGreatest},
                                                 {"remapped_failed", Over::kGreatest},
                                                 {"nvlink_bytes", Over::kSinceTake},
                                                 {"xids", Over::kGreatest}}};

}  // namespace

std::string_view name_of(GpuFigure figure) { return kRows[static_cast<size_t>(figure)].name; }

std::string GpuUse::text() const {
  std::string text;
  for (const std::optional<double>& figure : figures) {
    text += figure ? formatted("%.17g ", *figure) : "- ";
  }
  return text;
}

GpuUse GpuUse::from_text(std::string_view text) {
  std::istringstream in{std::string(text)};
  GpuUse use;
  std::string word;
  for (std::optional<double>& figure : use.figures) {
    in >> word;
    figure = parse_number<double>(word);
    require(in && (figure || word == "-"), [&] { return str("GpuUse: not one: '", text, "'"); });
  }
  require(!(in >> word), [&] { return str("GpuUse: too long: '", text, "'"); });
  return use;
}

void GpuWindow::add(const GpuUse& sample) {
  ++samples_;
  for (size_t i = 0; i < kGpuFigures; ++i) {
    if (const std::optional<double>& value = sample.figures[i]) {
      Figure& figure = figures_[i];
      figure.greatest = figure.count > 0 ? std::max(figure.greatest, *value) : *value;
      ++figure.count;
      figure.mean += (*value - figure.mean) / static_cast<double>(figure.count);
      figure.last = *value;
      figure.first = figure.first.value_or(*value);
    }
  }
}

GpuUse GpuWindow::take() {
  GpuUse use;
  for (size_t i = 0; i < kGpuFigures; ++i) {
    Figure& figure = figures_[i];
    if (figure.count > 0) {
      switch (kRows[i].over) {
        case Over::kCount:
          break;
        case Over::kMean:
          use.figures[i] = figure.mean;
          break;
        case Over::kGreatest:
          use.figures[i] = figure.greatest;
          break;
        case Over::kSinceTake:
          use.figures[i] = figure.last - figure.taken.value_or(*figure.first);
          break;
        case Over::kSinceStart:
          use.figures[i] = figure.last - *figure.first;
          break;
      }
      figure = {.last = figure.last, .first = figure.first, .taken = figure.last};
    }
  }
  use[GpuFigure::kSamples] = static_cast<double>(samples_);
  samples_ = 0;
  return use;
}

}  // namespace tandem
