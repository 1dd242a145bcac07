// EC2 takes spot machines back, and says so about two minutes before: a notice in the metadata of
// the machine. A thread looks for it, because a request may take longer than a step.
//
// Format: "Spot Instance interruption notices" in the EC2 user guide.
#pragma once

#include <atomic>
#include <chrono>
#include <memory>
#include <set>
#include <stop_token>
#include <string>
#include <thread>

#include "src/stop/instance_metadata.h"

namespace tandem {

enum class WatchSpot : uint8_t {
  kAuto,  // where the machine is one of EC2 and its metadata service gives a token
  kOn,
  kOff
};

class SpotWatch {
 public:
  struct Options {
    std::string host;  // its name, for messages
    InstanceMetadata::Options service{};
    std::chrono::milliseconds period{5000};
    bool gives_up = false;  // if the first three requests get no token
  };

  // Throws what InstanceMetadata throws. Whatever goes wrong later is a line on standard error,
  // one for each kind of failure.
  explicit SpotWatch(const Options& options);

  // True as soon as there is a notice; then a line on standard error has said so.
  bool noticed() const { return noticed_; }

 private:
  void watch(const std::stop_token& stop);
  bool look(const std::stop_token& stop);

  const Options options_;
  InstanceMetadata service_;
  std::set<std::string> complaints_;
  std::atomic<bool> noticed_{false};
  std::jthread thread_;  // last: it uses all others, and its destructor ends it at once
};

// The watch that a mode asks for on this machine; may be null. TANDEM_IMDS=ADDRESS:PORT in the
// environment is a metadata service for tests, and stands for a machine of EC2.
std::unique_ptr<SpotWatch> watch_spot(WatchSpot mode, const std::string& host);

// `dmi`: the folder where Linux describes the machine.
bool is_ec2(const std::string& dmi = "/sys/devices/virtual/dmi/id");

}  // namespace tandem
