// What a server counts, in the text format of Prometheus.
#pragma once

#include <array>
#include <map>
#include <mutex>
#include <string>

namespace tandem {

// Any thread may call all functions.
class ServeMetrics {
 public:
  void count_answer(int status);
  void count_token(double seconds_since_last, bool is_first);
  void count_image(double seconds);  // from its request to its answer
  void set_load(int64_t queued, int64_t running);
  std::string text() const;

 private:
  // Counts how many times, in seconds, were at most each bound.
  struct Histogram {
    static constexpr std::array kBounds = {0.005, 0.01, 0.025, 0.05, 0.1,  0.25,
                                           0.5,   1.0,  2.5,   5.0,  10.0, 25.0};
    std::array<int64_t, kBounds.size()> within{};
    int64_t count = 0;
    double sum = 0;
    void add(double seconds);
    std::string text(const char* name, const char* help) const;
  };
  mutable std::mutex mutex_;
  std::map<int, int64_t> answers_;  // by status
  int64_t queued_ = 0, running_ = 0, tokens_ = 0;
  Histogram first_token_, next_token_, image_;
};

}  // namespace tandem
