// tandem bench gemm: which algorithms of cuBLASLt are fastest for the products of a model.
#include <cstdio>

#include "src/commands/commands.h"
#include "src/commands/request.h"
#include "src/commands/settings.h"
#include "src/device/cuda.h"
#include "src/device/dispatch.h"
#include "src/estimate/estimate.h"
#include "src/io/file.h"
#include "src/machine/machine.h"
#include "src/product/tune.h"

namespace tandem {

namespace {

constexpr const char* kUsage =
    R"(tandem bench gemm: times every algorithm of cuBLASLt for the products of a training step

  tandem bench gemm FILE.cfg --output plans.txt
  tandem bench gemm FILE.cfg --ranks 8 --output plans.txt
  mpirun -np 8 tandem train FILE.cfg --run.gemm_plans plans.txt

Takes the settings of `tandem train`. The products are those of a dry run of the step on one of --ranks ranks; the
dataset says how large the vocabulary or the images are. A table is for one version of cuBLASLt and one kind of GPU.)";

struct Request : RunRequest {
  std::string output;
  int64_t ranks = 1;

  Request() : RunRequest(kUsage) {
    options.add("output", output, "file to write, for run.gemm_plans");
    options.add("ranks", ranks, "processes of the job, which share its batch", 1, 1 << 20);
    add_settings();
  }
};

void resolve(Request& request, const Words& words) {
  std::vector<std::string> problems = apply_settings(request.options, words);
  if (!request.help) {
    append(problems, problems_of(request.config, static_cast<int>(request.ranks)));
    if (request.output.empty()) {
      problems.push_back("bench gemm: name the table to be written, with --output FILE");
    }
  }
  fail_if_any(problems);
}

// The products of a dry run of the step on a GPU.
[[maybe_unused]] ProductSet products_of(const Request& request) {
  const DatasetInfo data = inspect_dataset(request.config.data.path);
  const Job job{.ranks = static_cast<int>(request.ranks), .hardware = {.device = Device::kCuda}};
  const ProductRecorder recorder;
  static_cast<void>(memory_of_rank(request.config, data, job, 0));
  return recorder.products();
}

[[maybe_unused]] void print(const ProductKey& key, const PlanTable::Row* row) {
  const std::string product = str(key.m, " x ", key.n, " x ", key.k, ", ", name_of(key.in),
                                  key.accumulates ? ", added" : "", key.has_bias ? ", bias" : "",
                                  key.epilogue == Epilogue::kGelu           ? ", GELU"
                                  : key.epilogue == Epilogue::kGeluGradient ? ", GELU's gradient"
                                                                            : "");
  if (!row) {
    std::printf("%s: cuBLASLt has no algorithm\n", product.c_str());
    return;
  }
  const double flops = 2.0 * static_cast<double>(key.m) * static_cast<double>(key.n * key.k);
  std::printf("%s: %.4g us, first suggestion %.4g us, %.4g TFLOP/s, %s, %ld algorithms\n",
              product.c_str(), row->seconds * 1e6, row->first_seconds * 1e6,
              flops / row->seconds / 1e12, row->is_fused ? "fused" : "separate", row->candidates);
}

}  // namespace

ExitCode bench_gemm(const Words& words, World& world) {
  require_one_process(world, "bench gemm", " and say --ranks N");
  Request request;
  resolve(request, words);
  if (request.help) {
    return print_help(request.options, world);
  }
  if (device_of(request.config.run) == Device::kCpu) {
    fail(ExitCode::kConfig, "bench gemm times products on a GPU, and there is none to be used");
  }
  if constexpr (kHasCuda) {
    make_directories(parent_of(request.output));
    const Stream stream = Stream::compute(Device::kCuda);
    const PlanTable table = tune_products(stream, products_of(request), print);
    replace_file(request.output, table.text());
    std::printf("written to %s\n", request.output.c_str());
  }
  return ExitCode::kOk;
}

}  // namespace tandem
