// Times whole training steps (forward, backward, clipping, update) of the benchmark models. A line
// "run K" on standard input runs K steps and prints the seconds that they took, so that a driver
// can alternate them with another program's steps on the same machine. Needs neither MPI nor HDF5.
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <iostream>
#include <map>

#include "comm/transport/local_control.h"
#include "comm/transport/self_collectives.h"
#include "layers/models/resnet.h"
#include "layers/models/transformer.h"
#include "src/step/training_step.h"

namespace tandem {
namespace {

struct Case {
  std::unique_ptr<Model> model;
  Tensor input, targets;
  bool adamw = true;
  double lr = 1e-3, clip_norm = 1;
};

Tensor random_ints(Memory& memory, Shape shape, int32_t limit) {
  Tensor tensor = Tensor::empty(memory, shape, DType::kI32, MemoryClass::kData);
  const PhiloxKey key = random_key(7, RandomUse::kSampleOrder);
  for (int64_t i = 0; i < tensor.elements(); ++i) {
    tensor.data<int32_t>()[i] = static_cast<int32_t>(
        random_words(key, static_cast<uint64_t>(i))[0] % static_cast<uint32_t>(limit));
  }
  return tensor;
}

Case gpt(Memory& memory, int64_t layers, int64_t heads, int64_t width, int64_t context,
         int64_t batch) {
  TransformerConfig config;
  config.vocab = 65;
  config.context = context;
  config.layers = layers;
  config.heads = heads;
  config.width = width;
  return {std::make_unique<Transformer>(config), random_ints(memory, {batch, context}, 65),
          random_ints(memory, {batch * context}, 65)};
}

Case resnet20(Memory& memory) {
  Case built{make_resnet({}),
             Tensor::empty(memory, {128, 32, 32, 3}, DType::kF32, MemoryClass::kData),
             random_ints(memory, {128}, 10),
             false,
             0.01,
             0};
  const PhiloxKey key = random_key(9, RandomUse::kSampleOrder);
  for (int64_t i = 0; i < built.input.elements(); ++i) {
    built.input.data<float>()[i] =
        uniform_from(random_words(key, static_cast<uint64_t>(i))[0]) - 0.5f;
  }
  return built;
}

class Bench {
 public:
  explicit Bench(const std::string& name) : stream_(Stream::compute(Device::kCpu)) {
    case_ = name == "shakespeare_char" ? gpt(memory_, 4, 4, 128, 64, 12)
            : name == "gpt_384"        ? gpt(memory_, 6, 6, 384, 256, 8)
            : name == "resnet20"       ? resnet20(memory_)
                                       : Case{};
    if (!case_.model) {
      fail(ExitCode::kConfig,
           "no case " + name + "; there are shakespeare_char, gpt_384 and resnet20");
    }
    TrainingStep::Options options{
        .batch = {.global_batch = case_.input.shape()[0], .given_micro_batch = 0, .ranks = 1},
        .clip_norm = case_.clip_norm};
    if (case_.adamw) {
      options.optimizer = AdamWOptions{.weight_decay = 0.1};
    } else {
      options.optimizer = SgdOptions{.momentum = 0.9, .weight_decay = 0.1};
    }
    training_ =
        std::make_unique<TrainingStep>(*case_.model, data_, stream_, memory_, memory_, options);
    training_->store().values.initialize(1);
  }

  double flops_per_step() const {
    return case_.model->flops_per_sample() * static_cast<double>(case_.input.shape()[0]);
  }

  void step() {
    training_->run({.step = steps_++,
                    .lr = case_.lr,
                    .targets = static_cast<double>(case_.targets.elements()),
                    .batch = [this](int64_t) {
                      return DeviceBatch{case_.input, case_.targets};
                    }});
  }

 private:
  Memory memory_{Device::kCpu};
  Stream stream_;
  LocalControl control_;
  SelfCollectives collectives_;
  Hierarchy data_{control_, collectives_, memory_, {0}};
  Case case_;
  std::unique_ptr<TrainingStep> training_;
  int64_t steps_ = 0;
};

int run(int argc, char** argv) {
  std::map<std::string, std::string> options;
  for (int i = 1; i + 1 < argc; i += 2) {
    options[argv[i]] = argv[i + 1];
  }
  set_cpu_threads(std::stoi(options.count("--threads") ? options["--threads"] : "1"));
  Bench bench(options["--case"]);
  std::fprintf(stderr, "flops_per_step %.6g\n", bench.flops_per_step());
  std::string word;
  int64_t count = 0;
  while (std::cin >> word >> count && word == "run") {
    const auto start = std::chrono::steady_clock::now();
    for (int64_t i = 0; i < count; ++i) {
      bench.step();
    }
    std::printf("%.9f\n",
                std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
    std::fflush(stdout);
  }
  return 0;
}

}  // namespace
}  // namespace tandem

int main(int argc, char** argv) {
  tandem::choose_openmp_settings(argv);
  try {
    return tandem::run(argc, argv);
  } catch (const tandem::Error& error) {
    std::fprintf(stderr, "tandem_step_bench: %s\n", error.what());
    return static_cast<int>(error.code());
  }
}
