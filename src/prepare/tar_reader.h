// Reads tar archives front to back: ustar, with GNU long names and pax headers, gzip-compressed or
// not.
//
// Responsible for noticing damage: a header with a wrong checksum, an entry or an archive that is
// cut short, and bytes after the end mark are errors (kData) that name archive, entry and byte.
#pragma once

#include <array>
#include <cstdint>
#include <string>

#include "src/io/byte_stream.h"

namespace tandem {

struct TarEntry {
  std::string name;
  bool is_file = false;  // a regular file; folders, links and devices are not
  bool is_link = false;
  int64_t size = 0;
};

class TarReader {
 public:
  explicit TarReader(const std::string& path) : stream_(path) {}

  // True when the file, unpacked, begins with a tar header.
  static bool is_tar(const std::string& path);

  // Goes to the next entry, skipping what is left of this one. False at the end of the archive.
  bool next(TarEntry* entry);

  // The content of the entry that next() returned. Call at most once per entry.
  std::string content();

 private:
  static constexpr int64_t kBlock = 512;
  using Header = std::array<char, kBlock>;

  bool read_header(Header* header);
  std::string take(int64_t size);
  void skip_entry();
  void check_end();
  void apply_pax(const std::string& records, TarEntry* entry);
  [[noreturn]] void fail_at(const std::string& what) const;

  ByteStream stream_;
  std::string entry_name_;
  int64_t unread_ = 0;   // bytes of the entry not read yet
  int64_t padding_ = 0;  // bytes from its end to the next header
};

}  // namespace tandem
