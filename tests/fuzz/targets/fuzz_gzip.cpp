// gzip: src/io/byte_stream.cpp
#include <array>

#include "src/io/byte_stream.h"
#include "tests/fuzz/support/fuzz.h"

using namespace tandem;

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string bytes = fuzz::text_of(data, size);
  const std::string path = fuzz::folder().write("input.gz", bytes);
  std::string whole;
  const bool readable = fuzz::accepts(ExitCode::kData, [&] {
    whole = read_whole_file(path, ByteStream::Unpack::kAuto, RecordLimit());
  });

  std::string in_pieces;
  const bool readable_in_pieces = fuzz::accepts(ExitCode::kData, [&] {
    ByteStream stream(path);
    std::array<char, 1000> piece{};
    for (int64_t got = 0; (got = stream.read(piece.data(), piece.size())) > 0;) {
      in_pieces.append(piece.data(), static_cast<size_t>(got));
    }
    fuzz::check(stream.position() == static_cast<int64_t>(in_pieces.size()), "bytes are counted");
  });
  fuzz::check(readable == readable_in_pieces && (!readable || whole == in_pieces),
              "a file reads the same whole and in pieces");

  fuzz::accepts(ExitCode::kData, [&] {  // one member only, so it refuses more
    const std::string unpacked = gunzip(bytes, "input", RecordLimit());
    fuzz::check(readable && unpacked == whole, "in memory gzip reads as from a file");
  });
  return 0;
}
