// tar, plain and gzip-compressed: src/prepare/tar_reader.cpp src/prepare/file_source.cpp
#include "src/prepare/file_source.h"
#include "src/prepare/tar_reader.h"
#include "tests/fuzz/support/fuzz.h"

using namespace tandem;

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string path = fuzz::folder().write("input.tar", fuzz::text_of(data, size));
  int64_t files = 0;
  const bool readable = fuzz::accepts(ExitCode::kData, [&] {
    TarReader reader(path);
    for (TarEntry entry; reader.next(&entry);) {
      if (entry.is_file) {
        const std::string content = reader.content(RecordLimit());
        fuzz::check(RecordLimit().allows(std::ssize(content)), "an entry is within the limit");
      }
      files += entry.is_file || entry.is_link ? 1 : 0;
    }
  });
  // Leaves out hidden files, and reads only some of the others: it may not meet an error that
  // reading meets.
  int64_t shown = 0;
  const bool walked = fuzz::accepts(ExitCode::kData, [&] {
    for_each_file(path, RecordLimit(), [&](const SourceFile& file) {
      ++shown;
      if (file.problem.empty() && file.name.size() % 2 == 0) {
        file.content();
      }
    });
  });
  fuzz::check(!readable || !walked || shown <= files, "an archive is walked as it is read");
  return 0;
}
