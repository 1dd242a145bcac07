// Runs a fuzzer over files, without clang's fuzzing: every file of the folders that are named, in
// the order of their names. This is how the usual tests run the fuzzers.
#include <algorithm>
#include <vector>

#include "src/io/file.h"
#include "tests/fuzz/support/fuzz.h"

int main(int count, char** words) {
  int inputs = 0;
  for (const std::string& folder : std::vector<std::string>(words + 1, words + count)) {
    std::vector<std::string> files;
    for (const auto& entry : std::filesystem::directory_iterator(folder)) {
      files.push_back(entry.path().string());
    }
    std::sort(files.begin(), files.end());
    for (const std::string& file : files) {
      std::printf("%s\n", file.c_str());
      std::fflush(stdout);  // the last name printed is that of the input that ends the program
      const std::string bytes = tandem::read_file(file);
      LLVMFuzzerTestOneInput(reinterpret_cast<const uint8_t*>(bytes.data()), bytes.size());
      ++inputs;
    }
  }
  std::printf("%d inputs\n", inputs);
  return inputs > 0 ? 0 : 1;
}
