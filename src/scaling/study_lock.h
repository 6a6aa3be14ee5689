// Only one `lockstep scaling run` works on a study at a time. DIR/lock names the host and the process. The lock of a
// process of this host that is gone is taken over; that of another host must be removed by hand, since nothing tells
// whether its process is still there.
#pragma once

#include <string>

namespace lockstep::scaling {

class StudyLock {
 public:
  /// Throws run_locked if another process holds it. The directory must exist.
  explicit StudyLock(const std::string& directory);
  ~StudyLock();
  StudyLock(const StudyLock&) = delete;
  StudyLock& operator=(const StudyLock&) = delete;

 private:
  bool try_once();
  void remove_left();

  std::string path_, content_;
};

}  // namespace lockstep::scaling
