// Every limit of a server, reached and crossed.
#include <gtest/gtest.h>

#include <deque>
#include <string>

#include "src/core/error.h"
#include "tests/serve/http/http_client.h"

namespace tandem::testing {
namespace {

using std::chrono::milliseconds;

TEST(HttpServerLimits, BytesOfABody) {
  TestServer server({.body_bytes = 1000});
  EXPECT_EQ(server.ask(post("/echo", std::string(1000, 'x'))).status, 200);
  EXPECT_EQ(server.ask(post("/echo", std::string(1001, 'x'))).status, 413);
  const std::string chunks = "POST /echo HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n";
  const std::string full = chunks + "3e7\r\n" + std::string(999, 'x') + "\r\n";
  EXPECT_EQ(server.ask(full + "1\r\nx\r\n0\r\n\r\n").status, 200);
  EXPECT_EQ(server.ask(full + "2\r\n").status, 413) << "before the bytes have come";
}

TEST(HttpServerLimits, AClientThatSendsTooMuchGetsItsAnswer) {
  TestServer server;
  Client client = server.client();
  client.send(post("/echo", std::string(8 << 20, 'x')));
  EXPECT_EQ(client.read().status, 413);
  EXPECT_EQ(client.read_to_end(), "");
}

TEST(HttpServerLimits, BytesOfAHeader) {
  TestServer server({.header_bytes = 500});
  const auto sized = [](size_t bytes) {
    return get("/echo", "A: " + std::string(bytes - get("/echo", "A: \r\n").size(), 'x') + "\r\n");
  };
  EXPECT_EQ(server.ask(sized(500)).status, 200);
  EXPECT_EQ(server.ask(sized(501)).status, 431);
  Client client = server.client();
  client.send(sized(500) + sized(500) + sized(501));
  EXPECT_EQ(client.read().status, 200);
  EXPECT_EQ(client.read().status, 200);
  EXPECT_EQ(client.read().status, 431);
}

TEST(HttpServerLimits, Connections) {
  TestServer server({.connections = 2});
  Client first = server.client(), second = server.client();
  for (Client* client : {&first, &second}) {
    client->send(get("/echo"));
    EXPECT_EQ(client->read().status, 200);
  }
  std::deque<Client> more;  // also more than the server lets linger
  for (int i = 0; i < 80; ++i) {
    more.push_back(server.client());
  }
  for (Client& client : more) {
    const Reply reply = client.read();
    EXPECT_EQ(reply.status, 503);
    EXPECT_EQ(reply.field("Connection"), "close");
    EXPECT_TRUE(reply.body.starts_with("{\"status\": 503"));
    EXPECT_EQ(client.read_to_end(), "");
  }
  first.send(get("/echo"));
  EXPECT_EQ(first.read().status, 200);
  more.clear();
  second.close();
  EXPECT_TRUE(server.has_connections(1));
  EXPECT_EQ(server.ask(get("/echo")).status, 200);
}

TEST(HttpServerLimits, TimeForARequestToArrive) {
  TestServer server({.arrive = milliseconds(50)});
  for (const std::string part : {"G", "GET / HTTP/1.1\r\nHost: a\r\n",
                                 "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\n\r\nx"}) {
    Client client = server.client();
    client.send(part);
    const Reply reply = client.read();
    EXPECT_EQ(reply.status, 408);
    EXPECT_EQ(client.read_to_end(), "");
    EXPECT_TRUE(server.ends_with(408));
  }
  Client client = server.client();
  client.send(get("/echo") + "G");
  EXPECT_EQ(client.read().status, 200);
  EXPECT_EQ(client.read().status, 408) << "and for the one that was pipelined";
  EXPECT_TRUE(server.has_connections(0)) << "though its clients did not hang up";
}

TEST(HttpServerLimits, SlowBytesGiveNoMoreTime) {
  HttpLimits limits;
  limits.arrive = milliseconds(50);
  limits.header_bytes = 1 << 30;
  TestServer server(limits);
  Client client = server.client();
  client.send("GET / HTTP/1.1\r\nA: ");
  EXPECT_TRUE(eventually([&] {
    client.try_send("x");
    return client.has_input();
  }));
  EXPECT_EQ(client.read().status, 408);
}

TEST(HttpServerLimits, IdleConnectionsAreClosedSilently) {
  TestServer server({.arrive = milliseconds(50)});
  Client client = server.client();
  EXPECT_EQ(client.read_to_end(), "");
  Client other = server.client();
  other.send(get("/echo"));
  EXPECT_EQ(other.read().status, 200);
  EXPECT_EQ(other.read_to_end(), "");
  EXPECT_EQ(server.statuses(), std::vector<int>{200});
  EXPECT_TRUE(server.has_connections(0));
}

TEST(HttpServerLimits, TimeForAWholeAnswer) {
  TestServer server({.answer = milliseconds(250)});
  Client client = server.client();
  client.send(get("/hold") + get("/echo"));
  const auto answer = server.held();
  EXPECT_EQ(client.read().status, 504);
  EXPECT_TRUE(answer->is_gone());
  answer->send(200, "", "too late");
  EXPECT_EQ(client.read_to_end(), "");
  EXPECT_TRUE(server.ends_with(504));
}

TEST(HttpServerLimits, TimeForAStreamedAnswer) {
  TestServer server({.answer = milliseconds(250)});
  Client client = server.client();
  client.send(get("/hold"));
  const auto answer = server.held();
  answer->begin(200, "");
  EXPECT_TRUE(eventually([&] {  // pieces give no more time
    answer->write("x");
    return answer->is_gone();
  }));
  const Reply reply = client.read();
  EXPECT_EQ(reply.status, 200);
  EXPECT_TRUE(reply.is_cut);
  EXPECT_TRUE(server.ends_with(504));
  EXPECT_TRUE(server.has_connections(0));
}

TEST(HttpServerLimits, AStreamThatIsNotReadIsCut) {
  constexpr int64_t kUnread = 16 << 10;
  TestServer server({.unread_bytes = kUnread});
  Client client(server->port(), 4096);
  client.send(get("/hold"));
  const auto answer = server.held();
  answer->begin(200, "");
  int64_t bytes = 0;
  constexpr int64_t kPiece = 1000, kBuffers = 1 << 20;
  for (; !answer->is_gone() && bytes < 100 * kBuffers; bytes += kPiece) {
    answer->write(std::string(kPiece, 'x'));
  }
  EXPECT_GT(bytes, kUnread);
  EXPECT_LT(bytes, kUnread + kBuffers);
  EXPECT_TRUE(server.ends_with(499));
  EXPECT_TRUE(server.has_connections(0));
  EXPECT_FALSE(client.read_to_end().ends_with("0\r\n\r\n"));
}

// A client that stops reading after the server has taken all pieces is closed, too.
TEST(HttpServerLimits, AStreamThatIsNoLongerReadIsCut) {
  TestServer server({.unread_bytes = 16 << 10});
  Client client(server->port(), 4096);
  client.send(get("/hold"));
  const auto answer = server.held();
  answer->begin(200, "");
  for (int i = 0; i < 100; ++i) {
    answer->write(std::string(1000, 'x'));
    for (size_t come = 0; come < 1000;) {
      come += client.read_some().size();
    }
    ASSERT_FALSE(answer->is_gone()) << "a client that reads what comes is no slow reader";
  }
  EXPECT_TRUE(eventually([&] {
    answer->write(std::string(1000, 'x'));
    return answer->is_gone();
  }));
  EXPECT_TRUE(server.ends_with(499));
  EXPECT_TRUE(server.has_connections(0));
}

TEST(HttpServerLimits, TimeToReadAWholeAnswer) {
  TestServer patient;
  EXPECT_EQ(patient.ask(get("/big")).body.size(), size_t{4} << 20);
  TestServer server({.arrive = milliseconds(50)});
  Client client(server->port(), 4096);
  client.send(get("/big"));
  EXPECT_TRUE(server.ends_with(499)) << "it reads nothing";
  EXPECT_TRUE(server.has_connections(0));
}

}  // namespace
}  // namespace tandem::testing
