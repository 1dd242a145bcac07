// The functions of OpenMP that Tandem calls, for a build without OpenMP: there is one thread.
#pragma once

inline void omp_set_num_threads(int) {}
inline int omp_get_max_threads() { return 1; }
inline int omp_get_thread_num() { return 0; }
inline int omp_in_parallel() { return 0; }
