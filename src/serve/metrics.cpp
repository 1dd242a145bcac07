#include "src/serve/metrics.h"

#include "src/core/error.h"

namespace tandem {

namespace {

std::string head(const char* name, const char* type, const char* help) {
  return str("# HELP ", name, " ", help, "\n# TYPE ", name, " ", type, "\n");
}

}  // namespace

void ServeMetrics::count_answer(int status) {
  const std::lock_guard lock(mutex_);
  ++answers_[status];
}

void ServeMetrics::count_token(double seconds_since_last, bool is_first) {
  const std::lock_guard lock(mutex_);
  ++tokens_;
  (is_first ? first_token_ : next_token_).add(seconds_since_last);
}

void ServeMetrics::count_image(double seconds) {
  const std::lock_guard lock(mutex_);
  image_.add(seconds);
}

void ServeMetrics::set_load(int64_t queued, int64_t running) {
  const std::lock_guard lock(mutex_);
  queued_ = queued;
  running_ = running;
}

void ServeMetrics::Histogram::add(double seconds) {
  for (size_t i = 0; i < kBounds.size(); ++i) {
    within[i] += seconds <= kBounds[i] ? 1 : 0;
  }
  ++count;
  sum += seconds;
}

std::string ServeMetrics::Histogram::text(const char* name, const char* help) const {
  std::string text = head(name, "histogram", help);
  for (size_t i = 0; i < kBounds.size(); ++i) {
    text += str(name, "_bucket{le=\"", kBounds[i], "\"} ", within[i], "\n");
  }
  return text + str(name, "_bucket{le=\"+Inf\"} ", count, "\n", name, "_sum ", std::to_string(sum),
                    "\n", name, "_count ", count, "\n");
}

std::string ServeMetrics::text() const {
  const std::lock_guard lock(mutex_);
  std::string text = head("tandem_requests_total", "counter", "Answers, by their HTTP status.");
  for (const auto& [status, count] : answers_) {
    text += str("tandem_requests_total{code=\"", status, "\"} ", count, "\n");
  }
  text += head("tandem_tokens_total", "counter", "Tokens written.");
  text += str("tandem_tokens_total ", tokens_, "\n");
  text += head("tandem_queued_requests", "gauge", "Requests that wait for a slot.");
  text += str("tandem_queued_requests ", queued_, "\n");
  text += head("tandem_slots_in_use", "gauge", "Texts or images in the model.");
  text += str("tandem_slots_in_use ", running_, "\n");
  return text +
         first_token_.text("tandem_first_token_seconds",
                           "From a request's arrival to its text's first token.") +
         next_token_.text("tandem_token_seconds", "From one token of a text to the next.") +
         image_.text("tandem_image_seconds", "From a request's arrival to its image's classes.");
}

}  // namespace tandem
