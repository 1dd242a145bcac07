// An answer on its way from whoever makes it to the connection that sends it.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <mutex>
#include <optional>
#include <string>

#include "src/serve/http/http_server.h"

namespace tandem {

struct HttpHead {
  int status = 0;
  std::string content_type{};
  HttpHeaders headers{};
  // The status line and the fields. Without a length the body is sent in chunks, or, to a client of
  // HTTP/1.0, until the connection is closed.
  std::string text(std::optional<size_t> length, bool is_http_11, bool keeps_alive) const;
  bool may_have_body() const { return status != 204 && status != 304; }
};

// One thread at a time makes the answer, and another one takes it.
class HttpOutbox : public HttpAnswer {
 public:
  // `wake` is called by the thread that makes the answer when there is something to take, or the
  // client left too much unread, so that is_gone().
  HttpOutbox(int64_t unread_bytes, std::function<void()> wake)
      : unread_bytes_(unread_bytes), wake_(std::move(wake)) {}

  void send(int status, std::string content_type, std::string body, HttpHeaders headers) override;
  void begin(int status, std::string content_type, HttpHeaders headers) override;
  void write(std::string piece) override;
  void end() override;
  bool is_gone() const override { return is_gone_; }
  void abandon();  // whoever makes the answer will not complete it

  // What came since the last call.
  struct Batch {
    std::optional<HttpHead> head{};
    std::string bytes{};
    bool is_complete = false;   // nothing comes after this
    bool is_abandoned = false;  // nothing comes, though something should
  };
  Batch take();
  void count_read(size_t bytes);  // the client took so many
  void close();                   // nobody waits for more

 private:
  enum class Stage { kNothing, kStream, kComplete, kAbandoned };

  // Where nothing was made but `from`, makes `change` under the lock, and wakes the other side.
  template <class F>
  void advance(Stage from, const F& change);

  const int64_t unread_bytes_;
  const std::function<void()> wake_;
  std::mutex mutex_{};
  Stage stage_ = Stage::kNothing;
  std::optional<HttpHead> head_{};
  std::string bytes_{};
  int64_t unread_ = 0, largest_ = 0;  // largest piece
  bool is_woken_ = false;             // the other side, which took nothing since
  std::atomic<bool> is_gone_ = false;
};

}  // namespace tandem
