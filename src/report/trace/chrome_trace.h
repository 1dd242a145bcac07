// Traces in Chrome's format, which chrome://tracing, Perfetto, TensorBoard and Holistic Trace
// Analysis open ("Trace Event Format", Google 2016).
//
// The file of a rank has its own clock, and the names and categories that PyTorch's profiler
// writes: steps are ProfilerStep#N, what runs on a stream is a kernel, collectives are
// ncclKernel_KIND. The file of a job has the clock of rank 0, plain names, and arrows from the rank
// that came last to a collective to the others.
#pragma once

#include <string>
#include <vector>

#include "src/trace/trace.h"

namespace tandem {

// JSON text.
std::string rank_trace_text(const Trace& trace);
std::string job_trace_text(const std::vector<Trace>& traces);

// Gives a file this text, compressed by gzip. Errors: kData if it cannot be written.
void write_trace(const std::string& path, const std::string& text);

// The file of a rank, gzip-compressed or not. Error(kData) if it is none.
Trace read_trace(const std::string& path);
// All of a folder, by rank. Error(kData) if there are none, or some are missing.
std::vector<Trace> read_traces(const std::string& folder);

std::string trace_path(const std::string& folder, int rank);  // FOLDER/rank-0000.json.gz

}  // namespace tandem
