// Times what a training step is made of, for machines that have a GPU and little else: this program
// needs neither MPI nor HDF5 nor Boost. `tandem_gpu_bench --help` lists its modes and options.
// Exit codes: 0, or 2 for a wrong option or a missing GPU, with one line that says so.
#include <algorithm>
#include <charconv>
#include <cstdio>
#include <map>
#include <sstream>

#include "src/core/error.h"
#include "tests/bench/gpu/bench.h"

namespace tandem::bench {
namespace {

constexpr const char* kHelp =
    R"(tandem_gpu_bench MODE [OPTION...]

  copy       bandwidth of copying, reading and writing, and the rate of a large product;
             --mib N: size of an array (1024)
  gemm       each matrix product of a model
  kernels    each other kernel of a model: time, bytes, percent of its floor
  attention  forward and backward; --shape B,T,HEADS,KV_HEADS,WIDTH: other shapes than the models'
  step       whole training steps: median, time of the host, peak memory
             --profile: then each call of kernels by time, beside the floors
             --turns: reads lines "run K", runs K steps, prints their seconds
             --recompute: blocks run again in backward
             --graph: on a GPU, each is one CUDA graph
             --offload optimizer|activations|both: on a GPU, these rest on the host; then the bytes that steps copy
  forecast   what the cost model expects on GPUs of the table, in Markdown; needs no GPU

  --device cpu|cuda          (cuda where there is one)
  --case NAME                gpt2_124m (default), gpt2_350m, gpt2_774m, gpt2_1.5b, llama_1b, resnet20, ...
  --precision f32|bf16|fp16  (bf16)
  --batch N                  samples of a micro-batch (as the case has)
  --vocab N                  tokens of the vocabulary (as the case has)
  --warm-up N, --runs N      calls before the timed ones (10), timings (30)
  --threads N                of the CPU (all)
  --attention own|cudnn      attention, step: whose kernels (own)
  --choose                   gemm, step: on a GPU, products use the fastest of cuBLASLt's suggestions, as `tandem train`
                             does; without it they use the first one
)";

using Run = void (*)(const Options&);
const std::map<std::string, Run> kModes = {
    {"copy", copy_bench},           {"gemm", gemm_bench}, {"kernels", kernels_bench},
    {"attention", attention_bench}, {"step", step_bench}, {"forecast", forecast}};

int64_t integer(const std::string& option, const std::string& text, int64_t least) {
  int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  constexpr int64_t kMost = 1 << 20;
  if (error != std::errc() || end != text.data() + text.size() || value < least || value > kMost) {
    fail(ExitCode::kConfig,
         str(option, " ", text, ": must be a number from ", least, " to ", kMost));
  }
  return value;
}

std::vector<int64_t> shape_of(const std::string& text) {
  std::vector<int64_t> sizes;
  std::istringstream words(text);
  for (std::string word; std::getline(words, word, ',');) {
    sizes.push_back(integer("--shape", word, 1));
  }
  if (sizes.size() != 5 || sizes[2] % sizes[3] != 0) {
    fail(ExitCode::kConfig,
         str("--shape ", text, ": must be B,T,HEADS,KV_HEADS,WIDTH, where KV_HEADS divides HEADS"));
  }
  return sizes;
}

// One of the names; their values are in the same order.
template <class T>
T choice(const std::string& option, const std::string& text, const std::vector<std::string>& names,
         const std::vector<T>& values) {
  const auto found = std::ranges::find(names, text);
  if (found == names.end()) {
    std::string all;
    for (const std::string& name : names) {
      all += (all.empty() ? "" : ", ") + name;
    }
    fail(ExitCode::kConfig, str(option, " ", text, ": must be one of ", all));
  }
  return values[static_cast<size_t>(found - names.begin())];
}

Options options_of(const std::vector<std::string>& words) {
  Options options{.mode = words.empty() ? "" : words[0], .device = available_devices().back()};
  if (!kModes.contains(options.mode)) {
    fail(ExitCode::kConfig, str("no mode \"", options.mode, "\"; --help lists them"));
  }
  std::string name;
  const std::map<std::string, std::function<void(const std::string&)>> with_value = {
      {"--case", [&](auto& text) { options.name = text; }},
      {"--batch", [&](auto& text) { options.batch = integer(name, text, 1); }},
      {"--vocab", [&](auto& text) { options.vocab = integer(name, text, 1); }},
      {"--warm-up", [&](auto& text) { options.warm_up = integer(name, text, 0); }},
      {"--runs", [&](auto& text) { options.runs = integer(name, text, 1); }},
      {"--threads", [&](auto& text) { options.threads = integer(name, text, 1); }},
      {"--mib", [&](auto& text) { options.mib = integer(name, text, 1); }},
      {"--shape", [&](auto& text) { options.shape = shape_of(text); }},
      {"--device",
       [&](auto& text) {
         options.device =
             choice<Device>(name, text, {"cpu", "cuda"}, {Device::kCpu, Device::kCuda});
       }},
      {"--attention",
       [&](auto& text) {
         options.attention = choice<AttentionKernels>(
             name, text, {"own", "cudnn"}, {AttentionKernels::kOwn, AttentionKernels::kCudnn});
       }},
      {"--offload",
       [&](auto& text) {
         const int chosen =
             choice<int>(name, text, {"optimizer", "activations", "both"}, {1, 2, 3});
         options.offload_optimizer = (chosen & 1) != 0;
         options.offload_activations = (chosen & 2) != 0;
       }},
      {"--precision", [&](auto& text) {
         options.precision = choice<DType>(name, text, {"f32", "bf16", "fp16"},
                                           {DType::kF32, DType::kBf16, DType::kFp16});
       }}};
  const std::map<std::string, bool*> flags = {{"--profile", &options.profile},
                                              {"--turns", &options.turns},
                                              {"--recompute", &options.recompute},
                                              {"--graph", &options.graph},
                                              {"--choose", &options.choose}};
  for (size_t i = 1; i < words.size(); ++i) {
    name = words[i];
    if (flags.contains(name)) {
      *flags.at(name) = true;
    } else if (!with_value.contains(name)) {
      fail(ExitCode::kConfig, "there is no option " + name + "; --help lists them");
    } else if (++i == words.size()) {
      fail(ExitCode::kConfig, name + " has no value");
    } else {
      with_value.at(name)(words[i]);
    }
  }
  if (options.choose && options.device == Device::kCpu) {
    fail(ExitCode::kConfig, "--choose: products on the CPU have no algorithms to choose from");
  }
  return options;
}

int run(const std::vector<std::string>& words) {
  if (std::ranges::count(words, "--help") > 0) {
    std::fputs(kHelp, stdout);
    return 0;
  }
  const Options options = options_of(words);
  use_cpu_share(options.threads, 1);
  kModes.at(options.mode)(options);
  return 0;
}

}  // namespace
}  // namespace tandem::bench

int main(int argc, char** argv) {
  tandem::choose_openmp_settings(argv);
  try {
    return tandem::bench::run({argv + 1, argv + argc});
  } catch (const tandem::Error& error) {
    std::fprintf(stderr, "tandem_gpu_bench: %s\n", error.what());
    return static_cast<int>(error.code());
  }
}
