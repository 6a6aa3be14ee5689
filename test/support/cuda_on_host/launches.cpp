#include "test/support/cuda_on_host/launches.h"

#include <cxxabi.h>

#include <cstdint>
#include <cstdlib>
#include <memory>

#include "lockstep/error.h"
#include "lockstep/launches.h"

namespace lockstep::cuda_fibers {
namespace {

thread_local LaunchList* list = nullptr;

}  // namespace

LaunchList::LaunchList() { list = this; }
LaunchList::~LaunchList() { list = nullptr; }

void record_launch(const std::type_info& kernel) {
  if (list == nullptr) return;
  int status = 0;
  const std::unique_ptr<char, decltype(&std::free)> text(abi::__cxa_demangle(kernel.name(), nullptr, nullptr, &status),
                                                         &std::free);
  list->launches.emplace_back(text ? text.get() : kernel.name());
}

void record_call(const std::string& call, const void* workspace) {
  require(reinterpret_cast<std::uintptr_t>(workspace) % 256 == 0, ErrorCode::internal, "{}: the workspace is at {}",
          call, workspace);
  launch_pending();
  if (list != nullptr) list->launches.push_back(call);
}

}  // namespace lockstep::cuda_fibers
