#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <filesystem>
#include <fstream>

#include "src/core/error.h"
#include "src/stop/spot_watch.h"
#include "tests/stop/fake_metadata.h"

namespace tandem::testing {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds, std::chrono::seconds;

constexpr const char* kNotice = R"({"action": "stop", "time": "2026-01-02T03:04:05Z"})";
constexpr const char* kNoticeLine =
    "tandem: here: spot notice: EC2 will stop this machine at 2026-01-02T03:04:05Z; saving, then "
    "stopping\n";

bool is_put(const std::string& request) {
  return request.starts_with("PUT /latest/api/token HTTP/1.1\r\n");
}

// As EC2 does: tokens that live as long as the client asks, 401 without a valid one. A request for
// the notice gets the next of `answers`, and in the end the notice.
class Ec2 {
 public:
  explicit Ec2(std::vector<std::optional<std::string>> answers) : answers_(std::move(answers)) {}

  std::optional<std::string> operator()(const std::string& request) {
    constexpr std::string_view kLifetime = "X-aws-ec2-metadata-token-ttl-seconds: ";
    if (is_put(request)) {
      const size_t at = request.find(kLifetime);
      if (at == std::string::npos) {
        return reply(400, "");
      }
      expires_ = Clock::now() + seconds(std::stoi(request.substr(at + kLifetime.size())));
      return reply(200, str("token", ++tokens_));
    }
    const bool asks =
        request.starts_with("GET /latest/meta-data/spot/instance-action HTTP/1.1\r\n");
    const std::string token = str("\r\nX-aws-ec2-metadata-token: token", tokens_, "\r\n");
    if (request.find(token) == std::string::npos || Clock::now() >= expires_) {
      return reply(401, "");
    }
    return !asks                      ? reply(404, "")
           : next_ == answers_.size() ? reply(200, kNotice)
                                      : answers_[next_++];
  }

