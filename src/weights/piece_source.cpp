#include "src/weights/piece_source.h"

#include <filesystem>
#include <numeric>
#include <optional>
#include <set>
#include <sstream>
#include <utility>

#include "src/core/mapped.h"
#include "src/core/visible_text.h"
#include "src/device/ranks/agreement.h"
#include "src/io/checkpoint/checkpoint.h"
#include "src/io/content_hash.h"
#include "src/weights/hugging_face/settings.h"
#include "src/weights/snapshot.h"
#include "src/weights/stored_weights.h"

namespace tandem {

namespace {

constexpr int kPiecesByName = 3;  // the first format with them

// "param/", "optim/m/" or "stat/". Names of parameters have no '/'.
size_t prefix_of(std::string_view name) { return name.rfind('/') + 1; }

}  // namespace

PieceSource::PieceSource(CheckpointReader reader, Model& model) : reader_(std::move(reader)) {
  const bool has_pieces = reader_.manifest().format_version >= kPiecesByName;
  std::set<std::string> parameters, statistics;
  for (const Parameter* parameter : parameters_of(model)) {
    if (!has_pieces) {
      parameters.insert(parameter->name);
      add_rows(*parameter);
    }
    for (const Piece& piece : pieces_of(*parameter)) {
      parameters.insert(piece.name);
    }
  }
  for (const RunningStatistics* each : model.statistics()) {
    statistics.insert(each->name);
  }
  const std::vector<CheckpointReader::Entry> tensors = reader_.tensors();
  const auto unknown = std::ranges::find_if(tensors, [&](const auto& tensor) {
    const auto& known = tensor.name.starts_with("stat/") ? statistics : parameters;
    return !known.contains(tensor.name.substr(prefix_of(tensor.name)));
  });
  unknown_ = unknown == tensors.end() ? "" : unknown->name;
}

void PieceSource::add_rows(const Parameter& parameter) {
  const int64_t rows =
      sum_of(parameter.pieces, [](const Piece& piece) { return piece.slice.whole()[0]; });
  int64_t first = 0;
  for (const Piece& piece : parameter.pieces) {
    const Shape& whole = piece.slice.whole();
    rows_[piece.name] = {parameter.name, whole.with(0, rows), first};
    first += whole[0];
  }
}

const PieceSource::Rows* PieceSource::rows_of(const std::string& name) const {
  const auto found = rows_.find(std::string_view(name).substr(prefix_of(name)));
  return found == rows_.end() ? nullptr : &found->second;
}

void PieceSource::refer(const Manifest::Base& base, std::unique_ptr<TensorSource> source) {
  bases_.push_back(base);
  const std::shared_ptr<TensorSource> shared = std::move(source);
  for (const std::string& name : base.tensors) {
    elsewhere_[name] = shared;
  }
}

std::string PieceSource::home_of(const std::string& name) const {
  const auto found = elsewhere_.find(name);
  return found == elsewhere_.end() ? reader_.directory() : found->second->home_of(name);
}

void PieceSource::require_tensor(const std::string& name, const Shape& shape) const {
  if (const auto found = elsewhere_.find(name); found != elsewhere_.end()) {
    return found->second->require_tensor(name, shape);
  }
  const Rows* rows = rows_of(name);
  reader_.require_tensor(rows ? name.substr(0, prefix_of(name)) + rows->stack : name,
                         rows ? rows->whole : shape);
}

void PieceSource::read(const Slab& slab) const {
  if (!unknown_.empty()) {
    fail_data(reader_.directory(), ": has a tensor ", visible(unknown_),
              ", which the model has not: it was written by another model");
  }
  if (const auto found = elsewhere_.find(slab.name); found != elsewhere_.end()) {
    return found->second->read(slab);
  }
  const Rows* rows = rows_of(slab.name);
  if (!rows) {
    return reader_.read(slab);
  }
  const Slice& piece = slab.slice;
  reader_.read(
      {slab.name.substr(0, prefix_of(slab.name)) + rows->stack,
       Slice(rows->whole, piece.start().with(0, rows->first + piece.start()[0]), piece.extent()),
       slab.offset, slab.data});
}

PieceSource open_checkpoint(Control& control, const std::string& directory, Model& model) {
  Manifest manifest;
  std::string share;
  agree(control, [&] {
    manifest = read_manifest(directory);
    share = index_files(directory, manifest, static_cast<size_t>(control.rank()),
                        static_cast<size_t>(control.size()))
                .text();
  });
  CheckpointIndex index;
  for (const std::string& text : control.all_gather(share)) {
    index.add(text);
  }
  std::optional<PieceSource> source;
  agree(control, [&] { source.emplace(CheckpointReader(directory, manifest, index), model); });
  if (control.rank() == 0 && manifest.format_version < Manifest::kFormatVersion) {
    complain(
        str(directory, ": format ", manifest.format_version,
            ", whose stacked parameters are cut by rows; what is saved from now on has format ",
            Manifest::kFormatVersion));
  }
  return std::move(*source);
}

namespace {

// Collective. Sets base.path to the folder that was opened; AgreedError says what is wrong with it.
// A base's own base is not followed: a manifest names the folder that holds a tensor.
std::unique_ptr<TensorSource> open_base(Control& control, const std::string& place,
                                        Manifest::Base& base, Model& model) {
  const std::string folder = on_root(control, [&] { return resolve_checkpoint(place); });
  std::unique_ptr<TensorSource> source;
  if (is_hugging_face(folder)) {
    source = open_hugging_face(control, folder);
  } else {
    source = std::make_unique<PieceSource>(open_checkpoint(control, folder, model));
  }
  require_hash(base, hash_of_tensors(control, *source, base.tensors, model));
  base.path = std::filesystem::absolute(folder).lexically_normal();
  return source;
}

}  // namespace

std::vector<std::string> places_of(const Manifest::Base& base, const std::string& moved_to) {
  return moved_to.empty() ? std::vector{base.path} : std::vector{moved_to, base.path};
}

void require_hash(const Manifest::Base& base, const std::string& hash) {
  if (hash != base.hash) {
    throw AgreedError(ExitCode::kData, "its ", base.tensors.size(), " tensors had the hash ",
                      visible(base.hash), " and have ", hash);
  }
}

void fail_base(const std::string& checkpoint, const std::string& folder, const std::string& wrong) {
  throw AgreedError(
      ExitCode::kData, checkpoint, " refers to weights in ", visible(folder), ": ", wrong,
      "; if they were moved, say where to: checkpoint.base in training, otherwise --base");
}

void open_bases(Control& control, PieceSource& source, Model& model, const std::string& moved_to) {
  const std::vector<Manifest::Base> bases = source.reader().manifest().bases;
  bool has_moved = moved_to.empty() || bases.empty();
  std::string wrong;  // with the first place of the base that was tried last
  for (Manifest::Base base : bases) {
    const std::vector<std::string> places = places_of(base, moved_to);
    std::unique_ptr<TensorSource> opened;
    for (const std::string& place : places) {
      try {
        opened = open_base(control, place, base, model);
        has_moved = has_moved || place == moved_to;
        break;
      } catch (const AgreedError& error) {
        wrong = place == places.front() ? error.what() : wrong;
      }
    }
    if (!opened) {
      fail_base(source.reader().directory(), places.front(), wrong);
    }
    source.refer(base, std::move(opened));
  }
  if (!has_moved) {
    fail_base(source.reader().directory(), moved_to, wrong);
  }
}

std::vector<Manifest::Base> bases_in(Control& control, const TensorSource& weights, Model& model) {
  std::map<std::string, std::vector<std::string>> by_folder;
  for (const std::string& name : frozen_tensors(model)) {
    const std::filesystem::path folder = std::filesystem::absolute(weights.home_of(name));
    by_folder[folder.lexically_normal()].push_back(name);
  }
  std::vector<Manifest::Base> bases;
  for (const auto& [folder, names] : by_folder) {
    bases.push_back({folder, hash_of_tensors(control, weights, names, model), names});
  }
  return bases;
}

std::string hash_of_tensor(const TensorSource& source, const std::string& name,
                           const Shape& shape) {
  Memory host(Device::kCpu);
  const Tensor data = Tensor::empty(host, {shape.elements()}, DType::kF32, MemoryClass::kData);
  source.read({name, shape, 0, data});
  return hash_of(data.raw(), data.bytes()).hex();
}

std::string hash_of_tensors(Control& control, const TensorSource& source,
                            const std::map<std::string, Shape>& tensors) {
  std::string share;
  agree(control, [&] {
    int number = 0;
    for (const auto& [name, shape] : tensors) {
      if (number++ % control.size() == control.rank()) {
        share += str(name, " ", hash_of_tensor(source, name, shape), "\n");
      }
    }
  });
  std::set<std::string> lines;
  for (const std::string& text : control.all_gather(share)) {
    std::istringstream in(text);
    for (std::string line; std::getline(in, line);) {
      lines.insert(line + "\n");
    }
  }
  return hash_of(std::accumulate(lines.begin(), lines.end(), std::string())).hex();
}

std::string hash_of_tensors(Control& control, const TensorSource& source,
                            const std::vector<std::string>& names, Model& model) {
  std::map<std::string, Shape> all, tensors;
  for (const Parameter* parameter : parameters_of(model)) {
    for (const Piece& piece : pieces_of(*parameter)) {
      all["param/" + piece.name] = piece.slice.whole();
    }
  }
  agree(control, [&] {
    for (const std::string& name : names) {
      const auto found = all.find(name);
      if (found == all.end()) {
        fail_data("the model has no tensor ", visible(name));
      }
      tensors.insert(*found);
    }
  });
  return hash_of_tensors(control, source, tensors);
}

}  // namespace tandem
