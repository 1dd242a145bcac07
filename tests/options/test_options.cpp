#include <gtest/gtest.h>

#include "src/core/error.h"
#include "src/settings/config.h"

namespace tandem {
namespace {

TEST(CommandLine, ReadsBothForms) {
  const CommandLine line =
      Options("").parse({"one", "--a.b", "3", "--c=d=e", "--help", "--x", "-1"});
  EXPECT_EQ(line.positional, std::vector<std::string>{"one"});
  ASSERT_EQ(line.assignments.size(), 4u);
  EXPECT_EQ(line.assignments[0].value, "3");
  EXPECT_EQ(line.assignments[1].key, "c");
  EXPECT_EQ(line.assignments[1].value, "d=e");
  EXPECT_EQ(line.assignments[2].value, "true");
  EXPECT_EQ(line.assignments[3].value, "-1");
}

TEST(CommandLine, HelpTakesNoValue) {
  bool help = false;
  Options options("");
  options.add("help", help, "");
  for (const char* word : {"--help", "-h"}) {
    const CommandLine line = options.parse({word, "runs/a"});
    EXPECT_EQ(line.positional, std::vector<std::string>{"runs/a"}) << word;
    ASSERT_EQ(line.assignments.size(), 1u);
    EXPECT_EQ(line.assignments[0].value, "true");
  }
}

TEST(CommandLine, TextWithoutAValueIsAProblem) {
  Config config;
  Options options("");
  config.bind(options);
  const auto problems = options.apply(options.parse({"--run.name", "--data.augment"}).assignments);
  EXPECT_EQ(problems.size(), 1U);  // a switch needs none
  EXPECT_NE(problems.at(0).find("run.name has no value"), std::string::npos);
  EXPECT_TRUE(config.data.augment);
  EXPECT_TRUE(options.apply(options.parse({"--run.name", "true"}).assignments).empty());
}

TEST(Ini, AByteOrderMarkIsSkipped) {
  const auto settings = parse_ini("\xEF\xBB\xBF[run]\r\nname = x\r\n", "a.cfg");
  ASSERT_EQ(settings.size(), 1U);
  EXPECT_EQ(settings[0].key, "run.name");
  EXPECT_EQ(settings[0].value, "x");
}

TEST(Ini, GarbledTextNamesTheFile) {
  try {
    parse_ini("[model]\nwidth 128\n", "broken.cfg");
    FAIL() << "no error";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::kConfig);
    EXPECT_NE(std::string(error.what()).find("broken.cfg"), std::string::npos);
  }
}

}  // namespace
}  // namespace tandem
