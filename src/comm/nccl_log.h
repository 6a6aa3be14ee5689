// Finds out which network NCCL uses. NCCL only reports that in its log. While a communicator starts, the log is
// therefore redirected to a file, which is read and removed. If the user has set NCCL_DEBUG, the log is left alone.
#pragma once

#include <string>

namespace lockstep::comm {

class NcclLog {
 public:
  /// Must be constructed before NCCL is first used in this process, since NCCL then reads where its log goes.
  NcclLog();
  ~NcclLog();
  NcclLog(const NcclLog&) = delete;
  NcclLog& operator=(const NcclLog&) = delete;

  /// "network IB (mlx5_0:1/RoCE, out of band eth0:10.0.0.5<0>)"; empty if unknown.
  std::string network() const;

 private:
  std::string path_;              // empty: the log is left alone
  bool sets_subsystems_ = false;  // whether NCCL_DEBUG_SUBSYS was set here
};

/// The same for the text of a log.
std::string network_in_nccl_log(const std::string& text);

}  // namespace lockstep::comm
