// Reading files front to back, gzip-compressed or not.
//
// Responsible for telling a complete file from a damaged one: a gzip stream that ends early, fails
// its checksum or is followed by other bytes is an error that names the place. All errors are
// kData.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "src/io/file.h"

namespace tandem {

class ByteStream {
 public:
  // kAuto recognises compression by the first two bytes, not by the name; kOff gives the file as it
  // is.
  enum class Unpack { kAuto, kOff };
  explicit ByteStream(const std::string& path, Unpack unpack = Unpack::kAuto);
  ~ByteStream();
  ByteStream(const ByteStream&) = delete;
  ByteStream& operator=(const ByteStream&) = delete;

  const std::string& path() const { return path_; }
  bool is_unpacked() const { return inflater_ != nullptr; }
  int64_t position() const { return position_; }  // uncompressed bytes read so far

  // Reads up to `count` bytes; fewer only at the end.
  int64_t read(char* out, int64_t count);

 private:
  struct Inflater;

  int64_t read_file(char* out, int64_t count);
  int64_t inflate_some(char* out, int64_t count);
  bool begin_next_member();

  std::string path_;
  Descriptor descriptor_;
  int64_t position_ = 0;
  std::unique_ptr<Inflater> inflater_;
};

// The whole content of a file, unpacked or as it is. Errors also above the limit.
std::string read_whole_file(const std::string& path,
                            ByteStream::Unpack unpack = ByteStream::Unpack::kAuto,
                            RecordLimit limit = file_limit());

// The content of a gzip stream that is already in memory (returned unchanged if it is not gzip);
// `name` is used in errors. Errors also above the limit.
std::string gunzip(const std::string& bytes, const std::string& name, RecordLimit limit);

// A gzip stream of these bytes, less than 4 GiB.
std::string gzip(const std::string& bytes);

}  // namespace tandem
