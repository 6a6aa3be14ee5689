// The list of the kernels that a test launches: those that run on the host, and one for each library call.
#pragma once

#include <string>
#include <typeinfo>
#include <vector>

namespace lockstep::cuda_fibers {

/// While it exists, launches of this thread are added to it, in order. A kernel is recorded as the type of its
/// function, whose parameters distinguish kernels, since their names are not known at run time. A library call is
/// recorded as what it computes: "cudnn NAME" or "cublaslt".
class LaunchList {
 public:
  LaunchList();
  ~LaunchList();
  LaunchList(const LaunchList&) = delete;
  LaunchList& operator=(const LaunchList&) = delete;

  std::vector<std::string> launches;
};

/// Adds the launch to the list, if there is one.
void record_launch(const std::type_info& kernel);
/// Throws if the workspace of a library is not aligned as cuBLAS requires it.
void record_call(const std::string& call, const void* workspace = nullptr);

}  // namespace lockstep::cuda_fibers
