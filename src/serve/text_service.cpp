#include "src/serve/text_service.h"

namespace tandem {

void TextService::run(TextBatch& batch, const Tokenizer& tokenizer,
                      const std::function<bool()>& stops, std::chrono::milliseconds grace) {
  batch_ = &batch;
  tokenizer_ = &tokenizer;
  ModelService::run(stops, grace);
}

// A request loses its slots.
void TextService::drop_gone() {
  std::erase_if(running_, [&](const Running& each) {
    const bool is_gone = each.client->is_gone();
    if (is_gone) {
      batch_->remove(*each.writer);
    }
    return is_gone;
  });
}

void TextService::begin(std::deque<WaitingTexts>& queue) {
  while (batch_->has_room() && !queue.empty()) {
    WaitingTexts& asked = queue.front();
    const size_t index = asked.begun++;
    running_.push_back({asked.client, index,
                        std::make_unique<TextWriter>(std::move(asked.texts[index]), *tokenizer_),
                        asked.came});
    batch_->add(*running_.back().writer);
    if (asked.begun < asked.texts.size()) {  // those who wait take turns
      queue.push_back(std::move(asked));
    }
    queue.pop_front();
  }
  metrics_.set_load(std::ssize(queue), batch_->texts());
}

void TextService::step() {
  batch_->step();
  for (Running& each : running_) {
    if (each.writer->tokens() > each.seen) {
      const Clock::time_point now = Clock::now();
      metrics_.count_token(std::chrono::duration<double>(now - each.last).count(), each.seen == 0);
      each.last = now;
      each.seen = each.writer->tokens();
    } else if (!each.writer->has_ended()) {
      continue;  // its prompt is being read
    }
    each.client->on_token(each.index, *each.writer);
  }
  std::erase_if(running_, [](const Running& each) { return each.writer->has_ended(); });
}

void TextService::fail_begun(int status, const std::string& why) {
  for (const Running& each : running_) {
    each.client->fail(status, why);
  }
  running_.clear();
}

}  // namespace tandem
