// Whether all nodes run the same software, whether the launcher, MPI, Slurm, CUDA and NCCL fit together, and the limits
// of a process.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "doctor/check.h"
#include "lockstep/gpu_report.h"

namespace lockstep::doctor {

struct SystemFacts {
  std::map<std::string, std::string> versions{};     // "lockstep", "MPI", "kernel", ...
  std::map<std::string, std::string> environment{};  // of Slurm and PMI
  std::string gpu_problem{};                         // why no GPU can be used; empty: one can
  std::string driver_cuda{}, built_with_cuda{};      // "13.0"; empty: none
  std::vector<std::string> missing_libraries{};      // for GPUs: "cuDNN: libcudnn.so.9 cannot be loaded"
  bool computes_on_gpu = false, has_nccl = false, has_rdma = false;
  // Limits of this process; -1 means unlimited.
  double open_files = 0, locked_memory_bytes = 0;
  std::optional<double> shm_free_bytes{};
};
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(SystemFacts, versions, environment, gpu_problem, driver_cuda, built_with_cuda,
                                   missing_libraries, computes_on_gpu, has_nccl, has_rdma, open_files,
                                   locked_memory_bytes, shm_free_bytes)

/// The facts of this rank. `computes_on_gpu`: according to its backend.
SystemFacts measure_system(bool computes_on_gpu);

std::vector<Check> check_systems(const std::vector<Place>& places, const std::vector<SystemFacts>& systems);

}  // namespace lockstep::doctor
