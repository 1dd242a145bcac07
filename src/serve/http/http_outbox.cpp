#include "src/serve/http/http_outbox.h"

#include <algorithm>
#include <boost/beast/http/status.hpp>
#include <ctime>
#include <utility>

#include "src/core/error.h"

namespace tandem {

namespace {

namespace http = boost::beast::http;

std::string date() {
  const std::time_t now = std::time(nullptr);
  std::tm parts{};
  gmtime_r(&now, &parts);
  char text[64];
  return {text, std::strftime(text, sizeof text, "%a, %d %b %Y %H:%M:%S GMT", &parts)};
}

// Another line in a header would be another field, or a whole answer.
HttpHead checked(int status, std::string content_type, HttpHeaders headers) {
  const auto is_line = [](const std::string& text) {
    return std::ranges::none_of(text, [](char c) { return (c & 0xe0) == 0 || c == '\x7f'; });
  };
  const bool are_lines = std::ranges::all_of(
      headers, [&](const auto& header) { return is_line(header.first) && is_line(header.second); });
  require(status >= 200 && status <= 599, "an answer must have a final status");
  require(are_lines && is_line(content_type), "a header must have no control characters");
  return {status, std::move(content_type), std::move(headers)};
}

}  // namespace

std::string HttpHead::text(std::optional<size_t> length, bool is_http_11, bool keeps_alive) const {
  const auto reason = http::obsolete_reason(static_cast<http::status>(status));
  std::string text = str("HTTP/1.1 ", status, " ", reason, "\r\nDate: ", date(), "\r\n");
  const auto add = [&](const std::string& name, const std::string& value) {
    text += name + ": " + value + "\r\n";
  };
  if (!content_type.empty()) {
    add("Content-Type", content_type);
  }
  for (const auto& [name, value] : headers) {
    add(name, value);
  }
  if (may_have_body() && length) {
    add("Content-Length", std::to_string(*length));
  } else if (may_have_body() && is_http_11) {
    add("Transfer-Encoding", "chunked");
  }
  if (!keeps_alive || !is_http_11) {
    add("Connection", keeps_alive ? "keep-alive" : "close");
  }
  return text + "\r\n";
}

template <class F>
void HttpOutbox::advance(Stage from, const F& change) {
  {
    const std::lock_guard lock(mutex_);
    if (is_gone_ || stage_ != from) {
      return;
    }
    change();
    if (std::exchange(is_woken_, true)) {
      return;
    }
  }
  wake_();
}

void HttpOutbox::send(int status, std::string content_type, std::string body, HttpHeaders headers) {
  HttpHead head = checked(status, std::move(content_type), std::move(headers));
  advance(Stage::kNothing, [&] {
    head_ = std::move(head);
    bytes_ = std::move(body);
    stage_ = Stage::kComplete;
  });
}

void HttpOutbox::begin(int status, std::string content_type, HttpHeaders headers) {
  HttpHead head = checked(status, std::move(content_type), std::move(headers));
  advance(Stage::kNothing, [&] {
    head_ = std::move(head);
    stage_ = Stage::kStream;
  });
}

void HttpOutbox::write(std::string piece) {
  advance(Stage::kStream, [&] {
    if (unread_ > unread_bytes_ + largest_) {
      is_gone_ = true;
      is_woken_ = false;  // whoever is busy writing must know
      bytes_ = {};
    } else {
      unread_ += std::ssize(piece);
      largest_ = std::max(largest_, std::ssize(piece));
      bytes_ += piece;
    }
  });
}

void HttpOutbox::end() {
  advance(Stage::kStream, [&] { stage_ = Stage::kComplete; });
}

void HttpOutbox::abandon() {
  const auto change = [&] { stage_ = Stage::kAbandoned; };
  advance(Stage::kNothing, change);
  advance(Stage::kStream, change);
}

HttpOutbox::Batch HttpOutbox::take() {
  const std::lock_guard lock(mutex_);
  is_woken_ = false;
  return {.head = std::exchange(head_, std::nullopt),
          .bytes = std::exchange(bytes_, {}),
          .is_complete = stage_ == Stage::kComplete,
          .is_abandoned = stage_ == Stage::kAbandoned};
}

void HttpOutbox::count_read(size_t bytes) {
  const std::lock_guard lock(mutex_);
  unread_ -= static_cast<int64_t>(bytes);
}

void HttpOutbox::close() {
  const std::lock_guard lock(mutex_);
  is_gone_ = true;
  bytes_ = {};
}

}  // namespace tandem
