#include "src/serve/http/http_parser.h"

#include <algorithm>
#include <limits>
#include <utility>

namespace tandem {

namespace {

constexpr int kBadRequest = 400, kTooLarge = 413, kExpectationFailed = 417, kFieldsTooLarge = 431,
              kNotImplemented = 501, kVersionNotSupported = 505;
constexpr size_t kLongestHex = 16;
constexpr int64_t kFreeOfChunk = kLongestHex + 2;  // bytes of a chunk's line that are not counted

bool is_digit(char c) { return c >= '0' && c <= '9'; }

bool is_token(std::string_view text) {
  const auto fits = [](char c) {
    return is_digit(c) || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') ||
           std::string_view("!#$%&'*+-.^_`|~").find(c) != std::string_view::npos;
  };
  return !text.empty() && std::ranges::all_of(text, fits);
}

// A byte that may stand in a line; '\r' only at its end.
bool is_text(char c) {
  return (static_cast<unsigned char>(c) >= ' ' && c != '\x7f') || c == '\t' || c == '\r';
}

std::string_view trimmed(std::string_view text) {
  const size_t first = std::min(text.find_first_not_of(" \t"), text.size());
  const size_t last = text.find_last_not_of(" \t");
  return last == std::string_view::npos ? std::string_view() : text.substr(first, last - first + 1);
}

std::string lowered(std::string_view text) {
  std::string lower(text);
  for (char& c : lower) {
    c = c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
  }
  return lower;
}

// Whether a list with commas has the word, which has no capitals.
bool lists(std::string_view list, std::string_view word) {
  while (!list.empty()) {
    const size_t comma = std::min(list.find(','), list.size());
    if (lowered(trimmed(list.substr(0, comma))) == word) {
      return true;
    }
    list.remove_prefix(std::min(comma + 1, list.size()));
  }
  return false;
}

}  // namespace

size_t HttpParser::take(std::string_view bytes) {
  size_t taken = 0;
  while (taken < bytes.size() && !is_complete()) {
    const std::string_view rest = bytes.substr(taken);
    const bool is_body = part_ == Part::kBody || part_ == Part::kChunk;
    taken += is_body ? take_body(rest) : take_line(rest);
  }
  return taken;
}

bool HttpParser::must_continue() {
  if (!expects_ || (part_ != Part::kBody && part_ != Part::kChunkSize)) {
    return false;
  }
  expects_ = false;
  return is_http_11_ && line_.empty() && request_.body.empty();
}

HttpRequest HttpParser::next() {
  HttpRequest request = std::move(request_);
  *this = HttpParser(limits_);
  return request;
}

size_t HttpParser::take_line(std::string_view bytes) {
  const int64_t free = part_ == Part::kChunkSize || part_ == Part::kChunkEnd ? kFreeOfChunk : 0;
  const size_t most = static_cast<size_t>(left_ + free);
  const std::string_view taken = bytes.substr(0, most + 1 - line_.size());
  const size_t end = std::min(taken.find('\n'), taken.size());
  if (!std::ranges::all_of(taken.substr(0, end), is_text)) {
    throw HttpError(kBadRequest, "The request has a control character in its header.");
  }
  const bool is_whole = end < taken.size();
  line_ += taken.substr(0, end + is_whole);
  if (line_.size() > most) {
    throw HttpError(kFieldsTooLarge, "The header of the request is too large.");
  }
  if (is_whole) {
    const std::string line = std::exchange(line_, {});
    if (line.find('\r') != line.size() - 2) {
      throw HttpError(kBadRequest, "A line of the request's header does not end as it must.");
    }
    left_ -= std::max<int64_t>(std::ssize(line) - free, 0);
    read_line(std::string_view(line).substr(0, line.size() - 2));
  }
  return end + is_whole;
}

size_t HttpParser::take_body(std::string_view bytes) {
  const size_t size = std::min(bytes.size(), static_cast<size_t>(body_left_));
  request_.body += bytes.substr(0, size);
  body_left_ -= static_cast<int64_t>(size);
  if (body_left_ == 0) {
    part_ = part_ == Part::kChunk ? Part::kChunkEnd : Part::kComplete;
  }
  return size;
}

void HttpParser::read_line(std::string_view line) {
  switch (part_) {
    case Part::kRequestLine:
      if (!line.empty()) {  // old clients send an empty line after a body
        read_request_line(line);
      }
      break;
    case Part::kFields:
      line.empty() ? finish_fields() : read_field(line);
      break;
    case Part::kChunkSize:
      read_chunk_size(line);
      break;
    case Part::kChunkEnd:
      if (!line.empty()) {
        throw HttpError(kBadRequest, "A chunk of the body is longer than it says.");
      }
      part_ = Part::kChunkSize;
      break;
    default:  // trailers, which say nothing that is used here
      if (line.empty()) {
        part_ = Part::kComplete;
      } else if (!is_token(line.substr(0, line.find(':'))) || line.find(':') == line.npos) {
        throw HttpError(kBadRequest, "The request has a trailer that is no field.");
      }
  }
}

void HttpParser::read_request_line(std::string_view line) {
  const size_t first = line.find(' '), last = line.rfind(' ');
  if (first == line.npos || first == last || !is_token(line.substr(0, first))) {
    throw HttpError(kBadRequest, "The first line of the request is not METHOD TARGET HTTP/1.1.");
  }
  const std::string_view version = line.substr(last + 1);
  if (version != "HTTP/1.1" && version != "HTTP/1.0") {
    const bool is_other = version.size() == 8 && version.starts_with("HTTP/") &&
                          is_digit(version[5]) && version[6] == '.' && is_digit(version[7]);
    throw HttpError(is_other ? kVersionNotSupported : kBadRequest,
                    "The version of the request is neither HTTP/1.1 nor HTTP/1.0.");
  }
  is_http_11_ = version == "HTTP/1.1";
  is_head_ = line.substr(0, first) == "HEAD";
  request_.method = is_head_ ? "GET" : line.substr(0, first);
  read_target(line.substr(first + 1, last - first - 1));
  part_ = Part::kFields;
}

void HttpParser::read_target(std::string_view target) {
  const auto is_visible = [](char c) { return c > ' ' && c < '\x7f'; };
  bool has_scheme = false;
  for (const std::string_view scheme : {"http://", "https://"}) {
    if (lowered(target.substr(0, scheme.size())) == scheme) {  // as clients write it to a proxy
      has_scheme = true;
      target.remove_prefix(std::min(target.find_first_of("/?", scheme.size()), target.size()));
      break;
    }
  }
  const bool is_path = target.starts_with('/');
  if (!(is_path || has_scheme) || !std::ranges::all_of(target, is_visible)) {
    throw HttpError(kBadRequest, "The target of the request is no path.");
  }
  request_.path = is_path ? target.substr(0, target.find('?')) : "/";
}

void HttpParser::read_field(std::string_view line) {
  const size_t colon = line.find(':');
  if (colon == line.npos || !is_token(line.substr(0, colon))) {
    throw HttpError(kBadRequest, "The request has a line that is not NAME: VALUE in its header.");
  }
  const std::string name = lowered(line.substr(0, colon));
  const std::string_view value = trimmed(line.substr(colon + 1));
  if (name == "content-length") {
    read_length(value);
  } else if (name == "transfer-encoding") {
    if (is_chunked_ || lowered(value) != "chunked") {
      throw HttpError(is_chunked_ ? kBadRequest : kNotImplemented,
                      "The only Transfer-Encoding here is chunked, once.");
    }
    is_chunked_ = true;
  } else if (name == "host") {
    ++hosts_;
  } else if (name == "connection") {
    wants_close_ |= lists(value, "close");
    wants_keep_alive_ |= lists(value, "keep-alive");
  } else if (name == "expect") {
    if (lowered(value) != "100-continue") {
      throw HttpError(kExpectationFailed, "The only Expect here is 100-continue.");
    }
    expects_ = true;
  } else if (name == "content-type") {
    request_.content_type = lowered(trimmed(value.substr(0, value.find(';'))));
  }
}

void HttpParser::read_length(std::string_view value) {
  if (length_ >= 0 || value.empty() || !std::ranges::all_of(value, is_digit)) {
    throw HttpError(kBadRequest, "Content-Length must be one number.");
  }
  length_ = 0;
  for (const char c : value) {
    constexpr int64_t kMost = std::numeric_limits<int64_t>::max() / 16;
    length_ = std::min(length_ * 10 + (c - '0'), kMost);
  }
}

void HttpParser::finish_fields() {
  if (hosts_ > 1 || (hosts_ == 0 && is_http_11_)) {
    throw HttpError(kBadRequest, "The request must have one field Host.");
  }
  if (is_chunked_ && (length_ >= 0 || !is_http_11_)) {
    throw HttpError(kBadRequest,
                    "Transfer-Encoding goes neither with Content-Length nor HTTP/1.0.");
  }
  if (length_ > limits_.body_bytes) {
    throw HttpError(kTooLarge, "The body of the request is too large.");
  }
  body_left_ = length_;
  part_ = is_chunked_ ? Part::kChunkSize : length_ > 0 ? Part::kBody : Part::kComplete;
}

void HttpParser::read_chunk_size(std::string_view line) {
  const size_t end = std::min(line.find_first_not_of("0123456789abcdefABCDEF"), line.size());
  const std::string_view rest = trimmed(line.substr(end));
  if (end == 0 || end > kLongestHex || (!rest.empty() && rest[0] != ';')) {
    throw HttpError(kBadRequest, "The length of a chunk is not one hexadecimal number.");
  }
  uint64_t size = 0;
  for (const char c : line.substr(0, end)) {
    size = size * 16 + static_cast<uint64_t>(is_digit(c) ? c - '0' : (c | 0x20) - 'a' + 10);
  }
  if (size > static_cast<uint64_t>(limits_.body_bytes) - request_.body.size()) {
    throw HttpError(kTooLarge, "The body of the request is too large.");
  }
  body_left_ = static_cast<int64_t>(size);
  part_ = size > 0 ? Part::kChunk : Part::kTrailers;
}

}  // namespace tandem
