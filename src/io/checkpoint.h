// Checkpoints on disk: written by all ranks together, committed in one step, found and cleaned up
// again. checkpoint_reader.h reads them back at any number of ranks.
//
//     checkpoints/step-00000100/manifest.json   src/io/manifest.h
//                               rank-0000.h5    the pieces that rank 0 owned, ...
//                 best/                         the same, of the best validation loss
//                 step-00000200.partial/        not finished; never read
//
// A rank's file has one flat f32 dataset per piece, /param/<name>, /optim/<slot>/<name> or
// /stat/<name>: `count` elements, from `offset` on, of the slice of the logical tensor `shape` that
// begins at `start` and has the size `extent`, row-major. These are its attributes, with
// `xxh3_128`, the hash of its bytes in 32 hex digits. A second piece of one tensor in one file has
// "@<its first element in the tensor>" after its name. All other bytes of a file have a hash in the
// manifest.
//
// Format 1, which is read too, has whole tensors in the place of slices, no hashes of pieces, and
// hashes of whole files.
//
// To save:  rank 0      begin_checkpoint(checkpoints, step), tells everybody the directory
//           every rank  write_rank_file(directory/rank_file_name(rank), slabs), sends its entry
//           rank 0      commit_checkpoint(directory, manifest, entries), then keep_newest(...)
// or, when a rank failed, abandon_checkpoint(directory). Until the commit renames the directory,
// the checkpoints that were there before stay untouched. All functions throw Error(kData) with one
// line for what is wrong on the disk. Only one job writes into a checkpoints directory at a time.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "src/device/slab.h"
#include "src/io/manifest.h"

namespace tandem {

std::string step_name(int64_t step);   // "step-00000100"
std::string rank_file_name(int rank);  // "rank-0000.h5"

// Creates CHECKPOINTS/step-XXXXXXXX.partial, empty, and returns its path. What unfinished attempts
// left behind is removed.
std::string begin_checkpoint(const std::string& checkpoints, int64_t step);

// Writes this rank's pieces, durably. Every element of a tensor must be in exactly one slab of one
// rank. Leaves no file when it fails.
FileEntry write_rank_file(const std::string& path, std::span<const Slab> slabs);

// Writes the manifest with `entries` (by rank, manifest.world_size of them) as its files and gives
// the directory its final name, whose path is returned. Throws, and changes nothing, when this rank
// does not see a file of another one as it was written.
std::string commit_checkpoint(const std::string& partial, Manifest manifest,
                              std::vector<FileEntry> entries);

// Removes an attempt.
void abandon_checkpoint(const std::string& partial);

struct CheckpointName {
  int64_t step = 0;
  std::string path;
};

// The committed ones, by step; complete or not is for read_manifest to say. None when the directory
// is missing.
std::vector<CheckpointName> list_checkpoints(const std::string& checkpoints);

// Reads and checks the manifest of one checkpoint directory, and that every file is there with its
// length.
Manifest read_manifest(const std::string& directory);

struct LatestCheckpoint {
  std::string path;                  // empty: none
  std::vector<std::string> skipped;  // why newer ones cannot be used, one line each
};

// The newest that read_manifest() finds nothing wrong with.
LatestCheckpoint find_latest(const std::string& checkpoints);

// Removes all but the newest `keep` of the checkpoints up to `last_step`, the one that was
// committed just now; later ones are not touched. 0 keeps all. `best` is not counted.
void keep_newest(const std::string& checkpoints, int64_t keep, int64_t last_step);

// Renames the checkpoints after `step` to discarded-step-XXXXXXXX: a run that goes on from an older
// one must not find them as its latest.
void discard_after(const std::string& checkpoints, int64_t step);

// Makes CHECKPOINTS/best the same as the committed checkpoint `path`, by hard links where the file
// system has them, so that it costs no space while both exist.
void keep_as_best(const std::string& checkpoints, const std::string& path);

}  // namespace tandem
