// cudnn-frontend, which describes graphs of operations to cuDNN. Its templates take long to compile, so only the files
// *_cudnn.cpp include it.
#pragma once

#define NV_CUDNN_FRONTEND_USE_DYNAMIC_LOADING
#if !__has_include(<cudnn_frontend.h>)
#error "cudnn-frontend's headers are missing: `make deps` fetches them, or build without CUDA: make CUDA=0"
#endif
#include <cudnn_frontend.h>

#include <map>
#include <memory>
#include <string>

#include "kernels/cuda/base/check.h"
#include "kernels/cuda/base/context.h"
#include "lockstep/dtype.h"

namespace lockstep::cuda {

namespace fe = cudnn_frontend;

/// cudnn-frontend's part of check.h.
inline void check(fe::error_t status, const Place& place) {  // its functions are not const
  if (status.is_bad())
    throw_failure("cudnn-frontend", static_cast<int>(status.get_code()), status.get_message().c_str(), place);
}

inline fe::DataType_t type_of(DType dtype) {
  return dtype == DType::fp16   ? fe::DataType_t::HALF
         : dtype == DType::bf16 ? fe::DataType_t::BFLOAT16
                                : fe::DataType_t::FLOAT;
}

inline std::shared_ptr<fe::DeviceProperties> properties_of(const DeviceDescription& description) {
  static std::map<std::string, std::shared_ptr<fe::DeviceProperties>> known;
  auto& properties = known[description.json];
  if (!properties) {
    auto made = std::make_shared<fe::DeviceProperties>();
    LOCKSTEP_CUDA_CHECK(made->deserialize({description.json.begin(), description.json.end()}));
    properties = std::move(made);
  }
  return properties;
}

}  // namespace lockstep::cuda
