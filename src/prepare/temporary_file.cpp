#include "src/prepare/temporary_file.h"

#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <new>

#include "src/core/error.h"
#include "src/io/file.h"

namespace tandem {

TemporaryFile::TemporaryFile(const std::string& folder) : folder_(folder) {
  std::string name = folder + "/.tandem-prepare-XXXXXX";
  const int descriptor = ::mkstemp(name.data());
  file_ = descriptor < 0 ? nullptr : ::fdopen(descriptor, "w+");
  if (file_ == nullptr) {
    fail_data(folder, ": cannot write here: ", std::strerror(errno));
  }
  ::unlink(name.c_str());
}

TemporaryFile::~TemporaryFile() {
  if (!mapped_.empty()) {
    ::munmap(const_cast<char*>(mapped_.data()), mapped_.size());
  }
  std::fclose(file_);
}

void TemporaryFile::append(const void* bytes, int64_t count) {
  const auto size = static_cast<size_t>(count);
  if (size > 0 && std::fwrite(bytes, 1, size, file_) != size) {
    fail_data(folder_, ": cannot write: ",
              is_disk_full(errno) ? "no space left on the disk" : std::strerror(errno),
              "; until the dataset is complete, free space of two to three times its size is "
              "needed here");
  }
  bytes_ += count;
}

void TemporaryFile::read(int64_t at, void* out, int64_t count) const {
  const auto size = static_cast<size_t>(count);
  if (std::fseek(file_, at, SEEK_SET) != 0 || std::fread(out, 1, size, file_) != size) {
    fail_file(folder_, "keep a temporary file", errno);
  }
}

std::string_view TemporaryFile::map() {
  const auto size = static_cast<size_t>(bytes_);
  void* begin = std::fflush(file_) == 0
                    ? ::mmap(nullptr, size, PROT_READ, MAP_SHARED, ::fileno(file_), 0)
                    : MAP_FAILED;
  if (begin == MAP_FAILED && errno == ENOMEM) {
    throw std::bad_alloc();
  }
  if (begin == MAP_FAILED) {
    fail_file(folder_, "keep a text in a temporary file", errno);
  }
  mapped_ = {static_cast<const char*>(begin), size};
  return mapped_;
}

void TemporaryFile::forget() const {
  ::madvise(const_cast<char*>(mapped_.data()), mapped_.size(), MADV_DONTNEED);
}

}  // namespace tandem
