// The one place that names concrete backends.
#include "kernels/cpu/backend.h"
#include "lockstep/backend.h"
#include "lockstep/error.h"

namespace lockstep {

std::unique_ptr<Backend> make_backend(const BackendOptions& options) {
  require(options.device != "cuda", ErrorCode::not_supported,
          "device: cuda was asked for, but this build has no CUDA backend; use device=cpu or device=auto");
  return cpu::make_backend(options);
}

}  // namespace lockstep
