#include "src/prepare/tar_reader.h"

#include <algorithm>
#include <charconv>
#include <cstring>

#include "src/core/error.h"

namespace tandem {
namespace {

// Places in a ustar header (POSIX.1-1988).
struct Field {
  size_t at, size;
};
constexpr Field kName{0, 100}, kSize{124, 12}, kChecksum{148, 8}, kMagic{257, 5}, kPrefix{345, 155};
constexpr size_t kType = 156;

template <class Header>
std::string text_of(const Header& header, Field field) {
  const char* begin = header.data() + field.at;
  return {begin, strnlen(begin, field.size)};
}

// Octal digits, or, with the top bit set, GNU's big-endian binary. -1 when neither.
template <class Header>
int64_t number_of(const Header& header, Field field) {
  const auto* bytes = reinterpret_cast<const uint8_t*>(header.data() + field.at);
  int64_t value = 0;
  if ((bytes[0] & 0x80) != 0) {
    for (size_t i = 1; i < field.size; ++i) {
      if (value >> 54 != 0) {
        return -1;
      }
      value = (value << 8) | bytes[i];
    }
    return value;
  }
  const std::string text = text_of(header, field);
  const size_t begin = text.find_first_not_of(' ');
  if (begin == std::string::npos) {
    return text.empty() ? 0 : -1;
  }
  const char* end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data() + begin, end, value, 8);
  const bool whole = std::all_of(stop, end, [](char c) { return c == ' '; });
  return error == std::errc() && whole ? value : -1;
}

template <class Header>
bool has_right_checksum(const Header& header) {
  int64_t sum = 0;
  for (size_t i = 0; i < header.size(); ++i) {
    const bool inside = i >= kChecksum.at && i < kChecksum.at + kChecksum.size;
    sum += inside ? ' ' : static_cast<uint8_t>(header[i]);
  }
  return sum == number_of(header, kChecksum);
}

template <class Header>
bool is_zero(const Header& header) {
  return std::all_of(header.begin(), header.end(), [](char c) { return c == 0; });
}

}  // namespace

bool TarReader::is_tar(const std::string& path) {
  ByteStream stream(path);
  Header header;
  return stream.read(header.data(), kBlock) == kBlock && has_right_checksum(header) &&
         !is_zero(header);
}

void TarReader::fail_at(const std::string& what) const {
  fail(ExitCode::kData, str(stream_.path(), ": ", what, " at byte ", stream_.position(),
                            entry_name_.empty() ? "" : str(" (last entry: ", entry_name_, ")"),
                            "; copy or create the archive again"));
}

bool TarReader::read_header(Header* header) {
  const int64_t got = stream_.read(header->data(), kBlock);
  if (got < kBlock) {
    fail_at("the archive is cut short");
  }
  if (is_zero(*header)) {
    check_end();
    return false;
  }
  if (!has_right_checksum(*header)) {
    fail_at("a damaged tar header");
  }
  return true;
}

// After the first block of zeros there must be nothing but zeros.
void TarReader::check_end() {
  Header block;
  for (int64_t got = kBlock; got == kBlock;) {
    got = stream_.read(block.data(), kBlock);
    if (!std::all_of(block.begin(), block.begin() + got, [](char c) { return c == 0; })) {
      fail_at("other bytes follow the end of the archive");
    }
  }
}

std::string TarReader::take(int64_t size) {
  // Grows with the bytes that are really there, so that a damaged size cannot request all memory.
  constexpr int64_t kPiece = int64_t{1} << 24;
  std::string bytes;
  while (static_cast<int64_t>(bytes.size()) < size) {
    const size_t before = bytes.size();
    const int64_t wanted = std::min(kPiece, size - static_cast<int64_t>(before));
    bytes.resize(before + static_cast<size_t>(wanted));
    if (stream_.read(bytes.data() + before, wanted) < wanted) {
      fail_at(str("the archive is cut short inside ", entry_name_));
    }
  }
  return bytes;
}

std::string TarReader::content() {
  std::string bytes = take(unread_);
  unread_ = 0;
  return bytes;
}

void TarReader::skip_entry() {
  std::array<char, 1 << 14> waste{};
  for (int64_t left = unread_ + padding_; left > 0;) {
    const int64_t wanted = std::min<int64_t>(left, waste.size());
    if (stream_.read(waste.data(), wanted) < wanted) {
      fail_at(str("the archive is cut short inside ", entry_name_));
    }
    left -= wanted;
  }
  unread_ = 0;
  padding_ = 0;
}

// Records of the form "LENGTH KEY=VALUE\n" (POSIX.1-2001, pax).
void TarReader::apply_pax(const std::string& records, TarEntry* entry) {
  for (size_t at = 0; at < records.size();) {
    size_t length = 0;
    const auto [stop, error] =
        std::from_chars(records.data() + at, records.data() + records.size(), length);
    const auto digits = static_cast<size_t>(stop - (records.data() + at));
    if (error != std::errc() || length < digits + 2 || length > records.size() - at) {
      fail_at("a damaged pax header");
    }
    const std::string record = records.substr(at + digits + 1, length - digits - 2);
    at += length;
    if (record.starts_with("path=")) {
      entry->name = record.substr(5);
    } else if (record.starts_with("size=")) {
      const auto [size_stop, size_error] =
          std::from_chars(record.data() + 5, record.data() + record.size(), entry->size);
      if (size_error != std::errc() || size_stop == record.data() + 5) {
        fail_at("a damaged pax header");
      }
    }
  }
}

bool TarReader::next(TarEntry* entry) {
  skip_entry();
  TarEntry extended;  // what extension headers say about the entry that follows them
  extended.size = -1;
  for (Header header; read_header(&header);) {
    const int64_t size = number_of(header, kSize);
    if (size < 0) {
      fail_at("a tar header with a damaged size");
    }
    const char type = header[kType];
    const bool is_extension = type == 'L' || type == 'K' || type == 'x' || type == 'g';
    entry->name = text_of(header, kName);
    const std::string prefix = text_of(header, kPrefix);
    if (text_of(header, kMagic) == "ustar" && header[kMagic.at + 5] == 0 && !prefix.empty()) {
      entry->name = prefix + "/" + entry->name;
    }
    entry->is_file = type == '0' || type == '\0' || type == '7';
    entry->is_link = type == '1' || type == '2';
    if (!is_extension && !extended.name.empty()) {
      entry->name = extended.name;
    }
    entry->size = !is_extension && extended.size >= 0 ? extended.size : size;
    entry_name_ = entry->name;
    unread_ = entry->is_link ? 0 : entry->size;
    padding_ = (kBlock - unread_ % kBlock) % kBlock;
    if (!is_extension) {
      return true;
    }
    const std::string extension = content();
    skip_entry();
    if (type == 'L') {
      extended.name = extension.substr(0, extension.find('\0'));
    } else if (type == 'x') {
      apply_pax(extension, &extended);
    }
  }
  return false;
}

}  // namespace tandem
