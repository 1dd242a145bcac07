// What the cost model expects of a step on a GPU that nobody has measured yet. The rates that our
// kernels reach are assumptions, named here; the program that measures them is beside this file.
#include <cstdio>
#include <map>

#include "src/estimate/cost_model.h"
#include "tests/bench/gpu/cases.h"

namespace tandem::bench {

namespace {

// Of the ceiling of products: the first heuristic of cuBLASLt, and the best of measured plans.
constexpr double kFirstHeuristic = 0.72, kMeasuredPlans = 0.88;
// Of the bandwidth of a copy: memory-bound kernels.
constexpr double kMemoryBound = 0.85;
// Between two kernels of one stream, with the host ahead.
constexpr double kGap_s = 2e-6;

// Attention of head width 64 at 1,024 tokens. On FP32 cores: of their peak, from the arithmetic of
// tiles in shared memory. On tensor cores (mma.sync): FLOP/s that FlashAttention-2 publishes for
// forward and backward together (A100: 119, H100: 192 TFLOP/s), of which a first version of one's
// own reaches 85 to 90 %.
struct AttentionRates {
  double forward, backward;
};
AttentionRates on_f32_cores(const GpuModel& gpu) {
  return {0.41 * gpu.f32_flops, 0.30 * gpu.f32_flops};
}
AttentionRates on_tensor_cores(const GpuModel& gpu) {
  const bool hopper = gpu.cuda_name.starts_with("H");
  return hopper ? AttentionRates{200e12, 165e12} : AttentionRates{115e12, 103e12};
}

struct Assumption {
  const char* what;
  double products;
  AttentionRates (*attention)(const GpuModel&);
};
constexpr Assumption kAssumptions[] = {
    {"first heuristic, attention on FP32 cores", kFirstHeuristic, on_f32_cores},
    {"measured plans, attention on FP32 cores", kMeasuredPlans, on_f32_cores},
    {"measured plans, attention on tensor cores", kMeasuredPlans, on_tensor_cores},
};

struct AchievedRates {
  Speed speed{};  // of products, of bytes, and the gap before a kernel
  double attention_forward = 1, attention_backward = 1;  // FLOP/s
};
AchievedRates rates_of(const GpuModel& gpu, const Assumption& assumption) {
  const Speed ceilings = gpu.ceilings();
  const AttentionRates attention = assumption.attention(gpu);
  return {.speed = {.flops_per_s = ceilings.flops_per_s * assumption.products,
                    .bytes_per_s = ceilings.bytes_per_s * kMemoryBound,
                    .launch_s = kGap_s},
          .attention_forward = attention.forward,
          .attention_backward = attention.backward};
}

double forecast_seconds(const OpCost& op, const AchievedRates& rates) {
  const double attention =
      op.name.ends_with("forward") ? rates.attention_forward : rates.attention_backward;
  const double flops_per_s = op.group == "attention" ? attention : rates.speed.flops_per_s;
  const double bytes_s = (op.schedule_bytes + op.small_bytes) / rates.speed.bytes_per_s;
  return op.calls *
         (std::max(op.flops / flops_per_s, bytes_s) + op.launches * rates.speed.launch_s);
}

// The groups of a forecast, finer than folders.
std::string kind_of(const OpCost& op) {
  if (op.group == "product") {
    return op.name.starts_with("head ") ? "products of the head"
           : op.product                 ? "products of the blocks"
                                        : "GELU";
  }
  if (op.group == "attention") {
    return op.name;
  }
  const std::map<std::string_view, std::string> names = {
      {"norm", "residual add and norm"}, {"rope", "RoPE"},
      {"activation", "SwiGLU"},          {"cross_entropy", "cross-entropy"},
      {"linear", "bias gradients"},      {"embedding", "embedding"}};
  return names.contains(op.group) ? names.at(op.group) : "AdamW and gradient norm";
}

void print(const Case& model, const GpuModel& gpu, DType precision) {
  struct Sums {
    double tflop = 0, floor_gb = 0, schedule_gb = 0, floor_ms = 0;
    double ms[std::size(kAssumptions)] = {};
    double launches = 0;
    void add(const Sums& other) {
      tflop += other.tflop, floor_gb += other.floor_gb, schedule_gb += other.schedule_gb;
      floor_ms += other.floor_ms, launches += other.launches;
      for (size_t i = 0; i < std::size(kAssumptions); ++i) {
        ms[i] += other.ms[i];
      }
    }
  };
  std::vector<std::pair<std::string, Sums>> rows;
  Sums all;
  for (const OpCost& op : transformer_costs(*model.transformer, model.batch, precision)) {
    Sums sums{.tflop = op.calls * op.flops / 1e12,
              .floor_gb = op.calls * op.floor_bytes / 1e9,
              .schedule_gb = op.calls * (op.schedule_bytes + op.small_bytes) / 1e9,
              .floor_ms = floor_seconds(op, gpu.ceilings()) * 1e3,
              .launches = op.calls * op.launches};
    for (size_t i = 0; i < std::size(kAssumptions); ++i) {
      sums.ms[i] = forecast_seconds(op, rates_of(gpu, kAssumptions[i])) * 1e3;
    }
    const std::string kind = kind_of(op);
    auto row = std::ranges::find(rows, kind, &std::pair<std::string, Sums>::first);
    row = row == rows.end() ? rows.insert(rows.end(), {kind, Sums{}}) : row;
    row->second.add(sums);
    all.add(sums);
  }
  const auto line = [](const std::string& name, const Sums& sums) {
    std::printf("| %s | %.2f | %.1f | %.1f | %.0f | %.1f |", name.c_str(), sums.tflop,
                sums.floor_gb, sums.schedule_gb, sums.launches, sums.floor_ms);
    for (const double ms : sums.ms) {
      std::printf(" %.1f |", ms);
    }
    std::printf("\n");
  };
  const Speed ceilings = gpu.ceilings();
  std::printf(
      "\nForecast, %s on %s, micro-batch %ld x %ld, vocabulary %ld, %s; ceilings %.0f "
      "TFLOP/s and %.2f TB/s:\n\n",
      model.name.c_str(), std::string(gpu.name).c_str(), model.batch, model.transformer->context,
      model.transformer->vocab, std::string(name_of(precision)).c_str(),
      ceilings.flops_per_s / 1e12, ceilings.bytes_per_s / 1e12);
  std::printf("| group | TFLOP | GB, floor | GB, ours | launches | floor ms |");
  for (const Assumption& assumption : kAssumptions) {
    std::printf(" %s |", assumption.what);
  }
  std::printf("\n| --- | --- | --- | --- | --- | --- | --- | --- | --- |\n");
  for (const auto& [name, sums] : rows) {
    line(name, sums);
  }
  line("all", all);
  const double tokens = static_cast<double>(model.batch * model.transformer->context);
  std::printf("| tokens/s | | | | | %.0f |", tokens / all.floor_ms * 1e3);
  for (const double ms : all.ms) {
    std::printf(" %.0f |", tokens / ms * 1e3);
  }
  std::printf("\n");
}

}  // namespace

void forecast(const Options& options) {
  const Case model = transformer_of(options);
  for (const char* name : {"h200", "a100-40"}) {
    print(model, *gpu_named(name), options.precision);
  }
}

}  // namespace tandem::bench
