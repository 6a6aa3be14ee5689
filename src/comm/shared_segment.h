// A file in memory (/dev/shm) that the ranks of a node map together.
//
// One rank creates it, the others open it, every rank reserves and so first touches its own part (its pages then lie in
// its own NUMA domain), and the creator removes the name once all have mapped: nothing is left behind by a crash later.
#pragma once

#include <cstddef>
#include <string>

#include "lockstep/handle.h"

namespace lockstep::comm {

struct DescriptorTraits {
  using Type = int;
  static Type null() { return -1; }
  static void close(Type descriptor);
};
using Descriptor = Handle<DescriptorTraits>;

class SharedSegment {
 public:
  /// In /dev/shm, or in TMPDIR with a warning where there is none. Sized but not reserved. `purpose` is for messages.
  /// Throws comm_shared_memory where less is free than wanted.
  static SharedSegment create(std::size_t size_bytes, const std::string& purpose);
  static SharedSegment open(const std::string& path, std::size_t size_bytes, const std::string& purpose);
  SharedSegment() = default;
  SharedSegment(SharedSegment&& other) noexcept;
  SharedSegment& operator=(SharedSegment&& other) noexcept;
  ~SharedSegment();

  /// Takes the memory now, zero-filled: without it a full /dev/shm would end the process by SIGBUS at some later write.
  void reserve(std::size_t begin_bytes, std::size_t size_bytes) const;
  /// Removes the name; the memory stays while it is mapped.
  void unlink();
  /// Never unmapped: somebody may still write there.
  void leave_mapped() { data_ = nullptr; }

  std::byte* data() const { return data_; }
  const std::string& path() const { return path_; }
  int descriptor() const { return descriptor_.get(); }

 private:
  void map(std::size_t size_bytes);

  Descriptor descriptor_;
  std::byte* data_ = nullptr;
  std::size_t size_bytes_ = 0;
  std::string path_;
  std::string purpose_;
  bool named_ = false;  // this rank created the name and has not removed it
};

}  // namespace lockstep::comm