 private:
  std::vector<std::optional<std::string>> answers_;
  size_t next_ = 0;
  int tokens_ = 0;
  Clock::time_point expires_;
};

SpotWatch::Options options(const FakeMetadata& service, milliseconds timeout = seconds(10)) {
  return {.host = "here",
          .service = {.server = service.server(), .timeout = timeout},
          .period = milliseconds(10)};
}

// What is said until is_done(watch), and for a `pause` after it.
template <class IsDone>
std::string said_until(IsDone is_done, const SpotWatch::Options& given, milliseconds pause = {}) {
  ::testing::internal::CaptureStderr();
  {
    const SpotWatch watch(given);
    const Clock::time_point deadline = Clock::now() + seconds(60);
    while (!is_done(watch) && Clock::now() < deadline) {
      std::this_thread::sleep_for(milliseconds(1));
    }
    EXPECT_TRUE(is_done(watch));
    std::this_thread::sleep_for(pause);
  }
  return ::testing::internal::GetCapturedStderr();
}

std::string said_until_noticed(const SpotWatch::Options& given) {
  return said_until([](const SpotWatch& watch) { return watch.noticed(); }, given);
}

// Waits for so many requests, and then for one more, which must not come.
std::string said_in_requests(size_t count, const FakeMetadata& service,
                             const SpotWatch::Options& given) {
  const auto all_came = [&](const SpotWatch&) { return service.requests().size() >= count; };
  const std::string said = said_until(all_came, given, milliseconds(300));
  EXPECT_EQ(service.requests().size(), count);
  return said;
}

std::string complaint(const FakeMetadata& service, const std::string& what) {
  return str("tandem: here: no spot notices: the metadata service ", service.server(), " ", what,
             "\n");
}

const std::string kNotThere = reply(404, "");

TEST(SpotWatch, SaysTheNoticeAndStopsAsking) {
  FakeMetadata service(Ec2({kNotThere, kNotThere}));
  EXPECT_EQ(said_until_noticed(options(service)), kNoticeLine);
  const std::vector<std::string> requests = service.requests();
  ASSERT_EQ(requests.size(), 4);  // a token, twice nothing, the notice
  EXPECT_TRUE(is_put(requests[0]));
  EXPECT_NE(requests[0].find("\r\nX-aws-ec2-metadata-token-ttl-seconds: 21600\r\n"),
            std::string::npos);
}

TEST(SpotWatch, GetsAnotherTokenWhenOneIsRefused) {
  const std::string refused = reply(401, "");
  FakeMetadata service(Ec2({refused, kNotThere, refused, kNotThere, refused}));
  EXPECT_EQ(said_until_noticed(options(service)), kNoticeLine);
  EXPECT_EQ(std::ranges::count_if(service.requests(), is_put), 4);
}

TEST(SpotWatch, RenewsTheTokenBeforeItExpires) {
  Ec2 ec2(std::vector<std::optional<std::string>>(10000, kNotThere));
  std::atomic<bool> refused = false;
  FakeMetadata service([&](const std::string& request) {
    const auto answer = ec2(request);
    refused = refused || answer == reply(401, "");
    return answer;
  });
  SpotWatch::Options given = options(service);
  given.service.token_lifetime = seconds(4);  // renewed after 2: a busy machine may be 2 s late
  const auto renewed = [&](const SpotWatch&) {
    return std::ranges::count_if(service.requests(), is_put) >= 2;
  };
  EXPECT_EQ(said_until(renewed, given), "");
  EXPECT_FALSE(refused);
}

TEST(SpotWatch, SaysOnceThatANoticeCannotBeReadAndGoesOn) {
  FakeMetadata service(Ec2({reply(200, ""), reply(200, R"({"action": "sto)"), reply(200, "[]"),
                            reply(200, R"({"action": "stop"})"), reply(200, "null"),
                            reply(200, R"({"action": 1, "time": 2})"), reply(200, "\xff\xfe")}));
  EXPECT_EQ(said_until_noticed(options(service)),
            complaint(service,
                      "has a notice without action and time at /latest/meta-data/spot/"
                      "instance-action; asking again") +
                kNoticeLine);
}

TEST(SpotWatch, ShowsTheNoticeInOneLineWhateverItHolds) {
  FakeMetadata service(
      Ec2({reply(200, R"({"action": "stop\ntandem: all is well", "time": "\u001b[2J"})")}));
  EXPECT_EQ(said_until_noticed(options(service)),
            "tandem: here: spot notice: EC2 will stop\\x0Atandem: all is well this machine at "
            "\\x1B[2J; saving, then stopping\n");
}

TEST(SpotWatch, SaysEachKindOfFailureOnceAndGoesOn) {
  const std::string wrong = reply(500, ""), endless = reply(200, std::string(5000, 'x'));
  FakeMetadata service(Ec2({std::nullopt, wrong, "what?\r\n\r\n", std::nullopt, wrong, endless,
                            "HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n{\"acti"}));
  const std::string said = said_until_noticed(options(service, milliseconds(500)));
  EXPECT_EQ(said.find(complaint(service, "does not answer: Connection timed out; asking again")),
            0);
  EXPECT_NE(said.find(complaint(service,
                                "answers 500 to a request for /latest/meta-data/spot/"
                                "instance-action; asking again")),
            std::string::npos);
  EXPECT_EQ(std::ranges::count(said, '\n'), 6) << said;  // the others have lines of their own
}

TEST(SpotWatch, DoesNotAskFasterWhenEveryTokenIsRefused) {
  FakeMetadata service([](const std::string& request) {
    return is_put(request) ? reply(200, "token") : reply(401, "");
  });
  SpotWatch::Options given = options(service);
  given.period = seconds(60);
  EXPECT_EQ(said_in_requests(4, service, given),
            complaint(service,
                      "answers 401 to a request for /latest/meta-data/spot/"
                      "instance-action; asking again"));
}

TEST(SpotWatch, WithAutoGivesUpIfThreeRequestsGetNoToken) {
  FakeMetadata service([](const std::string&) { return reply(403, ""); });
  SpotWatch::Options given = options(service);
  given.gives_up = true;
  EXPECT_EQ(said_in_requests(3, service, given),
            complaint(service,
                      "answers 403 to a request for a token; it is not asked again "
                      "(run.watch_spot = auto)"));
}

TEST(SpotWatch, WithAutoGoesOnAfterItHadAToken) {
  FakeMetadata service(Ec2({std::nullopt, kNotThere}));
  SpotWatch::Options given = options(service, milliseconds(500));
  given.gives_up = true;
  EXPECT_EQ(
      said_until_noticed(given),
      complaint(service, "does not answer: Connection timed out; asking again") + kNoticeLine);
}

TEST(SpotWatch, WithOnGoesOnWithoutAToken) {
  Ec2 ec2({});
  int requests = 0;
  FakeMetadata service(
      [&](const std::string& request) { return ++requests <= 3 ? reply(403, "") : ec2(request); });
  EXPECT_EQ(said_until_noticed(options(service)),
            complaint(service, "answers 403 to a request for a token; asking again") + kNoticeLine);
}

TEST(SpotWatch, EndsAtOnceWhileTheServiceHangsAndWhileItSleeps) {
  for (const bool hangs : {true, false}) {
    FakeMetadata service([&](const std::string& request) -> std::optional<std::string> {
      return is_put(request) ? reply(200, "token")
             : hangs         ? std::nullopt
                             : std::optional(kNotThere);
    });
    SpotWatch::Options given = options(service);
    given.service.timeout = given.period = seconds(60);
    const Clock::time_point latest = Clock::now() + seconds(20);
    {
      const SpotWatch watch(given);
      while (service.requests().size() < 2 && Clock::now() < latest) {
        std::this_thread::sleep_for(milliseconds(1));
      }
    }
    EXPECT_EQ(service.requests().size(), 2) << hangs;
    EXPECT_LT(Clock::now(), latest) << hangs;
  }
}

TEST(SpotWatch, IsOnlyStartedWhereItIsWanted) {
  FakeMetadata service(Ec2({}));
  ASSERT_EQ(setenv("TANDEM_IMDS", service.server().c_str(), 1), 0);
  EXPECT_EQ(watch_spot(WatchSpot::kOff, "here"), nullptr);
  EXPECT_NE(watch_spot(WatchSpot::kOn, "here"), nullptr);
  EXPECT_NE(watch_spot(WatchSpot::kAuto, "here"), nullptr);
  ASSERT_EQ(unsetenv("TANDEM_IMDS"), 0);
  EXPECT_EQ(watch_spot(WatchSpot::kAuto, "here") != nullptr, is_ec2());
}

TEST(SpotWatch, KnowsMachinesOfEc2) {
  const std::string dmi = "tandem-dmi-test";
  std::filesystem::create_directories(dmi);
  EXPECT_FALSE(is_ec2(dmi));
  for (const char* file : {"/sys_vendor", "/board_vendor"}) {
    std::ofstream(dmi + file) << "Another vendor\n";
    EXPECT_FALSE(is_ec2(dmi));
    std::ofstream(dmi + file) << "Amazon EC2\n";
    EXPECT_TRUE(is_ec2(dmi));
    std::filesystem::remove(dmi + file);
  }
  std::filesystem::remove_all(dmi);
}

}  // namespace
}  // namespace tandem::testing
