#include "src/report/run_exports.h"

#include <algorithm>
#include <array>
#include <filesystem>
#include <iterator>
#include <memory>
#include <numeric>
#include <regex>
#include <string_view>
#include <utility>

#include "src/core/error.h"

namespace tandem {

namespace {

namespace fs = std::filesystem;

struct GpuRow {
  GpuFigure figure;
  const char* name;
  double factor = 1;
  bool adds = false;  // the figure is of the time since the last line
};

constexpr std::array<GpuRow, 12> kGpuRows = {
    {{GpuFigure::kUse, "gpu_use_ratio"},
     {GpuFigure::kMemoryBytes, "gpu_memory_bytes"},
     {GpuFigure::kPowerW, "gpu_power_watts"},
     {GpuFigure::kEnergyJ, "gpu_energy_joules_total", 1, true},
     {GpuFigure::kTemperatureC, "gpu_temperature_celsius"},
     {GpuFigure::kClockMhz, "gpu_clock_hertz", 1e6},
     {GpuFigure::kThrottled, "gpu_throttled_ratio"},
     {GpuFigure::kEccErrors, "gpu_ecc_errors_total"},
     {GpuFigure::kRemappedPending, "gpu_remapped_pending"},
     {GpuFigure::kRemappedFailed, "gpu_remapped_failed"},
     {GpuFigure::kNvlinkBytes, "gpu_nvlink_bytes_total", 1, true},
     {GpuFigure::kXids, "gpu_xids_total"}}};

std::vector<Gauge> gpu_gauges(const std::optional<GpuUse>& use) {
  std::vector<Gauge> gauges;
  for (const GpuRow& row : kGpuRows) {
    if (use && (*use)[row.figure]) {
      gauges.push_back({row.name, row.factor * *(*use)[row.figure]});
    }
  }
  return gauges;
}

// What starts of the run that were killed have left.
void remove_old_files(const std::string& folder, const std::string& run) {
  const std::regex name("\\d+\\.prom(\\.partial)?");
  const std::string begin = "tandem_" + run + "_";
  std::error_code error;
  for (fs::directory_iterator entry(folder, error), end; !error && entry != end;
       entry.increment(error)) {
    const std::string file = entry->path().filename();
    if (file.starts_with(begin) && std::regex_match(file.substr(begin.size()), name)) {
      std::error_code ignored;  // another host may have removed it
      fs::remove(entry->path(), ignored);
    }
  }
}

double total_of(const std::vector<double>& values) {
  return std::accumulate(values.begin(), values.end(), 0.0);
}

}  // namespace

RunExports::RunExports(const Config& config, int rank, std::vector<std::string> hosts,
                       const std::string& gpu)
    : run_(config.run.name),
      unit_(config.unit()),
      units_per_sample_(config.units_per_sample()),
      rank_(rank),
      hosts_(std::move(hosts)),
      labels_({{"run", run_}, {"rank", str(rank)}, {"host", hosts_[static_cast<size_t>(rank)]}}),
      exports_(config.log.prometheus, str("tandem_", run_, "_", rank, ".prom"), config.log.emf),
      latest_(hosts_.size()),
      silent_s_(hosts_.size()),
      longest_silence_s_(std::max(10 * config.log.gpu_every_s, 1.0)) {
  if (!gpu.empty()) {
    labels_.emplace_back("gpu", gpu);
  }
  if (exports_.wants_prometheus() && is_first_of_host()) {
    remove_old_files(config.log.prometheus, run_);
  }
}

void RunExports::write(const StepMetrics& metrics, int first_rank, std::optional<double> usd) {
  const auto rank = static_cast<size_t>(rank_), own = rank - static_cast<size_t>(first_rank);
  keep(metrics, first_rank);
  if (exports_.wants_prometheus()) {
    std::vector<Gauge> gauges = {
        {"step", static_cast<double>(metrics.step)},
        {"own_seconds", metrics.own_s[own] / static_cast<double>(metrics.steps)}};
    if (rank_ == 0) {
      std::ranges::move(run_gauges(metrics, usd), std::back_inserter(gauges));
    }
    std::ranges::move(gpu_gauges(latest_[rank]), std::back_inserter(gauges));
    exports_.replace_file(prometheus_text(gauges, labels_));
  }
  if (exports_.wants_emf() && rank_ == 0) {
    exports_.append_line(run_line(metrics, usd));
  }
  if (exports_.wants_emf() && is_first_of_host()) {
    exports_.append_line(host_line());
  }
}

bool RunExports::is_first_of_host() const {
  return std::ranges::find(hosts_, hosts_[static_cast<size_t>(rank_)]) == hosts_.begin() + rank_;
}

double RunExports::units_per_s(const StepMetrics& metrics) const {
  return static_cast<double>(metrics.samples * units_per_sample_) / metrics.seconds;
}

std::vector<Gauge> RunExports::run_gauges(const StepMetrics& metrics,
                                          std::optional<double> usd) const {
  std::vector<Gauge> gauges = {
      {"loss", metrics.loss},
      {"step_seconds", metrics.seconds / static_cast<double>(metrics.steps)},
      {unit_ + "_per_second", units_per_s(metrics)}};
  if (usd) {
    gauges.push_back({"usd_total", *usd});
  }
  return gauges;
}

void RunExports::keep(const StepMetrics& metrics, int first_rank) {
  const GpuUses& gpus = metrics.gpus;
  for (size_t i = 0; i < gpus.size(); ++i) {
    const size_t rank = static_cast<size_t>(first_rank) + i;
    std::optional<GpuUse>& latest = latest_[rank];
    if (!gpus[i]) {
      latest.reset();
      continue;
    }
    latest = latest.value_or(GpuUse());
    const bool answers = (*gpus[i])[GpuFigure::kSamples].value_or(0) > 0;
    silent_s_[rank] = answers ? 0 : silent_s_[rank] + metrics.seconds;
    for (const GpuRow& row : kGpuRows) {
      if (silent_s_[rank] > longest_silence_s_ && !std::string_view(row.name).ends_with("_total")) {
        (*latest)[row.figure].reset();
      }
      if (const std::optional<double>& value = (*gpus[i])[row.figure]) {
        std::optional<double>& kept = (*latest)[row.figure];
        kept = *value + (row.adds ? kept.value_or(0) : 0);
      }
    }
  }
}

std::string RunExports::run_line(const StepMetrics& metrics, std::optional<double> usd) const {
  std::vector<EmfMetric> figures = {
      {"StepTime", "Milliseconds", 1000 * metrics.seconds / static_cast<double>(metrics.steps)},
      {"Loss", "None", metrics.loss},
      {"UnitsPerSecond", "Count/Second", units_per_s(metrics)}};
  if (usd) {
    figures.push_back({"Usd", "None", *usd});
  }
  return emf_line(unix_now_s(), {{"Run", run_}}, figures);
}

std::string RunExports::host_line() {
  const std::string& host = hosts_[static_cast<size_t>(rank_)];
  GpuUses gpus;
  for (size_t r = 0; r < hosts_.size(); ++r) {
    if (hosts_[r] == host) {
      gpus.push_back(latest_[r]);
    }
  }
  std::vector<EmfMetric> figures;
  const auto add = [&](const char* name, const char* unit, GpuFigure figure, auto&& over) {
    if (const std::vector<double> values = known(gpus, figure); !values.empty()) {
      figures.push_back({name, unit, over(values)});
    }
  };
  using Values = const std::vector<double>&;
  add("GpuUse", "Percent", GpuFigure::kUse,
      [](Values v) { return 100 * total_of(v) / static_cast<double>(v.size()); });
  add("GpuLeastUse", "Percent", GpuFigure::kUse,
      [](Values v) { return 100 * std::ranges::min(v); });
  add("GpuPower", "None", GpuFigure::kPowerW, total_of);
  add("GpuTemperature", "None", GpuFigure::kTemperatureC,
      [](Values v) { return std::ranges::max(v); });
  add("GpuThrottled", "Count", GpuFigure::kThrottled, [](Values v) {
    return static_cast<double>(std::ranges::count_if(v, [](double share) { return share > 0; }));
  });
  return emf_line(unix_now_s(), {{"Run", run_}, {"Host", host}}, figures);
}

std::function<void()> xid_export(const Config& config, const std::string& host) {
  if (config.log.emf.empty()) {
    return nullptr;
  }
  return [labels = Labels{{"Run", config.run.name}, {"Host", host}},
          exports = std::make_shared<Exports>("", "", config.log.emf)] {
    exports->append_line(emf_line(unix_now_s(), labels, {{"Xid", "Count", 1}}));
  };
}

}  // namespace tandem
