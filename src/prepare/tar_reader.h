// Reads tar archives front to back, gzip-compressed or not, with libarchive.
//
// libarchive takes an archive that is cut between two entries, or that is followed by other bytes,
// for a whole one. This class does not: such damage is an error (kData) that names the archive and
// the byte, as is any damage that libarchive finds.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <exception>
#include <memory>
#include <string>
#include <vector>

#include "src/io/byte_stream.h"

struct archive;  // libarchive's
struct archive_entry;

namespace tandem {

struct TarEntry {
  std::string name;
  bool is_file = false;  // a regular file; folders, links and devices are not
  bool is_link = false;
};

class TarReader {
 public:
  explicit TarReader(const std::string& path);

  // True if the file, unpacked, begins with a tar header. Error kData if it cannot be read.
  static bool is_tar(const std::string& path);

  // Goes to the next entry and skips what is left of the one before. False at the end of the
  // archive.
  bool next(TarEntry* entry);

  // The content of the entry that next() returned. Call at most once per entry. Error kData if it
  // is above the limit.
  std::string content(RecordLimit limit);

 private:
  bool next_header();
  void check_end(int64_t entries_end);
  int64_t position() const;
  [[noreturn]] void fail_at(const char* what);
  static ssize_t read_block(archive*, void* self, const void** block);

  struct Free {
    void operator()(archive* reader) const;
  };

  ByteStream stream_;
  std::vector<char> block_;
  int64_t last_byte_ = 0;     // after the last byte so far that is not zero
  std::exception_ptr error_;  // of the stream, which must not pass through libarchive
  std::unique_ptr<archive, Free> reader_;
  archive_entry* entry_ = nullptr;
  int status_ = 0;  // libarchive's, of the last header
  std::string entry_name_;
};

}  // namespace tandem
