// Damaged requests at random: each gets an answer or a close, and the server is as good as before.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <random>
#include <string>
#include <vector>

#include "src/core/error.h"
#include "tests/serve/http/http_client.h"

namespace tandem {
namespace {

using testing::Client;
using testing::get;
using testing::post;
using testing::TestServer;

constexpr int kRequests = 20000;

class Damage {
 public:
  explicit Damage(unsigned seed) : random_(seed) {}

  size_t below(size_t bound) {
    return std::uniform_int_distribution<size_t>(0, bound - 1)(random_);
  }
  template <class T>
  const T& one_of(const std::vector<T>& values) {
    return values[below(values.size())];
  }

  // A good request after some damage, or two of them.
  std::string request() {
    std::string bytes = one_of(good_);
    if (below(4) == 0) {
      bytes += one_of(good_);
    }
    for (size_t changes = below(4); changes > 0; --changes) {
      change(bytes);
    }
    return bytes;
  }

 private:
  void change(std::string& bytes) {
    const size_t place = below(bytes.size() + 1),
                 size = below(1 + std::min<size_t>(bytes.size(), 20));
    switch (below(7)) {
      case 0:
        if (place < bytes.size()) {
          bytes[place] = static_cast<char>(below(256));
        }
        break;
      case 1:
        bytes.insert(place, 1, static_cast<char>(below(256)));
        break;
      case 2:
        bytes.erase(place, size);
        break;
      case 3:
        bytes.insert(below(bytes.size() + 1), bytes.substr(place, size));
        break;
      case 4:
        bytes.insert(place, one_of(words_));
        break;
      case 5: {  // where a line begins
        const size_t end = bytes.find("\r\n", place);
        bytes.insert(end == std::string::npos ? 0 : end + 2, one_of(words_));
        break;
      }
      default:
        bytes.resize(place);
    }
  }

  std::mt19937 random_;
  const std::string chunked_ =
      "POST /echo HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n";
  const std::vector<std::string> good_{
      get("/echo"),
      get("/echo?a=%00", "Accept: text/event-stream\r\nConnection: close\r\n"),
      get("/none"),
      get("/throw"),
      get("/drop"),
      "HEAD /echo HTTP/1.1\r\nHost: a\r\n\r\n",
      "GET /echo HTTP/1.0\r\nConnection: keep-alive\r\n\r\n",
      post("/echo", "some body", "Content-Type: application/json\r\n"),
      post("/echo", "more", "Expect: 100-continue\r\n"),
      post("/echo", std::string(100, 'x')),
      chunked_ + "3\r\nabc\r\n0\r\n\r\n",
      chunked_ + "a;b=\"c\"\r\n0123456789\r\n1\r\nx\r\n0;d\r\nTrailer: e\r\n\r\n",
  };
  const std::vector<std::string> words_{
      "\r\n",
      "\n",
      "\r",
      "\r\n\r\n",
      " ",
      "\t",
      ":",
      std::string(1, '\0'),
      "Content-Length: 5\r\n",
      "Content-Length: 18446744073709551616\r\n",
      "Transfer-Encoding: chunked\r\n",
      "Transfer-Encoding: gzip\r\n",
      "Expect: 100-continue\r\n",
      "Connection: close\r\n",
      "Host: b\r\n",
      "Expect: b\r\n",
      "HTTP/1.0",
      "HTTP/2.0",
      "GET / HTTP/2.0\r\n",
      "http://",
      "0\r\n\r\n",
      "ffffffffffffffff\r\n",
      ";",
      "%00",
      "\xff\xfe",
      std::string(600, 'y'),
      std::string(2000, '0'),
  };
};

TEST(HostileHttp, EveryRequestGetsAnAnswerOrAClose) {
  HttpLimits limits;
  limits.body_bytes = 300;
  limits.header_bytes = 500;
  TestServer server(limits);
  std::map<int, int> counts;
  Damage damage(7);
  for (int i = 0; i < kRequests; ++i) {
    Client client = server.client();
    const std::string request = damage.request();
    // In one piece or two. The server may close before the second one.
    const size_t cut = damage.below(3) == 0 ? damage.below(request.size() + 1) : request.size();
    if (client.try_send(request.substr(0, cut))) {
      client.try_send(request.substr(cut));
    }
    // Then comes what is no part of any request, or the end.
    const bool hangs_up = damage.below(20) == 0;
    hangs_up ? client.half_close() : static_cast<void>(client.try_send(std::string(1000, '\0')));
    const std::string answer = client.read_to_end();
    ASSERT_TRUE((hangs_up && answer.empty()) || answer.starts_with("HTTP/1.1 ")) << i << answer;
    ++counts[answer.empty() ? 0 : std::stoi(answer.substr(9))];
    client.reset();  // leaves no port in TIME_WAIT
    if (i % 1000 == 0) {
      EXPECT_EQ(server.ask(get("/echo")).status, 200) << i;
    }
  }
  EXPECT_TRUE(server.has_connections(0));
  EXPECT_EQ(server.ask(get("/echo")).body, "GET /echo ");
  for (const int status : {0, 200, 204, 400, 413, 417, 431, 500, 501, 505}) {
    EXPECT_GE(counts[status], 5) << "the damage must reach every answer: " << status;
  }
  counts.erase(100);  // comes where a body comes later than its header
  EXPECT_EQ(counts.size(), 10u);
}

}  // namespace
}  // namespace tandem
