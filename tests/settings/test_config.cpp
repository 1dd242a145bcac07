#include <gtest/gtest.h>

#include "layers/attention/cudnn_attention.h"
#include "src/core/error.h"
#include "src/device/dispatch.h"
#include "src/settings/changes.h"
#include "src/settings/config.h"

namespace tandem {
namespace {

bool contains(const std::vector<std::string>& problems, const std::string& text) {
  for (const std::string& problem : problems) {
    if (problem.find(text) != std::string::npos) {
      return true;
    }
  }
  return false;
}

std::vector<std::string> apply(Config& config, const std::vector<Assignment>& assignments) {
  Options options("usage");
  config.bind(options);
  return options.apply(assignments);
}

Config valid() {
  Config config;
  config.data.path = "data.h5";
  return config;
}

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

TEST(Config, OfManyProblemsTwentyAreShown) {
  try {
    fail_if_any(std::vector<std::string>(1000, "wrong"));
    FAIL();
  } catch (const Error& error) {
    const std::string text = error.what();
    EXPECT_EQ(std::ranges::count(text, '\n'), 20);
    EXPECT_TRUE(text.ends_with("wrong\nand 980 more")) << text;
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
  using Attention = AttentionKernels;
  expect_choices<Attention>(
      "kernels.attention",
      {{"auto", Attention::kAuto}, {"own", Attention::kOwn}, {"cudnn", Attention::kCudnn}},
      [](Config & c) -> auto& { return c.kernels.attention; });
  expect_choices<OnNonfinite>(
      "train.on_nonfinite", {{"stop", OnNonfinite::kStop}, {"skip", OnNonfinite::kSkip}},
      [](Config & c) -> auto& { return c.train.on_nonfinite; });
  expect_choices<OptimizerKind>(
      "optim.kind", {{"adamw", OptimizerKind::kAdamW}, {"sgd", OptimizerKind::kSgd}},
      [](Config & c) -> auto& { return c.optim.kind; });
  expect_choices<ScheduleKind>(
      "optim.schedule",
      {{"cosine", ScheduleKind::kCosine},
       {"linear", ScheduleKind::kLinear},
       {"constant", ScheduleKind::kConstant}},
      [](Config & c) -> auto& { return c.optim.schedule; });
  expect_choices<Backend>(
      "dist.backend", {{"auto", Backend::kAuto}, {"mpi", Backend::kMpi}, {"nccl", Backend::kNccl}},
      [](Config & c) -> auto& { return c.dist.backend; });
  expect_choices<Reduce>(
      "dist.reduce", {{"ring", Reduce::kRing}, {"exact", Reduce::kExact}},
      [](Config & c) -> auto& { return c.dist.reduce; });
  expect_choices<DType>(
      "dist.wire_dtype", {{"f32", DType::kF32}, {"bf16", DType::kBf16}},
      [](Config & c) -> auto& { return c.dist.wire_dtype; });
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
  config.model.tie_embeddings = false;
  const Config again = config_from_text(config.ini_text(), "text");
  EXPECT_EQ(again.ini_text(), config.ini_text());
  EXPECT_EQ(again.optim.lr, config.optim.lr);
  EXPECT_EQ(again.run.name, "a name");
  EXPECT_FALSE(again.model.tie_embeddings);
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
  Config config = valid();
  config.model.heads = 3;
  EXPECT_TRUE(
      contains(problems_of(config, 1), "model.width = 128 is not divisible by model.heads = 3"));
  config = valid();
  config.model.positions = config.model.context - 1;
  EXPECT_TRUE(contains(problems_of(config, 1), "model.positions = 63 is below model.context = 64"));
  config = valid();
  config.model.kind = "llama";
  config.model.rope_scaling = RopeScaling::kLlama3;
  config.model.rope_low_freq_factor = config.model.rope_high_freq_factor;
  EXPECT_TRUE(
      contains(problems_of(config, 1),
               "model.rope_high_freq_factor = 4 must be above model.rope_low_freq_factor = 4"));
  config = valid();
  config.model.kind = "resnet";
  config.model.depth = 21;
  EXPECT_TRUE(contains(problems_of(config, 1), "6n + 2"));
}

TEST(Config, ASettingThatTheChoiceIgnoresIsAnError) {
  using Case = std::tuple<const char*, const char*, const char*, const char*>;
  for (const auto& [choice, made, key, value] :
       {Case{"model.kind", "gpt", "data.augment", "true"},
        Case{"model.kind", "gpt", "model.kv_heads", "3"},
        Case{"model.kind", "gpt", "model.depth", "32"},
        Case{"model.kind", "gpt", "model.rope_theta", "20000"},
        Case{"model.kind", "gpt", "model.rope_scaling", "linear"},
        Case{"model.kind", "llama", "data.augment", "true"},
        Case{"model.kind", "llama", "model.positions", "128"},
        Case{"model.kind", "llama", "model.depth", "32"},
        Case{"model.kind", "resnet", "model.layers", "2"},
        Case{"model.kind", "resnet", "model.heads", "2"},
        Case{"model.kind", "resnet", "model.kv_heads", "2"},
        Case{"model.kind", "resnet", "model.width", "64"},
        Case{"model.kind", "resnet", "model.ffn_width", "64"},
        Case{"model.kind", "resnet", "model.context", "32"},
        Case{"model.kind", "resnet", "model.positions", "128"},
        Case{"model.kind", "resnet", "model.vocab", "300"},
        Case{"model.kind", "resnet", "model.norm_eps", "0.5"},
        Case{"model.kind", "resnet", "model.rope_theta", "20000"},
        Case{"model.kind", "resnet", "model.rope_scaling", "linear"},
        Case{"model.kind", "resnet", "model.dropout", "0.1"},
        Case{"model.kind", "resnet", "model.tie_embeddings", "false"},
        Case{"model.kind", "mlp", "model.heads", "2"},
        Case{"model.kind", "mlp", "model.kv_heads", "2"},
        Case{"model.kind", "mlp", "model.ffn_width", "64"},
        Case{"model.kind", "mlp", "model.context", "32"},
        Case{"model.kind", "mlp", "model.positions", "128"},
        Case{"model.kind", "mlp", "model.vocab", "300"},
        Case{"model.kind", "mlp", "model.norm_eps", "0.5"},
        Case{"model.kind", "mlp", "model.rope_theta", "20000"},
        Case{"model.kind", "mlp", "model.rope_scaling", "linear"},
        Case{"model.kind", "mlp", "model.dropout", "0.1"},
        Case{"model.kind", "mlp", "model.tie_embeddings", "false"},
        Case{"model.kind", "mlp", "model.depth", "32"},
        Case{"model.rope_scaling", "none", "model.rope_factor", "2"},
        Case{"model.rope_scaling", "none", "model.rope_low_freq_factor", "2"},
        Case{"model.rope_scaling", "none", "model.rope_high_freq_factor", "8"},
        Case{"model.rope_scaling", "none", "model.rope_original_context", "64"},
        Case{"optim.kind", "adamw", "optim.momentum", "0.5"},
        Case{"optim.kind", "adamw", "optim.nesterov", "true"},
        Case{"optim.kind", "sgd", "optim.beta1", "0.5"},
        Case{"optim.kind", "sgd", "optim.beta2", "0.5"},
        Case{"optim.kind", "sgd", "optim.eps", "0.5"}}) {
    Config config = valid();
    ASSERT_TRUE(apply(config, {{choice, made, "command line"}}).empty());
    EXPECT_TRUE(problems_of(config, 1).empty()) << choice << made;
    ASSERT_TRUE(apply(config, {{key, value, "command line"}}).empty());
    EXPECT_EQ(problems_of(config, 1), std::vector{str(key, " = ", value, " has no meaning with ",
                                                      choice, " = ", made, "; remove it")});
  }
}

TEST(Config, ADefaultThatTheChoiceIgnoresReadsBack) {
  for (const char* kind : {"gpt", "llama", "resnet", "mlp"}) {
    for (const OptimizerKind rule : {OptimizerKind::kAdamW, OptimizerKind::kSgd}) {
      Config config = valid();
      config.model.kind = kind;
      config.optim.kind = rule;
      EXPECT_TRUE(problems_of(config_from_text(config.ini_text(), "text"), 1).empty());
    }
  }
}

// Older checkpoints may hold settings that are errors now: they are read, and training goes on
// without these settings.
TEST(Config, IgnoredSettingsOfOlderRunsAreNoChange) {
  Config older = valid();
  older.model.kind = "resnet";
  Config now = older;
  older.model.heads = 2;
  EXPECT_EQ(config_from_text(older.ini_text(), "manifest").model.heads, 2);
  EXPECT_EQ(changed_settings(older, now), "");
  now.model.depth = 32;
  EXPECT_EQ(changed_settings(older, now), "\n  was model.depth = 20, now 32");
}

// What the design names and this build lacks is an error, never ignored.
TEST(Config, MissingFeaturesAreErrors) {
  std::vector<std::pair<std::string, std::string>> settings = {{"log.trace", "true"}};
  if (!kHasCuda) {
    settings.push_back({"run.device", "cuda"});
    settings.push_back({"dist.backend", "nccl"});
  }
  if (!cudnn_attention::in_build()) {
    settings.push_back({"kernels.attention", "cudnn"});
  }
  for (const auto& [key, value] : settings) {
    Config config = valid();
    ASSERT_TRUE(apply(config, {{key, value, "command line"}}).empty());
    EXPECT_TRUE(contains(problems_of(config, 1), key + " = " + value + " is not in this build"))
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
}

TEST(Config, NcclNeedsAGpu) {
  Config config = valid();
  ASSERT_TRUE(apply(config, {{"dist.backend", "nccl", "command line"},
                             {"run.device", "cpu", "command line"}})
                  .empty());
  EXPECT_TRUE(contains(problems_of(config, 1), "dist.backend = nccl"));
}

TEST(Config, FixedSettingsAreModelDataAndSeed) {
  Config a = valid(), b = valid();
  b.optim.lr = 7;
  b.train.steps = 9;
  EXPECT_EQ(changed_settings(a, b), "");
  b.model.width = 256;
  EXPECT_NE(changed_settings(a, b), "");
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
  b.optim.kind = OptimizerKind::kSgd;
  b.train.global_batch = 24;
  EXPECT_EQ(changed_settings(a, b),
            "\n  was train.global_batch = 12, now 24\n  was optim.kind = adamw, now sgd");
}

TEST(Config, AllChangesAreListed) {
  Config a = valid(), b = valid();
  EXPECT_TRUE(all_changes(a, b).empty());
  b.model.freeze = "wpe";
  b.optim.lr = 5e-4;
  b.log.progress = ProgressMode::kNone;
  EXPECT_EQ(all_changes(a, b),
            (std::vector<std::string>{"model.freeze \"\" -> wpe", "optim.lr 0.001 -> 5e-04",
                                      "log.progress auto -> none"}));
}

}  // namespace
}  // namespace tandem
