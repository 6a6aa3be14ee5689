// Directories that appear under their name only when they are complete, as files do (base/file.h).
#pragma once

#include <string>

namespace lockstep {

/// A directory that one process fills under the name partial_name(path). publish() gives it its name and removes a
/// directory that had the name before; the two are exchanged in one step where the file system can do that. The
/// constructor removes what a crash left under the partial name, the destructor what was not published.
class PendingDirectory {
 public:
  explicit PendingDirectory(const std::string& path);
  ~PendingDirectory();
  PendingDirectory(const PendingDirectory&) = delete;
  PendingDirectory& operator=(const PendingDirectory&) = delete;

  const std::string& partial_path() const { return partial_path_; }
  /// The files in it must have been published, each on its own: that syncs them.
  void publish();

 private:
  void replace();

  std::string path_, partial_path_, old_path_;
  bool is_published_ = false;
};

}  // namespace lockstep
