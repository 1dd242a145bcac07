#include "tests/bench/gpu/profile.h"

#include <filesystem>

#include "src/core/error.h"

namespace tandem::bench {

namespace {

// "virtual void tandem::{anonymous}::NormOp::backward(Context&, Tensor&)" -> "NormOp::backward"
std::string short_name(std::string name) {
  name.resize(std::min(name.find('('), name.size()));
  name = name.substr(name.rfind(' ') + 1);
  for (const std::string prefix : {"tandem::", "{anonymous}::", "kernels::"}) {
    for (size_t at = name.find(prefix); at != name.npos; at = name.find(prefix)) {
      name.erase(at, prefix.size());
    }
  }
  return name;
}

}  // namespace

// A call may stand inside another.
void Profile::call(const Work&, const std::source_location& place,
                   const std::function<void()>& run) {
  Record record{.place = place, .phase = phase_};
  const bool gpu = stream_.device() == Device::kCuda;
  if (gpu) {
    record.begin = stream_.record_time();
  }
  const auto start = Clock::now();
  run();
  record.seconds = std::chrono::duration<double>(Clock::now() - start).count();
  if (gpu) {
    record.end = stream_.record_time();
  }
  records_.push_back(record);
}

std::vector<Profile::Call> Profile::take() {
  stream_.synchronize();
  std::vector<Call> calls;
  for (const Record& record : records_) {
    const std::filesystem::path file = record.place.file_name();
    const bool gpu = stream_.device() == Device::kCuda;
    calls.push_back({.place = str(file.filename().string(), ':', record.place.line(), ' ',
                                  short_name(record.place.function_name())),
                     .group = file.parent_path().filename().string(),
                     .phase = record.phase,
                     .seconds = gpu ? record.end.seconds_since(record.begin) : record.seconds});
  }
  records_.clear();
  return calls;
}

}  // namespace tandem::bench
