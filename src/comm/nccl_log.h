// The log that NCCL writes. It reports the network that NCCL uses only there, and its warnings name what an error code
// does not: a cable, a port, a rank. The log is redirected to a file of this rank, which is kept until the run has
// ended without an error. If the user has set NCCL_DEBUG, the log is left alone.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

namespace lockstep::comm {

class NcclLog {
 public:
  /// Must be constructed before NCCL is first used in this process, since NCCL then reads where its log goes. The file
  /// is `folder`/nccl.RANK.log; if that folder does not exist, the file is in the folder for temporary files. The log
  /// of a run that failed and is now resumed becomes `folder`/nccl.RANK.previous.log.
  NcclLog(const std::string& folder, int rank);
  ~NcclLog();
  NcclLog(const NcclLog&) = delete;
  NcclLog& operator=(const NcclLog&) = delete;

  /// To be called once NCCL has started. Communicators that other code starts in this process from then on write their
  /// logs elsewhere.
  void restore_environment();
  /// "network IB (mlx5_0:1/RoCE, out of band eth0:10.0.0.5<0>)"; empty if unknown.
  std::string network() const;
  /// The warnings in the lines that were completed since the last call. Must always be called from the same thread.
  std::vector<std::string> new_warnings();
  /// The run has ended without an error, so that nobody needs the files.
  void remove();

  /// The file that is kept if the run fails; empty: there is none.
  std::string kept_path() const { return is_temporary_ ? "" : path_; }

 private:
  std::string path_;      // empty: the log is left alone
  std::string previous_;  // empty: none is kept
  bool is_temporary_ = false;
  bool has_set_level_ = false, has_set_subsystems_ = false;  // variables of the environment
  std::size_t n_read_bytes_ = 0;
};

/// The network in the text of a log.
std::string network_in_nccl_log(const std::string& text);
/// The text of the warning in a line of a log; empty if the line is not a warning.
std::string warning_in_nccl_log(const std::string& line);

}  // namespace lockstep::comm
