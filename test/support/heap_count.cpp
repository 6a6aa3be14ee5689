#include "test/support/heap_count.h"

#include <malloc.h>

#include <cerrno>

namespace lockstep {

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
bool heap_is_counted() { return false; }
#else
bool heap_is_counted() { return true; }
#endif

namespace heap {
std::atomic<std::size_t> n_allocations{0}, largest_bytes{0};
std::atomic<std::int64_t> held_bytes{0};

[[maybe_unused]] static void* count_allocation(void* block, std::size_t size_bytes) {
  if (block == nullptr) return block;
  ++n_allocations;
  held_bytes += static_cast<std::int64_t>(malloc_usable_size(block));
  std::size_t largest = largest_bytes;
  while (largest < size_bytes && !largest_bytes.compare_exchange_weak(largest, size_bytes)) {
  }
  return block;
}
[[maybe_unused]] static void count_release(void* block) {
  if (block != nullptr) held_bytes -= static_cast<std::int64_t>(malloc_usable_size(block));
}
}  // namespace heap
}  // namespace lockstep

#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
extern "C" {
void* __libc_malloc(std::size_t size_bytes);
void* __libc_calloc(std::size_t n, std::size_t size_bytes);
void* __libc_realloc(void* block, std::size_t size_bytes);
void* __libc_memalign(std::size_t alignment, std::size_t size_bytes);
void __libc_free(void* block);

void* malloc(std::size_t size_bytes) { return lockstep::heap::count_allocation(__libc_malloc(size_bytes), size_bytes); }
void* calloc(std::size_t n, std::size_t size_bytes) {
  return lockstep::heap::count_allocation(__libc_calloc(n, size_bytes), n * size_bytes);
}
void* realloc(void* block, std::size_t size_bytes) {
  lockstep::heap::count_release(block);
  return lockstep::heap::count_allocation(__libc_realloc(block, size_bytes), size_bytes);
}
void* memalign(std::size_t alignment, std::size_t size_bytes) {
  return lockstep::heap::count_allocation(__libc_memalign(alignment, size_bytes), size_bytes);
}
void* aligned_alloc(std::size_t alignment, std::size_t size_bytes) { return memalign(alignment, size_bytes); }
int posix_memalign(void** block, std::size_t alignment, std::size_t size_bytes) {
  *block = memalign(alignment, size_bytes);
  return *block == nullptr ? ENOMEM : 0;
}
void free(void* block) {
  lockstep::heap::count_release(block);
  __libc_free(block);
}
}
#endif
