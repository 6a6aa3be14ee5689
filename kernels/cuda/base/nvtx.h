// Ranges of NVIDIA's profilers (NVTX): one for each span of lockstep/trace.h, so that Nsight Systems shows steps,
// layers and buckets, and which kernels they launched. A captured graph runs without ranges: profile with
// cuda.graph=false.
#pragma once

namespace lockstep::cuda {

/// Passes spans to the profiler that this process was started under. Returns false and does nothing if there is none.
bool attach_profiler();

}  // namespace lockstep::cuda
