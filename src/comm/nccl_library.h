// NCCL, loaded when a communicator wants it: the program starts without it. Only src/comm/nccl* know its header.
//
// Where it is looked for: $NCCL_HOME (lib, lib64, or the folder itself) and nowhere else if that is set; then where
// NCCL_HOME was when the program was built; then wherever the system finds libnccl.so.2.
#pragma once

#include <nccl.h>

#include <string>

namespace lockstep::comm {

inline constexpr int kOldestNccl = 22000;  // 2.20

// clang-format off
#define LOCKSTEP_NCCL_FUNCTIONS(F) \
  F(ncclGetVersion) F(ncclGetErrorString) F(ncclGetLastError) F(ncclGetUniqueId) F(ncclCommInitRankConfig) \
  F(ncclCommFinalize) F(ncclCommDestroy) F(ncclCommAbort) F(ncclCommGetAsyncError) F(ncclCommRegister) \
  F(ncclCommDeregister) F(ncclAllReduce) F(ncclSend) F(ncclRecv) F(ncclGroupStart) F(ncclGroupEnd)
// clang-format on

struct NcclLibrary {
  std::string path;  // as it was found
  int version = 0;   // 22809
#define LOCKSTEP_NCCL_MEMBER(function) decltype(&::function) function = nullptr;
  LOCKSTEP_NCCL_FUNCTIONS(LOCKSTEP_NCCL_MEMBER)
#undef LOCKSTEP_NCCL_MEMBER
};

/// Loads it the first time, for good. Throws not_supported with the remedy where it is missing or too old.
const NcclLibrary& nccl();

/// "2.28.9"
std::string nccl_version_text(int version);

struct NcclPlace {
  const char* statement;
  const char* file;
  int line;
};
[[noreturn]] void throw_nccl_failure(ncclResult_t status, const NcclPlace& place);
void report_nccl_failure(ncclResult_t status, const NcclPlace& place) noexcept;

/// ncclInProgress is no failure: the call goes on beside its caller.
inline void check_nccl(ncclResult_t status, const NcclPlace& place) {
  if (status != ncclSuccess && status != ncclInProgress) throw_nccl_failure(status, place);
}
inline void check_nccl_reporting(ncclResult_t status, const NcclPlace& place) noexcept {
  if (status != ncclSuccess && status != ncclInProgress) report_nccl_failure(status, place);
}

}  // namespace lockstep::comm

#define LOCKSTEP_NCCL_CHECK(statement) \
  ::lockstep::comm::check_nccl((statement), ::lockstep::comm::NcclPlace{#statement, __FILE__, __LINE__})
#define LOCKSTEP_NCCL_REPORT(statement) \
  ::lockstep::comm::check_nccl_reporting((statement), ::lockstep::comm::NcclPlace{#statement, __FILE__, __LINE__})
