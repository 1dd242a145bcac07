#include "src/report/run_start.h"

#include <cmath>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "src/report/writers/metrics_log.h"

namespace tandem {

namespace {

using Json = nlohmann::ordered_json;

constexpr std::string_view kPerSecond = "_per_s";

// Calls visit(key, loss) for each of the four losses.
template <class Start, class F>
void for_each_loss(Start& start, F&& visit) {
  visit("loss", start.training.last);
  visit("best_loss", start.training.best);
  visit("val_loss", start.validation.last);
  visit("best_val_loss", start.validation.best);
}

}  // namespace

void Losses::add(double loss) {
  last = std::isfinite(loss) ? std::optional(loss) : std::nullopt;
  if (last && !(best && *best <= loss)) {
    best = loss;
  }
}

LoggedSoFar read_logged(const std::string& path) {
  LoggedSoFar so_far;
  if (!std::filesystem::exists(path)) {
    return so_far;
  }
  read_metrics(path, [&](const Json& line) {
    so_far.elapsed_s = number_in(line, "elapsed_s", so_far.elapsed_s);
    if (line.contains("loss")) {
      so_far.training.add(number_in(line, "loss", std::nan("")));
    } else if (line.contains("val_loss")) {
      so_far.validation.add(number_in(line, "val_loss", std::nan("")));
    }
  });
  return so_far;
}

Json RunStart::json() const {
  Json json = {{"version", version}, {"time", time},
               {"hosts", hosts},     {"ranks", ranks},
               {"device", device},   {"first_step", first_step},
               {"step", step},       {"duration_s", duration_s}};
  json[unit + std::string(kPerSecond)] = units_per_s;
  if (usd > 0) {
    json["usd"] = usd;
  }
  for_each_loss(*this, [&](const char* key, const std::optional<double>& loss) {
    if (loss) {
      json[key] = *loss;
    }
  });
  json["state"] = state;
  return json;
}

RunStart RunStart::from_json(const Json& json) {
  RunStart start;
  json.at("version").get_to(start.version);
  json.at("time").get_to(start.time);
  json.at("hosts").get_to(start.hosts);
  json.at("ranks").get_to(start.ranks);
  json.at("device").get_to(start.device);
  json.at("first_step").get_to(start.first_step);
  json.at("step").get_to(start.step);
  json.at("duration_s").get_to(start.duration_s);
  start.unit = json.contains("images_per_s") ? "images" : "tokens";
  json.at(start.unit + std::string(kPerSecond)).get_to(start.units_per_s);
  start.usd = json.value("usd", 0.0);
  for_each_loss(start, [&](const char* key, std::optional<double>& loss) {
    if (json.contains(key)) {
      loss = json[key].get<double>();
    }
  });
  json.at("state").get_to(start.state);
  return start;
}

}  // namespace tandem
