#include "tests/bench/gpu/bench.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstring>

#include "src/core/rng.h"
#include "src/device/copy.h"
#include "src/device/cuda.h"
#include "src/device/dispatch.h"
#include "src/kernels/convert.h"
#include "src/product/measure.h"

namespace tandem::bench {

namespace {

constexpr int64_t kPattern = 1 << 20;  // different random numbers
constexpr double kLeastTiming_s = 2e-4;
constexpr int64_t kMostCalls = 64;

Stream stream_on(Device device) {
  if constexpr (kHasCuda) {
    if (device == Device::kCuda) {
      if (cuda::device_count() == 0) {
        fail(ExitCode::kConfig, "no GPU here: " + cuda::why_no_device());
      }
      cuda::use_device(0);
    }
  } else if (device == Device::kCuda) {
    fail(ExitCode::kConfig, "--device cuda: built without CUDA");
  }
  return Stream::compute(device);
}

// `pattern` again and again, up to the end of `tensor`.
void fill(Stream& stream, const Tensor& pattern, const Tensor& tensor) {
  const int64_t first = std::min(pattern.elements(), tensor.elements());
  copy(stream, pattern.slice(0, first), tensor.slice(0, first));
  for (int64_t done = first; done < tensor.elements();) {
    const int64_t next = std::min(done, tensor.elements() - done);
    copy(stream, tensor.slice(0, next), tensor.slice(done, next));
    done += next;
  }
  stream.synchronize();
}

PhiloxKey key() { return random_key(7, RandomUse::kSampleOrder); }

}  // namespace

Bench::Bench(const Options& given)
    : options(given), stream(stream_on(given.device)), memory(stream) {
  if constexpr (kHasCuda) {
    if (options.device == Device::kCuda) {
      gpu_ = gpu_with_cuda_name(cuda::device_name());
    }
  }
}

void Bench::choose([[maybe_unused]] const OpenChoices& open) const {
  if constexpr (kHasCuda) {
    use_choices(
        std::make_shared<const KernelChoices>(measure(stream, open, [](const std::string& warning) {
          std::fprintf(stderr, "%s\n", warning.c_str());
        })));
  }
}

std::string Bench::device_name() const {
  if constexpr (kHasCuda) {
    if (options.device == Device::kCuda) {
      return cuda::device_name();
    }
  }
  return "cpu";
}

Tensor Bench::random(const Shape& shape, DType dtype, double scale) {
  Memory host(Device::kCpu);
  const Tensor numbers =
      Tensor::empty(host, {std::min(kPattern, shape.elements())}, DType::kF32, MemoryClass::kData);
  for (int64_t i = 0; i < numbers.elements(); i += 2) {  // Box and Muller 1958
    const PhiloxCounter words = philox(key(), {static_cast<uint32_t>(i), 0, 0, 0});
    const double radius = std::sqrt(-2 * std::log(1 - double{uniform_from(words[0])}));
    const double angle = 2 * 3.14159265358979 * double{uniform_from(words[1])};
    numbers.data<float>()[i] = static_cast<float>(scale * radius * std::cos(angle));
    if (i + 1 < numbers.elements()) {
      numbers.data<float>()[i + 1] = static_cast<float>(scale * radius * std::sin(angle));
    }
  }
  const Tensor pattern = Tensor::empty(memory, numbers.shape(), dtype, MemoryClass::kData);
  copy_rounded(stream, numbers, pattern);
  Tensor tensor = Tensor::empty(memory, shape, dtype, MemoryClass::kData);
  fill(stream, pattern, tensor);
  return tensor;
}

Tensor Bench::random_ints(const Shape& shape, int64_t below) {
  Memory host(Device::kCpu);
  const Tensor numbers = Tensor::empty(host, shape, DType::kI32, MemoryClass::kData);
  for (int64_t i = 0; i < numbers.elements(); ++i) {
    numbers.data<int32_t>()[i] = static_cast<int32_t>(
        philox(key(), {static_cast<uint32_t>(i), 1, 0, 0})[0] % static_cast<uint32_t>(below));
  }
  Tensor tensor = Tensor::empty(memory, shape, DType::kI32, MemoryClass::kData);
  copy(stream, numbers, tensor);
  stream.synchronize();
  return tensor;
}

// Seconds of one call in each of `count` timings of `calls` calls.
std::vector<double> Bench::timings(const std::function<void()>& work, int64_t count,
                                   int64_t calls) {
  using Clock = std::chrono::steady_clock;
  std::vector<double> seconds;
  std::vector<Event> events;
  for (int64_t i = 0; i < count; ++i) {
    const auto start = Clock::now();
    if (options.device == Device::kCuda) {
      events.push_back(stream.record_time());
    }
    for (int64_t call = 0; call < calls; ++call) {
      work();
    }
    if (options.device == Device::kCpu) {
      seconds.push_back(std::chrono::duration<double>(Clock::now() - start).count());
    }
  }
  if (options.device == Device::kCuda) {
    events.push_back(stream.record_time());
    stream.synchronize();
    for (size_t i = 1; i < events.size(); ++i) {
      seconds.push_back(events[i].seconds_since(events[i - 1]));
    }
  }
  for (double& each : seconds) {
    each /= static_cast<double>(calls);
  }
  return seconds;
}

double Bench::seconds(const std::function<void()>& work) {
  for (int64_t i = 0; i < options.warm_up; ++i) {
    work();
  }
  const double once = timings(work, 1, 1)[0];
  const double calls = std::ceil(kLeastTiming_s / std::max(once, 1e-9));
  return median(
      timings(work, options.runs, std::clamp(static_cast<int64_t>(calls), int64_t{1}, kMostCalls)));
}

HostLink measure_host_link(Bench& bench, int64_t bytes) {
  Memory pinned = Memory::pinned();
  const auto array = [&](Memory& memory) {
    return Tensor::empty(memory, {bytes}, DType::kU8, MemoryClass::kStaging);
  };
  const Tensor on_host[] = {array(pinned), array(pinned)};
  const Tensor on_device[] = {array(bench.memory), array(bench.memory)};
  Stream in = Stream::copying(bench.stream), out = Stream::copying(bench.stream);
  const auto begin = [&](Stream& stream, const Tensor& from, const Tensor& to) {
    stream.wait(bench.stream.record());
    copy(stream, from, to);
  };
  const auto rate_of = [&](bool is_in, bool is_out) {
    return static_cast<double>(bytes) / bench.seconds([&] {
      if (is_in) {
        begin(in, on_host[0], on_device[0]);
      }
      if (is_out) {
        begin(out, on_device[1], on_host[1]);
      }
      bench.stream.wait(in.record());
      bench.stream.wait(out.record());
    });
  };
  return {.to_device = rate_of(true, false),
          .to_host = rate_of(false, true),
          .both = rate_of(true, true)};
}

double median(std::vector<double> values) {
  require(!values.empty(), "median of nothing");
  std::ranges::sort(values);
  const size_t middle = values.size() / 2;
  return values.size() % 2 == 1 ? values[middle] : (values[middle - 1] + values[middle]) / 2;
}

Table::Table(const std::vector<std::string>& columns, int first_width) : first_width_(first_width) {
  for (const std::string& column : columns) {
    widths_.push_back(std::max(12, static_cast<int>(column.size()) + 2));
  }
  row(columns[0], {columns.begin() + 1, columns.end()});
}

void Table::row(const std::string& name, const std::vector<std::string>& values) const {
  std::printf("%-*s", first_width_, name.c_str());
  for (size_t i = 0; i < values.size(); ++i) {
    std::printf("%*s", widths_[i + 1], values[i].c_str());
  }
  std::printf("\n");
  std::fflush(stdout);  // what is known is kept, whatever comes next
}

std::string number(double value) {
  char text[32];
  std::snprintf(text, sizeof text, value >= 1e4 && value < 1e9 ? "%.0f" : "%.4g", value);
  return text;
}

std::string percent(double share) {
  char text[32];
  std::snprintf(text, sizeof text, "%.0f %%", share * 100);
  return text;
}

std::string rate(double work, double s) { return number(work / s / 1e12); }

}  // namespace tandem::bench
