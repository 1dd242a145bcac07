// The stored tensors of a run, as a model reads them: the pieces of its parameters.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "layers/models/model.h"
#include "src/device/ranks/control.h"
#include "src/io/checkpoint/checkpoint_reader.h"

namespace tandem {

// Checkpoints of format 2 hold whole parameters, "param/blocks.0.attn.qkv.weight". Pieces are cut
// out of these by rows. Other tensors are passed on. A parameter, its state or a statistic that the
// model has not is an error of read(): by then settings have been compared, which says more.
class PieceSource final : public TensorSource {
 public:
  PieceSource(CheckpointReader reader, Model& model);
  // From now on serves the tensors of `base` from `source`.
  void refer(const Manifest::Base& base, std::unique_ptr<TensorSource> source);
  // What it refers to, with the folders that were opened.
  const std::vector<Manifest::Base>& bases() const { return bases_; }

  const CheckpointReader& reader() const { return reader_; }

  void require_tensor(const std::string& name, const Shape& shape) const override;
  void read(const Slab& slab) const override;
  std::string home_of(const std::string& name) const override;

 private:
  // The rows of a stored tensor that are one piece.
  struct Rows {
    std::string stack;
    Shape whole;
    int64_t first = 0;
  };
  void add_rows(const Parameter& parameter);
  const Rows* rows_of(const std::string& name) const;

  CheckpointReader reader_;
  std::map<std::string, Rows, std::less<>> rows_;  // by piece; empty from format 3 on
  std::map<std::string, std::shared_ptr<TensorSource>> elsewhere_;  // by name
  std::vector<Manifest::Base> bases_;
  std::string unknown_;  // the first tensor that the model has not, or empty
};

// Collective. Each rank indexes a share of the files. AgreedError(kData) if a file is missing or
// damaged outside its pieces. A piece is verified when it is read. Rank 0 says so on standard error
// if the format is an older one.
PieceSource open_checkpoint(Control& control, const std::string& directory, Model& model);

// Collective. Opens what the manifest refers to. `moved_to`: a run, a checkpoint or a Hugging Face
// model that has these tensors now; empty: they are where the manifest says. AgreedError(kData) if
// they are gone, or are not what they were.
void open_bases(Control& control, PieceSource& source, Model& model, const std::string& moved_to);

// Where a base may be. Of several only one may have moved; but one must have, to `moved_to`.
std::vector<std::string> places_of(const Manifest::Base& base, const std::string& moved_to);
// AgreedError(kData), with both, unless the tensors of a base have the hash that they had.
void require_hash(const Manifest::Base& base, const std::string& hash);
// AgreedError(kData): what a checkpoint refers to in this folder is not what it should be.
[[noreturn]] void fail_base(const std::string& checkpoint, const std::string& folder,
                            const std::string& wrong);

// Collective. A model's frozen weights, by the folder that holds them. AgreedError as
// hash_of_tensors().
std::vector<Manifest::Base> bases_in(Control& control, const TensorSource& weights, Model& model);

// XXH3-128 over the content of a whole tensor, in 32 hex digits, which do not depend on how many
// ranks wrote it. Error kData if the source has no such tensor.
std::string hash_of_tensor(const TensorSource& source, const std::string& name, const Shape& shape);
// Collective. XXH3-128 over the names and the content of these tensors, in 32 hex digits. Each rank
// reads a share of them. AgreedError(kData) for a tensor that the source has not.
std::string hash_of_tensors(Control& control, const TensorSource& source,
                            const std::map<std::string, Shape>& tensors);
// Collective. AgreedError(kData), too, for a name that is no piece of the model.
std::string hash_of_tensors(Control& control, const TensorSource& source,
                            const std::vector<std::string>& names, Model& model);

}  // namespace tandem
