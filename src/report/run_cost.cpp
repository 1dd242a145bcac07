#include "src/report/run_cost.h"

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "src/core/formatted.h"

namespace tandem {

namespace {

const auto kLoaded = std::chrono::steady_clock::now();

}  // namespace

RunCost::RunCost(const Config& config, const RunDirectory& directory,
                 const std::vector<RunStart>& earlier, size_t nodes)
    : unit_(config.price_unit()),
      nodes_(nodes),
      usd_per_hour_(config.run.usd_per_node_hour * static_cast<double>(nodes)) {
  if (!earlier.empty()) {
    before_ = earlier.back().usd;
  }
  if (is_known() && std::filesystem::exists(directory.metrics())) {
    read_metrics(directory.metrics(), [&](const nlohmann::ordered_json& line) {
      before_ = std::max(before_, number_in(line, "usd", 0));
    });
  }
}

double RunCost::usd() const {
  const auto seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - kLoaded);
  return before_ + usd_per_hour_ * seconds.count() / 3600;
}

std::vector<Metric> RunCost::metrics(int64_t units) const {
  if (!is_known()) {
    return {};
  }
  const double usd = this->usd();
  return {{"usd", usd}, {unit_.key, unit_.price(usd, static_cast<double>(units))}};
}

std::string RunCost::text(int64_t units) const {
  const double usd = this->usd();
  const std::string price =
      units > 0 ? formatted("; %.2f for %s", unit_.price(usd, static_cast<double>(units)),
                            unit_.text.c_str())
                : "";
  return formatted("%.2f dollars on %s at %.8g an hour%s", usd,
                   counted(static_cast<int64_t>(nodes_), "node").c_str(),
                   usd_per_hour_ / static_cast<double>(nodes_), price.c_str());
}

}  // namespace tandem
