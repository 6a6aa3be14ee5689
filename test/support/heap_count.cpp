#include "test/support/heap_count.h"

#include <malloc.h>

#include <cerrno>

namespace lockstep {

namespace heap {
std::atomic<std::size_t> n_allocations{0}, largest_bytes{0};
std::atomic<std::int64_t> held_bytes{0};
}  // namespace heap

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
bool heap_is_counted() { return false; }
#else
bool heap_is_counted() { return true; }

namespace {

void* count_allocation(void* block, std::size_t size_bytes) {
  if (block == nullptr) return block;
  ++heap::n_allocations;
  heap::held_bytes += static_cast<std::int64_t>(malloc_usable_size(block));
  std::size_t largest = heap::largest_bytes;
  while (largest < size_bytes && !heap::largest_bytes.compare_exchange_weak(largest, size_bytes)) {
  }
  return block;
}
void count_release(void* block) {
  if (block != nullptr) heap::held_bytes -= static_cast<std::int64_t>(malloc_usable_size(block));
}

}  // namespace

extern "C" {
void* __libc_malloc(std::size_t size_bytes);
void* __libc_calloc(std::size_t n, std::size_t size_bytes);
void* __libc_realloc(void* block, std::size_t size_bytes);
void* __libc_memalign(std::size_t alignment, std::size_t size_bytes);
void __libc_free(void* block);

void* malloc(std::size_t size_bytes) { return count_allocation(__libc_malloc(size_bytes), size_bytes); }
void* calloc(std::size_t n, std::size_t size_bytes) {
  return count_allocation(__libc_calloc(n, size_bytes), n * size_bytes);
}
void* realloc(void* block, std::size_t size_bytes) {
  count_release(block);
  return count_allocation(__libc_realloc(block, size_bytes), size_bytes);
}
void* memalign(std::size_t alignment, std::size_t size_bytes) {
  return count_allocation(__libc_memalign(alignment, size_bytes), size_bytes);
}
void* aligned_alloc(std::size_t alignment, std::size_t size_bytes) { return memalign(alignment, size_bytes); }
int posix_memalign(void** block, std::size_t alignment, std::size_t size_bytes) {
  *block = memalign(alignment, size_bytes);
  return *block == nullptr ? ENOMEM : 0;
}
void free(void* block) {
  count_release(block);
  __libc_free(block);
}
}
#endif

}  // namespace lockstep
