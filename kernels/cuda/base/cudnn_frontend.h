// cudnn-frontend, which describes graphs of operations to cuDNN. Its templates take long to compile, so only the files
// *_cudnn.cpp include it.
#pragma once

#define NV_CUDNN_FRONTEND_USE_DYNAMIC_LOADING
#if !__has_include(<cudnn_frontend.h>)
#error "cudnn-frontend's headers are missing: `make deps` fetches them, or build without CUDA: make CUDA=0"
#endif
#include <cudnn_frontend.h>

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "kernels/cuda/base/check.h"
#include "kernels/cuda/base/context.h"
#include "kernels/cuda/base/cudnn.h"
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

/// A graph, and cuDNN's list of plans for it. Some of the plans have been built.
struct PlanList {
  /// The frontend still lists deselected plans, and rejects them only when they are built.
  struct Graph final : fe::graph::Graph {
    bool offers(std::int64_t plan) { return plans.check_support_at_index(plan).is_good(); }
    /// The plan that build_plans() has built.
    std::int64_t first() const { return plans.candidate; }
  };
  Graph graph;
  std::vector<std::string> names;     // of the plans; empty if there is no plan
  std::vector<std::int64_t> numbers;  // the indices of the plans in the graph
  cudnnHandle_t handle = nullptr;     // null if the device is not present
  std::map<std::size_t, bool> built;

  /// After graph.check_support().
  void list() {
    for (std::int64_t i = 0; i < graph.get_execution_plan_count(); ++i) {
      if (!graph.offers(i)) continue;
      numbers.push_back(i);
      names.emplace_back();
      LOCKSTEP_CUDA_CHECK(graph.get_plan_name_at_index(i, names.back()));
    }
  }
  bool build(std::size_t i) {
    const auto known = built.find(i);
    if (known != built.end()) return known->second;
    if (handle) set_stream(handle, nullptr);  // the stream of the last run may be destroyed by now
    return built[i] = graph.build_plan_at_index(numbers[i]).is_good();
  }
  std::size_t workspace_bytes(std::size_t i) const {
    std::int64_t size_bytes = 0;
    LOCKSTEP_CUDA_CHECK(graph.get_workspace_size_plan_at_index(numbers[i], size_bytes));
    return static_cast<std::size_t>(size_bytes);
  }
};

}  // namespace lockstep::cuda
