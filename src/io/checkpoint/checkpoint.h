// Checkpoints on disk: writing them, committing them in one step, finding them, and removing old
// ones. All ranks write one together; checkpoint_reader.h reads it at any number of ranks.
//
//     checkpoints/step-00000100/manifest.json   src/io/checkpoint/manifest.h
//                               rank-0000.h5    the pieces that rank 0 owned, ...
//                 best/                         the same, at the best validation loss
//                 step-00000200.partial/        not finished; never read
//
// A rank's file has one f32 dataset per piece: /param/<name>, /optim/<slot>/<name> or /stat/<name>.
// Names are those of logical tensors (src/autograd/parameter.h). A whole tensor has its own shape.
// Any other piece is flat: it begins at element `offset` of a slice (row-major) of a tensor of
// shape `shape`. The slice begins at `start` and has the size `extent`; without these it is the
// whole tensor. They are attributes of the dataset, and so is `xxh3_128`, the hash of the piece's
// bytes in 32 hex digits; files of older versions have them for whole tensors, too. A second piece
// of one tensor in one file has "@<its first element in the tensor>" after its name. The manifest
// has a hash of all other bytes of each file.
//
// To save:  rank 0      begin_checkpoint(checkpoints, step), tells everybody the directory
//           every rank  write_rank_file(directory/rank_file_name(rank), slabs), sends its entry
//           rank 0      commit_checkpoint(directory, manifest, entries), then keep_newest(...)
// or, when a rank failed, abandon_checkpoint(directory). Until the commit renames the directory,
// earlier checkpoints stay untouched. A committed one gets another manifest when its step is
// validated later (replace_manifest). When something is wrong on the disk, all functions throw
// Error(kData) with one line. Only one job writes into a checkpoints directory at a time.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "src/device/slab.h"
#include "src/io/checkpoint/manifest.h"

namespace tandem {

std::string step_name(int64_t step);   // "step-00000100"
std::string rank_file_name(int rank);  // "rank-0000.h5"

// Creates CHECKPOINTS/step-XXXXXXXX.partial, empty, and returns its path. Removes what unfinished
// attempts left behind, and nothing else; of another step, what cannot be removed is named and
// stays. CHECKPOINTS must be there.
std::string begin_checkpoint(const std::string& checkpoints, int64_t step);

// Writes this rank's pieces, durably. Every element of a tensor must be in exactly one slab of one
// rank. Leaves no file when it fails.
FileEntry write_rank_file(const std::string& path, std::span<const Slab> slabs);

// Writes the manifest with `entries` (by rank, manifest.world_size of them) as its files, and
// renames the directory. Returns its final path. Throws, and changes nothing, when this rank does
// not see each file with the length that its writer reported.
std::string commit_checkpoint(const std::string& partial, Manifest manifest,
                              std::vector<FileEntry> entries);

// Gives the committed checkpoint `path` another manifest, durably, in one step.
void replace_manifest(const std::string& path, const Manifest& manifest);

// Removes an unfinished checkpoint.
void abandon_checkpoint(const std::string& partial);

struct CheckpointName {
  int64_t step = 0;
  std::string path;
};

// The directories of checkpoints, by step; read_manifest() tells whether one is complete. None when
// the directory is missing.
std::vector<CheckpointName> list_checkpoints(const std::string& checkpoints);
// False for a directory without a manifest. Where directories cannot be renamed, a crash may leave
// one: files move into it one by one, the manifest last.
bool is_committed(const std::string& directory);

// Reads and checks the manifest of one checkpoint directory. Checks that every file exists and has
// its length.
Manifest read_manifest(const std::string& directory);

struct LatestCheckpoint {
  std::string path;                  // empty: none
  std::vector<std::string> skipped;  // why newer ones cannot be used, one line each
};

// The newest checkpoint that read_manifest() accepts.
LatestCheckpoint find_latest(const std::string& checkpoints);

// Of the checkpoints up to `last_step`, the one just committed, removes all but the newest `keep`.
// Those of a step that is a multiple of `keep_every` (0: none) are never removed, and do not count.
// Later ones are not touched. keep = 0 keeps all. `best` does not count.
void keep_newest(const std::string& checkpoints, int64_t keep, int64_t keep_every,
                 int64_t last_step);

// Renames the checkpoints after `step` to discarded-step-XXXXXXXX, and a `best` of such a step to
// discarded-best: a run that continues from an older one must not find them as its own. Then `best`
// is the one with the least validation loss that is left, if any has one.
void discard_after(const std::string& checkpoints, int64_t step);

// Makes CHECKPOINTS/best a copy of the committed checkpoint `path`. Hard links, where the file
// system has them, make the copy cost no space while both exist.
void keep_as_best(const std::string& checkpoints, const std::string& path);

}  // namespace tandem
