// Names of files in tar archives. tests/prepare/test_prepare_images.cpp tests damaged archives.
#include <array>
#include <cstdio>
#include <string>
#include <utility>
#include <vector>

#include "src/prepare/tar_reader.h"
#include "tests/data/data_files.h"

namespace tandem::testing {
namespace {

TEST(TarReader, LongNames) {
  const TemporaryFolder folder;
  const std::string gnu_name = std::string(150, 'g') + "/file";
  const std::string pax_name = std::string(150, 'p') + "/file";
  const std::string pax_path = str(pax_name.size() + 10, " path=", pax_name, "\n");
  ASSERT_EQ(pax_path.size(), pax_name.size() + 10);
  const std::string pax = pax_path + "9 size=2\n";
  std::string split = tar_entry("file", "3");
  // ustar's prefix, and the checksum that goes with it.
  const std::string prefix = "some/folder";
  split.replace(345, prefix.size(), prefix);
  unsigned sum = 0;
  for (size_t i = 0; i < 512; ++i) {
    sum += i >= 148 && i < 156 ? ' ' : static_cast<uint8_t>(split[i]);
  }
  std::array<char, 8> digits{};
  std::snprintf(digits.data(), digits.size(), "%06o", sum);
  split.replace(148, 6, digits.data(), 6);
  TarReader tar(folder.write("a.tar", tar_entry("././@LongLink", gnu_name + '\0', 'L') +
                                          tar_entry(gnu_name, "1") + tar_entry("pax", pax, 'x') +
                                          tar_entry("short", "") + "22" + std::string(510, '\0') +
                                          split + tar_entry("plain", "") + tar_end()));
  TarEntry entry;
  for (const auto& [name, content] : std::vector<std::pair<std::string, std::string>>{
           {gnu_name, "1"}, {pax_name, "22"}, {"some/folder/file", "3"}, {"plain", ""}}) {
    ASSERT_TRUE(tar.next(&entry));
    EXPECT_EQ(entry.name, name);
    EXPECT_TRUE(entry.is_file);
    EXPECT_EQ(tar.content(RecordLimit()), content);
  }
  EXPECT_FALSE(tar.next(&entry));
}

}  // namespace
}  // namespace tandem::testing
