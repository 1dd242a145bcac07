// What all modes of tandem_gpu_bench share: options, random data, clocks.
//
// Nothing is timed on zeros: a GPU multiplies them with less power, and so 10 to 15 % faster.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "src/autograd/context.h"
#include "src/core/shape.h"
#include "src/device/memory.h"
#include "src/device/stream.h"
#include "src/device/tensor.h"
#include "src/machine/gpu_table.h"
#include "src/product/product_choice.h"

namespace tandem::bench {

struct Options {
  std::string mode;
  Device device = Device::kCpu;  // cuda where there is one
  std::string name = "gpt2_124m";
  DType precision = DType::kBf16;
  int64_t batch = 0;  // 0: the case's
  int64_t vocab = 0;  // 0: the case's
  int64_t warm_up = 10, runs = 30;
  int64_t threads = 0;           // of the CPU; 0: all
  int64_t mib = 1024;            // of one array of `copy`
  std::vector<int64_t> shape{};  // of `attention`; empty: those of the models
  AttentionKernels attention = AttentionKernels::kAuto;
  bool recompute = false;
  bool offload_optimizer = false, offload_activations = false;
  bool graph = false;
  bool profile = false;
  bool turns = false;
  bool choose = false;
};

class Bench {
 public:
  // Throws Error(kConfig) if there is no GPU where one is asked for.
  explicit Bench(const Options& options);

  const Options options;
  Stream stream;
  Memory memory;

  // "NVIDIA H200", or "cpu".
  std::string device_name() const;
  // The GPU's ceilings, for floors; null: this device is not in the table.
  const GpuModel* gpu() const { return gpu_; }

  // Normally distributed numbers times `scale`, of a floating dtype; they repeat after 2^20.
  Tensor random(const Shape& shape, DType dtype, double scale = 1);
  Tensor random_ints(const Shape& shape, int64_t below);

  // Median seconds of a call of `work`, which enqueues on the stream, after options.warm_up calls.
  // Short calls are timed several at a time.
  double seconds(const std::function<void()>& work);

  // Times cuBLASLt's algorithms for the products; the fastest are used from then on.
  void choose(const OpenChoices& open) const;

 private:
  std::vector<double> timings(const std::function<void()>& work, int64_t count, int64_t calls);
  const GpuModel* gpu_ = nullptr;
};

// What the link between host and GPU moves, in bytes a second each way: alone, and while the other
// direction is busy, too. Arrays of `bytes`, in page-locked memory.
struct HostLink {
  double to_device = 0, to_host = 0, both = 0;
};
HostLink measure_host_link(Bench& bench, int64_t bytes);

double median(std::vector<double> values);

// A table that is printed row by row, as the rows become known.
class Table {
 public:
  // The first column is left-aligned text; the others are right-aligned.
  explicit Table(const std::vector<std::string>& columns, int first_width = 36);
  void row(const std::string& name, const std::vector<std::string>& values) const;

 private:
  int first_width_;
  std::vector<int> widths_;
};
std::string number(double value);         // four digits
std::string percent(double share);        // "87 %"
std::string rate(double work, double s);  // work / s / 1e12: TFLOP/s or TB/s

// The modes.
void copy_bench(const Options& options);
void gemm_bench(const Options& options);
void kernels_bench(const Options& options);
void attention_bench(const Options& options);
void step_bench(const Options& options);
void forecast(const Options& options);

}  // namespace tandem::bench
