#include "src/inference/choices.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "src/core/error.h"
#include "src/core/mapped.h"
#include "src/data/chat_template.h"
#include "src/device/copy.h"

namespace tandem {

namespace {

ChoiceTokens tokens_of(Tokenizer& tokenizer, const std::string& prompt, const std::string& choice,
                       int64_t length) {
  const std::string_view text = stripped(prompt);
  const std::string head =
      prompt.substr(0, text.empty() ? 0 : text.data() + text.size() - prompt.data());
  const std::vector<int32_t> before = tokenizer.encode(head);
  const std::vector<int32_t> both = tokenizer.encode(prompt + " " + choice);
  const std::span<const int32_t> begin = tokenizer.before_text();
  ChoiceTokens tokens{{begin.begin(), begin.end()}};
  if (begin.empty() && before.empty()) {
    const std::optional<int32_t> end = tokenizer.end_of_text();
    if (!end) {
      fail_data("the prompt is empty, and no token of the tokenizer begins or ends texts");
    }
    tokens.all.push_back(*end);
  }
  tokens.all.insert(tokens.all.end(), before.begin(), before.end());
  tokens.scored = std::ssize(both) - std::ssize(before);
  if (tokens.scored <= 0 || tokens.scored > length) {
    fail_data("a choice has ", std::max<int64_t>(tokens.scored, 0), " tokens; possible are 1 to ",
              length);
  }
  tokens.all.insert(tokens.all.end(), both.end() - tokens.scored, both.end());
  const int64_t extra = std::ssize(tokens.all) - (length + 1);
  if (extra > 0) {
    tokens.all.erase(tokens.all.begin(), tokens.all.begin() + extra);
  }
  return tokens;
}

}  // namespace

std::vector<ChoiceTokens> choice_tokens(Tokenizer& tokenizer, const ChoiceRecord& record,
                                        int64_t length) {
  return mapped(record.choices, [&](const std::string& choice) {
    return tokens_of(tokenizer, record.prompt, choice, length);
  });
}

ChoiceScorer::ChoiceScorer(Model& model, const Context& context, Uploader& uploader,
                           const ModelGroups& groups, int64_t length, int64_t batch, Use use)
    : model_(model),
      context_(context),
      uploader_(uploader),
      groups_(groups),
      length_(length),
      windows_(batch),
      use_(std::move(use)) {}

void ChoiceScorer::add(ChoiceRecord record, const std::vector<ChoiceTokens>& tokens) {
  const int64_t question = first_question_ + std::ssize(questions_);
  questions_.push_back({std::move(record), std::vector<double>(tokens.size()), tokens.size()});
  for (size_t choice = 0; choice < tokens.size(); ++choice) {
    put(tokens[choice], question, choice);
  }
}

void ChoiceScorer::put(const ChoiceTokens& tokens, int64_t question, size_t choice) {
  const int64_t inputs = std::ssize(tokens.all) - 1, in_window = place_ % length_;
  if (in_window + inputs > length_) {
    place_ += length_ - in_window;
  }
  if (place_ == windows_ * length_) {
    close_batch();
  }
  MicroBatch& micro = batch_.micro;
  if (place_ == 0) {
    const auto elements = static_cast<size_t>(windows_ * length_);
    micro.tokens.assign(elements, 0);
    micro.targets.assign(elements, kIgnoreTarget);
    micro.positions.assign(elements, 0);  // a place that no row has is a document by itself
  }
  const int64_t begin = inputs - tokens.scored;
  std::copy_n(tokens.all.begin(), inputs, micro.tokens.begin() + place_);
  std::copy_n(tokens.all.begin() + 1 + begin, tokens.scored,
              micro.targets.begin() + place_ + begin);
  std::iota(micro.positions.begin() + place_, micro.positions.begin() + place_ + inputs, 0);
  micro.target_count += tokens.scored;
  batch_.rows.push_back({question, choice, place_ + begin, tokens.scored});
  place_ += inputs;
}

void ChoiceScorer::close_batch() {
  MicroBatch& micro = batch_.micro;
  micro.samples = (place_ + length_ - 1) / length_;
  for (std::vector<int32_t>* part : {&micro.tokens, &micro.targets, &micro.positions}) {
    part->resize(static_cast<size_t>(micro.samples * length_));
  }
  round_.push_back(std::exchange(batch_, {}));
  place_ = 0;
  if (std::ssize(round_) == groups_.data.size() * (groups_.islands ? groups_.islands->size() : 1)) {
    run_round();
  }
}

void ChoiceScorer::finish() {
  if (place_ > 0) {
    close_batch();
  }
  if (!round_.empty()) {
    run_round();
  }
}

void ChoiceScorer::run_round() {
  const int64_t rank = groups_.island() * groups_.data.size() + groups_.data.rank();
  std::vector<double> sums;
  for (const Batch& batch : round_) {
    const std::vector<double> own =
        &batch - round_.data() == rank ? sums_of(batch) : std::vector<double>(batch.rows.size());
    sums.insert(sums.end(), own.begin(), own.end());
  }
  if (rank >= std::ssize(round_) && context_.gate && context_.gate->is_collective()) {
    sums_of(round_[0]);  // this rank has no batch, but its part of the weights
  }
  sums = groups_.data.control().sum(sums);
  if (groups_.islands) {  // a batch runs on one of them, so this adds zeros
    sums = groups_.islands->control().sum(sums);
  }
  auto sum = sums.begin();
  for (const Batch& batch : std::exchange(round_, {})) {
    for (const Row& row : batch.rows) {
      Question& question = questions_[static_cast<size_t>(row.question - first_question_)];
      question.sums[row.choice] = *sum++;
      --question.missing;
    }
  }
  for (; !questions_.empty() && questions_.front().missing == 0; ++first_question_) {
    use_(questions_.front().record, questions_.front().sums);
    questions_.pop_front();
  }
}

std::vector<double> ChoiceScorer::sums_of(const Batch& batch) {
  uploader_.send({&batch.micro, 1});
  const DeviceBatch device = uploader_.fetch(0);
  context_.positions = device.positions;
  const Loss loss = model_.loss(context_, device.input, device.targets);
  Memory memory(Device::kCpu);
  const Tensor host = copied(context_.stream, loss.losses.value(), memory);
  const std::span<const float> losses = host.as<float>();
  std::vector<double> sums;
  for (const Row& row : batch.rows) {
    const auto own = losses.subspan(static_cast<size_t>(row.begin), static_cast<size_t>(row.count));
    sums.push_back(-std::accumulate(own.begin(), own.end(), 0.0));
  }
  return sums;
}

}  // namespace tandem
