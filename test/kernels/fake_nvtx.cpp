// A fake profiler for NVTX: writes each range that begins or ends to the file FAKE_NVTX_LOG, with the nesting depth of
// its thread.
#include <nvtx3/nvToolsExt.h>

#include <cstdio>
#include <cstdlib>
#include <mutex>

namespace {

thread_local int n_open = 0;

void write(const char* what, const char* name) {
  static std::mutex mutex;
  const std::lock_guard lock(mutex);
  if (std::FILE* file = std::fopen(std::getenv("FAKE_NVTX_LOG"), "a")) {
    std::fprintf(file, "%d %s%s\n", n_open, what, name);
    std::fclose(file);
  }
}

int push(const char* name) {
  write("", name);
  return n_open++;
}
int pop() {
  --n_open;
  write("end", "");
  return n_open;
}

}  // namespace

extern "C" int InitializeInjectionNvtx2(NvtxGetExportTableFunc_t get_export_table) {
  const auto* callbacks = static_cast<const NvtxExportTableCallbacks*>(get_export_table(NVTX_ETID_CALLBACKS));
  NvtxFunctionTable table = nullptr;
  unsigned int size = 0;
  if (!callbacks || !callbacks->GetModuleFunctionTable(NVTX_CB_MODULE_CORE, &table, &size)) return 0;
  *table[NVTX_CBID_CORE_RangePushA] = reinterpret_cast<NvtxFunctionPointer>(&push);
  *table[NVTX_CBID_CORE_RangePop] = reinterpret_cast<NvtxFunctionPointer>(&pop);
  return 1;
}
