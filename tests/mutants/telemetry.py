"""The figures of GPUs, from NVML to the metrics."""
from table import Mutant

BUILD = "release"
USE, NVML, WATCH, METRICS = "src/telemetry/gpu_use.cpp", "src/telemetry/nvml.cpp", "src/telemetry/gpu_watch.cpp", "src/report/gpu_metrics.cpp"
MUTANTS = [
    Mutant("window: energy begins at the first sample of a stretch", USE, ".taken = figure.last}", ".taken = {}}", ["telemetry.gpu_use"]),
    Mutant("window: ECC errors from before the run count", USE, "figure.last - *figure.first;", "figure.last;", ["telemetry.gpu_use"]),
    Mutant("nvml: an idle GPU is throttled", NVML, "{0x04, \"software power cap\"}", "{0x05, \"software power cap\"}", ["telemetry.nvml"]),
    Mutant("nvml: NVLink of the first link only", NVML, "kAllLinks = ~0U", "kAllLinks = 0U", ["telemetry.nvml"]),
    Mutant("nvml: the older name of throttling is not known", NVML, "nvmlDeviceGetCurrentClocksThrottleReasons",
           "nvmlDeviceGetCurrentClocksEventReasons_v2", ["telemetry.nvml"]),
    Mutant("watch: a rank looks at the first GPU", WATCH, "i <= number; ++i", "i <= 0; ++i", ["telemetry.gpu_watch"]),
    Mutant("watch: each sample warns", WATCH, "if (warned.insert(kind).second) {", "if (warned.insert(kind).second || true) {", ["telemetry.gpu_watch"]),
    Mutant("watch: a library that hangs hangs the end", WATCH,
           "!state_->ended.wait_until(lock, state_->answered + kLeave, has_ended)", "(state_->ended.wait(lock, has_ended), false)",
           ["telemetry.gpu_watch"]),
    Mutant("watch: what a library does at the end may hang it", WATCH, "    on_exit(", "    if (false) on_exit(",
           ["telemetry.gpu_figures GpuFigures.test_a_library_that_hangs_is_named_and_delays_nothing"]),
    Mutant("metrics: joules of the ranks that are known", METRICS, "[](const auto& joules) { return !joules; }", "[](const auto&) { return false; }",
           ["report.gpu_metrics"]),
    Mutant("metrics: tokens without a sample are left out", METRICS, "  units_ += units;", "  units_ = units;", ["report.gpu_metrics"]),
    Mutant("monitors: who reads no pipe holds up the run", "src/report/writers/exports.cpp", "O_NONBLOCK | ", "",
           ["report.exports ExportFiles.APipeThatNobodyReadsHoldsUpNothing"]),
    Mutant("monitors: after half a line the next one is lost too", "src/report/writers/exports.cpp", 'is_cut_ ? "\\n" : ""', '""',
           ["report.exports ExportFiles.AfterHalfALineANewOneBegins"]),
    Mutant("monitors: files stay", "src/report/writers/exports.cpp", "::unlink(file_.c_str());", "",
           ["report.exports ExportFiles.FileIsReplacedAndRemoved"]),
    Mutant("monitors: energy of one line only", "src/report/run_exports.cpp", "row.adds ? kept.value_or(0) : 0", "0",
           ["report.run_exports Exporting.AFileForEachRank"]),
    Mutant("monitors: an old Xid is told again", "src/report/run_exports.cpp", "total_of(v) - std::exchange(xids_, total_of(v))", "total_of(v)",
           ["report.run_exports Exporting.ALineForTheRunAndOneForEachHost"]),
    Mutant("monitors: a GPU that does not answer looks well", "src/report/run_exports.cpp", "answers ? 0 : silent_s_[rank] + metrics.seconds", "0",
           ["report.run_exports"]),
    Mutant("monitors: each rank tells of its host", "src/report/run_exports.cpp", "exports_.wants_emf() && std::ranges::find", "exports_.wants_emf() || std::ranges::find",
           ["report.run_exports Exporting.ALineForTheRunAndOneForEachHost"]),
    Mutant("monitors: a GPU that nobody looked at has no power", "src/report/run_exports.cpp", "latest = latest.value_or(GpuUse());", "latest = GpuUse();",
           ["report.run_exports Exporting.AGpuThatNobodyLookedAtKeepsItsFigures"]),
]
