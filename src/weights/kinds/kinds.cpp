#include "src/weights/kinds/kinds.h"

namespace tandem {

Kinds<ModelKind>& model_kinds() {
  static Kinds<ModelKind> all = [] {
    Kinds<ModelKind> kinds;
    add_transformers(kinds);
    add_resnet(kinds);
    add_mlp(kinds);
    return kinds;
  }();
  return all;
}

}  // namespace tandem
