// Settings that a kind of model, an update rule or another choice leaves unread.
#include <gtest/gtest.h>

#include "src/core/error.h"
#include "src/settings/changes.h"
#include "tests/settings/settings_check.h"
#include "tests/support/set_config.h"

namespace tandem {
namespace {

TEST(Kinds, ASettingThatTheChoiceIgnoresIsAnError) {
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
        Case{"model.kind", "gpt", "model.rope_factor", "2"},
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

TEST(Kinds, OfAModelsSettingsWhatItsChoicesLeaveUnreadIsAnErrorToo) {
  using Case = std::tuple<const char*, const char*, const char*>;
  for (const auto& [scaling, key, value] :
       {Case{"none", "model.rope_factor", "2"}, Case{"none", "model.rope_low_freq_factor", "2"},
        Case{"none", "model.rope_original_context", "64"},
        Case{"linear", "model.rope_high_freq_factor", "8"}}) {
    Config config = valid();
    ASSERT_TRUE(apply(config, {{"model.kind", "llama", "test"},
                               {"model.rope_scaling", scaling, "test"},
                               {key, value, "test"}})
                    .empty());
    EXPECT_EQ(problems_of(config, 1),
              std::vector{str(key, " = ", value, " has no meaning with model.rope_scaling = ",
                              scaling, "; remove it")});
  }
}

// A run's files have only what it reads.
TEST(Kinds, WhatNothingReadsIsNotWritten) {
  for (const char* kind : {"gpt", "llama", "resnet", "mlp"}) {
    for (const char* rule : {"adamw", "sgd"}) {
      Config config = valid();
      set(config, "model.kind", kind);
      set(config, "optim.kind", rule);
      const std::string text = config.ini_text();
      EXPECT_TRUE(problems_of(config_from_text(text, "text"), 1).empty());
      EXPECT_EQ(text.find("\nbeta1 = ") == text.npos, rule == std::string("sgd"));
      EXPECT_EQ(text.find("\ndepth = ") == text.npos, kind != std::string("resnet"));
      EXPECT_EQ(text.find("\nrope_factor = "), text.npos);
    }
  }
}

// A copy's settings are its own: the kinds with their settings are copied.
TEST(Kinds, CopiesDoNotShareTheSettingsOfKinds) {
  Config one = valid();
  Config other = one;
  set(other, "model.width", "64");
  EXPECT_EQ(one.model->transformer()->width, 128);
  one = other;
  set(other, "model.width", "32");
  EXPECT_EQ(one.model->transformer()->width, 64);
}

// Checkpoints of older programs hold settings that nothing reads, wherever they stand, and a
// removed one. Typed settings may not.
TEST(Kinds, WhatOlderProgramsWroteIsRead) {
  const std::string older =
      "[model]\nheads = 2\nlayers = 7\nkind = mlp\nrope_factor = 5\n[log]\ntrace = false\n";
  const Config then = config_from_text(older, "manifest");
  EXPECT_TRUE(contains(problems_of(then, 1), "data.path is empty"));
  EXPECT_EQ(problems_of(then, 1).size(), 1u);
  EXPECT_EQ(then.model->blocks(), 7);
  EXPECT_EQ(then.log.trace, "");
  Config now;
  set(now, "model.kind", "mlp");
  set(now, "model.layers", "7");
  EXPECT_EQ(changed_settings(then, now, 0), "");
  set(now, "model.width", "64");
  EXPECT_EQ(changed_settings(then, now, 0), "\n  was model.width = 128, now 64");
  EXPECT_EQ(changed_settings(then, now, 0, {"model.width"}), "");
  for (const char* wrong : {"[model]\nwidht = 3\n", "[model]\nkind = mlp\nwidth = 0\n"}) {
    EXPECT_THROW(config_from_text(wrong, "manifest"), Error) << wrong;
  }
  set(now, "log.trace", "false");
  EXPECT_TRUE(contains(problems_of(now, 1), "log.trace = \"false\" must be up to 1000 steps"));
}

}  // namespace
}  // namespace tandem
