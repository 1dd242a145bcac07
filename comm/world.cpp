#include "comm/world.h"

#include <mpi.h>
#include <sys/prctl.h>

#include <chrono>
#include <cstdlib>
#include <iostream>
#include <thread>

#include "comm/transport/launcher.h"
#include "comm/transport/local_control.h"
#include "comm/transport/mpi_collectives.h"
#include "comm/transport/mpi_control.h"
#include "comm/transport/self_collectives.h"
#include "src/trace/flight_log.h"

namespace tandem {

// Runs on the worker. MPI's default error handler is still active here: MPI itself ends the job on
// a failure.
World::Place World::start_mpi() {
  // The worker sleeps for tens of microseconds while it waits; the kernel's default slack would
  // double that.
  prctl(PR_SET_TIMERSLACK, 1000UL, 0UL, 0UL, 0UL);
  int provided = MPI_THREAD_SINGLE;
  MPI_Init_thread(nullptr, nullptr, MPI_THREAD_MULTIPLE, &provided);
  if (provided < MPI_THREAD_SERIALIZED) {
    fail(ExitCode::kConfig,
         "the MPI library allows only one thread to call it; use one that was built with threads");
  }
  Place place;
  MPI_Comm_rank(MPI_COMM_WORLD, &place.rank);
  MPI_Comm_size(MPI_COMM_WORLD, &place.size);
  MPI_Comm local = MPI_COMM_NULL;
  MPI_Comm_split_type(MPI_COMM_WORLD, MPI_COMM_TYPE_SHARED, place.rank, MPI_INFO_NULL, &local);
  MPI_Comm_rank(local, &place.local_rank);
  MPI_Comm_size(local, &place.local_size);
  MPI_Comm_free(&local);
  return place;
}

World::World() : host_(host_name()) {
  // Two collectives that GPUs start in different orders are a deadlock (nccl_stream.h). Over TCP
  // Open MPI's receiver of a long message asks for it in pieces ("put"); sent unasked, an
  // all_to_all takes 0.6 of the time. Values that the user has set stay. 1 rank does not need this.
  if (launched_processes() > 1) {  // before CUDA starts, and before there are threads
    setenv("NCCL_LAUNCH_ORDER_IMPLICIT", "1", 0);
    setenv("OMPI_MCA_btl_tcp_flags", "send,inplace", 0);
  }
  if (started_by_launcher()) {
    worker_ = std::make_unique<Stream>(Stream::background(Device::kCpu));
    worker_->submit([this] { place_ = start_mpi(); });
    worker_->synchronize();
    connected_ = true;
  }
  if (size() > 1) {
    control_ = std::make_unique<MpiControl>(MpiQueue(*worker_, timeout_s_));
    collectives_ = std::make_unique<MpiCollectives>(MpiQueue(*worker_, timeout_s_));
  } else {
    control_ = std::make_unique<LocalControl>();
    collectives_ = std::make_unique<SelfCollectives>();
  }
}

void World::finish(ExitCode code) {
  if (!connected_) {
    return flight_log().close(code);
  }
  control_->barrier();  // has a deadline; MPI_Finalize would wait for ever
  flight_log().close(code);
  worker_->submit([] { MPI_Finalize(); });
  worker_->synchronize();
  connected_ = false;
}

void World::abort(ExitCode code) {
  const int status = static_cast<int>(code);
  // If MPI_Abort or a flush hangs (the worker may be anywhere), this process still ends, and the
  // launcher ends the others because of its status.
  std::thread([status] {
    std::this_thread::sleep_for(std::chrono::seconds(5));
    std::_Exit(status);
  }).detach();
  std::cout.flush();
  flight_log().close(code);
  if (connected_) {
    MPI_Abort(MPI_COMM_WORLD, status);
  }
  std::_Exit(status);
}

}  // namespace tandem
