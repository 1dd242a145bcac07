#include "src/serve/http/http_connection.h"

#include <algorithm>
#include <boost/asio/buffer.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/write.hpp>
#include <exception>
#include <optional>
#include <sstream>
#include <utility>

namespace tandem {

namespace {

namespace asio = boost::asio;
using boost::system::error_code;

// The client hung up or does not read; the name is that of nginx's logs.
constexpr int kClientClosed = 499;
constexpr int kRequestTimeout = 408, kInternalError = 500, kUnavailable = 503, kTimeout = 504;
constexpr size_t kMostAhead = 64 << 10;  // bytes of later requests that are read before their turn
constexpr int64_t kMostRefused = 64;     // connections that are refused, but not closed yet
constexpr std::chrono::milliseconds kLinger{1000};  // for the client to read its last answer

// A chunk of a body.
std::string chunk(const std::string& bytes) {
  std::ostringstream size;
  size << std::hex << bytes.size();
  return size.str() + "\r\n" + bytes + "\r\n";
}

}  // namespace

HttpConnection::HttpConnection(std::shared_ptr<HttpService> service, asio::ip::tcp::socket socket)
    : service_(std::move(service)),
      socket_(std::move(socket)),
      timer_(service_->io),
      parser_(service_->limits) {
  service_->open.insert(this);
}

HttpConnection::~HttpConnection() {
  service_->open.erase(this);
  if (count_ != nullptr) {
    --*count_;
  }
}

template <class F>
auto HttpConnection::then(F f) {
  return [self = shared_from_this(), f](const error_code& error, size_t bytes = 0) {
    if (self->phase_ != Phase::kClosed) {
      try {
        f(error, bytes);
      } catch (const std::exception&) {
        self->close(kInternalError);
      }
    }
  };
}

void HttpConnection::serve() {
  count_ = &service_->served;
  ++*count_;
  error_code ignored;
  socket_.set_option(asio::ip::tcp::no_delay(true), ignored);
  set_deadline(service_->limits.arrive);
  read();
}

// The answer fits into the empty buffer of a new socket.
void HttpConnection::refuse() {
  count_ = &service_->refused;
  const bool is_flood = ++*count_ > kMostRefused;
  const std::string body =
      service_->error_body(kUnavailable, "The server has too many connections.");
  const std::string text =
      HttpHead{kUnavailable, "application/json", {}}.text(body.size(), true, false) + body;
  error_code ignored;
  socket_.non_blocking(true, ignored);
  socket_.write_some(asio::buffer(text), ignored);
  service_->on_end(kUnavailable);
  is_flood ? close(kUnavailable) : linger();
}

void HttpConnection::drain() {
  if (phase_ == Phase::kRequest || phase_ == Phase::kContinue) {
    close(kUnavailable);
  }
  keeps_alive_ = false;
}

void HttpConnection::close(int status) {
  const Phase before = std::exchange(phase_, Phase::kClosed);
  if (before == Phase::kClosed) {
    return;
  }
  if (outbox_) {
    outbox_->close();
  }
  timer_.cancel();
  error_code ignored;
  socket_.close(ignored);
  if (before == Phase::kAnswer) {
    service_->on_end(status);
  }
}

void HttpConnection::set_deadline(std::chrono::milliseconds time) {
  timer_.expires_after(time);
  timer_.async_wait(then([this](const error_code&, size_t) {
    if (timer_.expiry() <= asio::steady_timer::clock_type::now()) {  // not moved meanwhile
      on_deadline();
    }
  }));
}

void HttpConnection::on_deadline() {
  if (phase_ == Phase::kRequest && has_begun_) {
    answer_error(kRequestTimeout, "The request took too long to arrive.");
  } else if (phase_ == Phase::kAnswer && !is_complete_ && status_ == 0) {
    answer_error(kTimeout, "The answer took too long.");
  } else {
    close(is_complete_ ? kClientClosed : kTimeout);
  }
}

void HttpConnection::read() {
  if (phase_ == Phase::kClosed || is_reading_ || has_hung_up_) {
    return;
  }
  is_reading_ = true;
  socket_.async_read_some(asio::buffer(input_), then([this](const error_code& error, size_t bytes) {
                            is_reading_ = false;
                            on_read(error, bytes);
                          }));
}

// A connection is also read while its answer is made: the client may hang up.
void HttpConnection::on_read(const error_code& error, size_t bytes) {
  if (error) {
    has_hung_up_ = true;
    if (error == asio::error::eof && phase_ == Phase::kAnswer && is_complete_) {
      keeps_alive_ = false;  // the client may still read
    } else {
      close(kClientClosed);
    }
    return;
  }
  if (phase_ != Phase::kLinger) {
    ahead_.append(input_.data(), bytes);
  }
  if (phase_ == Phase::kRequest) {
    parse();
  }
  if (ahead_.size() <= kMostAhead) {
    read();
  }
}

void HttpConnection::parse() {
  if (!has_begun_ && !ahead_.empty()) {
    has_begun_ = true;
    set_deadline(service_->limits.arrive);
  }
  std::optional<HttpError> refused;
  try {
    ahead_.erase(0, parser_.take(ahead_));
  } catch (const HttpError& error) {
    refused = error;
  }
  is_head_ = parser_.is_head();
  is_http_11_ = parser_.is_http_11();
  keeps_alive_ = parser_.keeps_alive();
  if (refused) {
    answer_error(refused->status, refused->what());
  } else if (parser_.is_complete()) {
    handle();
  } else if (parser_.must_continue()) {
    phase_ = Phase::kContinue;
    write("HTTP/1.1 100 Continue\r\n\r\n");
  }
}

void HttpConnection::handle() {
  phase_ = Phase::kAnswer;
  has_begun_ = is_complete_ = false;
  status_ = 0;
  set_deadline(service_->limits.answer);
  const auto wake = [service = service_, weak = weak_from_this()] {
    asio::post(service->io, [weak] {
      if (const auto self = weak.lock()) {
        self->then([&self](const error_code&, size_t) { self->collect(); })({});
      }
    });
  };
  const auto outbox = std::make_shared<HttpOutbox>(service_->limits.unread_bytes, wake);
  outbox_ = outbox;
  try {
    service_->handler(parser_.next(), {outbox.get(), [outbox](auto*) { outbox->abandon(); }});
  } catch (...) {
    outbox->abandon();
  }
}

void HttpConnection::collect() {
  if (!outbox_ || is_complete_) {
    return;
  }
  if (outbox_->is_gone()) {
    close(kClientClosed);
  }
  if (is_writing_ || phase_ == Phase::kClosed) {
    return;
  }
  HttpOutbox::Batch batch = outbox_->take();
  if (batch.is_abandoned) {
    status_ == 0 ? answer_error(kInternalError, "The server failed to make an answer.")
                 : close(kInternalError);
    return;
  }
  std::string output;
  if (batch.head) {
    const bool has_length = batch.is_complete;
    status_ = batch.head->status;
    has_body_ = !is_head_ && batch.head->may_have_body();
    is_chunked_ = !has_length && is_http_11_;
    keeps_alive_ = keeps_alive_ && (has_length || is_http_11_);
    output = batch.head->text(has_length ? std::optional(batch.bytes.size()) : std::nullopt,
                              is_http_11_, keeps_alive_);
  }
  if (has_body_ && !batch.bytes.empty()) {
    output += is_chunked_ ? chunk(batch.bytes) : batch.bytes;
  }
  if (status_ != 0 && (batch.is_complete || !has_body_)) {
    output += is_chunked_ && has_body_ ? "0\r\n\r\n" : "";
    is_complete_ = true;
    set_deadline(service_->limits.arrive);
  }
  pieces_ = batch.bytes.size();
  if (!output.empty()) {
    write(std::move(output));
  } else if (is_complete_) {
    finish();
  }
}

void HttpConnection::write(std::string bytes) {
  is_writing_ = true;
  output_ = std::move(bytes);
  asio::async_write(socket_, asio::buffer(output_), then([this](const error_code& error, size_t) {
                      is_writing_ = false;
                      error ? close(kClientClosed) : on_written();
                    }));
}

void HttpConnection::on_written() {
  if (phase_ == Phase::kContinue) {
    phase_ = Phase::kRequest;
    parse();
    read();
  } else if (is_complete_) {
    finish();
  } else {
    outbox_->count_read(pieces_);
    collect();
  }
}

// The last answer: after an error nobody knows where the next request begins.
void HttpConnection::answer_error(int status, const std::string& what) {
  if (outbox_) {
    outbox_->close();
    outbox_.reset();
  }
  phase_ = Phase::kAnswer;
  status_ = status;
  is_complete_ = true;
  keeps_alive_ = false;
  set_deadline(service_->limits.arrive);
  const std::string body = service_->error_body(status, what);
  const HttpHead head{status, "application/json", {}};
  write(head.text(body.size(), is_http_11_, keeps_alive_) + (is_head_ ? "" : body));
}

void HttpConnection::finish() {
  phase_ = Phase::kRequest;
  output_ = {};
  if (outbox_) {
    outbox_->close();
    outbox_.reset();
  }
  service_->on_end(status_);
  if (!keeps_alive_) {
    linger();
    return;
  }
  set_deadline(service_->limits.arrive);
  if (!ahead_.empty()) {
    parse();
  }
  read();
}

// A socket that is closed before all its bytes are read takes its last answer with it.
void HttpConnection::linger() {
  phase_ = Phase::kLinger;
  ahead_ = {};
  error_code error;
  socket_.shutdown(asio::ip::tcp::socket::shutdown_send, error);
  if (error || has_hung_up_) {
    close(kClientClosed);
    return;
  }
  set_deadline(std::min(service_->limits.arrive, kLinger));
  read();
}

}  // namespace tandem
