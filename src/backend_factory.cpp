// The one place that names concrete backends.
#include "base/version.h"
#include "kernels/cpu/backend.h"
#include "lockstep/backend.h"
#include "lockstep/error.h"

namespace lockstep {

namespace cpu {
std::string onednn_version();  // kernels/cpu/onednn.cpp; its header needs oneDNN's own
}

std::unique_ptr<Backend> make_backend(const BackendOptions& options) {
  require(options.device != "cuda", ErrorCode::not_supported,
          "device: cuda was asked for, but this build has no CUDA backend; use device=cpu or device=auto");
  return cpu::make_backend(options);
}

std::vector<std::string> backend_libraries() { return {"oneDNN " + cpu::onednn_version()}; }

}  // namespace lockstep
