// Reads HTTP/1.1 and HTTP/1.0 requests, strictly: what another server might read as something else
// is refused. How the bytes are cut into pieces makes no difference.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "src/serve/http/http_request.h"

namespace tandem {

class HttpParser {
 public:
  explicit HttpParser(const HttpLimits& limits) : limits_(limits), left_(limits.header_bytes) {}

  // Takes bytes up to the end of the request and returns how many it took. Throws HttpError,
  // after which nothing more can be read.
  size_t take(std::string_view bytes);
  bool is_complete() const { return part_ == Part::kComplete; }
  // The client waits for "100 Continue" before it sends the body. True once.
  bool must_continue();

  // What the fields say, as far as they were read.
  bool is_head() const { return is_head_; }
  bool is_http_11() const { return is_http_11_; }
  bool keeps_alive() const {
    return is_http_11_ ? !wants_close_ : wants_keep_alive_ && !wants_close_;
  }

  // The complete request. The next bytes begin another one.
  HttpRequest next();

 private:
  enum class Part {
    kRequestLine,
    kFields,
    kBody,
    kChunkSize,
    kChunk,
    kChunkEnd,
    kTrailers,
    kComplete,
  };

  size_t take_line(std::string_view bytes);
  size_t take_body(std::string_view bytes);
  void read_line(std::string_view line);
  void read_request_line(std::string_view line);
  void read_target(std::string_view target);
  void read_field(std::string_view line);
  void read_length(std::string_view value);
  void read_chunk_size(std::string_view line);
  void finish_fields();

  HttpLimits limits_;
  HttpRequest request_{};
  Part part_ = Part::kRequestLine;
  std::string line_{};     // the beginning of a line
  int64_t left_;           // bytes of the request that need not be its body
  int64_t body_left_ = 0;  // bytes of the body, or of a chunk
  int64_t length_ = -1;    // Content-Length; -1: none
  int hosts_ = 0;          // fields of that name
  bool is_head_ = false, is_http_11_ = true;
  bool is_chunked_ = false, wants_close_ = false, wants_keep_alive_ = false, expects_ = false;
};

}  // namespace tandem
