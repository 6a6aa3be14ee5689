// A fake CUDA driver: the functions that cuDNN calls while it builds plans, with the answers of an H200, for machines
// without a GPU. cuDNN then compiles and chooses kernels as on an H200, but nothing can be run. For every other
// function of the driver, plans_test.sh adds one that returns 34 (stub library).
#include <stddef.h>

enum {
  kMaxThreadsPerBlock = 1,
  kSharedBytesPerBlock = 8,
  kWarp = 10,
  kRegistersPerBlock = 12,
  kMultiprocessors = 16,
  kThreadsPerMultiprocessor = 39,
  kMajor = 75,
  kMinor = 76,
  kSharedBytesPerMultiprocessor = 81,
  kRegistersPerMultiprocessor = 82,
  kSharedBytesPerBlockOptin = 97,
};

static void* const kContext = (void*)0x6000;
static void* const kLibrary = (void*)0x1000;
static void* const kKernel = (void*)0x2000;
static void* const kModule = (void*)0x3000;
static void* const kGlobal = (void*)0x4000;
static void* const kFunction = (void*)0x5000;

int cuInit(unsigned flags) { return 0; }
int cuDriverGetVersion(int* version) {
  *version = 13000;
  return 0;
}
int cuGetErrorName(int error, const char** text) {
  *text = "an error of the fake driver";
  return 0;
}
int cuGetErrorString(int error, const char** text) {
  *text = "an error of the fake driver";
  return 0;
}

int cuDeviceGetCount(int* n) {
  *n = 1;
  return 0;
}
int cuDeviceGet(int* device, int ordinal) {
  *device = 0;
  return 0;
}
int cuDeviceGetAttribute(int* value, int attribute, int device) {
  switch (attribute) {
    case kMajor:
      *value = 9;
      break;
    case kMinor:
      *value = 0;
      break;
    case kMultiprocessors:
      *value = 132;
      break;
    case kSharedBytesPerBlock:
      *value = 49152;
      break;
    case kSharedBytesPerBlockOptin:
      *value = 232448;
      break;
    case kSharedBytesPerMultiprocessor:
      *value = 233472;
      break;
    case kWarp:
      *value = 32;
      break;
    case kMaxThreadsPerBlock:
      *value = 1024;
      break;
    case kThreadsPerMultiprocessor:
      *value = 2048;
      break;
    case kRegistersPerBlock:
    case kRegistersPerMultiprocessor:
      *value = 65536;
      break;
    default:
      *value = 0;
  }
  return 0;
}
int cuCtxGetCurrent(void** context) {
  *context = kContext;
  return 0;
}
int cuCtxGetDevice(int* device) {
  *device = 0;
  return 0;
}

int cuLibraryLoadData(void** library, const void* code, void* a, void* b, unsigned n, void* c, void* d, unsigned m) {
  *library = kLibrary;
  return 0;
}
int cuLibraryUnload(void* library) { return 0; }
int cuLibraryGetModule(void** module, void* library) {
  *module = kModule;
  return 0;
}
int cuLibraryGetKernelCount(unsigned* n, void* library) {
  *n = 1;
  return 0;
}
int cuLibraryEnumerateKernels(void** kernels, unsigned n, void* library) {
  for (unsigned i = 0; i < n; i++) kernels[i] = kKernel;
  return 0;
}
int cuLibraryGetKernel(void** kernel, void* library, const char* name) {
  *kernel = kKernel;
  return 0;
}
int cuLibraryGetGlobal(void** global, size_t* size_bytes, void* library, const char* name) {
  if (global) *global = kGlobal;
  if (size_bytes) *size_bytes = 64;
  return 0;
}

int cuModuleLoadData(void** module, const void* code) {
  *module = kModule;
  return 0;
}
int cuModuleLoadDataEx(void** module, const void* code, unsigned n, void* options, void* values) {
  *module = kModule;
  return 0;
}
int cuModuleUnload(void* module) { return 0; }
int cuModuleGetFunction(void** function, void* module, const char* name) {
  *function = kFunction;
  return 0;
}
int cuModuleGetGlobal_v2(void** global, size_t* size_bytes, void* module, const char* name) {
  if (global) *global = kGlobal;
  if (size_bytes) *size_bytes = 64;
  return 0;
}

int cuKernelGetFunction(void** function, void* kernel) {
  *function = kFunction;
  return 0;
}
int cuKernelGetAttribute(int* value, int attribute, void* kernel, int device) {
  *value = 0;
  return 0;
}
int cuKernelSetAttribute(int attribute, int value, void* kernel, int device) { return 0; }
int cuFuncGetAttribute(int* value, int attribute, void* function) {
  *value = attribute == 0 ? 1024 : (attribute == 4 ? 64 : 0);  // maximum threads per block, number of registers
  return 0;
}
int cuFuncSetAttribute(void* function, int attribute, int value) { return 0; }
int cuOccupancyMaxActiveBlocksPerMultiprocessor(int* n, void* function, int block, size_t shared_bytes) {
  *n = 1;
  return 0;
}
int cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int* n, void* function, int block, size_t shared_bytes,
                                                         unsigned flags) {
  *n = 1;
  return 0;
}
int cuOccupancyMaxActiveClusters(int* n, void* function, void* configuration) {
  *n = 66;
  return 0;
}
