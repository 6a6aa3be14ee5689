// A file in memory (/dev/shm) that all ranks of a node map.
//
// One rank creates it and the others open it. Every rank reserves its own part, which touches the pages first and so
// places them in the NUMA domain of that rank. The creator removes the name once all ranks have mapped the file, so
// that a later crash leaves nothing behind.
//
// Pages that a process has accessed, including those of other ranks, count as its memory until it releases them.
#pragma once

#include <cstddef>
#include <string>

#include "base/file.h"

namespace lockstep::comm {

class SharedSegment {
 public:
  /// Creates it in /dev/shm or, with a warning, in TMPDIR if /dev/shm is not writable. The file gets its size, but no
  /// memory is reserved yet. `purpose` is used in messages. Throws comm_shared_memory if not enough memory is free.
  static SharedSegment create(std::size_t size_bytes, const std::string& purpose);
  static SharedSegment open(const std::string& path, std::size_t size_bytes, const std::string& purpose);
  SharedSegment() = default;
  SharedSegment(SharedSegment&& other) noexcept;
  SharedSegment& operator=(SharedSegment&& other) noexcept;
  ~SharedSegment();

  /// Allocates the memory now, zero-filled, in huge pages where the system has them. Otherwise a full /dev/shm would
  /// cause a SIGBUS at some later write.
  void reserve(std::size_t begin_bytes, std::size_t size_bytes) const;
  /// Removes the name. The memory exists as long as it is mapped.
  void unlink();
  /// Leaves the memory mapped for good, because somebody may still write to it.
  void leave_mapped() { mapping_ = nullptr; }

  std::byte* data() const { return data_; }
  const std::string& path() const { return path_; }
  int descriptor() const { return descriptor_.get(); }

 private:
  void map(std::size_t size_bytes);
  void reserve_huge_pages(std::size_t begin_bytes, std::size_t size_bytes) const;
  void allocate(std::size_t begin_bytes, std::size_t size_bytes) const;

  Descriptor descriptor_;
  std::byte* data_ = nullptr;
  void* mapping_ = nullptr;  // the file and the padding that aligns it
  std::size_t mapping_bytes_ = 0;
  std::size_t size_bytes_ = 0;
  std::string path_;
  std::string purpose_;
  bool has_name_ = false;  // this rank created the name and has not removed it
};

}  // namespace lockstep::comm
