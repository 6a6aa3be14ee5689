// A fake libnvidia-ml.so.1: one GPU, at 0000:18:00.0, with index 2 on the node. FAKE_NVML_THROTTLES, FAKE_NVML_ECC and
// FAKE_NVML_NARROW make it lower its clock, report memory errors, and use half of its PCIe lanes, respectively.
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
int nvmlDeviceGetClockInfo(void*, int which, unsigned* mhz) {
  *mhz = which == 1 ? 1755 : 2619;
  return 0;
}
int nvmlDeviceGetMaxClockInfo(void*, int, unsigned* mhz) {
  *mhz = 1980;
  return 0;
}
int nvmlDeviceGetCurrentClocksThrottleReasons(void*, unsigned long long* reasons) {
  *reasons = std::getenv("FAKE_NVML_THROTTLES") != nullptr ? 0xC4 : 0x5;  // if set: hot, and the power brake
  return 0;
}
int nvmlDeviceGetTotalEccErrors(void*, int kind, int, unsigned long long* count) {
  *count = std::getenv("FAKE_NVML_ECC") != nullptr ? (kind == 1 ? 2 : 1700) : 0;
  return std::getenv("FAKE_NVML_MIG") != nullptr ? 3 : 0;
}
int nvmlDeviceGetCurrPcieLinkGeneration(void*, unsigned* generation) {
  *generation = 5;
  return 0;
}
int nvmlDeviceGetMaxPcieLinkGeneration(void*, unsigned* generation) {
  *generation = 5;
  return 0;
}
int nvmlDeviceGetCurrPcieLinkWidth(void*, unsigned* lanes) {
  *lanes = std::getenv("FAKE_NVML_NARROW") != nullptr ? 8 : 16;
  return 0;
}
int nvmlDeviceGetMaxPcieLinkWidth(void*, unsigned* lanes) {
  *lanes = 16;
  return 0;
}

}  // extern "C"
