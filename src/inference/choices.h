// The log-probabilities that a model gives to the choices of questions.
#pragma once

#include <deque>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "comm/sharding/model_layout.h"
#include "layers/models/model.h"
#include "src/data/tokenizer.h"
#include "src/inference/choice_record.h"
#include "src/step/upload.h"

namespace tandem {

// Prompt and choice, of which the last `scored` tokens are the choice.
struct ChoiceTokens {
  std::vector<int32_t> all;
  int64_t scored = 0;
};

// The tokens for each choice of a record, as in lm-evaluation-harness. A space stands between a
// prompt and a choice; it, and white space at the prompt's end, belong to the choice. The tokens of
// a choice are those of both together after as many as the prompt alone has. Before them come the
// prompt's own tokens, and the one that begins texts; if there is none of either, the one that ends
// them. A prompt that is too long for a window of `length` tokens loses its beginning. Error kData
// for a choice that alone is longer or that adds no token, and for text that `tokenizer` lacks.
std::vector<ChoiceTokens> choice_tokens(Tokenizer& tokenizer, const ChoiceRecord& record,
                                        int64_t length);

// Prompt and choice are a document, and a window of the model holds several. Ranks take turns. Sums
// are added in the order of tokens, so that they have the same bits for every number of ranks.
// Memory holds the questions of one round.
class ChoiceScorer {
 public:
  // `record`, and for each of its choices the sum of the tokens' log-probabilities, in nats.
  using Use = std::function<void(const ChoiceRecord& record, std::span<const double> sums)>;

  // `context` has no tape. A batch has so many windows of `length` tokens. The ranks of
  // groups.data hold the whole model, and islands the same one. `use` is called in the order of
  // add(), on all ranks.
  ChoiceScorer(Model& model, const Context& context, Uploader& uploader, const ModelGroups& groups,
               int64_t length, int64_t batch, Use use);

  // Collective: all ranks add the same questions. `tokens`: choice_tokens().
  void add(ChoiceRecord record, const std::vector<ChoiceTokens>& tokens);
  void finish();  // collective

 private:
  struct Row {
    int64_t question = 0;
    size_t choice = 0;
    int64_t begin = 0, count = 0;  // of its targets in the batch
  };
  struct Batch {
    MicroBatch micro{};
    std::vector<Row> rows{};
  };
  struct Question {
    ChoiceRecord record;
    std::vector<double> sums;
    size_t missing;  // sums
  };
  void put(const ChoiceTokens& tokens, int64_t question, size_t choice);
  void close_batch();
  void run_round();
  std::vector<double> sums_of(const Batch& batch);

  Model& model_;
  Context context_;
  Uploader& uploader_;
  ModelGroups groups_;
  int64_t length_, windows_;
  Use use_;
  Batch batch_;
  int64_t place_ = 0;         // in the batch, where the next row may begin
  std::vector<Batch> round_;  // one for each rank, on one island after the other
  std::deque<Question> questions_;
  int64_t first_question_ = 0;  // the number of the first of them
};

}  // namespace tandem
