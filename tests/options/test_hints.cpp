#include <gtest/gtest.h>

#include "src/options/hints.h"
#include "src/settings/config.h"

namespace tandem {
namespace {

std::vector<std::string> apply(Config& config, const std::vector<Assignment>& assignments) {
  Options options("usage");
  config.bind(options);
  return options.apply(assignments);
}

// The problem, of which there must be just one.
std::string only(const std::vector<std::string>& problems) {
  EXPECT_EQ(problems.size(), 1u);
  return problems.empty() ? "" : problems[0];
}

TEST(Hints, TheNearestName) {
  const std::vector<std::string> names = {"train", "eval", "inspect"};
  EXPECT_EQ(nearest_name("trian", names), "train");
  EXPECT_EQ(nearest_name("inspct", names), "inspect");
  EXPECT_EQ(nearest_name("frobnicate", names), "");
  // Three letters may be wrong, four may not.
  EXPECT_EQ(nearest_name("insp123", names), "inspect");
  EXPECT_EQ(nearest_name("ins1234", names), "");
  // At most half of a short word.
  EXPECT_EQ(nearest_name("exxl", names), "eval");
  EXPECT_EQ(nearest_name("exxx", names), "");
}

TEST(Hints, KnowsTheNamesThatOtherProgramsUse) {
  const std::pair<const char*, const char*> names[] = {{"batch_size", "train.global_batch"},
                                                       {"learning_rate", "optim.lr"},
                                                       {"max_iters", "train.steps"},
                                                       {"n_layer", "model.layers"},
                                                       {"n_head", "model.heads"},
                                                       {"n_embd", "model.width"},
                                                       {"block_size", "model.context"},
                                                       {"train.batch-size", "train.global_batch"},
                                                       {"zero_optimization.stage", "dist.zero"},
                                                       {"max_lr", "optim.lr"},
                                                       {"data", "data.path"}};
  for (const auto& [theirs, ours] : names) {
    Config config;
    EXPECT_NE(only(apply(config, {{theirs, "8", "command line"}}))
                  .find(str("unknown setting ", theirs, "; here it is ", ours, ": ")),
              std::string::npos)
        << theirs;
  }
  Config config;
  const auto problem = [&](const char* key) { return only(apply(config, {{key, "1", "a.cfg"}})); };
  EXPECT_TRUE(problem("zzzzzzzz").ends_with("; --help lists all"));
  EXPECT_TRUE(problem("train.gradient_accumulation_steps")
                  .ends_with("; set train.micro_batch: a step has global_batch / (micro_batch x "
                             "ranks) of them"));
  EXPECT_TRUE(
      problem("num_nodes").ends_with("; mpirun -np RANKS, or launch/run.sh, says how many"));
}

TEST(Hints, SaysHowAValueIsWritten) {
  const std::tuple<const char*, const char*, const char*> values[] = {
      {"train.precision", "fp32", "f32"},  {"train.precision", "float16", "fp16"},
      {"train.precision", "BF16", "bf16"}, {"train.precision", "bfloat16", "bf16"},
      {"train.steps", "1e4", "10000"},     {"train.steps", "200.0", "200"},
      {"data.augment", "True", "true"},    {"optim.kind", "AdamW", "adamw"},
      {"model.kind", "gpt2", "gpt"},       {"run.device", "gpu", "cuda"}};
  for (const auto& [key, theirs, ours] : values) {
    Config config;
    const std::string before = config.ini_text();
    const std::string problem = only(apply(config, {{key, theirs, "command line"}}));
    EXPECT_TRUE(problem.ends_with(str("; write ", ours))) << problem;
    EXPECT_EQ(config.ini_text(), before);  // a spelling that was tried is not kept
  }
  for (const auto& [key, value] : {std::pair{"train.steps", "1.5"},
                                   {"train.steps", "-1e4"},
                                   {"dist.wire_dtype", "float16"},
                                   {"train.steps", "1e300"}}) {
    Config config;
    const std::string problem = only(apply(config, {{key, value, "command line"}}));
    EXPECT_EQ(problem.find("; write"), std::string::npos) << problem;
  }
}

TEST(Hints, ASwitchTakesNoWordThatFollows) {
  bool json = false;
  std::string name, place;
  Options options("");
  options.add("json", json, "");
  options.add("name", name, "");
  options.add("place", place, "");
  EXPECT_TRUE(options.apply_words({"--json", "here", "--name", "n"}, "place").empty());
  EXPECT_TRUE(json);
  EXPECT_EQ(place, "here");
  EXPECT_TRUE(options.apply_words({"--json", "false"}).empty());
  EXPECT_FALSE(json);
  EXPECT_NE(only(options.apply_words({"here"})).find("unexpected word here"), std::string::npos);
  EXPECT_NE(only(options.apply_words({"here", "there"}, "place")).find("unexpected word there"),
            std::string::npos);
  EXPECT_NE(only(options.apply_words({"--place", "here", "there"}, "place")).find("word there"),
            std::string::npos);
}

}  // namespace
}  // namespace tandem
