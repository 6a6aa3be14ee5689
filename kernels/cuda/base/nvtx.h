// Ranges of NVIDIA's profilers (NVTX): each span of lockstep/trace.h, so that Nsight Systems shows steps, layers and
// buckets, and which kernels they launched. A step that was recorded as a graph runs without them: profile with
// cuda.graph=false.
#pragma once

namespace lockstep::cuda {

/// Gives spans to the profiler that this process was started under. False, and nothing else, where there is none.
bool attach_profiler();

}  // namespace lockstep::cuda
