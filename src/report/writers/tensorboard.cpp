#include "src/report/writers/tensorboard.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <filesystem>

#include "src/core/error.h"
#include "src/core/parse_number.h"

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

// Event { wall_time = 1, step = 2, file_version = 3, summary = 5, session_log = 7 }.
ProtoMessage event_at(int64_t step) {
  ProtoMessage event;
  event.add_double(1, unix_now_s());
  event.add_int(2, step);
  return event;
}

// Summary.Value { tag = 1, metadata = 9 }, SummaryMetadata { plugin_data = 1 { plugin_name = 1,
// content = 2 } }.
ProtoMessage value_of(std::string_view tag, std::string_view plugin, std::string_view content) {
  ProtoMessage plugin_data, metadata, value;
  plugin_data.add_bytes(1, plugin);
  plugin_data.add_bytes(2, content);
  metadata.add_message(1, plugin_data);
  value.add_bytes(1, tag);
  value.add_message(9, metadata);
  return value;
}

// Summary { value = 1 } with this value.
ProtoMessage only(const ProtoMessage& value) {
  ProtoMessage summary;
  summary.add_message(1, value);
  return summary;
}

void add_scalars(const std::string& prefix, const std::vector<Metric>& metrics,
                 ProtoMessage& summary) {
  for (const auto& [key, value] : metrics) {
    const std::string tag = str(prefix, '/', key);
    std::optional<double> scalar;
    if (const auto* inner = std::get_if<std::vector<Metric>>(&value)) {
      add_scalars(tag, *inner, summary);
    } else if (const auto* whole = std::get_if<int64_t>(&value)) {
      scalar = static_cast<double>(*whole);
    } else if (const auto* number = std::get_if<double>(&value)) {
      const bool is_unknown = key == "mfu" && std::isnan(*number);
      scalar = is_unknown ? std::nullopt : std::optional(*number);
    }
    if (scalar) {
      ProtoMessage message;
      message.add_bytes(1, tag);
      message.add_float(2, static_cast<float>(*scalar));
      summary.add_message(1, message);
    }
  }
}

// TensorBoard reads the files of a directory in the order of their names, which begin with seconds
// since 1970: a run that is started again within a second, or after the clock was set back, must
// still come last.
std::string new_path(const std::string& directory) {
  int64_t seconds = static_cast<int64_t>(unix_now_s());
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
                                     std::optional<int64_t> resumed_step, int folder) {
  make_directories(directory);
  file_ = std::make_unique<FileWriter>(new_path(directory), FileWriter::Start::kEmpty, folder);
  ProtoMessage version;
  version.add_double(1, unix_now_s());
  version.add_bytes(3, "brain.Event:2");
  write_record(version.bytes());
  if (resumed_step) {
    ProtoMessage session_log;
    session_log.add_int(1, 1);  // status = START
    // TensorBoard drops this step and all after it.
    ProtoMessage purge = event_at(*resumed_step + 1);
    purge.add_message(7, session_log);
    write_record(purge.bytes());
  }
}

void TensorBoardWriter::add_metrics(int64_t step, const std::string& kind,
                                    const std::vector<Metric>& metrics) {
  ProtoMessage summary;
  add_scalars(kind, metrics, summary);
  write_summary(step, summary);
}

// TensorProto { dtype = 1, tensor_shape = 2, string_val = 8 }.
void TensorBoardWriter::add_text(int64_t step, std::string_view tag, std::string_view markdown) {
  constexpr int64_t kString = 7;
  ProtoMessage one, shape, tensor;
  one.add_int(1, 1);
  shape.add_message(2, one);
  tensor.add_int(1, kString);
  tensor.add_message(2, shape);
  tensor.add_bytes(8, markdown);
  ProtoMessage value = value_of(tag, "text", "");
  value.add_message(8, tensor);
  write_summary(step, only(value));
}

// Image { height = 1, width = 2, colorspace = 3, encoded_image_string = 4 }.
void TensorBoardWriter::add_picture(int64_t step, std::string_view tag, const Picture& picture) {
  constexpr int64_t kRgb = 3;
  ProtoMessage image, value;
  image.add_int(1, picture.height);
  image.add_int(2, picture.width);
  image.add_int(3, kRgb);
  image.add_bytes(4, picture.png);
  value.add_bytes(1, tag);
  value.add_message(4, image);
  write_summary(step, only(value));
}

// HistogramProto { min = 1, max = 2, num = 3, sum = 4, sum_squares = 5, bucket_limit = 6,
// bucket = 7 }.
void TensorBoardWriter::add_histograms(int64_t step, const Histograms& histograms) {
  ProtoMessage summary;
  for (const auto& [tag, histogram] : histograms) {
    const Histogram::Bins bins = histogram.bins();
    ProtoMessage content, value;
    content.add_double(1, bins.least);
    content.add_double(2, bins.limits.empty() ? 0 : bins.limits.back());
    content.add_double(3, histogram.count());
    content.add_double(4, histogram.sum());
    content.add_double(5, histogram.sum_squares());
    content.add_doubles(6, bins.limits);
    content.add_doubles(7, bins.counts);
    value.add_bytes(1, tag);
    value.add_message(5, content);
    summary.add_message(1, value);
  }
  write_summary(step, summary);
}

// HParamsPluginData { session_start_info = 3 }, SessionStartInfo { hparams = 1, start_time_secs = 5
// }; a map is a repeated { key = 1, value = 2 }, and google.protobuf.Value has number_value = 2,
// string_value = 3, bool_value = 4.
void TensorBoardWriter::add_hparams(std::span<const Assignment> hparams) {
  ProtoMessage info, data;
  for (const Assignment& hparam : hparams) {
    const std::string& value = hparam.value;
    ProtoMessage entry, content;
    if (value == "true" || value == "false") {
      content.add_int(4, value == "true" ? 1 : 0);
    } else if (const auto number = parse_number<double>(value)) {
      content.add_double(2, *number);
    } else {
      content.add_bytes(3, value);
    }
    entry.add_bytes(1, hparam.key);
    entry.add_message(2, content);
    info.add_message(1, entry);
  }
  info.add_double(5, unix_now_s());
  data.add_message(3, info);
  write_summary(0, only(value_of("_hparams_/session_start_info", "hparams", data.bytes())));
}

// HParamsPluginData { session_end_info = 4 }, SessionEndInfo { status = 1, end_time_secs = 2 }.
void TensorBoardWriter::end_hparams() {
  constexpr int64_t kSuccess = 1;
  ProtoMessage info, data;
  info.add_int(1, kSuccess);
  info.add_double(2, unix_now_s());
  data.add_message(4, info);
  write_summary(0, only(value_of("_hparams_/session_end_info", "hparams", data.bytes())));
}

void TensorBoardWriter::write_summary(int64_t step, const ProtoMessage& summary) {
  ProtoMessage event = event_at(step);
  event.add_message(5, summary);
  write_record(event.bytes());
}

void TensorBoardWriter::write_record(const std::string& event) {
  ProtoMessage header, footer;
  header.put_fixed(event.size(), 8);
  header.put_fixed(masked_crc(header.bytes()), 4);
  footer.put_fixed(masked_crc(event), 4);
  file_->write(header.bytes() + event + footer.bytes());
}

}  // namespace tandem
