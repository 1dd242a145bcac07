// What a client and a handler see of each other when nothing is at its limit.
#include <gtest/gtest.h>

#include <atomic>
#include <deque>
#include <string>
#include <thread>
#include <vector>

#include "src/core/error.h"
#include "src/serve/http/http_server.h"
#include "tests/serve/http/http_client.h"

namespace tandem::testing {
namespace {

TEST(HttpServer, AnswersOneRequestAfterAnother) {
  TestServer server;
  Client client = server.client();
  for (int i = 0; i < 3; ++i) {
    client.send(post("/echo?q=1", "body", "Content-Type: text/x\r\n"));
    const Reply reply = client.read();
    EXPECT_EQ(reply.status, 200);
    EXPECT_EQ(reply.body, "POST /echo body");
    EXPECT_EQ(reply.field("X-Type"), "text/x");
    EXPECT_EQ(reply.field("Content-Type"), "text/plain");
    EXPECT_EQ(reply.field("Connection"), "");
    EXPECT_TRUE(reply.field("Date").ends_with(" GMT")) << reply.head;
    EXPECT_TRUE(reply.head.starts_with("HTTP/1.1 200 OK\r\n"));
    EXPECT_EQ(server->connections(), 1);
    EXPECT_TRUE(server.ends_with(200));
  }
  client.send(get("/echo", "Connection: close\r\n"));
  const Reply last = client.read();
  EXPECT_EQ(last.field("Connection"), "close");
  EXPECT_EQ(client.read_to_end(), "");
  client.close();
  EXPECT_TRUE(server.has_connections(0));
}

TEST(HttpServer, AnswersPipelinedRequestsInOrder) {
  TestServer server;
  Client client = server.client();
  std::string requests;
  for (int i = 0; i < 300; ++i) {
    requests += i % 3 == 0 ? get(str("/echo/", i)) : post(str("/echo/", i), str("body ", i));
  }
  client.send(requests);
  for (int i = 0; i < 300; ++i) {
    const Reply reply = client.read();
    ASSERT_EQ(reply.status, 200) << i;
    EXPECT_EQ(reply.body,
              i % 3 == 0 ? str("GET /echo/", i, " ") : str("POST /echo/", i, " body ", i));
  }
}

TEST(HttpServer, HandlesOneRequestOfAConnectionAtATime) {
  TestServer server;
  Client client = server.client();
  client.send(get("/hold") + get("/hold") + get("/echo"));
  for (int i = 0; i < 2; ++i) {
    const auto answer = server.held();
    EXPECT_EQ(server.ask(get("/echo")).status, 200) << "others are not held up";
    EXPECT_EQ(server.count_held(), 0u);
    EXPECT_FALSE(answer->is_gone());
    answer->send(200, "", str(i));
    answer->send(200, "", "nothing comes of it");
    EXPECT_EQ(client.read().body, str(i));
  }
  EXPECT_EQ(client.read().body, "GET /echo ");
}

TEST(HttpServer, ReadsFarAheadWithoutLosingBytes) {
  TestServer server;
  Client client = server.client();
  client.send(get("/hold"));
  const auto answer = server.held();
  const std::string body(300 << 10, 'x');
  std::thread sender([&] {
    for (int i = 0; i < 3; ++i) {
      client.send(post("/echo", body));
    }
  });
  EXPECT_EQ(server.ask(get("/echo")).status, 200);
  answer->send(200, "", "first");
  EXPECT_EQ(client.read().body, "first");
  for (int i = 0; i < 3; ++i) {
    EXPECT_EQ(client.read().body, "POST /echo " + body);
  }
  sender.join();
}

TEST(HttpServer, TakesRequestsInPiecesAndInChunks) {
  TestServer server;
  Client client = server.client();
  const std::string request =
      "POST /echo HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n"
      "3;x=y\r\nabc\r\n2\r\nde\r\n0\r\nTrailer: t\r\n\r\n";
  for (const char byte : request + request) {
    client.send(std::string_view(&byte, 1));
  }
  EXPECT_EQ(client.read().body, "POST /echo abcde");
  EXPECT_EQ(client.read().body, "POST /echo abcde");
}

TEST(HttpServer, StreamsAnswers) {
  TestServer server;
  Client client = server.client();
  client.send(get("/hold") + get("/echo"));
  const auto answer = server.held();
  answer->write("before it begins nothing is written");
  answer->begin(200, "text/event-stream", {{"X-Name", "value"}});
  answer->begin(500, "");
  answer->send(500, "", "");
  std::string head = client.read_some();
  while (!head.ends_with("\r\n\r\n")) {
    head += client.read_some();
  }
  EXPECT_NE(head.find("Transfer-Encoding: chunked\r\n"), std::string::npos);
  EXPECT_NE(head.find("X-Name: value\r\n"), std::string::npos);
  const std::vector<std::pair<std::string, std::string>> pieces{
      {"data: 1\n\n", "9\r\ndata: 1\n\n\r\n"},
      {std::string(17, 'x'), "11\r\n" + std::string(17, 'x') + "\r\n"}};
  for (const auto& [piece, chunk] : pieces) {  // each comes before the next one is written
    answer->write(piece);
    answer->write("");
    std::string come;
    while (come.size() < chunk.size()) {
      come += client.read_some();
    }
    EXPECT_EQ(come, chunk);
  }
  EXPECT_EQ(server.statuses().size(), 0u);
  answer->end();
  answer->write("after its end nothing is written");
  std::string rest;
  while (rest.find("GET /echo") == std::string::npos) {
    rest += client.read_some();
  }
  EXPECT_TRUE(rest.starts_with("0\r\n\r\nHTTP/1.1 200")) << rest;
  EXPECT_TRUE(server.ends_with(200));
}

TEST(HttpServer, JoinsPiecesThatAreWrittenAtOnce) {
  TestServer server;
  Client client = server.client();
  client.send(get("/hold") + get("/echo"));
  const auto answer = server.held();
  answer->begin(201, "");
  std::string sum;
  for (int i = 0; i < 1000; ++i) {
    answer->write(str(i, " "));
    sum += str(i, " ");
  }
  answer->end();
  const Reply reply = client.read();
  EXPECT_EQ(reply.status, 201);
  EXPECT_EQ(reply.body, sum);
  EXPECT_EQ(client.read().status, 200);
}

TEST(HttpServer, SpeaksHttp10) {
  TestServer server;
  const Reply reply = server.ask("GET /echo HTTP/1.0\r\n\r\n");
  EXPECT_EQ(reply.body, "GET /echo ");
  EXPECT_EQ(reply.field("Connection"), "close");
  Client client = server.client();
  for (int i = 0; i < 2; ++i) {
    client.send("GET /echo HTTP/1.0\r\nConnection: keep-alive\r\n\r\n");
    EXPECT_EQ(client.read().field("Connection"), "keep-alive");
  }
  client.send("GET /hold HTTP/1.0\r\nConnection: keep-alive\r\n\r\n");
  const auto answer = server.held();
  answer->begin(200, "");
  answer->write("one ");
  std::string head = client.read_some();
  while (!head.ends_with("one ")) {
    head += client.read_some();
  }
  answer->write("two");
  answer->end();
  EXPECT_NE(head.find("Connection: close\r\n"), std::string::npos);
  EXPECT_EQ(head.find("chunked"), std::string::npos);
  EXPECT_EQ(client.read_to_end(), "two");
}

TEST(HttpServer, LeavesOutBodiesThatMayNotBe) {
  TestServer server;
  Client client = server.client();
  const auto head = [](const std::string& path) {
    return "HEAD " + path + " HTTP/1.1\r\nHost: a\r\n\r\n";
  };
  client.send(head("/echo") + head("/hold") + get("/none") + head("/throw"));
  const Reply whole = client.read(false);
  EXPECT_EQ(whole.field("Content-Length"), str(std::string("GET /echo ").size()));
  const auto answer = server.held();
  answer->begin(200, "text/event-stream");
  EXPECT_EQ(client.read(false).field("Content-Type"), "text/event-stream");
  EXPECT_TRUE(testing::eventually([&] { return answer->is_gone(); })) << "nobody waits for more";
  answer->write("piece");
  const Reply none = client.read();
  EXPECT_EQ(none.status, 204);
  EXPECT_EQ(none.field("Content-Length"), "");
  const Reply error = client.read(false);
  EXPECT_EQ(error.status, 500);
  EXPECT_NE(error.field("Content-Length"), "0");
  EXPECT_EQ(client.read_to_end(), "");
}

TEST(HttpServer, TellsAClientThatWaitsToGoOn) {
  TestServer server;
  Client client = server.client();
  for (int i = 0; i < 2; ++i) {
    const std::string request = post("/echo", "body", "Expect: 100-continue\r\n");
    client.send(request.substr(0, request.size() - 4));
    EXPECT_EQ(client.read().head, "HTTP/1.1 100 Continue\r\n\r\n");
    client.send("body");
    EXPECT_EQ(client.read().body, "POST /echo body");
  }
  client.send(post("/echo", "body", "Expect: 100-continue\r\n"));
  Reply reply = client.read();
  while (reply.status == 100) {  // the body may come after its header
    reply = client.read();
  }
  EXPECT_EQ(reply.body, "POST /echo body");
}

TEST(HttpServer, AnswersErrorsAndCloses) {
  TestServer server;
  const std::vector<std::pair<std::string, int>> requests{
      {"nonsense\r\n\r\n", 400},
      {get("/echo", "Content-Length: 1\r\nContent-Length: 1\r\n"), 400},
      {post("/echo", "x", "Transfer-Encoding: chunked\r\n"), 400},
      {get("/echo", "Content-Length: 9223372036854775808\r\n"), 413},
      {get("/echo", "Expect: 100-continue\r\nContent-Length: 1048577\r\n"), 413},
      {get("/echo", "Expect: nothing\r\n"), 417},
      {get("/echo", "Transfer-Encoding: gzip\r\n"), 501},
      {"GET / HTTP/3.0\r\n\r\n", 505},
      {get("/throw"), 500},
      {get("/drop"), 500},
      {get("/bad-header"), 500},
  };
  for (const auto& [request, status] : requests) {
    Client client = server.client();
    client.send(request + get("/echo"));
    const Reply reply = client.read();
    EXPECT_EQ(reply.status, status) << request;
    EXPECT_TRUE(reply.body.starts_with(str("{\"status\": ", status))) << reply.body;
    EXPECT_EQ(reply.field("Content-Type"), "application/json");
    EXPECT_EQ(reply.field("Connection"), "close");
    EXPECT_EQ(client.read_to_end(), "") << "later bytes are not another request";
    EXPECT_TRUE(server.ends_with(status));
  }
  EXPECT_TRUE(server.has_connections(0));
}

TEST(HttpServer, EndsAnswersThatAreLetGo) {
  TestServer server;
  Client client = server.client();
  client.send(get("/hold"));
  EXPECT_TRUE(server.held()) << "and let go";
  EXPECT_EQ(client.read().status, 500);
  EXPECT_TRUE(server.ends_with(500));
  Client other = server.client();
  other.send(get("/hold"));
  auto answer = server.held();
  answer->begin(200, "");
  answer->write("piece");
  other.read_some();
  answer.reset();
  EXPECT_FALSE(other.read_to_end().ends_with("0\r\n\r\n"));
  EXPECT_TRUE(server.ends_with(500));
  client.close();
  EXPECT_TRUE(server.has_connections(0));
}

// ThreadSanitizer looks at this one, too.
TEST(HttpServer, SeveralThreadsMakeAnswers) {
  constexpr int kClients = 6, kRequests = 50;
  TestServer server;
  std::deque<std::thread> threads;
  std::atomic<int> good = 0;
  for (int i = 0; i < kClients; ++i) {
    threads.emplace_back([&server, &good, i] {
      Client client = server.client();
      for (int j = 0; j < kRequests; ++j) {
        client.send(get("/hold", str("Nr: ", i, "\r\n")));
        good += client.read().body == "one two three";
      }
    });
    threads.emplace_back([&server] {
      for (int j = 0; j < kRequests; ++j) {
        const auto answer = server.held();
        answer->begin(200, "text/plain");
        for (const char* const piece : {"one ", "two ", "three"}) {
          answer->write(piece);
        }
        answer->end();
      }
    });
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
  EXPECT_EQ(good, kClients * kRequests);
}

TEST(HttpServer, ListensOnIpv6) {
  TestServer server({}, "::1");
  Client client(server->port(), 0, "::1");
  client.send(get("/echo"));
  EXPECT_EQ(client.read().status, 200);
}

}  // namespace
}  // namespace tandem::testing
