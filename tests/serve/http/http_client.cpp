#include "tests/serve/http/http_client.h"

#include <arpa/inet.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <stdexcept>

#include "src/core/error.h"

namespace tandem::testing {

namespace {

void wait_for(int socket, short event) {
  pollfd waited{socket, event, 0};
  const auto time = std::chrono::duration_cast<std::chrono::milliseconds>(kGenerous);
  require(::poll(&waited, 1, static_cast<int>(time.count())) == 1, "the server does nothing");
}

std::string lowered(std::string text) {
  std::ranges::transform(text, text.begin(), [](char c) { return std::tolower(c); });
  return text;
}

}  // namespace

std::string Reply::field(const std::string& name) const {
  const size_t begin = lowered(head).find("\r\n" + lowered(name) + ": ");
  if (begin == std::string::npos) {
    return "";
  }
  const size_t value = begin + name.size() + 4;
  return head.substr(value, head.find("\r\n", value) - value);
}

Client::Client(int port, int receive_buffer, const std::string& address) {
  sockaddr_in v4{};
  sockaddr_in6 v6{};
  const bool is_v6 = address.find(':') != std::string::npos;
  v4.sin_family = AF_INET;
  v6.sin6_family = AF_INET6;
  v4.sin_port = v6.sin6_port = htons(static_cast<uint16_t>(port));
  ::inet_pton(AF_INET, address.c_str(), &v4.sin_addr);
  ::inet_pton(AF_INET6, address.c_str(), &v6.sin6_addr);
  socket_ = ::socket(is_v6 ? AF_INET6 : AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (receive_buffer > 0) {
    ::setsockopt(socket_, SOL_SOCKET, SO_RCVBUF, &receive_buffer, sizeof receive_buffer);
  }
  const auto* generic = is_v6 ? reinterpret_cast<sockaddr*>(&v6) : reinterpret_cast<sockaddr*>(&v4);
  if (::connect(socket_, generic, is_v6 ? sizeof v6 : sizeof v4) != 0) {
    close();
    throw std::runtime_error("refused");
  }
}

void Client::send(std::string_view bytes) { require(try_send(bytes), "the connection is broken"); }

bool Client::try_send(std::string_view bytes) {
  while (!bytes.empty()) {
    wait_for(socket_, POLLOUT);
    const ssize_t sent = ::send(socket_, bytes.data(), bytes.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent < 0 && errno != EAGAIN) {
      return false;
    }
    bytes.remove_prefix(static_cast<size_t>(std::max<ssize_t>(sent, 0)));
  }
  return true;
}

bool Client::has_input(int milliseconds) {
  pollfd waited{socket_, POLLIN, 0};
  return !input_.empty() || ::poll(&waited, 1, milliseconds) == 1;
}

bool Client::fill() {
  char bytes[64 << 10];
  wait_for(socket_, POLLIN);
  const ssize_t count = ::recv(socket_, bytes, sizeof bytes, 0);
  if (count > 0) {
    input_.append(bytes, static_cast<size_t>(count));
  }
  return count > 0;
}

std::string Client::read_some() {
  require(!input_.empty() || fill(), "the connection ended");
  return std::exchange(input_, {});
}

std::string Client::read_to_end() {
  while (fill()) {
  }
  return std::exchange(input_, {});
}

Reply Client::read(bool has_body) {
  Reply reply;
  const auto take = [&](size_t size) {
    while (input_.size() < size && !reply.is_cut) {
      reply.is_cut = !fill();
    }
    std::string bytes = input_.substr(0, size);
    input_.erase(0, size);
    return bytes;
  };
  const auto take_to = [&](const std::string& end) {
    size_t found;
    while ((found = input_.find(end)) == std::string::npos && !reply.is_cut) {
      reply.is_cut = !fill();
    }
    return take(reply.is_cut ? input_.size() : found + end.size());
  };
  reply.head = take_to("\r\n\r\n");
  if (reply.is_cut) {
    return reply;
  }
  reply.status = std::stoi(reply.head.substr(reply.head.find(' ')));
  const std::string length = reply.field("Content-Length");
  if (!has_body || reply.status < 200 || reply.status == 204) {
    return reply;
  }
  if (!length.empty()) {
    reply.body = take(std::stoul(length));
  } else if (reply.field("Transfer-Encoding") == "chunked") {
    for (size_t size = 1; size > 0 && !reply.is_cut;) {
      const std::string line = take_to("\r\n");
      size = reply.is_cut ? 0 : std::stoul(line, nullptr, 16);
      reply.body += take(size);
      take(2);
    }
  } else {
    reply.body = read_to_end();
  }
  return reply;
}

void Client::close() {
  if (socket_ >= 0) {
    ::close(std::exchange(socket_, -1));
  }
}

void Client::reset() {
  const linger at_once{1, 0};
  ::setsockopt(socket_, SOL_SOCKET, SO_LINGER, &at_once, sizeof at_once);
  close();
}

void Client::half_close() { ::shutdown(socket_, SHUT_WR); }

TestServer::TestServer(const HttpLimits& limits, const std::string& host) {
  const auto handle = [this](HttpRequest request, std::shared_ptr<HttpAnswer> answer) {
    this->handle(std::move(request), std::move(answer));
  };
  const auto body = [](int status, const std::string& what) {
    return str("{\"status\": ", status, ", \"what\": \"", what, "\"}");
  };
  const auto on_end = [this](int status) {
    const std::lock_guard lock(mutex_);
    statuses_.push_back(status);
  };
  server_ = std::make_unique<HttpServer>(host, 0, limits, handle, body, on_end);
  server_->start();
}

TestServer::~TestServer() { server_.reset(); }

void TestServer::handle(HttpRequest request, std::shared_ptr<HttpAnswer> answer) {
  if (request.path == "/hold") {
    const std::lock_guard lock(mutex_);
    held_.push_back(std::move(answer));
    changed_.notify_all();
  } else if (request.path == "/throw") {
    throw std::runtime_error("a handler that throws");
  } else if (request.path == "/none") {
    answer->send(204, "", "");
  } else if (request.path == "/big") {
    answer->send(200, "text/plain", std::string(4 << 20, 'b'));
  } else if (request.path == "/bad-header") {
    answer->send(200, "text/plain", "", {{"Name", "a\r\nSet-Cookie: b"}});
  } else if (request.path != "/drop") {
    answer->send(200, "text/plain", str(request.method, " ", request.path, " ", request.body),
                 {{"X-Type", request.content_type}});
  }
}

std::shared_ptr<HttpAnswer> TestServer::held() {
  std::unique_lock lock(mutex_);
  require(changed_.wait_for(lock, kGenerous, [&] { return !held_.empty(); }), "no request came");
  std::shared_ptr<HttpAnswer> answer = std::move(held_.front());
  held_.pop_front();
  return answer;
}

size_t TestServer::count_held() {
  const std::lock_guard lock(mutex_);
  return held_.size();
}

std::vector<int> TestServer::statuses() {
  const std::lock_guard lock(mutex_);
  return statuses_;
}

bool TestServer::ends_with(int status) {
  return eventually([&] {
    const std::lock_guard lock(mutex_);
    if (statuses_.empty() || statuses_.front() != status) {
      return false;
    }
    statuses_.erase(statuses_.begin());
    return true;
  });
}

bool TestServer::has_connections(int64_t wanted) {
  return eventually([&] { return server_->connections() == wanted; });
}

std::string get(const std::string& path, const std::string& fields) {
  return "GET " + path + " HTTP/1.1\r\nHost: a\r\n" + fields + "\r\n";
}

std::string post(const std::string& path, const std::string& body, const std::string& fields) {
  return str("POST ", path, " HTTP/1.1\r\nHost: a\r\nContent-Length: ", body.size(), "\r\n", fields,
             "\r\n", body);
}

}  // namespace tandem::testing
