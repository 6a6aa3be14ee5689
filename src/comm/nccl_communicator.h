// Sums device memory with NCCL, on a stream of its own. See nccl_communicator.cpp.
#pragma once

#include <memory>
#include <string>

#include "comm/communication_thread.h"
#include "comm/topology.h"
#include "lockstep/communicator.h"

namespace lockstep::comm {

struct NcclOptions {
  bool is_blocking = false;     // comm.nccl_blocking
  std::string log_folder = "";  // for NCCL's log, nccl_log.h
};

/// Collective. Throws not_supported if NCCL is missing or too old, and config_conflict if two ranks share a device.
std::unique_ptr<Communicator> make_nccl_communicator(CommunicationThread& thread, World& world, Backend& backend,
                                                     const Topology& topology, const NcclOptions& options);

/// "NCCL 2.28.9 (/usr/lib/libnccl.so.2)", or a sentence that says why there is none.
std::string nccl_library_text();

}  // namespace lockstep::comm
