#include "src/report/tensorboard.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <bit>
#include <charconv>
#include <chrono>
#include <filesystem>

#include "src/core/error.h"

namespace tandem {

namespace {

constexpr std::string_view kPrefix = "events.out.tfevents.";

constexpr std::array<uint32_t, 256> make_table() {
  std::array<uint32_t, 256> table{};
  for (uint32_t i = 0; i < 256; ++i) {
    uint32_t crc = i;
    for (int bit = 0; bit < 8; ++bit) {
      crc = (crc >> 1U) ^ ((crc & 1U) != 0 ? 0x82F63B78U : 0U);
    }
    table[i] = crc;
  }
  return table;
}

// TFRecord masks its checksums, so that checksums of data that hold checksums stay useful.
uint32_t masked_crc(std::string_view bytes) {
  const uint32_t crc = crc32c(bytes);
  return ((crc >> 15U) | (crc << 17U)) + 0xa282ead8U;
}

// Protocol buffer encoding: a field is a tag (number and wire type) and its content.
class Message {
 public:
  const std::string& bytes() const { return bytes_; }

  void add_int(uint32_t field, int64_t value) {
    put_varint(field << 3U);
    put_varint(static_cast<uint64_t>(value));
  }
  void add_double(uint32_t field, double value) {
    put_varint(field << 3U | 1U);
    put_fixed(std::bit_cast<uint64_t>(value), 8);
  }
  void add_float(uint32_t field, float value) {
    put_varint(field << 3U | 5U);
    put_fixed(std::bit_cast<uint32_t>(value), 4);
  }
  void add_bytes(uint32_t field, std::string_view value) {
    put_varint(field << 3U | 2U);
    put_varint(value.size());
    bytes_ += value;
  }
  void put_fixed(uint64_t value, int count) {
    for (int i = 0; i < count; ++i) {
      bytes_ += static_cast<char>(value >> (8 * i) & 0xffU);
    }
  }

 private:
  void put_varint(uint64_t value) {
    for (; value >= 0x80; value >>= 7U) {
      bytes_ += static_cast<char>(value | 0x80U);
    }
    bytes_ += static_cast<char>(value);
  }
  std::string bytes_;
};

double now_s() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

// Event { wall_time = 1, step = 2, file_version = 3, summary = 5, session_log = 7 }.
Message event_at(int64_t step) {
  Message event;
  event.add_double(1, now_s());
  event.add_int(2, step);
  return event;
}

// TensorBoard reads the files of a directory in the order of their names, which begin with seconds
// since 1970: a run that is started again within a second, or after the clock was set back, must
// still come last.
std::string new_path(const std::string& directory) {
  int64_t seconds = static_cast<int64_t>(now_s());
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(directory, error)) {
    const std::string name = entry.path().filename().string();
    int64_t earlier = 0;
    if (name.starts_with(kPrefix) &&
        std::from_chars(name.data() + kPrefix.size(), name.data() + name.size(), earlier).ec ==
            std::errc()) {
      seconds = std::max(seconds, earlier + 1);
    }
  }
  if (error) {
    fail_file(directory, "read the directory", error.value());
  }
  std::array<char, 256> host{};
  if (::gethostname(host.data(), host.size() - 1) != 0 || host[0] == '\0') {
    host = {'h', 'o', 's', 't'};
  }
  const std::string name = str(kPrefix, seconds, '.', host.data(), '.', ::getpid(), ".0");
  return (std::filesystem::path(directory) / name).string();
}

}  // namespace

uint32_t crc32c(std::string_view bytes) {
  static constexpr std::array<uint32_t, 256> kTable = make_table();
  uint32_t crc = 0xffffffffU;
  for (const char byte : bytes) {
    crc = (crc >> 8U) ^ kTable[(crc ^ static_cast<unsigned char>(byte)) & 0xffU];
  }
  return ~crc;
}

TensorBoardWriter::TensorBoardWriter(const std::string& directory,
                                     std::optional<int64_t> resumed_step) {
  make_directories(directory);
  file_ = std::make_unique<FileWriter>(new_path(directory), FileWriter::Start::kEmpty);
  Message version;
  version.add_double(1, now_s());
  version.add_bytes(3, "brain.Event:2");
  write_record(version.bytes());
  if (resumed_step) {
    Message session_log;
    session_log.add_int(1, 1);  // status = START
    // TensorBoard drops this step and all after it.
    Message purge = event_at(*resumed_step + 1);
    purge.add_bytes(7, session_log.bytes());
    write_record(purge.bytes());
  }
}

void TensorBoardWriter::add(int64_t step, std::span<const Scalar> scalars) {
  Message summary;
  for (const Scalar& scalar : scalars) {
    Message value;
    value.add_bytes(1, scalar.tag);
    value.add_float(2, static_cast<float>(scalar.value));
    summary.add_bytes(1, value.bytes());
  }
  Message event = event_at(step);
  event.add_bytes(5, summary.bytes());
  write_record(event.bytes());
}

void TensorBoardWriter::write_record(const std::string& event) {
  Message length;
  length.put_fixed(event.size(), 8);
  Message record = length;
  record.put_fixed(masked_crc(length.bytes()), 4);
  Message footer;
  footer.put_fixed(masked_crc(event), 4);
  file_->write(record.bytes() + event + footer.bytes());
}

}  // namespace tandem
