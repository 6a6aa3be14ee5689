// NCCL, which is loaded when a communicator needs it, so that the program starts without it. Only src/comm/nccl*
// include its header.
//
// If NCCL_HOME is set, only that folder is searched: its lib, its lib64, and the folder itself. Otherwise the NCCL_HOME
// of the build is searched in the same way, and then the system's library path for libnccl.so.2.
#pragma once

#include <nccl.h>

#include <cstddef>
#include <memory>
#include <string>

#include "lockstep/backend.h"

namespace lockstep::comm {

inline constexpr int kOldestNccl = 22000;  // 2.20

// clang-format off
#define LOCKSTEP_NCCL_FUNCTIONS(F) \
  F(ncclGetVersion) F(ncclGetErrorString) F(ncclGetLastError) F(ncclGetUniqueId) F(ncclCommInitRankConfig) \
  F(ncclCommFinalize) F(ncclCommDestroy) F(ncclCommAbort) F(ncclCommGetAsyncError) F(ncclCommRegister) \
  F(ncclCommDeregister) F(ncclMemAlloc) F(ncclMemFree) F(ncclAllReduce) F(ncclReduceScatter) F(ncclAllGather) \
  F(ncclSend) F(ncclRecv) F(ncclGroupStart) F(ncclGroupEnd)
// clang-format on

struct NcclLibrary {
  std::string path;  // where it was found
  int version = 0;   // 22809
#define LOCKSTEP_NCCL_MEMBER(function) decltype(&::function) function = nullptr;
  LOCKSTEP_NCCL_FUNCTIONS(LOCKSTEP_NCCL_MEMBER)
#undef LOCKSTEP_NCCL_MEMBER

  // Since NCCL 2.27; null if this one has no windows. ncclWindow_t, which older headers lack, is a pointer.
  ncclResult_t (*ncclCommWindowRegister)(ncclComm_t, void*, std::size_t, void** window, int flags) = nullptr;
  ncclResult_t (*ncclCommWindowDeregister)(ncclComm_t, void* window) = nullptr;
  bool has_windows() const { return ncclCommWindowRegister != nullptr && ncclCommWindowDeregister != nullptr; }
};

/// Loads NCCL on the first call and keeps it loaded. Throws not_supported, with the remedy, if it is missing or too
/// old.
const NcclLibrary& nccl();

/// "2.28.9"
std::string nccl_version_text(int version);

struct NcclCall {
  const char* statement;
  const char* file;
  int line;
};
[[noreturn]] void throw_nccl_failure(ncclResult_t status, const NcclCall& call);
void report_nccl_failure(ncclResult_t status, const NcclCall& call) noexcept;

/// ncclInProgress is not a failure: the call continues in the background.
inline void check_nccl(ncclResult_t status, const NcclCall& call) {
  if (status != ncclSuccess && status != ncclInProgress) throw_nccl_failure(status, call);
}
inline void check_nccl_reporting(ncclResult_t status, const NcclCall& call) noexcept {
  if (status != ncclSuccess && status != ncclInProgress) report_nccl_failure(status, call);
}

// Device memory that NCCL allocates and registers, so that it copies and sums without buffers of its own.
//
// Since NCCL 2.27, memory from ncclMemAlloc can be registered as a window, through which all GPUs of a node can access
// each other's memory. NCCL then sums in place, with NVLink SHARP where the switches support it. Otherwise the backend
// allocates the memory, and each rank registers it for itself. NCCL also works if it cannot register the memory.

/// Memory of ncclMemAlloc, zero-filled; null if NCCL has no windows or cannot allocate it. `stream` fills it.
std::unique_ptr<Memory> allocate_nccl_memory(Backend& backend, Stream& stream, std::size_t size_bytes);

}  // namespace lockstep::comm

#define LOCKSTEP_NCCL_CHECK(statement) \
  ::lockstep::comm::check_nccl((statement), ::lockstep::comm::NcclCall{#statement, __FILE__, __LINE__})
#define LOCKSTEP_NCCL_REPORT(statement) \
  ::lockstep::comm::check_nccl_reporting((statement), ::lockstep::comm::NcclCall{#statement, __FILE__, __LINE__})
