// What clients are told while the model loads, hangs, ends and fails.
#include <gtest/gtest.h>

#include <algorithm>
#include <future>
#include <latch>

#include "src/core/error.h"
#include "src/serve/text_requests.h"
#include "tests/support/harness.h"

namespace tandem::testing {
namespace {

using namespace std::chrono_literals;

// Keeps a whole answer.
class KeptAnswer final : public HttpAnswer {
 public:
  void send(int status, std::string, std::string body, HttpHeaders) override {
    order = ++answers;
    sent_.set_value({status, std::move(body)});
  }
  void begin(int, std::string, HttpHeaders) override {}
  void write(std::string) override {}
  void end() override {}
  bool is_gone() const override { return gone; }
  std::pair<int, std::string> wait() { return sent_.get_future().get(); }
  static inline std::atomic<int> answers = 0;
  std::atomic<int> order = 0;  // among all
  std::atomic<bool> gone = false;

 private:
  std::promise<std::pair<int, std::string>> sent_;
};

// Writes "b" after "b"; a step waits until it may go on.
class HeldDecoder final : public Decoder {
 public:
  explicit HeldDecoder(bool fails) : fails_(fails) {}
  int64_t slots() const override { return 2; }
  int64_t context() const override { return 8; }
  int64_t length(int32_t) const override { return 0; }
  void clear(int32_t) override {}
  Tensor step(std::span<const DecoderRow> rows) override {
    steps_.fetch_add(1);
    steps_.notify_all();
    if (steps_ == 1) {
      go_on.wait();
    }
    if (fails_) {
      throw std::runtime_error("broken");
    }
    const int64_t asked = std::ranges::count_if(rows, &DecoderRow::is_asked);
    const Tensor logits =
        Tensor::empty(test_memory(), {asked, 256}, DType::kF32, MemoryClass::kData);
    for (int64_t i = 0; i < logits.elements(); ++i) {
      logits.data<float>()[i] = i % 256 == 'b' ? 1.0F : 0.0F;
    }
    return logits;
  }
  void wait_for_a_step() const { steps_.wait(0); }
  std::latch go_on{1};

 private:
  bool fails_;
  std::atomic<int> steps_ = 0;
};

struct Endpoint {
  explicit Endpoint(bool fails = false, int64_t queue = 1)
      : decoder(fails), batch(decoder, test_stream(), 256), service(queue, metrics) {}
  std::shared_ptr<KeptAnswer> ask(const std::string& method, const std::string& path,
                                  const std::string& body = "") {
    auto answer = std::make_shared<KeptAnswer>();
    api.handle({.method = method, .path = path, .body = body}, answer);
    return answer;
  }
  std::shared_ptr<KeptAnswer> ask_for_text() {
    return ask("POST", "/v1/completions", R"({"prompt": "a", "max_tokens": 3, "temperature": 0})");
  }
  int ping() { return ask("GET", "/ping")->wait().first; }
  // Runs the service on a thread of its own.
  std::future<void> run() {
    service.open();
    return std::async(std::launch::async, [this] {
      service.run(
          batch, *decoding, [this] { return stops.load(); }, 10min);
    });
  }

