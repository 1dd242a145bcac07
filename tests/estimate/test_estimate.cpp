// The estimate of a step has the memory by class and the bytes between ranks of the step itself.
#include <algorithm>

#include "comm/mesh.h"
#include "comm/transport/nccl_collectives.h"
#include "src/device/cuda.h"
#include "src/estimate/estimate.h"
#include "src/machine/machine.h"
#include "src/step/training_step.h"
#include "src/step/upload.h"
#include "src/weights/make_model.h"
#include "tests/support/harness.h"
#include "tests/support/mpi_world.h"
#include "tests/support/set_config.h"

namespace tandem::testing {
namespace {

int ranks() { return test_world().size(); }

Config config_of(const std::string& kind) {
  Config config;
  const bool llama = kind == "llama";
  for (const auto& [key, value] : std::initializer_list<std::pair<const char*, std::string>>{
           {"kind", kind},
           {"layers", "3"},
           {"heads", "4"},
           {"kv_heads", llama ? "2" : "0"},
           {"head_width", llama ? "10" : "0"},
           {"qk_norm", llama ? "true" : "false"},
           {"sliding_window", llama ? "5" : "0"},
           {"width", "32"},
           {"ffn_width", llama ? "48" : "0"},
           {"context", "12"},
           {"dropout", "0.1"},
           {"tie_embeddings", kind == "gpt" ? "true" : "false"},
           {"depth", "8"}}) {
    set(config, str("model.", key), value);
  }
  config.train.global_batch = int64_t{4} * ranks();
  config.train.micro_batch = 2;
  config.dist.bucket_mb = 0.02;
  config.run.threads = 1;
  return config;
}

DatasetInfo data_for(const Config& config) {
  DatasetInfo data;
  data.kind = config.model->reads_text() ? DatasetKind::kText : DatasetKind::kImages;
  data.vocab_size = 97;
  data.channels = 3;
  data.height = data.width = 9;
  data.classes.resize(7);
  data.mean = {0.5, 0.25, 0.125};
  data.std = {1, 1, 1};
  return data;
}

MicroBatch zeros(const Config& config, const DatasetInfo& data) {
  const int64_t samples = config.batch_plan(ranks()).micro_batch();
  const bool text = data.kind == DatasetKind::kText;
  const int64_t targets = samples * (text ? config.model->context() : 1);
  MicroBatch batch{.samples = samples, .target_count = targets};
  batch.targets.resize(static_cast<size_t>(targets));
  batch.tokens.resize(static_cast<size_t>(text ? targets : 0));
  const bool by_documents = config.data.windows == WindowKind::kDocuments;
  batch.positions.resize(static_cast<size_t>(by_documents ? targets : 0));
  batch.pixels.resize(
      static_cast<size_t>(text ? 0 : samples * data.height * data.width * data.channels));
  batch.placements.resize(static_cast<size_t>(text ? 0 : samples));
  return batch;
}

std::unique_ptr<Collectives> nccl_for(Device device) {
  if constexpr (kHasCuda) {
    if (device == Device::kCuda) {
      cuda::use_device(test_world().local_rank() % cuda::device_count());
      return std::make_unique<NcclCollectives>(test_world().control(), test_world().timeout_s());
    }
  }
  return nullptr;
}

// What each rank of the job really used in the last of a few steps.
struct Used {
  int64_t peak_bytes = 0, reserved_bytes = 0;
  std::array<int64_t, kMemoryClasses> class_bytes{};
  int64_t blocks = 0;
  WireCount::Bytes wire;
};

Used run(const Config& config, const DatasetInfo& data, Device device) {
  use_cpu_share(config.run.threads, ranks());
  const auto nccl = nccl_for(device);
  Control& control = test_world().control();
  Stream stream = Stream::compute(device);
  Memory memory(stream);
  Memory staging = device == Device::kCpu ? memory : Memory::pinned();
  const Mesh mesh(control, nccl ? *nccl : test_world().collectives(), memory,
                  nodes_of(control, "host", std::stoi(config.dist.node_size)), config.dist.shard,
                  {.tensor = static_cast<int>(config.dist.tensor)});
  const Group& group = mesh.stage();
  const auto model = make_model(config.model, data, mesh.cut());
  TrainingStep training(*model, mesh.model(), stream, memory, staging,
                        config.training_step(stream.device(), ranks()));
  training.store().values.initialize(1);
  Uploader uploader(stream, memory, staging, data, training.store().values.dtype());
  const MicroBatch batch = zeros(config, data);
  const std::vector<MicroBatch> batches(static_cast<size_t>(training.batch().accumulation()),
                                        batch);
  WireCount before;
  StepRecord::Copy pending;
  for (int64_t step = 0; step < 3; ++step) {
    group.stream().synchronize();
    before = mesh.wire();
    // It is read one step late, as Trainer does.
    pending = training.run({.step = step,
                            .lr = 1e-3,
                            .targets = static_cast<double>(batch.target_count * ranks() * 2),
                            .batch = [&](int64_t i) { return uploader.fetch(i); },
                            .memory = uploader.send(batches)});
  }
  stream.synchronize();
  group.stream().synchronize();
  Used used{.peak_bytes = memory.total().peak_bytes,
            .reserved_bytes = memory.reserved_bytes(),
            .blocks = memory.system_allocations(),
            .wire = (mesh.wire() - before).payload()};
  for (int i = 0; i < kMemoryClasses; ++i) {
    used.class_bytes[static_cast<size_t>(i)] = memory.use(static_cast<MemoryClass>(i)).peak_bytes;
  }
  return used;
}

// The value of each rank.
std::vector<double> gathered(double value) {
  std::vector<double> all(static_cast<size_t>(ranks()), 0.0);
  all[static_cast<size_t>(test_world().rank())] = value;
  return test_world().control().sum(all);
}

void expect_estimated(Config config, Device device, int node_size) {
  config.dist.node_size = str(node_size);
  const DatasetInfo data = data_for(config);
  const Used used = run(config, data, device);
  const Job job{.ranks = ranks(), .node_size = node_size, .hardware = {.device = device}};
  const Estimate expected = estimate(config, data, job);

  const std::vector<double> peaks = gathered(static_cast<double>(used.peak_bytes));
  const auto largest = std::ranges::max_element(peaks) - peaks.begin();
  EXPECT_EQ(static_cast<double>(expected.peak_bytes), peaks[static_cast<size_t>(largest)]);
  const auto reserved = gathered(static_cast<double>(used.reserved_bytes));
  EXPECT_EQ(static_cast<double>(expected.reserved_bytes), reserved[static_cast<size_t>(largest)]);
  for (int i = 0; i < kMemoryClasses; ++i) {
    const auto bytes = gathered(static_cast<double>(used.class_bytes[static_cast<size_t>(i)]));
    EXPECT_EQ(static_cast<double>(expected.class_bytes[static_cast<size_t>(i)]),
              bytes[static_cast<size_t>(largest)])
        << name_of(static_cast<MemoryClass>(i));
  }
  const auto blocks = gathered(static_cast<double>(used.blocks));
  if (config.dist.reduce != Reduce::kExact) {  // whose first step is run again: as many more blocks
                                               // where the pool keeps none
    EXPECT_EQ(static_cast<double>(expected.blocks), blocks[static_cast<size_t>(largest)]);
  }
  const auto total = gathered(static_cast<double>(used.wire.total()));
  const auto busiest = std::ranges::max_element(total) - total.begin();
  EXPECT_EQ(static_cast<double>(expected.wire.total()), total[static_cast<size_t>(busiest)]);
  EXPECT_EQ(static_cast<double>(expected.wire.inside),
            gathered(static_cast<double>(used.wire.inside))[static_cast<size_t>(busiest)]);
}

// A build without CUDA can estimate GPUs, too.
Job some_gpus(const Config& config, int count) {
  return {
      .ranks = count, .node_size = count, .hardware = hardware_of(&gpu_models()[0], config, count)};
}

TEST(Estimate, IsWhatEveryModelUses) {
  for_each_device([](Device device) {
    for (const char* kind : {"gpt", "llama", "resnet", "mlp"}) {
      for (const bool recompute : {false, true}) {
        SCOPED_TRACE(str(kind, recompute ? " recomputed" : ""));
        Config config = config_of(kind);
        config.train.recompute = recompute;
        expect_estimated(config, device, ranks());
      }
    }
  });
}

TEST(Estimate, IsWhatDocumentsUse) {
  for_each_device([](Device device) {
    for (const char* kind : {"gpt", "llama"}) {
      SCOPED_TRACE(kind);
      Config config = config_of(kind);
      config.data.windows = WindowKind::kDocuments;
      expect_estimated(config, device, ranks());
    }
  });
}

// Scores of 12 tokens a row, then of documents of 3 on average.
TEST(Estimate, DocumentsNeedLessAttention) {
  Config config = config_of("gpt");
  config.data.windows = WindowKind::kDocuments;
  Job job = some_gpus(config, ranks());
  const Estimate whole = estimate(config, data_for(config), job);
  job.document_length = 3;
  const Estimate short_ones = estimate(config, data_for(config), job);
  // 7 products of 12 x 12 scores, half of which are seen; a multiply-add counts two.
  const double all = 7.0 * 12 * 12 * 32 * 3 * static_cast<double>(config.train.global_batch);
  EXPECT_EQ(whole.flops - short_ones.flops, all * (1 - 3.0 / 12));
  EXPECT_EQ(whole.model_flops, short_ones.model_flops);
}

TEST(Estimate, IsWhatEveryStageUses) {
  for_each_device([](Device device) {
    for (int64_t zero = 0; zero < 4; ++zero) {
      for (const DType precision : {DType::kF32, DType::kBf16, DType::kFp16}) {
        for (const bool overlap : {true, false}) {
          SCOPED_TRACE(str("zero ", zero, " ", name_of(precision), overlap ? " overlapped" : ""));
          Config config = config_of("gpt");
          config.dist.zero = zero;
          config.dist.overlap = overlap;
          config.train.precision = precision;
          config.dist.wire_dtype = precision == DType::kFp16 ? DType::kI8 : precision;
          config.dist.gather_int8 = zero > 0 && overlap;
          config.train.recompute = true;
          expect_estimated(config, device, ranks());
        }
      }
    }
  });
}

TEST(Estimate, IsWhatAModelUsesThatIsCut) {
  if (ranks() % 2 != 0) {
    GTEST_SKIP() << "for two or four ranks";
  }
  for_each_device([](Device device) {
    for (const char* kind : {"gpt", "llama"}) {
      for (int64_t zero = 0; zero < 4; ++zero) {
        SCOPED_TRACE(str(kind, ", zero ", zero));
        Config config = config_of(kind);
        config.dist.tensor = 2;
        config.dist.zero = zero;
        config.train.recompute = zero % 2 == 1;
        config.train.precision = zero > 1 ? DType::kBf16 : DType::kF32;
        expect_estimated(config, device, ranks());
      }
    }
  });
}

TEST(Estimate, IsWhatAFrozenModelUses) {
  for_each_device([](Device device) {
    for (int64_t zero = 0; zero < 4; ++zero) {
      SCOPED_TRACE(str("zero ", zero));
      Config config = config_of("gpt");
      config.dist.zero = zero;
      config.train.precision = DType::kBf16;
      config.model.freeze = "wte,blocks.0.*,blocks.1.attn.*,*.ln_2.gain";
      expect_estimated(config, device, ranks());
      config.model.lora = {.rank = 5, .targets = zero % 2 == 0 ? "all" : "c_attn,mlp.c_proj"};
      expect_estimated(config, device, ranks());
    }
  });
}

// When only one matrix is trained, gradients, optimizer state, messages and products of backward
// are those of that matrix.
TEST(Estimate, OfOneMatrixCountsThatMatrixAlone) {
  constexpr int64_t kStored = 104, kWidth = 32, kRanks = 2;  // for 97 tokens, on a GPU
  Config config = config_of("gpt");
  set(config, "model.tie_embeddings", "false");
  config.train.global_batch = 8;
  config.train.precision = DType::kBf16;
  config.dist.bucket_mb = 1;
  const DatasetInfo data = data_for(config);
  const auto of = [&](const char* freeze, int64_t zero) {
    config.model.freeze = freeze;
    config.dist.zero = zero;
    return estimate(config, data, some_gpus(config, kRanks));
  };
  const auto bytes = [](const Estimate& estimate, MemoryClass memory_class) {
    return estimate.class_bytes[static_cast<size_t>(memory_class)];
  };
  constexpr const char* kHeadAlone = "wte,wpe,blocks.*,ln_f.*";
  // A bucket is padded to a multiple of ranks x 128 elements.
  constexpr int64_t kUnit = kRanks * 128,
                    kElements = (kStored * kWidth + kUnit - 1) / kUnit * kUnit;
  for (int64_t zero = 0; zero < 4; ++zero) {
    SCOPED_TRACE(str("zero ", zero));
    const Estimate all = of("", zero), one = of(kHeadAlone, zero);
    EXPECT_EQ(bytes(one, MemoryClass::kGradients), 4 * kElements / (zero >= 2 ? kRanks : 1));
    EXPECT_EQ(bytes(one, MemoryClass::kMasters), 4 * kElements / (zero >= 1 ? kRanks : 1));
    // Adam's state is twice the masters; the rest are the figures of the step.
    EXPECT_EQ(bytes(one, MemoryClass::kOptimizer) - 2 * bytes(one, MemoryClass::kMasters),
              bytes(all, MemoryClass::kOptimizer) - 2 * bytes(all, MemoryClass::kMasters));
    if (zero == 0) {  // each rank of a ring of two sends as much as all gradients once
      EXPECT_EQ(one.wire.total(), 4 * kElements);
    }
    if (zero == 3) {
      // In each of two micro-steps: its half of all values, and the other rank's of the gradients.
      const auto model = make_model(config.model, data);
      const FlatLayout layout(parameters_by_block(*model), {.whole = {kRanks},
                                                            .device = Device::kCuda,
                                                            .bucket_bytes = 1 << 20,
                                                            .split_blocks = false,
                                                            .merge_blocks = false});
      EXPECT_EQ(one.wire.total(), 2 * (2 * layout.elements() + 4 * kElements) / kRanks);
    }
  }
  // Products: 2 operations for each weight and row. The head's input gradient is one product more
  // if a matrix before the head is trained.
  const double rows = static_cast<double>(config.train.global_batch * config.model->context());
  const auto product = [&](int64_t out, int64_t in) {
    return 2 * rows * static_cast<double>(out * in);
  };
  const double head = product(kStored, kWidth), projection = product(kWidth, 4 * kWidth);
  const double forward = of(kHeadAlone, 0).flops - head;
  EXPECT_EQ(of("wte,wpe,*attn*,*.fc.*,*ln_*,*.bias,blocks.0.*,blocks.1.*,head.weight", 0).flops,
            forward + head + projection);
  const Estimate all = of("", 0);
  EXPECT_GT(forward, 0.95 * all.flops / 3);  // of attention's 7 products, 2 are in forward
  EXPECT_LT(forward, all.flops / 3);
}

TEST(Estimate, IsWhatNodesUse) {
  if (ranks() % 2 != 0) {
    GTEST_SKIP() << "needs nodes of two ranks";
  }
  for_each_device([](Device device) {
    for (int64_t zero = 0; zero < 4; ++zero) {
      for (const Sharing shard : {Sharing::kWorld, Sharing::kNode}) {
        SCOPED_TRACE(str("zero ", zero, " over the ", shard == Sharing::kWorld ? "world" : "node"));
        Config config = config_of("resnet");
        config.dist.zero = zero;
        config.dist.shard = shard;
        expect_estimated(config, device, 2);
      }
    }
  });
}

TEST(Estimate, IsWhatExactSumsUse) {
  for_each_device([](Device device) {
    for (const int64_t zero : {0, 2, 3}) {
      SCOPED_TRACE(str("zero ", zero));
      Config config = config_of("resnet");
      config.dist.zero = zero;
      config.dist.reduce = Reduce::kExact;
      expect_estimated(config, device, ranks());
    }
  });
}

TEST(Estimate, CountsTheModelsOperations) {
  Config config = config_of("gpt");
  config.train.global_batch = 8;
  DatasetInfo data = data_for(config);
  data.vocab_size = 96;  // which needs no padding
  const Estimate plain = estimate(config, data, some_gpus(config, 2));
  config.train.recompute = true;
  const Estimate again = estimate(config, data, some_gpus(config, 2));
  // Attention runs 7 products, of which the model's formula counts 6.
  const double attention = plain.flops - plain.model_flops;
  EXPECT_GE(attention, 0);
  EXPECT_LT(attention, 0.02 * plain.model_flops);
  // Forward is a third of all products (of attention's, 2 of 7). It runs twice, but the head once.
  const int64_t rows = config.train.global_batch * config.model->context();
  const double head =
      2.0 * static_cast<double>(rows * data.vocab_size * config.model->transformer()->width);
  EXPECT_EQ(again.flops - plain.flops,
            (plain.flops - 3 * head - 7 * attention) / 3 + 2 * attention);
  EXPECT_GT(again.step_s, plain.step_s);
  EXPECT_LT(again.mfu, plain.mfu);
  EXPECT_LE(plain.exposed_s, plain.step_s);
}

TEST(Estimate, FindsTheLargestMicroBatch) {
  Config config = config_of("resnet");
  const DatasetInfo data = data_for(config);
  Job job = some_gpus(config, 3);
  const auto peak_of = [&](int64_t micro_batch) {
    config.train.micro_batch = micro_batch;
    config.train.global_batch = 3 * micro_batch;
    return estimate(config, data, job).peak_bytes;
  };
  job.hardware.memory_bytes = peak_of(37);
  const int64_t largest = largest_micro_batch(config, data, job);
  EXPECT_GE(largest, 37);  // sizes are rounded up, so a few more samples may fit
  EXPECT_LE(peak_of(largest), job.hardware.memory_bytes);
  EXPECT_GT(peak_of(largest + 1), job.hardware.memory_bytes);
  job.hardware.memory_bytes = 1000;
  EXPECT_EQ(largest_micro_batch(config, data, job), 0);
}

}  // namespace
}  // namespace tandem::testing
