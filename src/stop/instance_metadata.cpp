#include "src/stop/instance_metadata.h"

#include <algorithm>
#include <boost/asio/ip/tcp.hpp>
#include <boost/beast/core.hpp>
#include <boost/beast/http.hpp>
#include <utility>

#include "src/core/error.h"
#include "src/core/parse_number.h"
#include "src/core/visible_text.h"

namespace tandem {

namespace {

namespace asio = boost::asio;
namespace beast = boost::beast;
namespace http = beast::http;

constexpr unsigned kOk = 200, kUnauthorized = 401, kNotFound = 404;
constexpr uint64_t kLongestBody = 4096;

struct Reply {
  unsigned status = 0;
  std::string body;
};

// One request on a connection of its own. Time-outs and `stop` end it wherever it is.
Reply send(const asio::ip::tcp::endpoint& server, const http::request<http::empty_body>& request,
           std::chrono::milliseconds timeout, const std::stop_token& stop) {
  beast::flat_buffer buffer;
  http::response_parser<http::string_body> parser;
  parser.body_limit(kLongestBody);
  asio::io_context io;
  beast::tcp_stream stream(io);
  beast::error_code result = asio::error::timed_out;  // until all is done
  const auto on_read = [&](beast::error_code error, size_t) { result = error; };
  const auto on_written = [&](beast::error_code error, size_t) {
    if (error) {
      result = error;
    } else {
      http::async_read(stream, buffer, parser, on_read);
    }
  };
  stream.async_connect(server, [&](beast::error_code error) {
    if (error) {
      result = error;
    } else {
      http::async_write(stream, request, on_written);
    }
  });
  const std::stop_callback stops(stop, [&io] { io.stop(); });
  io.run_for(timeout);
  if (result) {
    fail(ExitCode::kTemporary, "does not answer: " + result.message());
  }
  return {parser.get().result_int(), parser.get().body()};
}

}  // namespace

InstanceMetadata::InstanceMetadata(Options options) : options_(std::move(options)) {
  const std::string& server = options_.server;
  const size_t colon = std::min(server.rfind(':'), server.size());
  address_ = server.substr(0, colon);
  port_ = parse_number<uint16_t>(server.substr(std::min(colon + 1, server.size()))).value_or(0);
  beast::error_code error;
  asio::ip::make_address(address_, error);
  if (error || port_ == 0) {
    fail(ExitCode::kConfig, "TANDEM_IMDS = \"", visible(server),
         "\" must be ADDRESS:PORT, such as 127.0.0.1:8080");
  }
}

std::optional<std::string> InstanceMetadata::get(const std::string& path,
                                                 const std::stop_token& stop) {
  const asio::ip::tcp::endpoint endpoint(asio::ip::make_address(address_), port_);
  if (token_.empty() || Clock::now() >= renew_at_) {
    renew_token(stop);
  }
  const auto ask = [&] {
    http::request<http::empty_body> request(http::verb::get, path, 11);
    request.set(http::field::host, address_);
    request.set("X-aws-ec2-metadata-token", token_);
    return send(endpoint, request, options_.timeout, stop);
  };
  Reply reply = ask();
  if (reply.status == kUnauthorized) {
    renew_token(stop);
    reply = ask();
  }
  if (reply.status == kNotFound) {
    return std::nullopt;
  }
  if (reply.status != kOk) {
    fail(ExitCode::kTemporary, "answers ", reply.status, " to a request for ", path);
  }
  return reply.body;
}

void InstanceMetadata::renew_token(const std::stop_token& stop) {
  const asio::ip::tcp::endpoint endpoint(asio::ip::make_address(address_), port_);
  http::request<http::empty_body> request(http::verb::put, "/latest/api/token", 11);
  request.set(http::field::host, address_);
  request.set("X-aws-ec2-metadata-token-ttl-seconds",
              std::to_string(options_.token_lifetime.count()));
  const Clock::time_point now = Clock::now();
  const Reply reply = send(endpoint, request, options_.timeout, stop);
  if (reply.status != kOk || reply.body.empty()) {
    fail(ExitCode::kTemporary, "answers ", reply.status, " to a request for a token");
  }
  token_ = reply.body;
  renew_at_ = now + options_.token_lifetime / 2;
}

}  // namespace tandem
