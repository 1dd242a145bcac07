// What the cost model expects of a step on a GPU that nobody has measured yet. The rates that our
// kernels reach are assumptions, named here; the program that measures them is beside this file.
#include <cstdio>
#include <map>

#include "src/estimate/cost_model.h"
#include "tests/bench/gpu/cases.h"

namespace tandem::bench {

namespace {

struct Range {
  double low = 0, high = 0;

  void add(const Range& other) { low += other.low, high += other.high; }
  double middle() const { return (low + high) / 2; }
};

// Between two kernels of one stream, with the host ahead.
constexpr double kGap_s = 2e-6;

// Kernels reach these rates.
struct Reached {
  // Products reach shares of a ceiling that a GPU of 700 W keeps for short bursts only: with
  // cuBLASLt's first suggestion, and with the fastest of the first eight.
  Range first, measured;
  // Attention reaches so many FLOP/s for causal texts of 1,024 tokens in heads of 64, as pipelines
  // of tensor cores and of shared memory allow (results/2026-11-23_flash_resources.md). Backward
  // computes seven products, and five count.
  Range forward, backward;
  // Kernels reach shares of a copy's bandwidth. A multiprocessor has one block of norm_backward,
  // eight warps whose registers hold two rows each, and one of cross-entropy, whose phases take
  // turns (results/2026-11-26_sass_stores.md). Others have six to eight blocks and stores of 16
  // bytes.
  Range norm_backward, cross_entropy, others;
};
constexpr Reached kHopper{.first = {0.65, 0.76},
                          .measured = {0.73, 0.85},
                          .forward = {146e12, 206e12},
                          .backward = {110e12, 165e12},
                          .norm_backward = {0.65, 0.82},
                          .cross_entropy = {0.34, 0.56},
                          .others = {0.80, 0.90}};
constexpr Reached kAmpere{.first = {0.70, 0.80},
                          .measured = {0.79, 0.88},
                          .forward = {95e12, 110e12},
                          .backward = {74e12, 94e12},
                          .norm_backward = {0.75, 0.85},
                          .cross_entropy = {0.52, 0.65},
                          .others = {0.80, 0.90}};

Range bandwidth_of(const OpCost& op, const Reached& reached) {
  return op.name.starts_with("norm backward") ? reached.norm_backward
         : op.group == "cross_entropy"        ? reached.cross_entropy
                                              : reached.others;
}

// Seconds of all calls, from the fastest to the slowest.
Range seconds_of(const OpCost& op, const GpuModel& gpu, const Reached& reached,
                 const Range& products) {
  const Speed ceilings = gpu.ceilings();
  const Range attention = op.name.ends_with("forward") ? reached.forward : reached.backward;
  const Range bandwidth = bandwidth_of(op, reached);
  const auto seconds = [&](double share, double attention_rate, double copies) {
    const double rate = op.group == "attention" ? attention_rate : ceilings.flops_per_s * share;
    const double bytes = op.schedule_bytes + op.small_bytes;
    return op.calls * (std::max(op.flops / rate, bytes / (ceilings.bytes_per_s * copies)) +
                       op.launches * kGap_s);
  };
  return {seconds(products.high, attention.high, bandwidth.high),
          seconds(products.low, attention.low, bandwidth.low)};
}

// The groups of a forecast, finer than folders.
std::string kind_of(const OpCost& op) {
  if (op.group == "product") {
    return op.name.starts_with("head ") ? "products of the head"
           : op.product                 ? "products of the blocks"
                                        : "GELU";
  }
  if (op.group == "attention") {
    return op.name.ends_with("forward") ? "attention forward" : "attention backward, with delta";
  }
  const std::map<std::string_view, std::string> names = {
      {"norm", "residual add and norm"}, {"rope", "RoPE"},
      {"activation", "SwiGLU"},          {"cross_entropy", "cross-entropy"},
      {"linear", "bias gradients"},      {"embedding", "embedding, with token order"}};
  return names.contains(op.group) ? names.at(op.group) : "AdamW and gradient norm";
}

void print(const Case& model, const GpuModel& gpu, DType precision) {
  struct Sums {
    double tflop = 0, floor_gb = 0, schedule_gb = 0, launches = 0, floor_s = 0;
    Range first_s{}, measured_s{};
    void add(const Sums& other) {
      tflop += other.tflop, floor_gb += other.floor_gb, schedule_gb += other.schedule_gb;
      launches += other.launches, floor_s += other.floor_s;
      first_s.add(other.first_s), measured_s.add(other.measured_s);
    }
  };
  const Reached& reached = gpu.cuda_name.starts_with("H") ? kHopper : kAmpere;
  std::vector<std::pair<std::string, Sums>> rows;
  Sums all;
  for (const OpCost& op : transformer_costs(*model.transformer, model.batch, precision)) {
    const Sums sums{.tflop = op.calls * op.flops / 1e12,
                    .floor_gb = op.calls * op.floor_bytes / 1e9,
                    .schedule_gb = op.calls * (op.schedule_bytes + op.small_bytes) / 1e9,
                    .launches = op.calls * op.launches,
                    .floor_s = floor_seconds(op, gpu.ceilings()),
                    .first_s = seconds_of(op, gpu, reached, reached.first),
                    .measured_s = seconds_of(op, gpu, reached, reached.measured)};
    const std::string kind = kind_of(op);
    auto row = std::ranges::find(rows, kind, &std::pair<std::string, Sums>::first);
    row = row == rows.end() ? rows.insert(rows.end(), {kind, Sums{}}) : row;
    row->second.add(sums);
    all.add(sums);
  }
  const auto line = [](const std::string& name, const Sums& sums) {
    std::printf("| %s | %.2f | %.1f | %.1f | %.0f | %.1f | %.1f to %.1f | %.1f to %.1f |\n",
                name.c_str(), sums.tflop, sums.floor_gb, sums.schedule_gb, sums.launches,
                sums.floor_s * 1e3, sums.first_s.low * 1e3, sums.first_s.high * 1e3,
                sums.measured_s.low * 1e3, sums.measured_s.high * 1e3);
  };
  const Speed ceilings = gpu.ceilings();
  std::printf(
      "\nForecast, %s on %s, micro-batch %ld x %ld, vocabulary %ld, %s; ceilings %.0f "
      "TFLOP/s and %.2f TB/s:\n\n",
      model.name.c_str(), std::string(gpu.name).c_str(), model.batch, model.transformer->context,
      model.transformer->vocab, std::string(name_of(precision)).c_str(),
      ceilings.flops_per_s / 1e12, ceilings.bytes_per_s / 1e12);
  std::printf(
      "| group | TFLOP | GB, floor | GB, ours | launches | floor ms | ms with the first suggestion "
      "| ms after measuring |\n| --- | --- | --- | --- | --- | --- | --- | --- |\n");
  for (const auto& [name, sums] : rows) {
    line(name, sums);
  }
  line("all", all);
  const double tokens = static_cast<double>(model.batch * model.transformer->context);
  const auto rate = [&](double seconds) { return tokens / seconds; };
  std::printf("| tokens/s | | | | | %.0f | %.0f to %.0f | %.0f to %.0f |\n", rate(all.floor_s),
              rate(all.first_s.high), rate(all.first_s.low), rate(all.measured_s.high),
              rate(all.measured_s.low));
  std::printf("| tokens/s in the middle of the range | | | | | | %.0f | %.0f |\n",
              rate(all.first_s.middle()), rate(all.measured_s.middle()));
}

}  // namespace

void forecast(const Options& options) {
  const Case model = transformer_of(options);
  for (const char* name : {"h200", "a100-40"}) {
    print(model, *gpu_named(name), options.precision);
  }
}

}  // namespace tandem::bench
