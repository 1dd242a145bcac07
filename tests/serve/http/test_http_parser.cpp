// What the parser reads, what it refuses with which status, and that pieces make no difference.
#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "src/core/error.h"
#include "src/serve/http/http_parser.h"

namespace tandem {
namespace {

constexpr int64_t kBody = 100, kHeader = 300;

HttpLimits limits() {
  HttpLimits limits;
  limits.body_bytes = kBody;
  limits.header_bytes = kHeader;
  return limits;
}

// All that is known of a request after some bytes; the status is 0 where it needs more.
struct Outcome {
  int status = 0;
  size_t taken = 0;
  bool is_head = false, is_http_11 = false, keeps_alive = false;
  HttpRequest request{};

  friend bool operator==(const Outcome& a, const Outcome& b) {
    const HttpRequest &p = a.request, &q = b.request;
    return a.status == b.status && a.taken == b.taken && a.is_head == b.is_head &&
           a.is_http_11 == b.is_http_11 && a.keeps_alive == b.keeps_alive && p.path == q.path &&
           p.method == q.method && p.content_type == q.content_type && p.body == q.body;
  }
};

// `step` bytes at a time; of a refused request it does not matter how many bytes were taken.
Outcome read(const std::string& bytes, size_t step) {
  HttpParser parser(limits());
  Outcome outcome;
  try {
    for (size_t begin = 0; begin < bytes.size() && !parser.is_complete(); begin += step) {
      outcome.taken += parser.take(std::string_view(bytes).substr(begin, step));
    }
  } catch (const HttpError& error) {
    EXPECT_STRNE(error.what(), "");
    outcome.taken = 0;
    outcome.status = error.status;
    return outcome;
  }
  if (parser.is_complete()) {
    outcome.status = 200;
    outcome.is_head = parser.is_head();
    outcome.is_http_11 = parser.is_http_11();
    outcome.keeps_alive = parser.keeps_alive();
    outcome.request = parser.next();
  }
  return outcome;
}

// Reads the bytes in pieces of several lengths, which give the same.
Outcome read(const std::string& bytes) {
  const Outcome whole = read(bytes, std::max<size_t>(bytes.size(), 1));
  for (const size_t step : {1, 2, 3, 7, 64}) {
    EXPECT_TRUE(read(bytes, step) == whole) << step << " bytes at a time of\n" << bytes;
  }
  return whole;
}

std::string get(const std::string& fields = "") {
  return "GET / HTTP/1.1\r\nHost: a\r\n" + fields + "\r\n";
}

std::string post(const std::string& fields, const std::string& body = "") {
  return "POST /v1 HTTP/1.1\r\nHost: a\r\n" + fields + "\r\n" + body;
}

std::string chunked(const std::string& body) {
  return post("Transfer-Encoding: chunked\r\n", body);
}

TEST(HttpParser, ReadsARequest) {
  const std::string bytes =
      "POST /v1/chat?a=%41&b?c HTTP/1.1\r\nHost: x\r\nContent-Type:Application/JSON ; x=Y \r\n"
      "ACCEPT:\ttext/event-stream\r\nContent-Length: 4\r\n\r\nbodyGET";
  const Outcome outcome = read(bytes);
  EXPECT_EQ(outcome.status, 200);
  EXPECT_EQ(outcome.taken, bytes.size() - 3) << "the next request is left alone";
  EXPECT_EQ(outcome.request.method, "POST");
  EXPECT_EQ(outcome.request.path, "/v1/chat");
  EXPECT_EQ(outcome.request.content_type, "application/json");
  EXPECT_EQ(outcome.request.body, "body");
  EXPECT_TRUE(outcome.is_http_11 && outcome.keeps_alive && !outcome.is_head);
}

TEST(HttpParser, ReadsTargetsAsProxiesGetThem) {
  const auto target = [](const std::string& text) {
    const Outcome outcome = read("GET " + text + " HTTP/1.0\r\n\r\n");
    return str(outcome.status, " ", outcome.request.path);
  };
  EXPECT_EQ(target("http://host:80/a?b"), "200 /a");
  EXPECT_EQ(target("HTTPS://host"), "200 /");
  EXPECT_EQ(target("http://host?q"), "200 /");
  EXPECT_EQ(target("/http://host"), "200 /http://host");
  EXPECT_EQ(target("*"), "400 ");
  EXPECT_EQ(target("host:80"), "400 ");
  EXPECT_EQ(target("ftp://host/"), "400 ");
}

TEST(HttpParser, KnowsWhenTheConnectionIsKept) {
  const auto kept = [](const std::string& version, const std::string& fields) {
    const Outcome outcome = read("GET / HTTP/" + version + "\r\nHost: a\r\n" + fields + "\r\n");
    EXPECT_EQ(outcome.status, 200);
    return outcome.keeps_alive;
  };
  EXPECT_TRUE(kept("1.1", ""));
  EXPECT_FALSE(kept("1.1", "Connection: close\r\n"));
  EXPECT_FALSE(kept("1.1", "Connection: Keep-Alive , CLOSE\r\n"));
  EXPECT_TRUE(kept("1.1", "Connection: closed\r\n"));
  EXPECT_FALSE(kept("1.0", ""));
  EXPECT_TRUE(kept("1.0", "Connection: keep-alive\r\n"));
  EXPECT_FALSE(kept("1.0", "Connection: keep-alive\r\nConnection: close\r\n"));
  const Outcome head = read("HEAD / HTTP/1.1\r\nHost: a\r\n\r\n");
  EXPECT_TRUE(head.is_head);
  EXPECT_EQ(head.request.method, "GET");
}

TEST(HttpParser, ReadsChunks) {
  const std::string body =
      "3\r\nabc\r\n00A;x=\"y\" ; z\r\n0123456789\r\n0;last\r\nTrailer: t\r\n\r\n";
  const Outcome outcome = read(chunked(body));
  EXPECT_EQ(outcome.status, 200);
  EXPECT_EQ(outcome.request.body, "abc0123456789");
  EXPECT_EQ(read(chunked("0\r\n\r\n")).status, 200);
  EXPECT_EQ(read(chunked("0\r\n")).status, 0);
  for (const std::string bad :
       {"\r\n", "g\r\n", "-1\r\n", "0x1\r\n", " 1\r\n", "1 1\r\n", "1,\r\n", "1\r\nab\r\n",
        "1\r\na\n0\r\n", "11111111111111111\r\n", "1\n", "0\r\nno field\r\n\r\n",
        "0\r\n: v\r\n\r\n", "1;\x01\r\n", "1;a\nb\r\n"}) {
    EXPECT_EQ(read(chunked(bad)).status, 400) << bad;
  }
}

TEST(HttpParser, RefusesWhatOthersMightReadOtherwise) {
  const std::vector<std::pair<std::string, int>> refused{
      {"GET / HTTP/1.1\r\n\r\n", 400},
      {get("Host: b\r\n"), 400},
      {"GET / HTTP/1.1\nHost: a\n\n", 400},
      {"GET / HTTP/1.1\r\nHost: a\r\n\n", 400},
      {"GET / HTTP/1.1\r\nHost: a\rb\r\n\r\n", 400},
      {"GET / HTTP/1.1\r\nHost: a\r\r\n\r\n", 400},
      {get(" folded: x\r\n"), 400},
      {get("A: b\r\n c\r\n"), 400},
      {get("A: b\nC: d\r\n"), 400},
      {get("Name : x\r\n"), 400},
      {get(": x\r\n"), 400},
      {get("Name\r\n"), 400},
      {get("N\xc3\xa4me: x\r\n"), 400},
      {get(std::string("A: \0\r\n", 6)), 400},
      {get("A: \x7f\r\n"), 400},
      {get("A: \x1b[31m\r\n"), 400},
      {post("Content-Length: 1\r\nTransfer-Encoding: chunked\r\n", "0\r\n\r\n"), 400},
      {post("Transfer-Encoding: chunked\r\nContent-Length: 1\r\n", "0\r\n\r\n"), 400},
      {post("Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n"), 400},
      {post("Transfer-Encoding: gzip, chunked\r\n"), 501},
      {post("Transfer-Encoding: chunked, chunked\r\n"), 501},
      {post("Transfer-Encoding: chunked, gzip\r\n"), 501},
      {post("Transfer-Encoding: gzip\r\nContent-Length: 1\r\n", "x"), 501},
      {post("Transfer-Encoding: identity\r\n"), 501},
      {"POST / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 400},
      {post("Content-Length: 1\r\nContent-Length: 1\r\n", "x"), 400},
      {post("Content-Length: 1\r\nContent-Length: 2\r\n", "xy"), 400},
      {post("Content-Length: 1, 1\r\n", "x"), 400},
      {post("Content-Length:\r\n"), 400},
      {post("Content-Length: -1\r\n"), 400},
      {post("Content-Length: +1\r\n"), 400},
      {post("Content-Length: 0x1\r\n"), 400},
      {post("Content-Length: 1 1\r\n"), 400},
      {post("Content-Length: 9223372036854775807\r\n"), 413},
      {post("Content-Length: 9223372036854775808\r\n"), 413},
      {post("Content-Length: 18446744073709551617\r\n"), 413},
      {post("Content-Length: 99999999999999999999999999999999\r\n"), 413},
      {post("Expect: a miracle\r\n"), 417},
      {"GET  HTTP/1.1\r\n", 400},
      {"GET /\r\n", 400},
      {"GET\r\n", 400},
      {" GET / HTTP/1.1\r\n", 400},
      {"GET / a HTTP/1.1\r\n", 400},
      {"GET /\xff HTTP/1.1\r\n", 400},
      {"GET /\t HTTP/1.1\r\n", 400},
      {std::string("GET /\0 HTTP/1.1\r\n", 17), 400},
      {"G(T / HTTP/1.1\r\n", 400},
      {"GET / HTTP/1.1 \r\n", 400},
      {"GET / http/1.1\r\n", 400},
      {"GET / HTTP/1.10\r\n", 400},
      {"GET / HTTP/2.0\r\n", 505},
      {"PRI * HTTP/2.0\r\n", 505},
      {"GET / HTTP/1.2\r\n", 505},
      {"\x16\x03\x01\x02", 400},  // TLS
  };
  for (const auto& [bytes, status] : refused) {
    EXPECT_EQ(read(bytes).status, status) << bytes;
  }
}

TEST(HttpParser, BodiesHaveALimit) {
  const std::string full(kBody, 'x');
  EXPECT_EQ(read(post("Content-Length: 100\r\n", full)).request.body, full);
  EXPECT_EQ(read(post("Content-Length: 0000000000000000000000100\r\n", full)).request.body, full);
  EXPECT_EQ(read(post("Content-Length: 101\r\n")).status, 413);
  EXPECT_EQ(read(chunked("64\r\n" + full + "\r\n0\r\n\r\n")).request.body, full);
  EXPECT_EQ(read(chunked("65\r\n")).status, 413);
  EXPECT_EQ(read(chunked("63\r\n" + full.substr(1) + "\r\n1\r\n")).status, 0);
  EXPECT_EQ(read(chunked("63\r\n" + full.substr(1) + "\r\n2\r\n")).status, 413);
  EXPECT_EQ(read(chunked("ffffffffffffffff\r\n")).status, 413);
  EXPECT_EQ(read(chunked("1\r\nx\r\nffffffffffffffff\r\n")).status, 413);
}

// A request whose header has so many bytes.
std::string sized(int64_t bytes) {
  const int64_t rest = bytes - std::ssize(get("A: \r\n"));
  return get("A: " + std::string(static_cast<size_t>(rest), 'x') + "\r\n");
}

TEST(HttpParser, HeadersHaveALimit) {
  EXPECT_EQ(read(sized(kHeader)).status, 200);
  EXPECT_EQ(read(sized(kHeader + 1)).status, 431);
  EXPECT_EQ(read("GET /" + std::string(kHeader, 'x')).status, 431) << "also a line without an end";
  EXPECT_EQ(read("\r\n\r\n" + sized(kHeader - 4)).status, 200) << "empty lines count";
  EXPECT_EQ(read("\r\n\r\n" + sized(kHeader - 3)).status, 431);
  std::string lines;
  for (int64_t i = 0; i < kHeader; ++i) {
    lines += "\r\n";
  }
  EXPECT_EQ(read(lines).status, 431);
}

TEST(HttpParser, ExtensionsAndTrailersOfChunksHaveALimit) {
  const auto room = static_cast<size_t>(kHeader - std::ssize(chunked("")));
  const std::string trailer = "A: " + std::string(room - 7, 'x') + "\r\n";
  EXPECT_EQ(read(chunked("0\r\n" + trailer + "\r\n")).status, 200);
  EXPECT_EQ(read(chunked("0\r\nA" + trailer + "\r\n")).status, 431);
  // 18 bytes of each line are free, for sixteen digits and the end of the line.
  const std::string extension = "1;" + std::string(room + 18 - 4, 'x') + "\r\n";
  EXPECT_EQ(read(chunked(extension + "a\r\n")).status, 0);
  EXPECT_EQ(read(chunked("0" + extension)).status, 431);
  EXPECT_EQ(read(chunked("1;" + std::string(kHeader, 'x'))).status, 431);
  EXPECT_EQ(read(chunked(extension + "a\r\n0\r\nA: b\r\n")).status, 431) << "they add up";
  std::string tiny;
  for (int64_t i = 0; i < kBody; ++i) {
    tiny += "0000000000000001\r\nx\r\n";
  }
  EXPECT_EQ(read(chunked(tiny + "0\r\n\r\n")).request.body, std::string(kBody, 'x'));
}

TEST(HttpParser, SaysOnceThatTheClientWaits) {
  const auto waits = [](const std::string& bytes) {
    HttpParser parser(limits());
    parser.take(bytes);
    const bool first = parser.must_continue();
    EXPECT_FALSE(parser.must_continue());
    return first;
  };
  EXPECT_TRUE(waits(post("Expect: 100-Continue\r\nContent-Length: 1\r\n")));
  EXPECT_TRUE(waits(post("Expect: 100-continue\r\nTransfer-Encoding: chunked\r\n")));
  EXPECT_FALSE(waits(post("Expect: 100-continue\r\nContent-Length: 2\r\n", "x"))) << "it does not";
  EXPECT_FALSE(waits(post("Expect: 100-continue\r\n")));
  EXPECT_FALSE(waits(post("Content-Length: 1\r\n")));
  EXPECT_FALSE(waits("POST / HTTP/1.0\r\nExpect: 100-continue\r\nContent-Length: 1\r\n\r\n"));
  HttpParser parser(limits());
  const std::string bytes = post("Expect: 100-continue\r\nContent-Length: 1\r\n");
  for (const char byte : bytes) {
    EXPECT_FALSE(parser.must_continue());
    parser.take(std::string_view(&byte, 1));
  }
  EXPECT_TRUE(parser.must_continue());
}

TEST(HttpParser, ForgetsTheRequestBefore) {
  HttpParser parser(limits());
  parser.take(post("Connection: close\r\nContent-Type: x\r\nContent-Length: 2\r\n", "xy"));
  EXPECT_EQ(parser.next().body, "xy");
  EXPECT_FALSE(parser.is_complete());
  parser.take("\r\n" + get());
  ASSERT_TRUE(parser.is_complete());
  EXPECT_TRUE(parser.keeps_alive());
  const HttpRequest request = parser.next();
  EXPECT_EQ(request.body + request.content_type, "");
  EXPECT_EQ(request.path, "/");
}

}  // namespace
}  // namespace tandem
