// What every CUDA op knows of the device.
#pragma once

namespace lockstep::cuda {

struct CudaContext {
  int device = 0;
  int multiprocessors = 132;  // kernels that loop over memory take a few blocks for each
  int compute_capability = 90;
};

}  // namespace lockstep::cuda
