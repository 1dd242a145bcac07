// A model of one's own in a project of one's own: each token is predicted from the one before it
// alone. The program has every command of `tandem`, and model.kind = bigram.
#include "layers/embedding/embedding.h"
#include "layers/linear/linear.h"
#include "layers/models/classifier.h"
#include "src/commands/main.h"
#include "src/settings/model_kind.h"

namespace {

using namespace tandem;

struct Bigram final : Classifier {
  Parameter tokens;
  Linear head;

  Bigram(int64_t vocab, int64_t width)
      : Classifier(vocab),
        tokens{.name = "tokens", .shape = {vocab, width}, .init = Initializer::normal(0.02)},
        head(Linear::classifier("head", width, vocab, Initializer::normal(0.02))) {
    add({{"tokens", {&tokens}}, [this](Context& c, const Flow& x) -> Flow {
           const Variable y = embedding(c, x[0].value(), tokens, nullptr);  // [B, T, C]
           const int64_t rows = y.elements() / y.shape()[-1];
           return {Variable(y.value().reshape({rows, y.shape()[-1]}), y.slot())};
         }});
    add({{"head", parameters_in(head)},
         [this](Context& c, const Flow& x) -> Flow { return {head(c, x[0])}; }});
  }
  double flops_per_sample() const override {
    return 6.0 * static_cast<double>(tokens.shape.elements());
  }
};

struct BigramKind final : ModelKind {
  int64_t length = 16, rank = 8;

  void bind(Options& options) override {
    options.add("model.context", length, "tokens a sequence", 1, 1 << 24);
    options.add("model.rank", rank, "of the matrix of a bigram's logits", 1, 4096);
  }
  std::string description() const override { return str("rank ", rank); }
  bool reads_text() const override { return true; }
  int64_t context() const override { return length; }
  int64_t blocks() const override { return 2; }
  std::unique_ptr<Model> make(const DatasetInfo& data) const override {
    return std::make_unique<Bigram>(data.vocab_size, rank);
  }
};

}  // namespace

int main(int argc, char** argv) {
  tandem::register_model("bigram", BigramKind());
  return tandem::main(argc, argv);
}
