#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <limits>

#include "src/core/error.h"
#include "src/io/checkpoint/manifest.h"
#include "src/io/content_hash.h"
#include "src/io/file.h"
#include "tests/support/temporary_folder.h"

namespace tandem {
namespace {

Manifest full_manifest() {
  Manifest manifest;
  manifest.config = "[train]\nsteps = 10\nname = \"\\ \xc3\xa9\"\n";
  manifest.step = int64_t{1} << 60;
  manifest.sampler_epoch = 3;
  manifest.sampler_position = (int64_t{1} << 53) + 1;
  manifest.data_hash = "00112233445566778899aabbccddeeff";
  manifest.vocabulary_hash = "ffeeddccbbaa99887766554433221100";
  manifest.seed = std::numeric_limits<uint64_t>::max();
  manifest.schedule = {{"loss_scale", 65536}, {"lr", 0.1}, {"tiny", 5e-324}};
  manifest.world_size = 1;
  manifest.validation_loss = 1.0 / 3.0;
  manifest.files = {{"rank-0000.h5", int64_t{1} << 40, {{96, 1 << 20}}, std::string(32, 'a')}};
  return manifest;
}

TEST(Manifest, SurvivesExactly) {
  EXPECT_EQ(manifest_from_json(to_json(full_manifest()), "m"), full_manifest());
  EXPECT_EQ(manifest_from_json(to_json({}), "m"), Manifest{});
}

TEST(Manifest, SaysWhatItsFilesAre) {
  Manifest manifest = full_manifest();
  manifest.format_version = Manifest::kOldestFormat;
  EXPECT_EQ(manifest_from_json(to_json(manifest), "m"), manifest);
}

TEST(Manifest, TakesAnyConfigAndAnyNumber) {
  Manifest manifest;
  manifest.config = "name = \xff\n";
  manifest.validation_loss = std::numeric_limits<double>::quiet_NaN();
  manifest.schedule["scale"] = std::numeric_limits<double>::infinity();
  const Manifest read = manifest_from_json(to_json(manifest), "m");
  EXPECT_EQ(read.config, "name = \xef\xbf\xbd\n");
  EXPECT_TRUE(std::isnan(read.validation_loss.value()));
  EXPECT_TRUE(read.schedule.empty());
}

TEST(Manifest, NoCountIsNegative) {
  for (const auto set :
       {+[](Manifest& m) { m.step = -5; }, +[](Manifest& m) { m.sampler_epoch = -1; },
        +[](Manifest& m) { m.sampler_position = -1; }, +[](Manifest& m) { m.world_size = -1; }}) {
    Manifest manifest = full_manifest();
    set(manifest);
    EXPECT_THROW(manifest_from_json(to_json(manifest), "m"), Error);
  }
}

// Every flipped bit is found, or changes nothing (in white space).
TEST(Manifest, NoFlippedBitGoesUnnoticed) {
  const std::string text = to_json(full_manifest());
  int found = 0;
  for (size_t i = 0; i < text.size(); ++i) {
    for (unsigned bit = 0; bit < 8; ++bit) {
      std::string flipped = text;
      flipped[i] = static_cast<char>(static_cast<unsigned char>(flipped[i]) ^ (1U << bit));
      try {
        ASSERT_EQ(manifest_from_json(flipped, "m"), full_manifest()) << "byte " << i;
      } catch (const Error& error) {
        ASSERT_EQ(error.code(), ExitCode::kData) << error.what();
        ++found;
      }
    }
  }
  EXPECT_GT(found, 7 * static_cast<int>(text.size()) / 2);
}

// A manifest with the hash of its content. The text is JSON without any space.
std::string with_hash(std::string text) {
  const std::string hash = hash_of(text).hex();
  text.pop_back();
  return text + R"(,"xxh3_128":")" + hash + "\"}";
}

void expect_damaged(const std::string& text, const std::string& reason) {
  try {
    manifest_from_json(text, "m");
    ADD_FAILURE() << text;
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::kData);
    EXPECT_EQ(std::string(error.what()), "m: damaged, use another checkpoint (" + reason + ")");
  }
}

TEST(Manifest, NumbersThatDoNotFitAreErrors) {
  const auto manifest = [](const std::string& step, const std::string& ranks) {
    return with_hash(R"({"format":"tandem checkpoint","format_version":2,"config":"","step":)" +
                     step + R"(,"sampler":{"epoch":0,"position":0},"data_hash":"","seed":0,)" +
                     R"("schedule":{},"world_size":)" + ranks + R"(,"files":[]})");
  };
  EXPECT_EQ(manifest_from_json(manifest("7", "1"), "m").step, 7);
  for (const std::string step : {"1e+30", "1.5", "9223372036854775808", "\"7\""}) {
    expect_damaged(manifest(step, "1"), "a number is too large, or not whole");
  }
  expect_damaged(manifest("7", "4294967297"), "a number is too large, or not whole");
}

TEST(Manifest, PiecesAreInOrderInsideTheirFile) {
  for (const std::vector<Range>& pieces : std::vector<std::vector<Range>>{
           {{-1, 5}}, {{5, 3}}, {{0, 5}, {4, 6}}, {{0, 11}}, {{5, INT64_MIN}}}) {
    Manifest manifest = full_manifest();
    manifest.files[0].length = 10;
    manifest.files[0].pieces = pieces;
    expect_damaged(to_json(manifest), "pieces are not in order inside their file");
  }
}

// The library that writes JSON would need more stack than there is.
TEST(Manifest, DeepNestingIsAnError) {
  const std::string begin(1 << 20, '['), end(1 << 20, ']');
  expect_damaged(
      R"({"format":"tandem checkpoint","format_version":2,"xxh3_128":"","a":)" + begin + end + "}",
      "nested too deeply");
}

// The hash is what the xxh128sum tool prints for the file's bytes outside the pieces.
TEST(FileEntry, HashIsXxh3OfWhatIsOutsidePieces) {
  const testing::TemporaryFolder folder;
  const std::string path = folder.write("f", "(1)tan(2)dem\n(3)");
  const FileEntry entry = describe_file(path, {{0, 3}, {6, 9}, {13, 16}});
  EXPECT_EQ(entry,
            (FileEntry{"f", 16, {{0, 3}, {6, 9}, {13, 16}}, "f5c17c2e73c023c2eab7f7070755c36b"}));
  EXPECT_EQ(FileEntry::from_text(entry.text()), entry);
}

}  // namespace
}  // namespace tandem
