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

void Profile::begin(const std::source_location& place) {
  open_.push_back(records_.size());
  records_.push_back({.place = place, .phase = phase_});
  if (stream_.device() == Device::kCuda) {
    records_.back().begin = stream_.record_time();
  } else {
    records_.back().start = Clock::now();
  }
}

void Profile::end() {
  Record& record = records_[open_.back()];
  open_.pop_back();
  if (stream_.device() == Device::kCuda) {
    record.end = stream_.record_time();
  } else {
    record.seconds = std::chrono::duration<double>(Clock::now() - record.start).count();
  }
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
