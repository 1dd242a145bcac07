#include "src/stop/spot_watch.h"

#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <fstream>
#include <mutex>
#include <nlohmann/json.hpp>
#include <optional>

#include "src/core/error.h"
#include "src/core/visible_text.h"

namespace tandem {

namespace {

constexpr int kPatience = 3;  // requests; a machine may be busy at a start
constexpr const char* kNotice = "/latest/meta-data/spot/instance-action";

void say(const std::string& line) { std::fputs(("tandem: " + line + "\n").c_str(), stderr); }

void sleep(std::chrono::milliseconds time, const std::stop_token& stop) {
  std::mutex mutex;
  std::unique_lock lock(mutex);
  std::condition_variable_any().wait_for(lock, stop, time, [] { return false; });
}

}  // namespace

SpotWatch::SpotWatch(const Options& options)
    : options_(options),
      service_(options.service),
      thread_([this](const std::stop_token& stop) { watch(stop); }) {}

void SpotWatch::watch(const std::stop_token& stop) {
  for (int request = 1; !stop.stop_requested() && !noticed_; ++request) {
    try {
      noticed_ = look(stop);
    } catch (const std::exception& error) {
      const bool is_unsure = options_.gives_up && !service_.has_had_token();
      const bool gives_up = is_unsure && request == kPatience;
      if (!stop.stop_requested() && (gives_up || !is_unsure) &&
          complaints_.insert(error.what()).second) {
        say(str(options_.host, ": no spot notices: the metadata service ", options_.service.server,
                " ", error.what(),
                gives_up ? "; it is not asked again (run.watch_spot = auto)" : "; asking again"));
      }
      if (gives_up) {
        return;
      }
    }
    if (!noticed_) {
      sleep(options_.period, stop);
    }
  }
}

bool SpotWatch::look(const std::stop_token& stop) {
  const std::optional<std::string> text = service_.get(kNotice, stop);
  if (!text) {
    return false;
  }
  const auto notice = nlohmann::json::parse(*text, nullptr, false);
  const auto value = [&](const char* key) {
    const bool found = notice.is_object() && notice.contains(key) && notice[key].is_string();
    return found ? notice[key].get<std::string>() : std::string();
  };
  if (value("action").empty() || value("time").empty()) {
    fail(ExitCode::kTemporary, "has a notice without action and time at ", kNotice);
  }
  say(str(options_.host, ": spot notice: EC2 will ", visible(value("action")), " this machine at ",
          visible(value("time")), "; saving, then stopping"));
  return true;
}

std::unique_ptr<SpotWatch> watch_spot(WatchSpot mode, const std::string& host) {
  const char* server = std::getenv("TANDEM_IMDS");
  if (mode == WatchSpot::kOff || (mode == WatchSpot::kAuto && !server && !is_ec2())) {
    return nullptr;
  }
  SpotWatch::Options options{.host = host, .gives_up = mode == WatchSpot::kAuto};
  if (server) {
    options.service.server = server;
  }
  return std::make_unique<SpotWatch>(options);
}

bool is_ec2(const std::string& dmi) {
  for (const char* file : {"/sys_vendor", "/board_vendor"}) {
    std::string vendor;
    std::getline(std::ifstream(dmi + file), vendor);
    if (vendor == "Amazon EC2") {
      return true;
    }
  }
  return false;
}

}  // namespace tandem
