#include "src/report/writers/exports.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "src/core/error.h"
#include "src/core/formatted.h"
#include "src/core/visible_text.h"
#include "src/io/file.h"

namespace tandem {

namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

std::string label_text(const std::string& value) {
  std::string text;
  for (const char letter : value) {
    text += letter == '\n'                    ? "\\n"
            : letter == '"' || letter == '\\' ? str('\\', letter)
                                              : str(letter);
  }
  return text;
}

// CloudWatch's dimensions have no other letters.
std::string ascii(std::string text) {
  std::ranges::replace_if(
      text, [](unsigned char letter) { return letter > 126; }, '?');
  return text;
}

std::string number_text(double value) {
  return std::isnan(value)   ? "NaN"
         : std::isinf(value) ? (value > 0 ? "+Inf" : "-Inf")
                             : Json(value).dump();
}

}  // namespace

std::string prometheus_text(const std::vector<Gauge>& gauges, const Labels& labels) {
  std::string of;
  for (const auto& [name, value] : labels) {
    of += str(of.empty() ? "" : ",", name, "=\"", label_text(value), '"');
  }
  std::string text;
  for (const Gauge& gauge : gauges) {
    const std::string name = "tandem_" + gauge.name;
    text += str("# TYPE ", name, name.ends_with("_total") ? " counter\n" : " gauge\n", name, '{',
                of, "} ", number_text(gauge.value), '\n');
  }
  return text;
}

std::string emf_line(double unix_s, const Labels& dimensions,
                     const std::vector<EmfMetric>& metrics) {
  Json names = Json::array(), values, definitions = Json::array();
  for (const auto& [name, value] : dimensions) {
    names.push_back(name);
    values[name] = ascii(value);
  }
  for (const EmfMetric& metric : metrics) {
    if (std::isfinite(metric.value)) {
      definitions.push_back({{"Name", metric.name}, {"Unit", metric.unit}});
      values[metric.name] = metric.value;
    }
  }
  if (definitions.empty()) {
    return "";
  }
  Json line = {{"_aws",
                {{"Timestamp", static_cast<int64_t>(unix_s * 1000)},
                 {"CloudWatchMetrics", Json::array({{{"Namespace", "Tandem"},
                                                     {"Dimensions", Json::array({names})},
                                                     {"Metrics", definitions}}})}}}};
  line.update(values);
  return line.dump(-1, ' ', false, Json::error_handler_t::replace) + "\n";
}

Exports::Exports(const std::string& folder, const std::string& name, const std::string& emf)
    : file_(folder.empty() ? "" : folder + "/" + name), emf_(emf) {
  std::error_code error;
  if (wants_prometheus() && !fs::create_directories(folder, error) && error) {
    lose(folder, error.message());
  }
}

Exports::~Exports() {
  if (wants_prometheus()) {
    ::unlink(file_.c_str());
  }
  if (lost_ > 1) {
    complain(str("not exported: ", counted(lost_, "record"), " in all"));
  }
}

void Exports::replace_file(const std::string& text) {
  if (!wants_prometheus()) {
    return;
  }
  // The collector reads *.prom, and so never half of a file.
  const std::string partial = file_ + ".partial";
  std::error_code error;
  try {
    FileWriter(partial, FileWriter::Start::kEmpty).write(text);
    fs::rename(partial, file_, error);
  } catch (const Error& failed) {
    lose(file_, failed.what());
    fs::remove(partial, error);
    return;
  }
  if (error) {
    lose(file_, error.message());
  }
}

void Exports::append_line(const std::string& line) {
  if (!wants_emf() || line.empty()) {
    return;
  }
  // Opened each time: the file may have been moved away, and a pipe may have got a reader.
  const Descriptor out(
      ::open(emf_.c_str(), O_WRONLY | O_APPEND | O_CREAT | O_NONBLOCK | O_CLOEXEC, 0644));
  if (out < 0) {
    lose(emf_, std::strerror(errno));
    return;
  }
  const std::string text = (is_cut_ ? "\n" : "") + line;
  const ssize_t written = ::write(out, text.data(), text.size());
  if (written != static_cast<ssize_t>(text.size())) {
    lose(emf_, written < 0 ? std::strerror(errno) : "took only a part of a line");
    is_cut_ = is_cut_ || written > 0;
  } else {
    is_cut_ = false;
  }
}

void Exports::lose(const std::string& path, const std::string& why) {
  if (++lost_ == 1) {
    complain(str("not exported: ", path, ": ", why, "; training goes on"));
  }
}

}  // namespace tandem
