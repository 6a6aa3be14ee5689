// Which network NCCL found, which it tells in its log alone: while a communicator starts, the log goes to a file that
// is read and removed. Where NCCL_DEBUG is set the user reads it, and it is left as it is.
#pragma once

#include <string>

namespace lockstep::comm {

class NcclLog {
 public:
  /// Before NCCL is used for the first time in this process, which is when it reads where its log goes.
  NcclLog();
  ~NcclLog();
  NcclLog(const NcclLog&) = delete;
  NcclLog& operator=(const NcclLog&) = delete;

  /// "network IB (mlx5_0:1/RoCE, out of band eth0:10.0.0.5<0>)"; empty where it is not known.
  std::string network() const;

 private:
  std::string path_;            // empty: it is the user's
  bool chooses_parts_ = false;  // NCCL_DEBUG_SUBSYS
};

/// Of a log's text.
std::string network_in_nccl_log(const std::string& text);

}  // namespace lockstep::comm
