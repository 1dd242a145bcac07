// Walks over the files of a folder, or over the same files in a tar archive.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "src/io/record_limit.h"

namespace tandem {

struct SourceFile {
  std::string name;                      // relative to the root, with '/', without a leading "./"
  std::string place;                     // for messages: the path of the file, or "ARCHIVE: name"
  std::string problem;                   // why it has no content; empty if it has some
  std::function<std::string()> content;  // reads it; valid during the call only
};

// Calls `use` for every file. In a folder: in the order of names, following symbolic links; what is
// no regular file, such as a link to nothing, has a problem. In an archive: in the order in which
// it holds them; links have a problem. Skips hidden files and folders (".name", "__MACOSX"). Throws
// kData when `path` is neither folder nor archive, or the archive is damaged, and from content()
// when the file is above the limit or has a problem.
void for_each_file(const std::string& path, RecordLimit limit,
                   const std::function<void(const SourceFile&)>& use);

}  // namespace tandem
