#include <gtest/gtest.h>

#include "layers/attention/cudnn_attention.h"
#include "src/core/error.h"
#include "src/device/dispatch.h"
#include "src/settings/changes.h"
#include "src/settings/config.h"
#include "tests/settings/settings_check.h"
#include "tests/support/set_config.h"

namespace tandem {
namespace {

TEST(Config, LaterAssignmentsWin) {
  Config config;
  EXPECT_TRUE(apply(config, {{"optim.lr", "0.5", "a.cfg"},
                             {"optim.lr", "0.25", "b.cfg"},
                             {"optim.lr", "0.125", "command line"}})
                  .empty());
  EXPECT_EQ(config.optim.lr, 0.125);
}

TEST(Config, ReportsEverythingWrongAtOnce) {
  Config config;
  const auto problems = apply(config, {{"train.step", "5", "a.cfg"},
                                       {"layers", "5", "command line"},
                                       {"model.kind", "rnn", "command line"},
                                       {"train.steps", "many", "command line"},
                                       {"dist.zero", "7", "command line"},
                                       {"optim.lr", "1e-3 or less", "command line"},
                                       {"optim.nesterov", "perhaps", "command line"}});
  ASSERT_EQ(problems.size(), 7u);
  EXPECT_TRUE(contains(problems, "a.cfg: unknown setting train.step; did you mean train.steps?"));
  EXPECT_TRUE(contains(problems, "model.kind = rnn must be one of gpt, llama, resnet, mlp"));
  EXPECT_TRUE(contains(problems, "train.steps = many must be a whole number in [1, "));
  EXPECT_TRUE(contains(problems, "dist.zero = 7 must be a whole number in [0, 3]"));
  EXPECT_TRUE(contains(problems, "optim.lr = 1e-3 or less must be a number in [0, 1e+38]"));
  EXPECT_TRUE(contains(problems, "optim.nesterov = perhaps must be true or false"));
}

TEST(Config, OfManyProblemsTwentyAreShownEachInALine) {
  try {
    fail_if_any(std::vector<std::string>(1000, "wro\nng"));
    FAIL();
  } catch (const Error& error) {
    const std::string text = error.what();
    EXPECT_EQ(std::ranges::count(text, '\n'), 20);
    EXPECT_TRUE(text.ends_with("wro\\x0Ang\nand 980 more")) << text;
  }
}

// What the message says of a number that is too large is true.
TEST(Config, RangesHaveTwoEnds) {
  for (const char* lr : {"1e39", "1e308", "1e309", "inf", "nan", "-1"}) {
    Config config;
    const auto problems = apply(config, {{"optim.lr", lr, "command line"}});
    EXPECT_TRUE(contains(problems, str("optim.lr = ", lr, " must be a number in [0, 1e+38]")));
  }
  Config config;
  EXPECT_TRUE(apply(config, {{"optim.lr", "1e38", "command line"}}).empty());
  const auto problems = apply(config, {{"run.seed", "9223372036854775808", "command line"}});
  EXPECT_TRUE(contains(problems, "must be a whole number in [0, 9223372036854775807]"));
}

template <class T>
void expect_choices(const char* key, const Choices<T>& choices, T& (*member)(Config&)) {
  for (const auto& [name, meaning] : choices) {
    Config config;
    EXPECT_TRUE(apply(config, {{key, name, "command line"}}).empty()) << key << " = " << name;
    EXPECT_EQ(member(config), meaning) << key << " = " << name;
    const std::string leaf = std::string(key).substr(std::string(key).find('.') + 1);
    EXPECT_NE(config.ini_text().find("\n" + leaf + " = " + name + "\n"), std::string::npos) << key;
  }
}

TEST(Config, EveryChoiceMeansWhatItSays) {
  expect_choices<std::optional<Device>>(
      "run.device", {{"auto", std::nullopt}, {"cpu", Device::kCpu}, {"cuda", Device::kCuda}},
      [](Config & c) -> auto& { return c.run.device; });
  expect_choices<DType>(
      "train.precision", {{"f32", DType::kF32}, {"bf16", DType::kBf16}, {"fp16", DType::kFp16}},
      [](Config & c) -> auto& { return c.train.precision; });
  expect_choices<bool>(
      "train.recompute", {{"none", false}, {"block", true}},
      [](Config & c) -> auto& { return c.train.recompute; });
  expect_choices<WindowKind>(
      "data.windows", {{"stream", WindowKind::kStream}, {"documents", WindowKind::kDocuments}},
      [](Config & c) -> auto& { return c.data.windows; });
  using Attention = AttentionKernels;
  expect_choices<Attention>(
      "kernels.attention",
      {{"auto", Attention::kAuto}, {"own", Attention::kOwn}, {"cudnn", Attention::kCudnn}},
      [](Config & c) -> auto& { return c.kernels.attention; });
  expect_choices<OnNonfinite>(
      "train.on_nonfinite", {{"stop", OnNonfinite::kStop}, {"skip", OnNonfinite::kSkip}},
      [](Config & c) -> auto& { return c.train.on_nonfinite; });
  expect_choices<ScheduleKind>(
      "optim.schedule",
      {{"cosine", ScheduleKind::kCosine},
       {"linear", ScheduleKind::kLinear},
       {"constant", ScheduleKind::kConstant},
       {"wsd", ScheduleKind::kWsd}},
      [](Config & c) -> auto& { return c.optim.schedule; });
  expect_choices<Backend>(
      "dist.backend", {{"auto", Backend::kAuto}, {"mpi", Backend::kMpi}, {"nccl", Backend::kNccl}},
      [](Config & c) -> auto& { return c.dist.backend; });
  expect_choices<Reduce>(
      "dist.reduce", {{"ring", Reduce::kRing}, {"exact", Reduce::kExact}},
      [](Config & c) -> auto& { return c.dist.reduce; });
  expect_choices<DType>(
      "dist.wire_dtype", {{"f32", DType::kF32}, {"bf16", DType::kBf16}, {"int8", DType::kI8}},
      [](Config & c) -> auto& { return c.dist.wire_dtype; });
  expect_choices<bool>(
      "dist.gather_dtype", {{"auto", false}, {"int8", true}},
      [](Config & c) -> auto& { return c.dist.gather_int8; });
  expect_choices<Sharing>(
      "dist.shard", {{"world", Sharing::kWorld}, {"node", Sharing::kNode}},
      [](Config & c) -> auto& { return c.dist.shard; });
  expect_choices<Unused>(
      "dist.unused", {{"error", Unused::kIsError}, {"zero", Unused::kIsZero}},
      [](Config & c) -> auto& { return c.dist.unused; });
  expect_choices<ProgressMode>(
      "log.progress",
      {{"auto", ProgressMode::kAuto},
       {"bar", ProgressMode::kBar},
       {"plain", ProgressMode::kPlain},
       {"none", ProgressMode::kNone}},
      [](Config & c) -> auto& { return c.log.progress; });
}

TEST(Config, SuggestsTheRightSection) {
  Config config;
  EXPECT_TRUE(
      contains(apply(config, {{"train.lr", "1", "command line"}}), "did you mean optim.lr?"));
}

TEST(Config, TextReadsBackEqual) {
  Config config = valid();
  config.optim.lr = 0.1 + 0.2;  // no short decimal form
  config.run.name = "a name";
  set(config, "model.tie_embeddings", "false");
  const Config again = config_from_text(config.ini_text(), "text");
  EXPECT_EQ(again.ini_text(), config.ini_text());
  EXPECT_EQ(again.optim.lr, config.optim.lr);
  EXPECT_EQ(again.run.name, "a name");
  EXPECT_FALSE(again.model->transformer()->tie_embeddings);
}

// A rank that takes its whole share in training may not hold the global batch.
TEST(Config, ABatchForValidationIsNoLargerThanOneForTrainingMayBe) {
  Config config = valid();
  config.train.global_batch = 512;
  const auto batch = [&](const std::string& context, int64_t micro_batch) {
    EXPECT_TRUE(apply(config, {{"model.context", context, "a.cfg"}}).empty());
    config.train.micro_batch = micro_batch;
    return config.eval_batch();
  };
  EXPECT_EQ(batch("1024", 0), 64);
  EXPECT_EQ(batch("100", 0), 512);
  EXPECT_EQ(batch("200000", 0), 1);
  EXPECT_EQ(batch("200000", 3), 3);
}

TEST(Config, DefaultsAreValidWithData) { EXPECT_TRUE(problems_of(valid(), 1).empty()); }

TEST(Config, IndivisibleBatchNamesTheNeighbours) {
  Config config = valid();
  config.train.global_batch = 10;
  EXPECT_TRUE(
      contains(problems_of(config, 3), "not divisible by 3 ranks; the nearest that are: 9 and 12"));
  config.train.micro_batch = 2;
  EXPECT_TRUE(contains(problems_of(config, 3), "2 x 3 = 6; the nearest that are: 6 and 12"));
  EXPECT_TRUE(contains(problems_of(config, 8), "2 x 8 = 16; the least that is: 16"));
  config.train.global_batch = 12;
  EXPECT_TRUE(problems_of(config, 3).empty());
  config.train.micro_batch = 0;
  config.train.graphs = Graphs::kOn;  // which asks for the micro-steps, of which there are none
  EXPECT_TRUE(contains(problems_of(config, 16), "the least that is: 16"));
}

// With a constant learning rate min_lr has no meaning.
TEST(Config, TheSmallestLearningRateIsBelowTheOther) {
  Config config = valid();
  config.optim.lr = 1e-5;
  EXPECT_TRUE(contains(problems_of(config, 1), "optim.min_lr = 0.0001 is above optim.lr = 1e-05"));
  config.optim.schedule = ScheduleKind::kConstant;
  EXPECT_TRUE(problems_of(config, 1).empty());
}

TEST(Config, WhatIsShownInTensorBoardNeedsIt) {
  for (const auto& [key, value, shown] :
       {std::tuple{"log.histograms", "true", "log.histograms = true"},
        {"log.sample_every", "7", "log.sample_every"}}) {
    Config config = valid();
    ASSERT_TRUE(apply(config, {{key, value, "command line"}}).empty());
    EXPECT_TRUE(problems_of(config, 1).empty()) << key;
    config.log.tensorboard = false;
    EXPECT_TRUE(contains(problems_of(config, 1), str(shown, " writes to TensorBoard"))) << key;
  }
}

TEST(Config, ImpossibleModelsAreNamed) {
  const auto problems_with = [](const std::vector<Assignment>& assignments) {
    Config config = valid();
    EXPECT_TRUE(apply(config, assignments).empty());
    return problems_of(config, 1);
  };
  EXPECT_TRUE(contains(problems_with({{"model.heads", "3", "test"}}),
                       "model.width = 128 is not divisible by model.heads = 3"));
  EXPECT_TRUE(contains(problems_with({{"model.positions", "63", "test"}}),
                       "model.positions = 63 is below model.context = 64"));
  EXPECT_TRUE(
      contains(problems_with({{"model.kind", "llama", "test"},
                              {"model.rope_scaling", "llama3", "test"},
                              {"model.rope_low_freq_factor", "4", "test"}}),
               "model.rope_high_freq_factor = 4 must be above model.rope_low_freq_factor = 4"));
  EXPECT_TRUE(contains(
      problems_with({{"model.kind", "resnet", "test"}, {"model.depth", "21", "test"}}), "6n + 2"));
}

// What this build lacks is an error, never ignored; what it has is none.
TEST(Config, MissingFeaturesAreErrors) {
  for (const auto& [key, value, is_missing] :
       {std::tuple{"run.device", "cuda", !kHasCuda},
        {"dist.backend", "nccl", !kHasCuda},
        {"kernels.attention", "cudnn", !cudnn_attention::in_build()}}) {
    Config config = valid();
    set(config, key, value);
    EXPECT_EQ(contains(problems_of(config, 1), str(key, " = ", value, " is not in this build")),
              is_missing)
        << key;
  }
}

TEST(Config, NodesDivideTheRanks) {
  for (const auto& [size, ranks, is_good] :
       {std::tuple("auto", 3, true), std::tuple("2", 4, true), std::tuple("4", 4, true),
        std::tuple("3", 4, false), std::tuple("0", 4, false), std::tuple("2x", 4, false),
        std::tuple("", 4, false)}) {
    Config config = valid();
    config.dist.node_size = size;
    EXPECT_EQ(problems_of(config, ranks).empty(), is_good) << size;
  }
}

TEST(Config, ExactSumsAreNotRounded) {
  Config config = valid();
  config.dist.wire_dtype = DType::kBf16;
  EXPECT_TRUE(problems_of(config, 1).empty());
  config.dist.reduce = Reduce::kExact;
  EXPECT_TRUE(contains(problems_of(config, 1), "dist.wire_dtype = bf16 has no meaning"));
  config.dist.gather_int8 = true;
  const auto found = problems_of(config, 1);
  EXPECT_TRUE(contains(found, "dist.gather_dtype = int8 has no meaning with dist.zero = 0"));
  EXPECT_TRUE(contains(found, "dist.gather_dtype = int8 has no meaning with dist.reduce = exact"));
}

TEST(Config, NcclNeedsAGpu) {
  Config config = valid();
  ASSERT_TRUE(apply(config, {{"dist.backend", "nccl", "command line"},
                             {"run.device", "cpu", "command line"}})
                  .empty());
  EXPECT_TRUE(contains(problems_of(config, 1), "dist.backend = nccl"));
}

constexpr int64_t kVocab = 65;  // of the dataset

TEST(Config, FixedSettingsAreModelDataAndSeed) {
  Config a = valid(), b = valid();
  b.optim.lr = 7;
  b.train.steps = 9;
  EXPECT_EQ(changed_settings(a, b, kVocab), "");
  set(b, "model.width", "256");
  EXPECT_NE(changed_settings(a, b, kVocab), "");
}

TEST(Config, AZeroIsTheSizeThatItStandsFor) {
  Config zeros = valid(), sizes = valid();
  for (Config* config : {&zeros, &sizes}) {
    set(*config, "model.kind", "llama");
    set(*config, "model.heads", "4");
    set(*config, "model.width", "128");
  }
  set(sizes, "model.ffn_width", "352");  // 8/3 of 128, rounded up to a multiple of 32
  set(sizes, "model.kv_heads", "4");
  set(sizes, "model.head_width", "32");
  set(sizes, "model.vocab", "65");
  EXPECT_EQ(changed_settings(zeros, sizes, kVocab), "");
  EXPECT_TRUE(all_changes(sizes, zeros, kVocab).empty());
  EXPECT_EQ(changed_settings(zeros, sizes, 64), "\n  was model.vocab = 0, now 65");
  set(sizes, "model.ffn_width", "384");
  EXPECT_EQ(changed_settings(zeros, sizes, kVocab), "\n  was model.ffn_width = 0, now 384");
  set(zeros, "model.width", "64");
  EXPECT_EQ(changed_settings(sizes, zeros, kVocab),
            "\n  was model.width = 128, now 64\n  was model.ffn_width = 384, now 0"
            "\n  was model.head_width = 32, now 0");
  set(zeros, "model.heads", "3");  // does not divide the width
  EXPECT_NE(changed_settings(sizes, zeros, kVocab), "");
}

TEST(Config, FixedSettingsAreNamed) {
  const std::vector<std::string> keys = fixed_keys();
  const auto is_fixed = [&](const std::string& key) { return std::ranges::count(keys, key) == 1; };
  for (const char* key : {"model.kind", "model.freeze", "data.path", "run.seed", "optim.kind",
                          "train.global_batch"}) {
    EXPECT_TRUE(is_fixed(key)) << key;
  }
  for (const char* key : {"model.dropout", "run.name", "train.steps", "optim.lr", "dist.zero"}) {
    EXPECT_FALSE(is_fixed(key)) << key;
  }
  Config a = valid(), b = valid();
  set(b, "optim.kind", "sgd");
  b.train.global_batch = 24;
  EXPECT_EQ(changed_settings(a, b, kVocab),
            "\n  was train.global_batch = 12, now 24\n  was optim.kind = adamw, now sgd");
}

TEST(Config, EachNodeIsAnIsland) {
  const auto islands = [](const std::vector<int>& node_of_rank) {
    DistConfig dist;
    dist.set_islands(node_of_rank);
    return dist.islands;
  };
  EXPECT_EQ(islands({0}), 1);
  EXPECT_EQ(islands({0, 0, 0}), 1);
  EXPECT_EQ(islands({0, 0, 1, 1, 2, 2}), 3);
  for (const std::vector<int>& uneven :
       {std::vector{0, 0, 1}, {0, 1, 0, 1}, {0, 0, 0, 1}, {0, 1, 1, 2}}) {
    EXPECT_THROW(islands(uneven), Error);
  }
}

TEST(Config, AllChangesAreListed) {
  Config a = valid(), b = valid();
  EXPECT_TRUE(all_changes(a, b, kVocab).empty());
  b.model.freeze = "wpe";
  b.optim.lr = 5e-4;
  b.log.progress = ProgressMode::kNone;
  EXPECT_EQ(all_changes(a, b, kVocab),
            (std::vector<std::string>{"model.freeze \"\" -> wpe", "optim.lr 0.001 -> 5e-04",
                                      "log.progress auto -> none"}));
}

}  // namespace
}  // namespace tandem
