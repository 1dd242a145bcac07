// The whole program, for one that registers models of its own (src/settings/model_kind.h) first.
#pragma once

namespace tandem {

// Dispatches to a subcommand, and turns exceptions into one line on standard error. Returns the
// exit code (src/core/error.h). To be called once, from main().
int main(int argc, char** argv);

}  // namespace tandem
