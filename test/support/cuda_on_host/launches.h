// The list of the kernels that a test launches: those that run on the host, and one for each call of a library.
#pragma once

#include <string>
#include <typeinfo>
#include <vector>

namespace lockstep::cuda_fibers {

/// While it exists, launches of this thread are added to it, in their order. Of a kernel: the type of the function,
/// whose parameters distinguish kernels, since their names are not known at run time. Of a call of a library: what it
/// computes, as "cudnn NAME" or "cublaslt".
class LaunchList {
 public:
  LaunchList();
  ~LaunchList();
  LaunchList(const LaunchList&) = delete;
  LaunchList& operator=(const LaunchList&) = delete;

  std::vector<std::string> launches;
};

/// Adds it to the list, if there is one.
void record_launch(const std::type_info& kernel);
void record_call(const std::string& call);

}  // namespace lockstep::cuda_fibers
