#include "src/prepare/tar_reader.h"

#include <archive.h>
#include <archive_entry.h>

#include <algorithm>
#include <cerrno>

#include "src/core/error.h"

namespace tandem {

namespace {

constexpr int64_t kBlock = int64_t{1} << 18;

// Names that the process's character set cannot show are kept in UTF-8.
std::string name_of(archive_entry* entry) {
  const char* name = archive_entry_pathname(entry);
  name = name ? name : archive_entry_pathname_utf8(entry);
  return name ? name : "";
}

}  // namespace

void TarReader::Free::operator()(archive* reader) const { archive_read_free(reader); }

TarReader::TarReader(const std::string& path)
    : stream_(path), block_(kBlock), reader_(archive_read_new()) {
  require(reader_ && archive_read_support_format_tar(reader_.get()) == ARCHIVE_OK, "libarchive");
  // It reads ahead at once. An error is reported by the first call of next().
  archive_read_open(reader_.get(), this, nullptr, read_block, nullptr);
}

ssize_t TarReader::read_block(archive* reader, void* self, const void** block) {
  auto& tar = *static_cast<TarReader*>(self);
  try {
    const int64_t before = tar.stream_.position();
    const int64_t got = tar.stream_.read(tar.block_.data(), kBlock);
    const auto last = std::find_if(tar.block_.rbegin() + (kBlock - got), tar.block_.rend(),
                                   [](char c) { return c != 0; });
    if (last != tar.block_.rend()) {
      tar.last_byte_ = before + (tar.block_.rend() - last);
    }
    *block = tar.block_.data();
    return got;
  } catch (...) {
    tar.error_ = std::current_exception();
    archive_set_error(reader, EIO, "the file cannot be read");
    return ARCHIVE_FATAL;
  }
}

bool TarReader::is_tar(const std::string& path) {
  TarReader tar(path);
  const bool begins = tar.next_header();
  if (tar.error_) {
    std::rethrow_exception(tar.error_);
  }
  return begins;
}

int64_t TarReader::position() const { return archive_filter_bytes(reader_.get(), 0); }

// False at the end of the archive, and for what libarchive takes for no archive or a damaged one.
bool TarReader::next_header() {
  status_ = archive_read_next_header(reader_.get(), &entry_);
  return status_ == ARCHIVE_OK || status_ == ARCHIVE_WARN;  // a warning: how a name is shown
}

void TarReader::fail_at(const char* what) {
  if (error_) {
    std::rethrow_exception(error_);
  }
  fail_data(stream_.path(), ": ", what ? what : "damaged", " at byte ", position(),
            entry_name_.empty() ? "" : str(" (last entry: ", entry_name_, ")"),
            "; copy or create the archive again");
}

// The end mark, a block of zeros at least, follows the last entry, and nothing follows the mark.
void TarReader::check_end(int64_t entries_end) {
  const int64_t end = position();
  if (end == entries_end) {
    fail_at("the archive is cut short");
  }
  const void* rest = nullptr;
  ssize_t got = 0;
  while ((got = read_block(reader_.get(), this, &rest)) > 0) {
  }
  if (got < 0 || last_byte_ > end) {
    fail_at("other bytes follow the end of the archive");
  }
}

bool TarReader::next(TarEntry* entry) {
  if (entry_ && archive_read_data_skip(reader_.get()) != ARCHIVE_OK) {
    fail_at(archive_error_string(reader_.get()));
  }
  const int64_t entries_end = position();
  if (!next_header()) {
    if (status_ != ARCHIVE_EOF) {
      fail_at(archive_error_string(reader_.get()));
    }
    check_end(entries_end);
    return false;
  }
  const bool is_hard_link = archive_entry_hardlink(entry_) != nullptr;
  const auto type = archive_entry_filetype(entry_);
  *entry = {.name = name_of(entry_),
            .is_file = type == AE_IFREG && !is_hard_link,
            .is_link = type == AE_IFLNK || is_hard_link};
  entry_name_ = entry->name;
  return true;
}

std::string TarReader::content(RecordLimit limit) {
  // Grows with the bytes that are really there: a damaged size cannot request all memory.
  const auto piece =
      static_cast<size_t>(std::clamp<int64_t>(archive_entry_size(entry_), 1, kBlock));
  std::string bytes;
  for (;;) {
    const size_t before = bytes.size();
    bytes.resize(before + piece);
    const ssize_t got = archive_read_data(reader_.get(), bytes.data() + before, piece);
    if (got < 0) {
      fail_at(archive_error_string(reader_.get()));
    }
    bytes.resize(before + static_cast<size_t>(got));
    limit.check(std::ssize(bytes), [&] { return str(stream_.path(), ": ", entry_name_); });
    if (got == 0) {
      return bytes;
    }
  }
}

}  // namespace tandem
