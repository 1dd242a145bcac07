#include "src/report/run_facts.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "src/io/checkpoint/checkpoint.h"
#include "src/io/file.h"
#include "src/report/writers/metrics_log.h"

namespace tandem {

namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

std::optional<RunFacts::Loss> loss_in(const Json& line, const char* key) {
  const double loss = number_in(line, key, std::nan(""));
  if (!std::isfinite(loss)) {
    return std::nullopt;
  }
  return RunFacts::Loss{line.at("step").get<int64_t>(), loss};
}

void take_line(const Json& line, RunFacts* run) {
  run->step = std::max(run->step, line.at("step").get<int64_t>());
  if (line.contains("loss")) {
    run->loss = loss_in(line, "loss");
    if (run->loss) {
      run->curve.push_back(*run->loss);
    }
    for (const char* rate : {"tokens_per_s", "images_per_s"}) {
      if (const double value = number_in(line, rate, 0); value > 0) {
        run->rate_name = rate;
        run->rate = value;
      }
    }
    run->step_ms = number_in(line, "step_ms", 0);
    run->usd = std::max(run->usd, number_in(line, "usd", 0));
    run->peak_bytes = static_cast<int64_t>(number_in(line, "peak_bytes", 0));
    run->wire_bytes = static_cast<int64_t>(number_in(line, "wire_bytes", 0));
  } else if (line.contains("val_loss")) {
    run->val_loss = loss_in(line, "val_loss");
    if (run->val_loss &&
        (!run->best_val_loss || run->val_loss->value < run->best_val_loss->value)) {
      run->best_val_loss = run->val_loss;
    }
  }
}

// Files may vanish meanwhile: the run may be going on.
int64_t bytes_below(const std::string& folder) {
  int64_t bytes = 0;
  std::error_code gone;
  for (fs::recursive_directory_iterator entry(folder, gone), end; !gone && entry != end;
       entry.increment(gone)) {
    std::error_code vanished;
    const auto size = entry->is_regular_file(vanished) ? entry->file_size(vanished) : 0;
    bytes += vanished ? 0 : static_cast<int64_t>(size);
  }
  return bytes;
}

// A damaged report says nothing.
void take_last_start(const std::string& report, RunFacts* run) {
  const Json json = Json::parse(read_file(report), nullptr, false);
  const Json starts = json.is_object() ? json.value("starts", Json()) : Json();
  const Json last = starts.is_array() && !starts.empty() ? starts.back() : Json();
  if (last.is_object()) {
    const Json state = last.value("state", Json());
    run->last_end = state.is_string() ? state.get<std::string>() : "";
    run->usd = std::max(run->usd, number_in(last, "usd", 0));
  }
}

double age_of(const std::string& path) {
  const auto age = fs::file_time_type::clock::now() - fs::last_write_time(path);
  return std::max(0.0, std::chrono::duration<double>(age).count());
}

Json json_of(const std::optional<RunFacts::Loss>& loss) {
  return loss ? Json{{"step", loss->step}, {"value", loss->value}} : Json();
}

}  // namespace

std::string RunFacts::state() const {
  const bool is_through = steps > 0 && step >= steps && last_end != "stopped";
  return is_running                                    ? "running"
         : last_end == "running" || last_end == "died" ? "died"  // perhaps in the last validation
         : is_through                                  ? "finished"
         : step > 0                                    ? "stopped"
                                                       : "new";
}

std::optional<RunFacts::Loss> RunFacts::best() const {
  const auto least = std::ranges::min_element(curve, {}, &Loss::value);
  return best_val_loss || least == curve.end() ? best_val_loss : std::optional(*least);
}

std::string RunFacts::setting(const std::string& key) const {
  const auto found = std::ranges::find(settings, key, &Assignment::key);
  return found == settings.end() ? "" : found->value;
}

std::string RunFacts::json() const {
  Json text = {{"name", name},   {"path", path},   {"state", state()}, {"step", step},
               {"steps", steps}, {"age_s", age_s}, {"bytes", bytes},   {"step_ms", step_ms}};
  text["loss"] = json_of(loss);
  text["val_loss"] = json_of(val_loss);
  text["best"] = json_of(best());
  if (!rate_name.empty()) {
    text[rate_name] = rate;
  }
  if (usd > 0) {
    text["usd"] = usd;
  }
  return text.dump(-1, ' ', false, Json::error_handler_t::replace);
}

bool is_run(const std::string& folder) {
  return fs::exists(RunDirectory(folder).settings()) || fs::exists(RunDirectory(folder).metrics());
}

RunFacts read_run(const RunDirectory& directory) {
  const fs::path path = fs::absolute(directory.path()).lexically_normal();
  RunFacts run{.path = directory.path(),
               .name = (path.has_filename() ? path : path.parent_path()).filename().string()};
  const std::string config = directory.settings();
  if (fs::exists(config)) {
    run.settings = parse_ini(read_file(config), config);
    run.steps = std::atoll(run.setting("train.steps").c_str());
    run.age_s = age_of(config);
  }
  if (fs::exists(directory.metrics())) {
    read_metrics(directory.metrics(), [&](const Json& line) { take_line(line, &run); });
    run.age_s = age_of(directory.metrics());
  }
  if (fs::exists(directory.report())) {
    take_last_start(directory.report(), &run);
  }
  for (const CheckpointName& checkpoint : list_checkpoints(directory.checkpoints())) {
    run.step = std::max(run.step, checkpoint.step);
  }
  run.is_running = FileLock::is_held(directory.path() + "/lock");
  run.bytes = bytes_below(directory.path());
  return run;
}

}  // namespace tandem
