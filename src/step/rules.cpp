#include "src/step/rules.h"

#include "optim/adamw.h"
#include "optim/lion.h"
#include "optim/muon/muon.h"
#include "optim/sgd.h"

namespace tandem {

namespace {

// A rule of optim/ whose settings are the members of `Rule`.
template <class Rule>
struct Row final : UpdateRule {
  Rule rule;
  void (*bind_rule)(Options& options, Rule& rule);

  Row(const Rule& defaults, void (*binds)(Options& options, Rule& rule))
      : rule(defaults), bind_rule(binds) {}
  void bind(Options& options) override { bind_rule(options, rule); }
  std::vector<std::string> problems() const override {
    if constexpr (requires { rule.problems(); }) {
      return rule.problems();
    }
    return {};
  }
  bool needs_matrices() const override {
    return requires { Rule::kNeedsMatrices; };
  }
  std::unique_ptr<Optimizer> make(std::span<const Shard> shards,
                                  const OptimizerMemory& memory) const override {
    return make_optimizer(rule, shards, memory);
  }
};

void bind_adamw(Options& o, AdamWOptions& adamw) {
  o.add("optim.beta1", adamw.beta1, "decay of AdamW's first moment", 0, 0.999999);
  o.add("optim.beta2", adamw.beta2, "decay of AdamW's second moment", 0, 0.9999999);
  o.add("optim.eps", adamw.eps, "added to AdamW's denominator");
  o.add("optim.weight_decay", adamw.weight_decay, "on matrices only; decoupled with adamw");
}

void bind_muon(Options& o, MuonOptions& muon) {
  o.add("optim.momentum", muon.momentum, "of Muon's matrices, 0.95 unless given", 0, 0.999999);
  bind_adamw(o, muon.adamw);
}

void bind_sgd(Options& o, SgdOptions& sgd) {
  o.add("optim.momentum", sgd.momentum, "of SGD", 0, 0.999999);
  o.add("optim.nesterov", sgd.nesterov, "Nesterov's form of momentum");
  o.add("optim.weight_decay", sgd.weight_decay, "in the gradient with sgd");
}

void bind_lion(Options& o, LionOptions& lion) {
  o.add("optim.beta1", lion.beta1, "share of Lion's mean in the move", 0, 0.999999);
  o.add("optim.beta2", lion.beta2, "decay of Lion's mean", 0, 0.9999999);
  o.add("optim.weight_decay", lion.weight_decay, "decoupled with lion");
}

}  // namespace

Kinds<UpdateRule> update_rules() {
  Kinds<UpdateRule> rules;
  rules.add("adamw", Row(AdamWOptions{.beta2 = 0.99}, bind_adamw));
  rules.add("sgd", Row(SgdOptions{.weight_decay = 0.1}, bind_sgd));
  rules.add("lion", Row(LionOptions{}, bind_lion));
  rules.add("muon", Row(MuonOptions{.adamw = {.beta2 = 0.99}}, bind_muon));
  return rules;
}

}  // namespace tandem
