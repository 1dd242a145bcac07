#include "src/io/checkpoint/checkpoint.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <iomanip>
#include <optional>
#include <set>

#include "src/core/error.h"
#include "src/core/parse_number.h"
#include "src/core/visible_text.h"
#include "src/io/checkpoint/checkpoint_index.h"
#include "src/io/content_hash.h"
#include "src/io/file.h"
#include "src/io/hdf5/hdf5.h"

namespace tandem {

namespace fs = std::filesystem;

namespace {

constexpr std::string_view kManifestName = "manifest.json";
constexpr std::string_view kPartial = ".partial";
constexpr std::string_view kDiscarded = "discarded-";
constexpr std::string_view kStep = "step-";
constexpr std::string_view kBest = "best";

std::string join(const std::string& directory, std::string_view name) {
  return (fs::path(directory) / name).string();
}

// The names in a directory, sorted; none when it is missing.
std::vector<std::string> names_in(const std::string& directory) {
  std::vector<std::string> names;
  std::error_code error;
  for (fs::directory_iterator entry(directory, error), end; !error && entry != end;
       entry.increment(error)) {
    names.push_back(entry->path().filename().string());
  }
  if (error && error != std::errc::no_such_file_or_directory) {
    fail_file(directory, "read the directory", error.value());
  }
  std::sort(names.begin(), names.end());
  return names;
}

// The step of "step-00000100".
std::optional<int64_t> step_of(std::string_view name) {
  if (!name.starts_with(kStep)) {
    return std::nullopt;
  }
  name.remove_prefix(kStep.size());
  const auto step = parse_number<int64_t>(name);
  return step && *step >= 0 && name.size() >= 8 ? step : std::nullopt;
}

// Not synced: what happens to it before it gets its final name does not matter.
void make_partial(const std::string& partial) {
  std::error_code error;
  fs::create_directory(partial, error);
  if (error) {
    fail_file(partial, "create the directory", error.value());
  }
}

// Removes what an unfinished attempt left, or says why it stays.
void remove_leftover(const std::string& path) {
  try {
    remove_tree(path);
  } catch (const Error& error) {
    complain(str("not removed: ", error.what()));
  }
}

// Renames first, so that an interrupted removal leaves no half checkpoint under its name.
void remove_checkpoint(const std::string& path) {
  const std::string hidden = path + std::string(kPartial);
  remove_tree(hidden);
  rename_path(path, hidden);
  remove_tree(hidden);
}

std::vector<int64_t> sizes_of(const Shape& shape) {
  return {shape.sizes().begin(), shape.sizes().end()};
}

bool is_layout_name(std::string_view name) {
  const auto slashes = std::count(name.begin(), name.end(), '/');
  return !name.ends_with('/') && name.find('@') == std::string_view::npos &&
         (((name.starts_with("param/") || name.starts_with("stat/")) && slashes == 1) ||
          (name.starts_with("optim/") && slashes == 2));
}

// Writes a slab as a dataset. `used`: the names of those written before.
void write_slab(const Slab& slab, std::set<std::string>& used, H5Writer& writer) {
  const int64_t count = slab.data.elements();
  require(
      is_layout_name(slab.name) && slab.offset >= 0 && slab.offset <= slab.slice.elements() - count,
      "write_rank_file: slab '", slab.name, "' ", slab.slice.extent(), " from ", slab.offset, ", ",
      count, " elements");
  std::string name = "/" + slab.name;
  if (!used.insert(name).second) {
    name += str("@", count > 0 ? slab.slice.run_at(slab.offset).begin : slab.offset);
  }
  const std::vector<int64_t> shape = sizes_of(slab.slice.whole());
  const bool is_whole = count == slab.slice.whole().elements();
  writer.create_dataset(name, H5Type::kF32, is_whole ? shape : std::vector<int64_t>{count});
  if (!is_whole) {
    writer.set_attribute(name, "shape", shape);
    writer.set_attribute(name, "offset", std::vector<int64_t>{slab.offset});
  }
  if (slab.slice != Slice(slab.slice.whole())) {
    writer.set_attribute(name, "start", sizes_of(slab.slice.start()));
    writer.set_attribute(name, "extent", sizes_of(slab.slice.extent()));
  }
  const std::span<const float> values = slab.data.as<float>();
  writer.set_attribute(name, "xxh3_128",
                       hash_of(values.data(), static_cast<int64_t>(values.size_bytes())).hex());
  writer.write(name, 0, values);
}

}  // namespace

std::string step_name(int64_t step) { return str(kStep, std::setfill('0'), std::setw(8), step); }

std::string rank_file_name(int rank) {
  return str("rank-", std::setfill('0'), std::setw(4), rank, ".h5");
}

std::string begin_checkpoint(const std::string& checkpoints, int64_t step) {
  const std::string own = str(step_name(step), kPartial), partial = join(checkpoints, own);
  for (const std::string& name : names_in(checkpoints)) {
    const std::string_view stem = std::string_view(name).substr(0, name.find('.'));
    if (name != own && name == str(stem, kPartial) && (stem == kBest || step_of(stem))) {
      remove_leftover(join(checkpoints, name));
    }
  }
  remove_tree(partial);
  make_partial(partial);
  return partial;
}

FileEntry write_rank_file(const std::string& path, std::span<const Slab> slabs) {
  H5Writer writer(path);
  std::set<std::string> used;
  // HDF5 splits a full node of a group's table in halves, which names in order would leave half
  // empty. Those of the second round fill them.
  for (const size_t first : {0, 1}) {
    for (size_t i = first; i < slabs.size(); i += 2) {
      write_slab(slabs[i], used, writer);
    }
  }
  writer.commit();
  return describe_file(path, bytes_of(pieces_in(path)));
}

std::string commit_checkpoint(const std::string& partial, Manifest manifest,
                              std::vector<FileEntry> entries) {
  require(partial.ends_with(kPartial) && std::ssize(entries) == manifest.world_size,
          "commit_checkpoint: ", partial, " with ", entries.size(), " files of ",
          manifest.world_size, " ranks");
  for (const FileEntry& entry : entries) {
    const std::string path = join(partial, entry.name);
    std::error_code error;
    const auto length = fs::file_size(path, error);
    if (error || static_cast<int64_t>(length) != entry.length) {
      fail_data(path,
                ": written by its rank, but not seen by rank 0: run.dir must be on a file system "
                "that all hosts share");
    }
  }
  manifest.files = std::move(entries);
  replace_manifest(partial, manifest);
  const std::string final_path = partial.substr(0, partial.size() - kPartial.size());
  replace_directory(partial, final_path, kManifestName);
  return final_path;
}

void replace_manifest(const std::string& path, const Manifest& manifest) {
  replace_file(join(path, kManifestName), to_json(manifest));
}

void abandon_checkpoint(const std::string& partial) {
  require(partial.ends_with(kPartial), "abandon_checkpoint: a committed one");
  remove_tree(partial);
}

std::vector<CheckpointName> list_checkpoints(const std::string& checkpoints) {
  std::vector<CheckpointName> found;
  for (const std::string& name : names_in(checkpoints)) {
    if (const std::optional<int64_t> step = step_of(name)) {
      found.push_back({*step, join(checkpoints, name)});
    }
  }
  std::ranges::sort(found, {}, &CheckpointName::step);
  return found;
}

bool is_committed(const std::string& directory) {
  return fs::exists(join(directory, kManifestName));
}

Manifest read_manifest(const std::string& directory) {
  if (!fs::is_directory(directory)) {
    fail_data(directory, ": there is no such checkpoint directory");
  }
  const std::string path = join(directory, kManifestName);
  if (!fs::exists(path)) {
    fail_data(directory, ": not a complete checkpoint: it has no manifest.json");
  }
  // On 4096 ranks, three pieces of each of a thousand tensors take 0.7 GiB: 60 bytes a range.
  constexpr RecordLimit kLargest = file_limit(1024);
  Manifest manifest = manifest_from_json(read_file(path, kLargest), path);
  const auto name_step = step_of(fs::path(directory + "/").parent_path().filename().string());
  if (manifest.step != name_step.value_or(manifest.step) ||
      manifest.world_size != std::ssize(manifest.files)) {
    fail_data(path, ": says step ", manifest.step, ", with the files of ", manifest.world_size,
              " ranks; the folder's name and its list of files say otherwise: use another "
              "checkpoint");
  }
  for (const FileEntry& entry : manifest.files) {
    const std::string file = join(directory, entry.name);
    std::error_code error;
    const auto length = fs::file_size(file, error);
    if (error) {
      fail_data(file, ": missing: the checkpoint cannot be read without it (", error.message(),
                ")");
    }
    if (static_cast<int64_t>(length) != entry.length) {
      fail_data(file, ": has ", length, " bytes, its manifest says ", entry.length,
                ": copy it again, or use another checkpoint");
    }
  }
  return manifest;
}

namespace {

// Returns nothing for a checkpoint that cannot be read.
std::optional<Manifest> whole_manifest(const std::string& directory) {
  try {
    return read_manifest(directory);
  } catch (const Error&) {
    return std::nullopt;
  }
}

}  // namespace

LatestCheckpoint find_latest(const std::string& checkpoints) {
  LatestCheckpoint latest;
  std::vector<CheckpointName> names = list_checkpoints(checkpoints);
  std::reverse(names.begin(), names.end());
  for (const CheckpointName& name : names) {
    try {
      read_manifest(name.path);
      latest.path = name.path;
      return latest;
    } catch (const Error& error) {
      if (error.code() != ExitCode::kData) {
        throw;
      }
      latest.skipped.emplace_back(error.what());
    }
  }
  return latest;
}

void keep_newest(const std::string& checkpoints, int64_t keep, int64_t keep_every,
                 int64_t last_step) {
  std::vector<CheckpointName> names = list_checkpoints(checkpoints);
  std::erase_if(names, [&](const CheckpointName& name) {
    return name.step > last_step || (keep_every > 0 && name.step % keep_every == 0);
  });
  if (keep <= 0) {
    return;
  }
  const int64_t surplus = std::ssize(names) - keep;
  for (int64_t i = 0; i < surplus; ++i) {
    remove_checkpoint(names[static_cast<size_t>(i)].path);
  }
}

void discard_after(const std::string& checkpoints, int64_t step) {
  const auto discard = [&](const std::string& name) {
    replace_directory(join(checkpoints, name), join(checkpoints, str(kDiscarded, name)),
                      kManifestName);
  };
  for (const CheckpointName& name : list_checkpoints(checkpoints)) {
    if (name.step > step) {
      discard(step_name(name.step));
    }
  }
  const std::optional<Manifest> best = whole_manifest(join(checkpoints, kBest));
  if (!best || best->step <= step) {
    return;
  }
  discard(std::string(kBest));
  std::pair<double, std::string> least{INFINITY, ""};
  for (const CheckpointName& name : list_checkpoints(checkpoints)) {
    const std::optional<Manifest> manifest = whole_manifest(name.path);
    if (manifest && manifest->validation_loss) {
      least = std::min(least, {*manifest->validation_loss, name.path});
    }
  }
  if (!least.second.empty()) {
    keep_as_best(checkpoints, least.second);
  }
}

void keep_as_best(const std::string& checkpoints, const std::string& path) {
  const std::string partial = join(checkpoints, str(kBest, kPartial));
  remove_tree(partial);
  make_partial(partial);
  for (const std::string& name : names_in(path)) {
    std::error_code error;
    fs::create_hard_link(join(path, name), join(partial, name), error);
    if (error) {
      fs::copy_file(join(path, name), join(partial, name), error);
      if (error) {
        fail_file(join(partial, name), "copy the best checkpoint", error.value());
      }
      FileWriter(join(partial, name), FileWriter::Start::kEnd).sync();
    }
  }
  sync_path(partial);
  replace_directory(partial, join(checkpoints, kBest), kManifestName);
}

}  // namespace tandem
