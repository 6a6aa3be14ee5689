// A fake libnvidia-ml.so.1: one GPU, at 0000:18:00.0, with the number 2 on the node.
#include <cstdlib>
#include <cstring>

extern "C" {

int nvmlInit_v2() { return std::getenv("FAKE_NVML_REFUSES") != nullptr ? 9 : 0; }
const char* nvmlErrorString(int) { return "Driver Not Loaded"; }
int nvmlSystemGetDriverVersion(char* text, unsigned length) {
  std::strncpy(text, "580.65.06", length);
  return 0;
}
int nvmlDeviceGetHandleByPciBusId_v2(const char* pci_bus, void** device) {
  static int gpu = 0;
  *device = &gpu;
  return std::strcmp(pci_bus, "0000:18:00.0") == 0 ? 0 : 6;
}
int nvmlDeviceGetMemoryInfo(void*, void* memory) {
  const unsigned long long total_free_used[3] = {80ull << 30, 50ull << 30, 30ull << 30};
  std::memcpy(memory, total_free_used, sizeof(total_free_used));
  return 0;
}
int nvmlDeviceGetIndex(void*, unsigned* index) {
  *index = 2;
  return 0;
}
int nvmlDeviceGetUtilizationRates(void*, void* utilization) {
  if (std::getenv("FAKE_NVML_MIG") != nullptr) return 3;  // not supported
  const unsigned gpu_memory[2] = {87, 40};
  std::memcpy(utilization, gpu_memory, sizeof(gpu_memory));
  return 0;
}
int nvmlDeviceGetNvLinkState(void*, unsigned link, unsigned* is_active) {
  *is_active = link < 4 ? 1 : 0;
  return link < 6 ? 0 : 2;
}

}  // extern "C"
