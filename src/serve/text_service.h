// Texts that are asked for while others are written.
#pragma once

#include <memory>
#include <vector>

#include "src/inference/text_batch.h"
#include "src/serve/metrics.h"
#include "src/serve/model_service.h"

namespace tandem {

// Who asked for texts. All functions are called by the thread of TextService::run(), except that
// the one which submits may see fail() before submit() returns.
class TextClient : public ModelClient {
 public:
  // A token was chosen, of the text with this index, or it ended. writer.take() is what may be
  // shown of it.
  virtual void on_token(size_t index, TextWriter& writer) = 0;
};

struct WaitingTexts {
  std::shared_ptr<TextClient> client;
  std::vector<TextRequest> texts;
  size_t begun = 0;
  ModelState::Clock::time_point came = ModelState::Clock::now();
};

class TextService final : public ModelService<WaitingTexts> {
 public:
  TextService(int64_t queue, ServeMetrics& metrics) : ModelService(queue), metrics_(metrics) {}

  // Any thread. Asks for the texts of one client, as ModelService::enqueue().
  void submit(std::shared_ptr<TextClient> client, std::vector<TextRequest> texts) {
    enqueue({std::move(client), std::move(texts)});
  }

  // Writes texts, as ModelService::run().
  void run(TextBatch& batch, const Tokenizer& tokenizer, const std::function<bool()>& stops,
           std::chrono::milliseconds grace);

 private:
  struct Running {
    std::shared_ptr<TextClient> client;
    size_t index;
    std::unique_ptr<TextWriter> writer;
    Clock::time_point last;  // token, or when the request came
    int64_t seen = 0;        // tokens
  };
  void drop_gone() override;
  void begin(std::deque<WaitingTexts>& queue) override;
  bool is_idle() const override { return batch_->is_empty(); }
  void step() override;
  void fail_begun(int status, const std::string& why) override;

  ServeMetrics& metrics_;
  TextBatch* batch_ = nullptr;            // of run()
  const Tokenizer* tokenizer_ = nullptr;  // of run()
  std::vector<Running> running_;
};

}  // namespace tandem
