#include "src/report/writers/metrics_log.h"

#include <chrono>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>

#include "src/io/line_reader.h"

namespace tandem {

namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

// The "step" of a line, if it is a whole number.
std::optional<int64_t> step_of(const Json& line) {
  if (!line.is_object() || !line.contains("step") || !line["step"].is_number_integer()) {
    return std::nullopt;
  }
  return line["step"].get<int64_t>();
}

template <class Plain>
Json json_of(const Plain& value) {
  return value;
}

Json json_of(const std::vector<Metric>& metrics) {
  Json json = Json::object();
  for (const Metric& metric : metrics) {
    json[metric.key] = std::visit([](const auto& value) { return json_of(value); }, metric.value);
  }
  return json;
}

void sync_folder_of(const std::string& path) {
  sync_path(fs::absolute(path).parent_path().string());
}

}  // namespace

double unix_now_s() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

std::string to_json_line(const std::vector<Metric>& metrics) {
  return json_of(metrics).dump(-1, ' ', false, Json::error_handler_t::replace);
}

MetricsLog::MetricsLog(const std::string& path, int folder)
    : folder_(folder), file_(std::make_unique<FileWriter>(path, FileWriter::Start::kEnd, folder)) {
  sync_folder_of(path);
}

void MetricsLog::append(const std::vector<Metric>& metrics) {
  if (file_->is_removed()) {
    file_ = std::make_unique<FileWriter>(file_->path(), FileWriter::Start::kEnd, folder_);
  }
  file_->write(to_json_line(metrics) + "\n");
}

void truncate_after(const std::string& path, int64_t step, bool validated) {
  if (!fs::exists(path)) {
    return;
  }
  constexpr RecordLimit kLargest = file_limit(4096);  // ten million steps of 400 bytes
  const std::string text = read_file(path, kLargest);
  std::string kept, discarded;
  // A last line without its end was cut short, and is dropped.
  for (std::string_view rest = text; rest.find('\n') != std::string_view::npos;) {
    const std::string_view line = rest.substr(0, rest.find('\n') + 1);
    const Json json = Json::parse(line, nullptr, false);
    if (const std::optional<int64_t> at = step_of(json)) {
      const bool is_later = *at > step || (*at == step && !validated && json.contains("val_loss"));
      (is_later ? discarded : kept) += line;
    }
    rest.remove_prefix(line.size());
  }
  if (kept.size() == text.size()) {
    return;
  }
  // Write the discarded lines first: a crash between the two files then leaves lines in both rather
  // than in neither.
  if (!discarded.empty()) {
    fs::path beside = path;
    beside.replace_extension(".discarded" + beside.extension().string());
    FileWriter file(beside.string(), FileWriter::Start::kEnd);
    file.write(discarded);
    file.sync();
    sync_folder_of(path);
  }
  replace_file(path, kept);
}

void read_metrics(const std::string& path, const std::function<void(const Json& line)>& visit) {
  LineReader lines(path, file_limit());
  for (std::string text; lines.next(&text);) {
    const Json line = Json::parse(text, nullptr, false);
    if (step_of(line)) {
      visit(line);
    }
  }
}

double number_in(const Json& line, const char* key, double otherwise) {
  const auto found = line.find(key);
  return found != line.end() && found->is_number() ? found->get<double>() : otherwise;
}

}  // namespace tandem
