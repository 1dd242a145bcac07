#include "src/serve/http/http_server.h"

#include <algorithm>
#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/post.hpp>
#include <exception>
#include <future>
#include <thread>
#include <utility>

#include "src/core/error.h"
#include "src/core/visible_text.h"
#include "src/serve/http/http_connection.h"

namespace tandem {

namespace {

namespace asio = boost::asio;
using asio::ip::tcp;
using boost::system::error_code;

constexpr std::chrono::milliseconds kPause{100};  // after accepting failed: too many open files

}  // namespace

struct HttpServer::Core : HttpService, std::enable_shared_from_this<HttpServer::Core> {
  void listen(const std::string& host, int port);
  void accept();
  void admit(tcp::socket socket);
  void run();
  // Calls it for each connection, which it may close.
  template <class F>
  void for_each(F f);

  tcp::acceptor acceptor{io};
  asio::steady_timer pause{io};
  asio::executor_work_guard<asio::io_context::executor_type> work{io.get_executor()};
  int port = 0;
  std::promise<void> ended{};
  std::thread thread{};
};

void HttpServer::Core::listen(const std::string& host, int wanted) {
  error_code error;
  const auto address = asio::ip::make_address(host, error);
  if (error) {
    fail(ExitCode::kConfig, "\"", visible(host), "\" is no IPv4 or IPv6 address to listen on");
  }
  if (wanted < 0 || wanted > 65535) {
    fail(ExitCode::kConfig, "there is no port ", wanted, " to listen on");
  }
  const tcp::endpoint endpoint(address, static_cast<uint16_t>(wanted));
  const auto on_success = [&error](auto step) {
    if (!error) {
      step();
    }
  };
  const auto unread = static_cast<int>(std::min<int64_t>(limits.unread_bytes, 1 << 30));
  on_success([&] { acceptor.open(endpoint.protocol(), error); });
  on_success([&] { acceptor.set_option(tcp::acceptor::reuse_address(true), error); });
  // Sockets that are accepted have the same buffer.
  on_success([&] { acceptor.set_option(asio::socket_base::send_buffer_size(unread), error); });
  on_success([&] { acceptor.bind(endpoint, error); });
  on_success([&] { acceptor.listen(asio::socket_base::max_listen_connections, error); });
  on_success([&] { port = acceptor.local_endpoint(error).port(); });
  if (error) {
    fail(ExitCode::kConfig, "cannot listen on ", endpoint, ": ", error.message());
  }
}

void HttpServer::Core::accept() {
  acceptor.async_accept([this](const error_code& error, tcp::socket socket) {
    if (!acceptor.is_open()) {
      return;
    }
    if (error) {
      pause.expires_after(kPause);
      pause.async_wait([this](const error_code&) {
        if (acceptor.is_open()) {
          accept();
        }
      });
      return;
    }
    accept();
    admit(std::move(socket));
  });
}

void HttpServer::Core::admit(tcp::socket socket) {
  const bool has_room = served < limits.connections;
  const auto connection = std::make_shared<HttpConnection>(shared_from_this(), std::move(socket));
  has_room ? connection->serve() : connection->refuse();
}

// Returns when no operation is left.
void HttpServer::Core::run() {
  for (bool is_done = false; !is_done;) {
    try {
      io.run();
      is_done = true;
    } catch (const std::exception&) {
      // Out of memory. A connection that lost its operation has a timer, or is closed.
    }
  }
  ended.set_value();
}

template <class F>
void HttpServer::Core::for_each(F f) {
  const std::set<HttpConnection*> all = open;
  for (HttpConnection* const connection : all) {
    if (open.contains(connection)) {
      f(*connection->shared_from_this());
    }
  }
}

HttpServer::HttpServer(const std::string& host, int port, const HttpLimits& limits, Handler handler,
                       ErrorBody error_body, OnEnd on_end)
    : core_(std::make_shared<Core>()) {
  core_->limits = limits;
  core_->handler = std::move(handler);
  core_->error_body = std::move(error_body);
  core_->on_end = std::move(on_end);
  core_->listen(host, port);
}

HttpServer::~HttpServer() { finish(std::chrono::milliseconds(0)); }

int HttpServer::port() const { return core_->port; }

int64_t HttpServer::connections() const { return core_->served + core_->refused; }

void HttpServer::start() {
  require(!core_->thread.joinable() && core_->acceptor.is_open(), "a server starts once");
  core_->accept();
  core_->thread = std::thread([core = core_.get()] { core->run(); });
}

void HttpServer::finish(std::chrono::milliseconds grace) {
  Core* const core = core_.get();
  if (!core->thread.joinable()) {
    error_code ignored;
    core->acceptor.close(ignored);
    return;
  }
  require(core->thread.get_id() != std::this_thread::get_id(), "a handler must not end its server");
  asio::post(core->io, [core] {
    error_code ignored;
    core->acceptor.close(ignored);
    core->pause.cancel();
    core->work.reset();
    core->for_each([](HttpConnection& connection) { connection.drain(); });
  });
  if (core->ended.get_future().wait_for(grace) != std::future_status::ready) {
    asio::post(core->io, [core] {
      core->for_each([](HttpConnection& connection) { connection.close(503); });
    });
  }
  core->thread.join();
}

}  // namespace tandem
