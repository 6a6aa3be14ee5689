#include "kernels/cuda/base/launch.h"
#include "kernels/cuda/base/record_progress.h"

namespace lockstep::cuda {
namespace {

/// Only one thread writes: calls for one StreamProgress are issued to one stream. A reader that sees the new count also
/// sees the new `what`, or a later one.
__global__ void store_progress(volatile std::uint64_t* h_count, volatile std::uint64_t* h_what, std::uint64_t what) {
  if (threadIdx.x != 0) return;
  *h_what = what;
  __threadfence_system();
  *h_count = *h_count + 1;
}

}  // namespace

void record_progress(StreamProgress* h_progress, std::uint64_t what, Stream& stream) {
  launch(store_progress, {.blocks = 1, .threads = 32}, stream, &h_progress->count, &h_progress->what, what);
}

}  // namespace lockstep::cuda
