// How connections and the server end, and how it begins.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <unistd.h>

#include <stdexcept>
#include <string>
#include <thread>

#include "src/core/error.h"
#include "tests/serve/http/http_client.h"

namespace tandem::testing {
namespace {

using std::chrono::milliseconds;

TEST(HttpServerEnds, ClientsHangUpAfterAnyByte) {
  TestServer server;
  const std::string request = post("/echo?a=b", "body", "Accept: x\r\nExpect: 100-continue\r\n") +
                              "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: "
                              "chunked\r\n\r\n1;e\r\nx\r\n0\r\nA: b\r\n\r\n";
  for (size_t bytes = 0; bytes <= request.size(); ++bytes) {
    Client closes = server.client(), resets = server.client();
    closes.send(std::string_view(request).substr(0, bytes));
    resets.send(std::string_view(request).substr(0, bytes));
    resets.reset();
  }
  EXPECT_TRUE(server.has_connections(0));
  EXPECT_EQ(server.ask(get("/echo")).status, 200);
}

TEST(HttpServerEnds, AClientThatHangsUpIsNoticedWhileItsAnswerIsMade) {
  TestServer server;
  for (const bool streams : {false, true}) {
    for (const std::string& ahead : {std::string(), get("/echo"), std::string(40 << 10, 'x')}) {
      for (const bool resets : {false, true}) {
        Client client = server.client();
        client.send(get("/hold") + ahead);
        const auto answer = server.held();
        EXPECT_FALSE(answer->is_gone());
        if (streams) {
          answer->begin(200, "");
          client.read_some();
        }
        resets ? client.reset() : client.close();
        EXPECT_TRUE(eventually([&] { return answer->is_gone(); })) << streams << resets;
        EXPECT_TRUE(server.ends_with(499));
        answer->send(200, "", "nobody reads it");
        answer->write("nor this");
        answer->end();
      }
    }
  }
  EXPECT_TRUE(server.has_connections(0));
  EXPECT_EQ(server.statuses().size(), 0u);
}

TEST(HttpServerEnds, AClientThatOnlySaysItSendsNoMoreGetsItsAnswer) {
  TestServer server;
  Client client = server.client();
  client.send(get("/big"));
  client.half_close();
  EXPECT_EQ(client.read().body.size(), size_t{4} << 20);
  EXPECT_EQ(client.read_to_end(), "");
  EXPECT_TRUE(server.has_connections(0)) << "at once: there is nothing to wait for";
}

bool is_refused(TestServer& server) {
  try {
    const Client client = server.client();
    return false;
  } catch (const std::runtime_error&) {
    return true;
  }
}

TEST(HttpServerEnds, FinishWaitsForAnswersUnderWay) {
  TestServer server;
  Client idle = server.client(), whole = server.client(), streamed = server.client(),
         begun = server.client();
  idle.send(get("/echo"));
  EXPECT_EQ(idle.read().status, 200);
  whole.send(get("/hold") + get("/hold"));
  const auto first = server.held();
  streamed.send(get("/hold"));
  const auto second = server.held();
  second->begin(200, "");
  streamed.read_some();
  begun.send("GET /hold HT");
  EXPECT_TRUE(server.has_connections(4));
  std::thread finishing([&] { server->finish(testing::kGenerous); });
  EXPECT_TRUE(eventually([&] { return is_refused(server); }));
  EXPECT_EQ(idle.read_to_end(), "");
  EXPECT_EQ(begun.read_to_end(), "");
  EXPECT_FALSE(first->is_gone());
  first->send(200, "", "first");
  const Reply reply = whole.read();
  EXPECT_EQ(reply.body, "first");
  EXPECT_EQ(reply.field("Connection"), "close");
  EXPECT_EQ(whole.read_to_end(), "");
  whole.close();
  second->write("second");
  second->end();
  EXPECT_EQ(streamed.read_to_end(), "6\r\nsecond\r\n0\r\n\r\n");
  streamed.close();
  finishing.join();
  EXPECT_EQ(server->connections(), 0);
  EXPECT_EQ(server.count_held(), 0u) << "a request that came later is not handled";
  EXPECT_EQ(server.statuses(), (std::vector<int>{200, 200, 200}));
}

TEST(HttpServerEnds, FinishWaitsNoLongerThanItsGrace) {
  TestServer server;
  Client client = server.client();
  client.send(get("/hold"));
  const auto answer = server.held();
  server->finish(milliseconds(20));
  EXPECT_TRUE(answer->is_gone());
  EXPECT_EQ(server.statuses(), std::vector<int>{503});
  EXPECT_EQ(server->connections(), 0);
  EXPECT_EQ(client.read_to_end(), "");
  answer->send(200, "", "too late");
  server->finish(milliseconds(0));
  server.end();
  EXPECT_TRUE(answer->is_gone());
  answer->send(200, "", "the server is no more");
}

TEST(HttpServerEnds, BytesThatAreBeingSentAreSentWhole) {
  TestServer server;
  Client client = server.client();
  client.send(get("/big"));
  EXPECT_TRUE(client.has_input(20000));
  std::thread finishing([&] { server->finish(testing::kGenerous); });
  EXPECT_TRUE(eventually([&] { return is_refused(server); }));
  EXPECT_EQ(client.read().body.size(), size_t{4} << 20);
  client.close();
  finishing.join();
  EXPECT_EQ(server.statuses(), std::vector<int>{200});
}

TEST(HttpServerEnds, ClientsThatCameBeforeTheStartWaited) {
  const auto handle = [](HttpRequest, const std::shared_ptr<HttpAnswer>& answer) {
    answer->send(200, "", "here");
  };
  const auto body = [](int, const std::string& what) { return what; };
  HttpServer server("127.0.0.1", 0, {}, handle, body, [](int) {});
  Client client(server.port());
  client.send(get("/"));
  EXPECT_EQ(server.connections(), 0);
  server.start();
  EXPECT_EQ(client.read().body, "here");
  EXPECT_THROW(server.start(), Error);
  HttpServer never("127.0.0.1", 0, {}, handle, body, [](int) {});
  never.finish(milliseconds(0));
  EXPECT_THROW(Client(never.port()), std::runtime_error);
}

TEST(HttpServerEnds, SaysWhyItCannotListen) {
  TestServer server;
  const auto problem = [](const std::string& host, int port) -> std::string {
    try {
      const HttpServer other(host, port, {}, {}, {}, {});
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ExitCode::kConfig);
      return error.what();
    }
    return "";
  };
  EXPECT_EQ(problem("127.0.0.1", server->port()),
            str("cannot listen on 127.0.0.1:", server->port(), ": Address already in use"));
  EXPECT_EQ(problem("a\nb", 0), "\"a\\x0Ab\" is no IPv4 or IPv6 address to listen on");
  EXPECT_EQ(problem("", 0), "\"\" is no IPv4 or IPv6 address to listen on");
  EXPECT_EQ(problem("127.0.0.1", 65536), "there is no port 65536 to listen on");
  EXPECT_EQ(problem("192.0.2.1", 0),
            "cannot listen on 192.0.2.1:0: Cannot assign requested address");
}

TEST(HttpServerEnds, GoesOnWhenThereAreNoMoreFiles) {
  TestServer server;
  Client old = server.client();
  old.send(get("/echo"));
  EXPECT_EQ(old.read().status, 200);
  const int next = ::fcntl(0, F_DUPFD_CLOEXEC, 0);
  ::close(next);
  rlimit before{};
  ::getrlimit(RLIMIT_NOFILE, &before);
  const rlimit one_more{static_cast<rlim_t>(next) + 1, before.rlim_max};
  ::setrlimit(RLIMIT_NOFILE, &one_more);
  Client client = server.client();  // takes the last one, so the server gets none
  client.send(get("/echo"));
  for (int i = 0; i < 3; ++i) {
    old.send(get("/echo"));
    EXPECT_EQ(old.read().status, 200);
  }
  EXPECT_EQ(server->connections(), 1);
  EXPECT_FALSE(client.has_input());
  ::setrlimit(RLIMIT_NOFILE, &before);
  EXPECT_EQ(client.read().status, 200);
}

}  // namespace
}  // namespace tandem::testing