  std::unique_ptr<Tokenizer> encoding = make_bytes_tokenizer(), decoding = make_bytes_tokenizer();
  HeldDecoder decoder;
  TextBatch batch;
  ServeMetrics metrics;
  TextService service;
  std::atomic<bool> stops = false;
  Api api{
      {.name = "model",
       .posts = text_posts(
           {.name = "model", .form = "plain", .context = 8, .tokenizer = encoding.get()}, service),
       .longest_step = 0ms},
      service,
      metrics};
};

TEST(Api, IsNotWellWhileTheModelLoadsHangsOrEnds) {
  Endpoint endpoint;
  EXPECT_EQ(endpoint.ping(), 503);
  EXPECT_EQ(endpoint.ask_for_text()->wait().first, 503);
  std::future<void> running = endpoint.run();
  EXPECT_EQ(endpoint.service.stalled(), 0ns);
  const auto text = endpoint.ask_for_text();
  endpoint.decoder.wait_for_a_step();
  EXPECT_GT(endpoint.service.stalled(), 0ns);
  EXPECT_EQ(endpoint.ping(), 503);
  const auto waiting = endpoint.ask_for_text();
  endpoint.stops = true;
  endpoint.decoder.go_on.count_down();
  const auto [status, body] = text->wait();
  EXPECT_EQ(status, 200);
  EXPECT_NE(body.find(R"("text":"bbb")"), std::string::npos) << body;
  EXPECT_EQ(waiting->wait().first, 503);
  running.get();
  EXPECT_EQ(endpoint.ping(), 503);
  for (const char* line : {"tandem_tokens_total 3\n", "tandem_first_token_seconds_count 1\n",
                           "\ntandem_token_seconds_count 2\n"}) {
    EXPECT_NE(endpoint.metrics.text().find(line), std::string::npos) << line;
  }
}

// Two texts fit. The request for one, which came later, needs not wait for all four of the other.
TEST(Api, ThoseWhoWaitTakeTurns) {
  Endpoint endpoint(false, 2);
  std::future<void> running = endpoint.run();
  const auto four = endpoint.ask("POST", "/v1/completions",
                                 R"({"prompt": "a", "max_tokens": 3, "temperature": 0, "n": 4})");
  endpoint.decoder.wait_for_a_step();
  const auto one = endpoint.ask_for_text();
  EXPECT_EQ(endpoint.ask_for_text()->wait().first, 429);  // after that one, which is in the queue
  endpoint.decoder.go_on.count_down();
  EXPECT_EQ(one->wait().first, 200);
  EXPECT_EQ(four->wait().first, 200);
  EXPECT_LT(one->order, four->order);
  endpoint.stops = true;
  running.get();
}

TEST(Api, AsManyAreReadLater) {
  std::latch begun{1}, go_on{1};
  const Api::Post post = [&](const HttpRequest&, const std::shared_ptr<HttpAnswer>& answer) {
    begun.count_down();
    go_on.wait();
    answer->send(200, "", "", {});
  };
  ServeMetrics metrics;
  TextService service(1, metrics);
  Api api({.name = "", .posts = {{"/slow", post}}, .queue = 2}, service, metrics);
  const auto ask = [&] {
    auto answer = std::make_shared<KeptAnswer>();
    api.handle({.method = "POST", .path = "/slow"}, answer);
    return answer;
  };
  const auto first = ask();
  begun.wait();
  const auto second = ask(), third = ask();
  EXPECT_EQ(ask()->wait().first, 429);
  second->gone = true;
  const auto fourth = ask();
  EXPECT_EQ(ask()->wait().first, 429);
  go_on.count_down();
  for (const auto& answer : {first, third, fourth}) {
    EXPECT_EQ(answer->wait().first, 200);
  }
}

TEST(Metrics, ASumOfDaysKeepsItsFractions) {
  ServeMetrics metrics;
  metrics.count_image(1e7);
  metrics.count_image(0.25);
  EXPECT_NE(metrics.text().find("tandem_image_seconds_sum 10000000.25"), std::string::npos);
}

TEST(Api, AModelThatFailsIsSaidToAll) {
  Endpoint endpoint(true);
  std::future<void> running = endpoint.run();
  const auto text = endpoint.ask_for_text();
  endpoint.decoder.wait_for_a_step();
  endpoint.decoder.go_on.count_down();
  EXPECT_EQ(text->wait().first, 500);
  try {
    running.get();
    FAIL() << "the service goes on";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::kInternal);
    EXPECT_STREQ(error.what(), "a step of the model failed: broken");
  }
  EXPECT_EQ(endpoint.ping(), 503);
}

}  // namespace
}  // namespace tandem::testing
